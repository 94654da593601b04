//! The cells of a run: every system at every concurrency.

use tokenrouter_engine::Config;
use tokenrouter_engine::config::{Document, ThresholdConfig};

use crate::error::usage;
use crate::predict::Calibration;
use crate::spec::{RunSpec, System};

/// One measurement: a system at a concurrency.
pub(super) struct Cell {
    /// Its name in tables, and of its folder.
    pub(super) label: String,
    /// Requests in flight.
    pub(super) concurrency: usize,
    /// Thresholds of the configuration that are not feasible at this concurrency, and were shrunk.
    pub(super) shrunk: Option<Vec<u32>>,
    /// The configuration of the system; none for a server of whole systems.
    pub(super) config: Option<Config>,
    /// Whether it runs one model alone, and not the entry model of the configuration: then that model writes everything.
    pub(super) is_large: bool,
    /// The part of the run that it is.
    pub(super) spec: RunSpec,
}

/// All cells of a run.
pub(super) fn cells(spec: &RunSpec, document: &Document) -> anyhow::Result<Vec<Cell>> {
    let pace = spec.rate.map(|rate| format!("-r{rate}")).unwrap_or_default();
    if !spec.endpoint.is_empty() {
        let config = if spec.hops() { Some(Config::from_document(document)?) } else { None };
        let name = if spec.hops() { "standard-endpoints" } else { "endpoint" };
        let cell = |concurrency: &usize| Cell {
            label: format!("{name}-c{concurrency}{pace}"),
            concurrency: *concurrency,
            shrunk: None,
            config: config.clone(),
            is_large: false,
            spec: spec.cell(&System::Config, *concurrency),
        };
        return Ok(spec.concurrency.iter().map(cell).collect());
    }
    let mut config = Config::from_document(document)?;
    crate::device::place(&mut config, spec.device)?;
    if let Some(path) = &spec.calibration {
        Calibration::apply(path, &mut config, spec.any_calibration)?;
    }
    let names = config.model_names();
    let entry = names.get(config.entry_index()).cloned();
    let mut cells = Vec::new();
    for system in &spec.system {
        for concurrency in &spec.concurrency {
            let refuse = |why| usage(format!("{}: {why}", document.origin()));
            let asked = &config.batching.thresholds;
            let config = system.apply(&config, *concurrency).map_err(refuse)?;
            let shrunk = match (asked, &config.batching.thresholds) {
                (ThresholdConfig::Fixed(asked), ThresholdConfig::Fixed(used)) if asked != used => Some(asked.clone()),
                _ => None,
            };
            cells.push(Cell {
                label: format!("{}-c{concurrency}{pace}", system.to_string().replace(':', "-")),
                concurrency: *concurrency,
                shrunk,
                config: Some(config),
                is_large: matches!(system, System::Single(model) if Some(model) != entry.as_ref()),
                spec: spec.cell(system, *concurrency),
            });
        }
    }
    Ok(cells)
}
