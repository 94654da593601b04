//! `trbench scenario`: the cells of scenarios, measured here or as the tasks of a Slurm job array.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};

use super::grid::cells;
use super::{FiguresArgs, Profile, Scenario, figure_name, make, read};
use crate::error::usage;
use crate::files::write_file;
use crate::terminal::note;

/// What `trbench scenario` can do.
#[derive(Debug, Subcommand)]
pub enum ScenarioCommand {
    /// Print the cells of a scenario: index, name, the flags of `trbench run`, and the spec for `trbench run --spec`, as
    /// JSON lines.
    Cells(Of),
    /// Measure the cells that are missing, then draw the figure. May be interrupted and repeated.
    Run(RunCells),
}

/// Which scenario.
#[derive(Debug, Clone, Args)]
pub struct Of {
    /// Scenario file.
    scenario: PathBuf,
    /// Which profile of the scenario.
    #[arg(long, default_value = "emulated")]
    profile: Profile,
}

/// Arguments of `trbench scenario run`.
#[derive(Debug, Clone, Args)]
pub struct RunCells {
    #[command(flatten)]
    of: Of,
    /// Where the cells run.
    #[arg(long, default_value = "local")]
    backend: Backend,
    /// Folder for results; on a cluster, one that all nodes see.
    #[arg(long, short, default_value = "results/figures", value_name = "DIR")]
    out: PathBuf,
    /// Print the job script instead of submitting it.
    #[arg(long)]
    dry_run: bool,
    /// A line for the job script, such as `--sbatch=--partition=gpu`; once for every option of `sbatch`.
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    sbatch: Vec<String>,
    /// Most cells at the same time; 0: no limit.
    #[arg(long, default_value_t = 0)]
    parallel: usize,
    /// Measure this cell only, and draw nothing: what a task of the array does.
    #[arg(long)]
    cell: Option<usize>,
}

/// Where cells run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// In this process, one after the other.
    Local,
    /// As tasks of a job array.
    Slurm,
}

/// Runs `trbench scenario`.
pub fn run(command: &ScenarioCommand) -> anyhow::Result<ExitCode> {
    match command {
        ScenarioCommand::Cells(of) => print_cells(of),
        ScenarioCommand::Run(args) => run_cells(args),
    }
}

