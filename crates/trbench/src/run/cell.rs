//! The cells of a run: every system at every concurrency.

use std::path::Path;

use tokenrouter_engine::Config;

use crate::error::usage;
use crate::predict::Calibration;
use crate::spec::{RunSpec, System};

/// One measurement: a system at a concurrency.
pub(super) struct Cell {
    /// Its name in tables, and of its folder.
    pub(super) label: String,
    /// Requests in flight.
    pub(super) concurrency: usize,
    /// The configuration of the system; none for a server of whole systems.
    pub(super) config: Option<Config>,
    /// The part of the run that it is.
    pub(super) spec: RunSpec,
}

/// All cells of a run, from a configuration's origin and text.
pub(super) fn cells(spec: &RunSpec, origin: &str, text: &str) -> anyhow::Result<Vec<Cell>> {
    let pace = spec.rate.map(|rate| format!("-r{rate}")).unwrap_or_default();
    if !spec.endpoint.is_empty() {
        let config = if spec.hops() { Some(Config::from_yaml(text, Path::new(origin))?) } else { None };
        let name = if spec.hops() { "standard-endpoints" } else { "endpoint" };
        let cell = |concurrency: &usize| Cell {
            label: format!("{name}-c{concurrency}{pace}"),
            concurrency: *concurrency,
            config: config.clone(),
            spec: spec.cell(&System::Config, *concurrency),
        };
        return Ok(spec.concurrency.iter().map(cell).collect());
    }
    let mut config = Config::from_yaml(text, Path::new(origin))?;
    crate::device::place(&mut config, spec.device)?;
    if let Some(path) = &spec.calibration {
        Calibration::read(path)?.apply(&mut config)?;
    }
    let mut cells = Vec::new();
    for system in &spec.system {
        for concurrency in &spec.concurrency {
            let config = system.apply(&config, *concurrency).map_err(|why| usage(format!("{origin}: {why}")))?;
            cells.push(Cell {
                label: format!("{}-c{concurrency}{pace}", system.to_string().replace(':', "-")),
                concurrency: *concurrency,
                config: Some(config),
                spec: spec.cell(system, *concurrency),
            });
        }
    }
    Ok(cells)
}
