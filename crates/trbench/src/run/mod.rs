//! `trbench run`: a workload against one or more systems, in process or over HTTP.

mod args;
mod arrivals;
mod backend;
mod completion;
mod http;
mod judge;
mod load;
mod profile;
mod progress;
mod record;
mod remote;
mod resume;
mod system;
mod trial;
mod workload;

use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;

use tokenrouter_engine::config::Document;
use tokenrouter_engine::routing::replay::Replay;
use tokenrouter_engine::{Config, StepRecord};

use crate::cli::{Interrupted, usage};
use crate::results::{self, Manifest, Summary};
use crate::{fetch, report};
use trial::Run;

pub use args::{NumPrompts, RunArgs};
pub use arrivals::Arrivals;
pub use judge::Judged;
pub(crate) use progress::spinner;
pub use record::Record;
pub use system::System;
pub use workload::Workload;

/// The configuration used when none is given.
const DEFAULT_CONFIG: (&str, &str) = ("config/rstitch/demo.yaml", include_str!("../../../../config/rstitch/demo.yaml"));

/// One measurement: a system at a concurrency.
struct Cell {
    label: String,
    concurrency: usize,
    config: Option<Config>,
}

/// Runs the workload on every system at every concurrency, writes the results, prints the report.
pub fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let (summaries, root, interrupted) = execute(args)?;
    report::print(&summaries, args.output, std::io::stdout().lock())?;
    note(&format!("results in {}", root.display()));
    if interrupted {
        return Err(Interrupted(format!("partial results are in `{}`", root.display())).into());
    }
    if summaries.iter().all(|summary| summary.completed == 0) {
        let reason = summaries.iter().find_map(|summary| summary.first_error.clone()).unwrap_or_default();
        anyhow::bail!("no request completed: {reason}");
    }
    Ok(ExitCode::SUCCESS)
}

/// The same for other commands: nothing is printed on stdout, and an interrupt is an error.
pub(crate) fn measure(args: &RunArgs) -> anyhow::Result<Vec<Summary>> {
    let (summaries, root, interrupted) = execute(args)?;
    if interrupted {
        return Err(Interrupted(format!("partial results are in `{}`", root.display())).into());
    }
    Ok(summaries)
}

/// The configuration with the keys of `--set`.
pub(crate) fn config_document(args: &RunArgs) -> anyhow::Result<Document> {
    let document = match &args.config {
        Some(path) => Document::from_file(path)?,
        None => Document::built_in(DEFAULT_CONFIG.0, DEFAULT_CONFIG.1)?,
    };
    Ok(document.set(&args.set)?)
}

/// Measures all cells; returns what was measured, where it is, and whether it was interrupted.
fn execute(args: &RunArgs) -> anyhow::Result<(Vec<Summary>, PathBuf, bool)> {
    let document = config_document(args)?;
    args.check()?;
    let cells = plan(args, &document)?;
    let (dataset_name, items) = workload::items(args)?;
    let replay = replay(args, &cells, items.len() * args.repeats)?;
    let root = match &args.resume {
        Some(dir) if !dir.is_dir() => {
            return Err(usage(format!("--resume: `{}` is not a folder with results", dir.display())));
        }
        given => results::create_root(given.as_deref().or(args.output_dir.as_deref()), args.workload.name())?,
    };
    if let Some(config) = cells.iter().find_map(|cell| cell.config.as_ref()).filter(|_| args.endpoint.is_empty()) {
        fetch::ensure_sources(config)?;
    }
    let origin = document.origin().path().display().to_string();
    let manifest = Manifest::collect(args, &origin, &document.text(), &dataset_name, &items);
    let run = Run { args, items: &items, manifest: &manifest, replay: replay.as_ref() };
    let mut summaries = Vec::new();
    let mut interrupted = false;
    for cell in &cells {
        let dir = if cells.len() == 1 { root.clone() } else { root.join(&cell.label) };
        let (summary, stopped) = run.cell(cell, &dir)?;
        summaries.push(summary);
        interrupted = stopped;
        if stopped {
            break;
        }
    }
    Ok((summaries, root, interrupted))
}

fn plan(args: &RunArgs, document: &Document) -> anyhow::Result<Vec<Cell>> {
    let mut cells = Vec::new();
    let pace = args.rate.map(|rate| format!("-r{rate}")).unwrap_or_default();
    if !args.endpoint.is_empty() {
        let config = if args.hops() { Some(Config::from_document(document)?) } else { None };
        let name = if args.hops() { "standard-endpoints" } else { "endpoint" };
        cells.extend(args.concurrency.iter().map(|concurrency| Cell {
            label: format!("{name}-c{concurrency}{pace}"),
            concurrency: *concurrency,
            config: config.clone(),
        }));
        return Ok(cells);
    }
    let mut config = Config::from_document(document)?;
    crate::gpu::place(&mut config, args.device)?;
    if let Some(path) = &args.calibration {
        crate::predict::Calibration::read(path)?.apply(&mut config)?;
    }
    for system in &args.system {
        for concurrency in &args.concurrency {
            let label = format!("{}-c{concurrency}{pace}", system.to_string().replace(':', "-"));
            let config = Some(
                system.apply(&config, *concurrency).map_err(|why| usage(format!("{}: {why}", document.origin())))?,
            );
            cells.push(Cell { label, concurrency: *concurrency, config });
        }
    }
    Ok(cells)
}

/// The recorded decisions to repeat, for the models of all cells.
fn replay(args: &RunArgs, cells: &[Cell], requests: usize) -> anyhow::Result<Option<Replay>> {
    let Some(path) = &args.replay else { return Ok(None) };
    let (path, traces) = crate::trace::read(path)?;
    let refuse = |why: String| usage(format!("--replay `{}`: {why}", path.display()));
    let names = cells.iter().filter_map(|cell| cell.config.as_ref()).map(Config::model_names);
    if let Some(names) = names.clone().find(|names| traces.iter().any(|trace| trace.models != *names)) {
        let recorded = traces[0].models.join(", ");
        return Err(refuse(format!("recorded with the models {recorded}, this run has {}", names.join(", "))));
    }
    let recorded: HashMap<u64, Vec<StepRecord>> =
        traces.into_iter().map(|trace| (trace.id, trace.steps.into_iter().map(|step| step.record).collect())).collect();
    if let Some(id) = (0..requests as u64).find(|id| !recorded.contains_key(id)) {
        return Err(refuse(format!("request {id} of {requests} was not recorded")));
    }
    let models = names.clone().map(|names| names.len()).max().unwrap_or_default();
    Replay::new(models, recorded).map(Some).map_err(refuse)
}

/// A line for the person at the terminal; nothing when stderr is not one.
pub(crate) fn note(line: &str) {
    use std::io::Write as _;
    if std::io::stderr().is_terminal() {
        let _best_effort = writeln!(std::io::stderr(), "{line}");
    }
}
