//! `trbench run`: a workload against one or more systems, in process or over HTTP.

mod backend;
mod load;
mod profile;
mod progress;
mod system;
mod workload;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use tokenrouter_engine::{Config, Engine};

use crate::cli::{Interrupted, usage};
use crate::dataset::{Item, Lengths};
use crate::report::{self, Format};
use crate::results::{self, Manifest, Summary};
use crate::{fetch, run::backend::Backend};

pub use load::{Outcome, Record};
pub(crate) use progress::spinner;
pub use system::System;
pub use workload::Workload;

/// The configuration used when none is given.
const DEFAULT_CONFIG: (&str, &str) = ("config/rstitch/demo.yaml", include_str!("../../../../config/rstitch/demo.yaml"));

/// Arguments of `trbench run`. Every flag can also be set as `TRBENCH_<FLAG>` in the environment.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Which workload.
    #[arg(long, env = "TRBENCH_WORKLOAD", default_value = "aime")]
    pub workload: Workload,
    /// Configuration of the routed system [default: the built-in config/rstitch/demo.yaml].
    #[arg(long, short, env = "TRBENCH_CONFIG")]
    pub config: Option<PathBuf>,
    /// A calibration of this system (`trbench calibrate`): thresholds of `config` and `delayed` are computed from it.
    #[arg(long, env = "TRBENCH_CALIBRATION", conflicts_with = "endpoint")]
    pub calibration: Option<PathBuf>,
    /// Systems to run: `config` (as configured), `delayed`, `async` (all thresholds 1), `async-no-resume`,
    /// `single:MODEL`; a comma list.
    #[arg(long, env = "TRBENCH_SYSTEM", value_delimiter = ',', default_value = "config")]
    pub system: Vec<System>,
    /// Requests kept in flight (closed loop); a comma list runs one after the other.
    #[arg(long, env = "TRBENCH_CONCURRENCY", value_delimiter = ',', default_value = "4")]
    pub concurrency: Vec<usize>,
    /// Problems, prompts or sessions of the dataset to use, from its start: a number, or `all`.
    #[arg(long, env = "TRBENCH_NUM_PROMPTS", default_value = "16")]
    pub num_prompts: NumPrompts,
    /// Times that each item is asked.
    #[arg(long, env = "TRBENCH_REPEATS", default_value_t = 1)]
    pub repeats: usize,
    /// Most tokens per answer.
    #[arg(long, env = "TRBENCH_MAX_TOKENS", default_value_t = 256)]
    pub max_tokens: usize,
    /// Go on after the end token, so that every answer has `--max-tokens` tokens.
    #[arg(long, env = "TRBENCH_IGNORE_EOS")]
    pub ignore_eos: bool,
    /// Sampling temperature; 0 is greedy.
    #[arg(long, env = "TRBENCH_TEMPERATURE", default_value_t = 0.0)]
    pub temperature: f32,
    /// Words in a prompt of `--workload random`: a number such as 512, or a range such as 256-1024.
    #[arg(long, env = "TRBENCH_INPUT_LEN")]
    pub input_len: Option<Lengths>,
    /// File with problems or sessions instead of the built-in ones: JSONL, JSON, Parquet or .traj.
    #[arg(long, env = "TRBENCH_DATASET_PATH")]
    pub dataset_path: Option<PathBuf>,
    /// OpenAI-compatible server to use instead of an engine in this process, such as http://127.0.0.1:30000.
    #[arg(long, env = "TRBENCH_ENDPOINT", conflicts_with_all = ["config", "system"])]
    pub endpoint: Option<String>,
    /// Model name sent to `--endpoint`.
    #[arg(long, env = "TRBENCH_MODEL", default_value = "default")]
    pub model: String,
    /// Folder for results [default: results/TIME-WORKLOAD].
    #[arg(long, env = "TRBENCH_OUTPUT_DIR")]
    pub output_dir: Option<PathBuf>,
    /// Write every step of every request to `trace.jsonl`, for `trbench trace` and `trbench sweep-threshold`.
    #[arg(long, env = "TRBENCH_TRACE", conflicts_with = "endpoint")]
    pub trace: bool,
    /// Record what every subserver does when, and write it to `profile.json` as a Chrome trace.
    #[arg(long, env = "TRBENCH_PROFILE", conflicts_with = "endpoint")]
    pub profile: bool,
    /// Seed of all draws.
    #[arg(long, env = "TRBENCH_SEED", default_value_t = 0)]
    pub seed: u64,
    /// Format of the report on stdout.
    #[arg(long, env = "TRBENCH_OUTPUT", default_value = "table")]
    pub output: Format,
}

/// How many items of a dataset to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumPrompts {
    /// All of them, once.
    All,
    /// This many, from the start.
    First(usize),
}

