//! `trbench figures`: one scenario file per figure, measured or computed, drawn, and put into a report.

mod gain;
mod grid;
mod palette;
mod report;
mod scenario;
mod validation;

pub use scenario::{Backend, Of, RunCells, ScenarioCommand, run as run_scenario};

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use indexmap::IndexMap;
use serde::Deserialize;

use crate::error::usage;
use crate::files::write_file;
use crate::results::origin;

/// Arguments of `trbench figures`.
#[derive(Debug, Clone, Args)]
pub struct FiguresArgs {
    /// Scenario files [default: all of `scenarios/`].
    #[arg(value_name = "SCENARIO")]
    scenarios: Vec<PathBuf>,
    /// Which profiles of the scenarios: latency profiles, or the real demo pair on this CPU.
    #[arg(long, value_delimiter = ',', default_value = "emulated,demo")]
    profile: Vec<Profile>,
    /// Folder for pictures, data and report [default: `results/figures`, with `--full` `results/figures-full`].
    #[arg(long, short, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Make figures again that are there already.
    #[arg(long)]
    force: bool,
    /// Four times the requests (or seconds) of the scenario files, and five trials, however long it takes.
    #[arg(long)]
    full: bool,
}

/// What `--full` does: requests and seconds are multiplied, trials replaced.
const FULL_FACTOR: u64 = 4;
const FULL_TRIALS: u64 = 5;

/// What a scenario runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Latency profiles in place of models.
    Emulated,
    /// The demo pair on this CPU.
    Demo,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Emulated => "emulated",
            Self::Demo => "demo",
        }
    }
}

/// A scenario file: what is measured, with its settings by profile.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
enum Scenario {
    /// Predicted and measured throughput over thresholds.
    Validate {
        title: String,
        /// What the paper shows.
        paper: String,
        profiles: IndexMap<Profile, validation::Settings>,
    },
    /// Gain of delayed batching over shares and latency ratios.
    Gain {
        title: String,
        /// See above.
        paper: String,
        profiles: IndexMap<Profile, gain::Settings>,
    },
    /// Runs over a grid of axes.
    Grid {
        title: String,
        /// See above.
        paper: String,
        profiles: IndexMap<Profile, grid::Settings>,
    },
}

impl Scenario {
    fn has(&self, profile: Profile) -> bool {
        match self {
            Self::Validate { profiles, .. } => profiles.contains_key(&profile),
            Self::Gain { profiles, .. } => profiles.contains_key(&profile),
            Self::Grid { profiles, .. } => profiles.contains_key(&profile),
        }
    }

    /// For `--full`.
    fn enlarge(&mut self) {
        match self {
            Self::Validate { profiles, .. } => profiles.values_mut().for_each(validation::Settings::enlarge),
            // Computed to the end in any case.
            Self::Gain { .. } => {}
            Self::Grid { profiles, .. } => profiles.values_mut().for_each(grid::Settings::enlarge),
        }
    }

    fn words(&self) -> (&str, &str) {
        let (Self::Validate { title, paper, .. } | Self::Gain { title, paper, .. } | Self::Grid { title, paper, .. }) =
            self;
        (title, paper)
    }
}

/// A figure that was made: its files and what they show.
#[derive(Debug, Clone)]
struct Figure {
    name: String,
    title: String,
    paper: String,
    /// What was measured, on what; Markdown.
    found: String,
}

/// Makes the figures and the report.
pub fn run(args: &FiguresArgs) -> anyhow::Result<ExitCode> {
    let mut scenarios = args.scenarios.clone();
    if scenarios.is_empty() {
        let folder = Path::new("scenarios");
        let entries = std::fs::read_dir(folder)
            .map_err(|error| usage(format!("cannot read `{}`: {error}; name scenario files", folder.display())))?;
        scenarios = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        scenarios.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
        scenarios.sort();
    }
    let default = if args.full { "results/figures-full" } else { "results/figures" };
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from(default));
    std::fs::create_dir_all(&out).map_err(|error| usage(format!("cannot create `{}`: {error}", out.display())))?;
    let mut figures = Vec::new();
    for path in &scenarios {
        let mut scenario = read(path)?;
        if args.full {
            scenario.enlarge();
        }
        for profile in &args.profile {
            if let Some(found) = make(&scenario, path, *profile, &out, args.force)? {
                let (title, paper) = scenario.words();
                let name = figure_name(path, *profile);
                figures.push(Figure { name, title: title.to_owned(), paper: paper.to_owned(), found });
            }
        }
    }
    report::write(&out, &figures)?;
    let manifest = serde_json::to_vec_pretty(&origin(&scenarios))?;
    write_file(&out.join("manifest.json"), &manifest)?;
    use std::io::Write as _;
    writeln!(std::io::stdout(), "{}", out.join("index.html").display())?;
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> anyhow::Result<Scenario> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| usage(format!("cannot read scenario `{}`: {error}", path.display())))?;
    serde_saphyr::from_str(&text).map_err(|error| usage(format!("scenario `{}`: {error}", path.display())))
}

/// Name of a figure's files.
fn figure_name(scenario: &Path, profile: Profile) -> String {
    let stem = scenario.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    format!("{stem}-{}", profile.name())
}

/// Makes one figure; `None` when the scenario has no such profile. What was found is kept beside the picture, so that an
/// interrupted run goes on where it stopped.
fn make(scenario: &Scenario, path: &Path, profile: Profile, out: &Path, force: bool) -> anyhow::Result<Option<String>> {
    if !scenario.has(profile) {
        return Ok(None);
    }
    let name = figure_name(path, profile);
    let note = out.join(format!("{name}.md"));
    if !force && note.is_file() {
        return Ok(Some(std::fs::read_to_string(&note)?));
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let made = match scenario {
        Scenario::Validate { profiles, .. } => validation::make(&profiles[&profile], folder)?,
        Scenario::Gain { profiles, .. } => gain::make(&profiles[&profile])?,
        Scenario::Grid { title, profiles, .. } => grid::make(&profiles[&profile], title, folder, out)?,
    };
    write_file(&out.join(format!("{name}.csv")), &made.csv)?;
    write_file(&out.join(format!("{name}.svg")), made.svg.as_bytes())?;
    write_file(&note, made.found.as_bytes())?;
    Ok(Some(made.found))
}

/// Data, picture and words.
struct Made {
    csv: Vec<u8>,
    svg: String,
    found: String,
}