fn print_cells(of: &Of) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    match of.read()? {
        Scenario::Grid { profiles, .. } => {
            for (index, cell) in cells::cells(&profiles[&of.profile], of.folder())?.iter().enumerate() {
                let (run, spec) = (cell.overrides.flags(), cell.overrides.file());
                writeln!(out, "{}", serde_json::json!({"cell": index, "name": cell.name(), "run": run, "spec": spec}))?;
            }
        }
        _ => writeln!(out, "{}", serde_json::json!({"cell": 0, "name": of.name()}))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn run_cells(args: &RunCells) -> anyhow::Result<ExitCode> {
    let scenario = args.of.read()?;
    if let Some(index) = args.cell {
        return args.one(&scenario, index);
    }
    if args.backend == Backend::Slurm {
        let missing = args.missing(&scenario)?;
        if args.dry_run {
            std::io::stdout().write_all(args.script(&missing)?.as_bytes())?;
            return Ok(ExitCode::SUCCESS);
        }
        if !missing.is_empty() {
            args.submit(&missing)?;
        }
        let left = args.missing(&scenario)?;
        if !left.is_empty() {
            let logs = args.logs();
            anyhow::bail!(
                "{} of {} cells failed, see `{}`; repeat the command for them",
                left.len(),
                missing.len(),
                logs.display()
            );
        }
    } else if args.dry_run {
        return Err(usage("--dry-run prints the job script of `--backend slurm`"));
    }
    super::run(&FiguresArgs {
        scenarios: vec![args.of.scenario.clone()],
        profile: vec![args.of.profile],
        out: Some(args.out.clone()),
        full: false,
        force: matches!(scenario, Scenario::Grid { .. }),
    })
}

impl Of {
    fn read(&self) -> anyhow::Result<Scenario> {
        let scenario = read(&self.scenario)?;
        if !scenario.has(self.profile) {
            let path = self.scenario.display();
            return Err(usage(format!("scenario `{path}` has no profile `{}`", self.profile.name())));
        }
        if let Scenario::Grid { profiles, .. } = &scenario {
            profiles[&self.profile].check().map_err(usage)?;
            // Mistakes are found here, and not by every task.
            cells::cells(&profiles[&self.profile], self.folder())?;
        }
        Ok(scenario)
    }

    fn folder(&self) -> &Path {
        self.scenario.parent().unwrap_or(Path::new(""))
    }

    fn name(&self) -> String {
        figure_name(&self.scenario, self.profile)
    }
}

impl RunCells {
    fn one(&self, scenario: &Scenario, index: usize) -> anyhow::Result<ExitCode> {
        std::fs::create_dir_all(&self.out)
            .map_err(|error| usage(format!("cannot create `{}`: {error}", self.out.display())))?;
        let count = match scenario {
            Scenario::Grid { profiles, .. } => {
                let settings = &profiles[&self.of.profile];
                let mut cells = cells::cells(settings, self.of.folder())?;
                let count = cells.len();
                if index < count {
                    let cell = cells.swap_remove(index);
                    cells::measure_one(cell, settings.calibrate, &self.out, &mut HashMap::new())?;
                    return Ok(ExitCode::SUCCESS);
                }
                count
            }
            _ if index == 0 => {
                make(scenario, &self.of.scenario, self.of.profile, &self.out, false)?;
                return Ok(ExitCode::SUCCESS);
            }
            _ => 1,
        };
        Err(usage(format!("--cell {index}: the scenario has {count} cells, counted from 0")))
    }

    /// Indices of the cells that are not measured.
    fn missing(&self, scenario: &Scenario) -> anyhow::Result<Vec<usize>> {
        let Scenario::Grid { profiles, .. } = scenario else {
            let done = self.out.join(format!("{}.md", self.of.name())).is_file();
            return Ok(if done { Vec::new() } else { vec![0] });
        };
        let cells = cells::cells(&profiles[&self.of.profile], self.of.folder())?;
        let mut missing = Vec::new();
        for (index, cell) in cells.iter().enumerate() {
            if cells::finished(&self.out.join("runs").join(cell.name()))?.is_none() {
                missing.push(index);
            }
        }
        Ok(missing)
    }

    fn logs(&self) -> PathBuf {
        self.out.join("slurm")
    }

    /// The job array: a task for each cell.
    fn script(&self, cells: &[usize]) -> anyhow::Result<String> {
        let binary = std::env::current_exe().context("cannot tell where this program is")?;
        let limit = if self.parallel > 0 { format!("%{}", self.parallel) } else { String::new() };
        let mut lines = vec![
            "#!/bin/bash".to_owned(),
            format!("#SBATCH --job-name=trbench-{}", self.of.name()),
            format!("#SBATCH --array={}{limit}", ranges(cells)),
            format!("#SBATCH --output={}", self.logs().join("%x-%a.log").display()),
            // A task that lost its node starts again, and goes on where it was.
            "#SBATCH --requeue".to_owned(),
        ];
        lines.extend(self.sbatch.iter().map(|option| format!("#SBATCH {option}")));
        lines.push(format!(
            "exec {} scenario run {} --profile {} --out {} --cell \"$SLURM_ARRAY_TASK_ID\"\n",
            quote(&binary.display().to_string()),
            quote(&self.of.scenario.display().to_string()),
            self.of.profile.name(),
            quote(&self.out.display().to_string()),
        ));
        Ok(lines.join("\n"))
    }

    /// Submits the array and waits for its end.
    fn submit(&self, cells: &[usize]) -> anyhow::Result<()> {
        let logs = self.logs();
        std::fs::create_dir_all(&logs)
            .map_err(|error| usage(format!("cannot create `{}`: {error}", logs.display())))?;
        let script = logs.join(format!("{}.sbatch", self.of.name()));
        write_file(&script, self.script(cells)?.as_bytes())?;
        note(&format!("{} cells as a job array, logs in {}", cells.len(), logs.display()));
        // Its stdout is the number of the job; ours is for results.
        let sbatch = Command::new("sbatch").args(["--parsable", "--wait"]).arg(&script).stdout(Stdio::null()).status();
        match sbatch {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(usage("--backend slurm: there is no `sbatch` here"))
            }
            // A failed task is a cell that is still missing: the caller counts those.
            result => result.map(drop).context("cannot run `sbatch`"),
        }
    }
}

/// Indices as Slurm writes them, such as `0-3,7`.
fn ranges(indices: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for index in indices {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            _ => ranges.push((*index, *index)),
        }
    }
    let text =
        |(first, last): &(usize, usize)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

/// For a shell.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_and_arguments_are_written_for_slurm_and_the_shell() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(ranges(&[4]), "4");
        assert_eq!(quote("it's"), r"'it'\''s'");
    }
}