impl std::str::FromStr for NumPrompts {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "all" => Ok(Self::All),
            Ok(0) | Err(_) => Err("expected a number above 0, or `all`".into()),
            Ok(number) => Ok(Self::First(number)),
        }
    }
}

/// One measurement: a system at a concurrency.
struct Cell {
    label: String,
    concurrency: usize,
    config: Option<Config>,
}

/// Runs the workload on every system at every concurrency, writes the results, prints the report.
pub fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let (origin, text) = match &args.config {
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|error| usage(format!("cannot read configuration `{}`: {error}", path.display())))?;
            (path.display().to_string(), text)
        }
        None => (DEFAULT_CONFIG.0.to_owned(), DEFAULT_CONFIG.1.to_owned()),
    };
    let cells = plan(args, &origin, &text)?;
    let (dataset_name, items) = workload::items(args)?;
    let root = results::create_root(args.output_dir.as_deref(), args.workload.name())?;
    if let Some(config) = cells.iter().find_map(|cell| cell.config.as_ref()) {
        fetch::ensure_sources(config)?;
    }
    let manifest = Manifest::collect(args, &origin, &text, &dataset_name, &items);
    let mut summaries = Vec::new();
    let mut interrupted = false;
    for cell in &cells {
        let dir = if cells.len() == 1 { root.clone() } else { root.join(&cell.label) };
        let (summary, stopped) = run_cell(args, cell, &items, &dir, &manifest)?;
        summaries.push(summary);
        interrupted = stopped;
        if stopped {
            break;
        }
    }
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

fn plan(args: &RunArgs, origin: &str, text: &str) -> anyhow::Result<Vec<Cell>> {
    if let Some(bad) = args.concurrency.iter().find(|n| !(1..=4096).contains(*n)) {
        return Err(usage(format!("--concurrency {bad} is not allowed, allowed are 1 to 4096")));
    }
    for (flag, value) in [("--repeats", args.repeats), ("--max-tokens", args.max_tokens)] {
        if !(1..=1_000_000).contains(&value) {
            return Err(usage(format!("{flag} {value} is not allowed, allowed are 1 to 1000000")));
        }
    }
    let mut cells = Vec::new();
    if args.endpoint.is_some() {
        cells.extend(args.concurrency.iter().map(|concurrency| Cell {
            label: format!("endpoint-c{concurrency}"),
            concurrency: *concurrency,
            config: None,
        }));
        return Ok(cells);
    }
    let mut config = Config::from_yaml(text, Path::new(origin))?;
    if let Some(path) = &args.calibration {
        crate::predict::Calibration::read(path)?.apply(&mut config)?;
    }
    for system in &args.system {
        for concurrency in &args.concurrency {
            let label = format!("{}-c{concurrency}", system.to_string().replace(':', "-"));
            let config = Some(system.apply(&config, *concurrency).map_err(|why| usage(format!("{origin}: {why}")))?);
            cells.push(Cell { label, concurrency: *concurrency, config });
        }
    }
    Ok(cells)
}

fn run_cell(
    args: &RunArgs,
    cell: &Cell,
    items: &[Item],
    dir: &Path,
    manifest: &Manifest,
) -> anyhow::Result<(Summary, bool)> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create `{}`", dir.display()))?;
    let backend = match (&cell.config, &args.endpoint) {
        (Some(config), _) => {
            let bar = spinner("loading models");
            let start = Instant::now();
            let mut config = config.clone();
            config.system.profile |= args.profile;
            let engine = Engine::launch(&config)?;
            bar.finish_and_clear();
            for line in engine.info().models.iter().chain(&engine.info().warnings) {
                note(line);
            }
            note(&format!("{}: loaded in {:.1} s", cell.label, start.elapsed().as_secs_f64()));
            Backend::Engine(Arc::new(engine))
        }
        (None, Some(url)) => Backend::http(url, &args.model)?,
        (None, None) => anyhow::bail!("neither a configuration nor an endpoint"),
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the client")?;
    let before = backend.stats();
    let outcome = runtime.block_on(load::closed_loop(&backend, items, args, cell.concurrency));
    let models = backend.stats().map(|after| results::model_summaries(&after, before.as_ref()));
    let summary = Summary::new(&cell.label, cell.concurrency, &outcome, models, backend.info());
    results::write(dir, &outcome.records, &summary, manifest)?;
    if args.trace {
        crate::trace::write(dir, &outcome.traces)?;
    }
    if let (true, Backend::Engine(engine)) = (args.profile, &backend) {
        profile::write(dir, engine)?;
    }
    Ok((summary, outcome.interrupted))
}

/// A line for the person at the terminal; nothing when stderr is not one.
fn note(line: &str) {
    use std::io::Write as _;
    if std::io::stderr().is_terminal() {
        let _best_effort = writeln!(std::io::stderr(), "{line}");
    }
}
