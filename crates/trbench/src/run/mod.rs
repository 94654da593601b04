//! `trbench run`: a workload against one or more systems, in process or over HTTP.

mod args;
mod backend;
mod cell;
mod chunk;
mod clock;
mod completion;
mod fit;
mod http;
mod judge;
mod load;
mod log;
mod record;
mod remote;
mod replay;
mod reply;
mod resume;
mod timeline;
mod trial;
mod workload;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::error::{Interrupted, usage};
use crate::results::{self, Manifest, Summary};
use crate::spec::RunSpec;
use crate::terminal::say;
use crate::{fetch, interrupt, report};
use trial::Run;

pub use args::RunArgs;

/// Where the results of a run go.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Destination<'a> {
    /// Into a folder; one is named after time and workload when none is given. Results that are in it are refused.
    Folder(Option<&'a Path>),
    /// Into a folder, whose results are replaced.
    Replace(Option<&'a Path>),
    /// Into the folder of an earlier run, whose complete rows are kept.
    Resume(&'a Path),
}

/// What a run left behind.
struct Measured {
    summaries: Vec<Summary>,
    folder: PathBuf,
    interrupted: bool,
}

/// Runs the workload on every system at every concurrency, writes the results, prints the report.
pub fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let destination = match &args.resume {
        Some(folder) => Destination::Resume(folder),
        None if args.overwrite => Destination::Replace(args.output_dir.as_deref()),
        None => Destination::Folder(args.output_dir.as_deref()),
    };
    let Measured { summaries, folder, interrupted } = execute(&args.spec()?, destination, true)?;
    let printed = report::print(&summaries, args.output, std::io::stdout().lock());
    announce(&folder);
    if interrupted {
        // A terminal that was closed takes no report.
        return Err(partial(&folder));
    }
    printed?;
    if summaries.iter().all(|summary| summary.completed == 0) {
        let reason = summaries.iter().find_map(|summary| summary.first_error.clone()).unwrap_or_default();
        anyhow::bail!("no request completed: {reason}");
    }
    Ok(ExitCode::SUCCESS)
}

/// The same for other commands: nothing is printed on stdout, and an interrupt is an error.
pub(crate) fn measure(spec: &RunSpec, destination: Destination<'_>) -> anyhow::Result<Vec<Summary>> {
    let Measured { summaries, folder, interrupted } = execute(spec, destination, false)?;
    if interrupted {
        return Err(partial(&folder));
    }
    Ok(summaries)
}

/// Where the results are; nobody should have to look for them.
fn announce(folder: &Path) {
    say(&format!("results in {}", folder.display()));
}

fn partial(folder: &Path) -> anyhow::Error {
    Interrupted(format!("partial results are in `{}`", folder.display())).into()
}

/// Measures all cells; `tells` their thresholds.
fn execute(spec: &RunSpec, destination: Destination<'_>, tells: bool) -> anyhow::Result<Measured> {
    interrupt::start();
    let document = spec.document()?;
    spec.check()?;
    let cells = cell::cells(spec, &document)?;
    check_virtual_time(spec, &cells)?;
    let (dataset, items) = workload::items(spec)?;
    let configs = || cells.iter().filter_map(|cell| cell.config.as_ref());
    let replay = spec.replay.as_deref().map(|path| replay::read(path, configs(), items.len() * spec.repeats));
    let replay = replay.transpose()?;
    check_folder(spec, destination, cells.len())?;
    if let Some(config) = configs().next().filter(|_| spec.endpoint.is_empty()) {
        fetch::ensure_sources(config)?;
        fit::check(spec, &cells, &items)?;
    }
    let folder = folder(spec, destination)?;
    let manifest = Manifest::collect(spec, &results::Inputs { document: &document, dataset, items: &items });
    let run = Run {
        spec,
        items: &items,
        manifest: &manifest,
        replay: replay.as_ref(),
        resumes: matches!(destination, Destination::Resume(_)),
        tells,
    };
    let mut measured = Measured { summaries: Vec::new(), folder, interrupted: false };
    for cell in &cells {
        let dir = if cells.len() == 1 { measured.folder.clone() } else { measured.folder.join(&cell.label) };
        let (summary, interrupted) = run.cell(cell, &dir).inspect_err(|_| announce(&measured.folder))?;
        measured.summaries.push(summary);
        measured.interrupted = interrupted;
        if interrupted {
            break;
        }
    }
    Ok(measured)
}

/// Checks that a run in virtual time has nothing that computes.
fn check_virtual_time(spec: &RunSpec, cells: &[cell::Cell]) -> anyhow::Result<()> {
    let mut models = cells.iter().filter_map(|cell| cell.config.as_ref()).flat_map(|config| &config.models);
    match models.find(|(_, model)| spec.virtual_time && model.emulated.is_none()) {
        None => Ok(()),
        Some((name, _)) => Err(usage(format!(
            "--virtual-time needs emulated models (`emulated: {{latency_ms: ...}}`), and model `{name}` is none: what it \
             computes takes the time that it takes"
        ))),
    }
}

/// Checks that the results may go where they are to go.
fn check_folder(spec: &RunSpec, destination: Destination<'_>, cells: usize) -> anyhow::Result<()> {
    let dir = match destination {
        Destination::Replace(_) => return Ok(()),
        Destination::Folder(given) => return results::check_root(given, false),
        Destination::Resume(dir) => dir,
    };
    for (key, given) in [("trace", spec.trace), ("timeline", spec.timeline)] {
        if given {
            return Err(usage(format!("--{key} describes one trial from its beginning, without --resume")));
        }
    }
    let refuse = |why: &str| Err(usage(format!("--resume: `{}` {why}", dir.display())));
    match results::is_run_alone(dir) {
        _ if !dir.is_dir() => refuse("is not a folder"),
        _ if !results::is_run(dir) => refuse("holds no run: no `manifest.json` in it or in a folder below it"),
        true if cells > 1 => refuse(&format!("holds a run of one system at one concurrency, this run has {cells}")),
        false if cells == 1 => refuse("holds a run of several systems or concurrencies, this run has one"),
        _ => Ok(()),
    }
}

fn folder(spec: &RunSpec, destination: Destination<'_>) -> anyhow::Result<PathBuf> {
    let given = match destination {
        Destination::Resume(dir) => Some(dir),
        Destination::Replace(given) | Destination::Folder(given) => given,
    };
    let folder = results::create_root(given, spec.workload.name())?;
    if matches!(destination, Destination::Replace(_)) {
        results::clear(&folder)?;
    }
    Ok(folder)
}
