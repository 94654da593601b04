//! `trbench run`: a workload against one or more systems, in process or over HTTP.

mod args;
mod backend;
mod cell;
mod chunk;
mod completion;
mod http;
mod judge;
mod load;
mod profile;
mod record;
mod remote;
mod replay;
mod reply;
mod resume;
mod trial;
mod workload;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::error::{Interrupted, usage};
use crate::results::{self, Manifest, Summary};
use crate::spec::RunSpec;
use crate::terminal::note;
use crate::{fetch, report};
use trial::Run;

pub use args::RunArgs;

/// Where the results of a run go.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Destination<'a> {
    /// Into a folder; one is named after time and workload when none is given.
    Folder(Option<&'a Path>),
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
        None => Destination::Folder(args.output_dir.as_deref()),
    };
    let Measured { summaries, folder, interrupted } = execute(&args.spec()?, destination)?;
    report::print(&summaries, args.output, std::io::stdout().lock())?;
    note(&format!("results in {}", folder.display()));
    if interrupted {
        return Err(partial(&folder));
    }
    if summaries.iter().all(|summary| summary.completed == 0) {
        let reason = summaries.iter().find_map(|summary| summary.first_error.clone()).unwrap_or_default();
        anyhow::bail!("no request completed: {reason}");
    }
    Ok(ExitCode::SUCCESS)
}

/// The same for other commands: nothing is printed on stdout, and an interrupt is an error.
pub(crate) fn measure(spec: &RunSpec, destination: Destination<'_>) -> anyhow::Result<Vec<Summary>> {
    let Measured { summaries, folder, interrupted } = execute(spec, destination)?;
    if interrupted {
        return Err(partial(&folder));
    }
    Ok(summaries)
}

fn partial(folder: &Path) -> anyhow::Error {
    Interrupted(format!("partial results are in `{}`", folder.display())).into()
}

/// Measures all cells.
fn execute(spec: &RunSpec, destination: Destination<'_>) -> anyhow::Result<Measured> {
    let document = spec.document()?;
    spec.check()?;
    let cells = cell::cells(spec, &document)?;
    let (dataset, items) = workload::items(spec)?;
    let configs = || cells.iter().filter_map(|cell| cell.config.as_ref());
    let replay = spec.replay.as_deref().map(|path| replay::read(path, configs(), items.len() * spec.repeats));
    let replay = replay.transpose()?;
    let folder = folder(spec, destination)?;
    if let Some(config) = configs().next().filter(|_| spec.endpoint.is_empty()) {
        fetch::ensure_sources(config)?;
    }
    let manifest = Manifest::collect(spec, &results::Inputs { document: &document, dataset, items: &items });
    let run = Run {
        spec,
        items: &items,
        manifest: &manifest,
        replay: replay.as_ref(),
        resumes: matches!(destination, Destination::Resume(_)),
    };
    let mut measured = Measured { summaries: Vec::new(), folder, interrupted: false };
    for cell in &cells {
        let dir = if cells.len() == 1 { measured.folder.clone() } else { measured.folder.join(&cell.label) };
        let (summary, interrupted) = run.cell(cell, &dir)?;
        measured.summaries.push(summary);
        measured.interrupted = interrupted;
        if interrupted {
            break;
        }
    }
    Ok(measured)
}

fn folder(spec: &RunSpec, destination: Destination<'_>) -> anyhow::Result<PathBuf> {
    let given = match destination {
        Destination::Resume(dir) => {
            if !dir.is_dir() {
                return Err(usage(format!("--resume: `{}` is not a folder with results", dir.display())));
            }
            for (key, given) in [("trace", spec.trace), ("profile", spec.profile)] {
                if given {
                    return Err(usage(format!("--{key} describes one trial from its beginning, without --resume")));
                }
            }
            Some(dir)
        }
        Destination::Folder(given) => given,
    };
    results::create_root(given, spec.workload.name())
}
