//! The command line: subcommands, exit codes, error rendering.

mod help;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use tokenrouter_engine::EngineError;
use tokenrouter_engine::config::{ConfigError, Document};
use tokenrouter_engine::runnable::check;

use crate::error::{INTERRUPTED, Interrupted, UsageError};
use crate::terminal::say;
use crate::{
    compare, convert, dataset, doctor, draft, fetch, figures, generate, gpu, nodes, optimize, plan, plan_memory,
    predict, report, run, serve, simulate, soak, sweep, trace, train,
};

/// Token-level LLM routing: benchmark, serve, and model the throughput.
#[derive(Debug, Parser)]
#[command(name = "trbench", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// In the order of `--help`, whose groups are in [`help::GROUPS`].
#[derive(Debug, Subcommand)]
enum Command {
    /// Run a workload against a routed system and print a report.
    Run(Box<run::RunArgs>),
    /// Print the tables of finished runs.
    Report(report::ReportArgs),
    /// Compare two results: how much faster one is, with its interval.
    Compare(compare::CompareArgs),
    /// Make the figures of scenario files, with data and a report.
    Figures(figures::FiguresArgs),
    /// List the cells of a scenario, or measure them here or on a cluster.
    Scenario {
        #[command(subcommand)]
        command: figures::ScenarioCommand,
    },
    /// Show one request of a traced run: its text by origin, and its switches.
    Trace(trace::TraceArgs),
    /// Find the best delayed-batching thresholds with the throughput model.
    Optimize(Box<optimize::OptimizeArgs>),
    /// Say how long requests take at a rate of arrivals, what is needed for an objective, and whether routing pays.
    Plan(Box<plan::PlanArgs>),
    /// Measure step times, routing and commit matrices of a system, for the throughput model.
    Calibrate(predict::CalibrateArgs),
    /// Compare predicted with measured throughput over thresholds and numbers of requests.
    Validate(predict::ValidateArgs),
    /// Show how adaptive thresholds follow a change of the routing probability.
    Adapt(predict::AdaptArgs),
    /// Find the threshold that gives a wanted share of the large model, from the scores of a traced run.
    SweepThreshold(sweep::SweepArgs),
    /// Compute how many tokens fit into GPU memory next to the weights; no GPU is needed.
    PlanMemory(plan_memory::PlanArgs),
    /// Serve a routed system over an OpenAI-compatible HTTP API.
    Serve(serve::ServeArgs),
    /// Make the key of a node, for a system whose models run on two nodes.
    Keygen(nodes::KeygenArgs),
    /// Fetch and list model weights.
    Models {
        #[command(subcommand)]
        command: fetch::ModelsCommand,
    },
    /// List, check and fetch data sets.
    Datasets {
        #[command(subcommand)]
        command: dataset::DatasetsCommand,
    },
    /// Train a router head (R2R, CITER, Co-LLM) for a pair of models.
    TrainRouter(Box<train::TrainArgs>),
    /// Turn the authors' router checkpoints into head files, without executing anything in them.
    ConvertRouter(convert::ConvertArgs),
    /// Make a small model from a large one: drop layers, fit a linear patch at each gap.
    MakeDraft(Box<draft::DraftArgs>),
    /// Let a model write text, and keep the likeliest tokens of every position: data to train a student on.
    Generate(generate::GenerateArgs),
    /// Check configurations, or print the reference of every key.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Say what this machine has and what is missing: cores, instructions, memory, GPUs, cache, demo model.
    Doctor(doctor::DoctorArgs),
    /// Run the scheduler under virtual time, random schedules and faults, and check what it promises.
    Simulate(simulate::SimulateArgs),
    /// Overload a routed system, cancel some requests, and check that nothing is lost.
    Soak(soak::SoakArgs),
    /// Check the CUDA kernels on a GPU, and compare their speed with the device's bandwidth.
    BenchKernels(gpu::BenchKernelsArgs),
    /// Measure the cost of a handoff between two nodes on this machine, and compare their throughput with one process.
    BenchLink(nodes::BenchLinkArgs),
    /// Print the completion script of a shell.
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print every key with its default and meaning, as YAML.
    Reference,
    /// Print the table of routing methods, as Markdown.
    Algorithms,
    /// Check configuration files, and whether this machine has the files and cores that they name.
    Check {
        /// YAML files.
        #[arg(required = true)]
        files: Vec<std::path::PathBuf>,
    },
}

/// Variables of `trbench run` whose flags were renamed: argument, new name, old name.
const OLD_VARIABLES: [(&str, &str, &str); 2] =
    [("output_dir", "TRBENCH_OUT", "TRBENCH_OUTPUT_DIR"), ("timeline", "TRBENCH_TIMELINE", "TRBENCH_PROFILE")];

/// The command with its help in groups.
pub fn command() -> clap::Command {
    let set = |name: &str| std::env::var_os(name).is_some();
    let old: Vec<_> = OLD_VARIABLES.into_iter().filter(|(_, new, old)| set(old) && !set(new)).collect();
    help::grouped(Cli::command()).mut_subcommand("run", |run| {
        old.into_iter().fold(run, |run, (arg, _, old)| run.mut_arg(arg, |arg| arg.env(old)))
    })
}

impl Cli {
    /// Parses the command line of this process; ends the process after `--help`, `--version` and mistakes.
    pub fn from_command_line() -> Self {
        Self::from_arg_matches(&command().get_matches()).unwrap_or_else(|error| error.exit())
    }
}

/// Runs a parsed command line and turns its result into an exit code.
pub fn main(cli: Cli) -> ExitCode {
    let result = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::SweepThreshold(args) => sweep::run(&args),
        Command::Calibrate(args) => predict::run_calibrate(&args),
        Command::Adapt(args) => predict::run_adapt(&args),
        Command::Figures(args) => figures::run(&args),
        Command::Scenario { command } => figures::run_scenario(&command),
        Command::Validate(args) => predict::run_validate(&args),
        Command::Optimize(args) => optimize::run(*args),
        Command::Plan(args) => plan::run(&args),
        Command::MakeDraft(args) => draft::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::TrainRouter(args) => train::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::PlanMemory(args) => plan_memory::run(&args),
        Command::BenchKernels(args) => gpu::run(&args),
        Command::Keygen(args) => nodes::run_keygen(&args),
        Command::BenchLink(args) => nodes::run_bench_link(&args),
        Command::Models { command } => fetch::run(&command),
        Command::ConvertRouter(args) => convert::run(&args),
        Command::Datasets { command } => dataset::run(&command),
        Command::Config { command } => config(&command),
        Command::Completions { shell } => completions(shell),
    };
    result.unwrap_or_else(|error| fail(&error))
}

fn fail(error: &anyhow::Error) -> ExitCode {
    // A closed pipe (`trbench report | head`) is the reader's choice, not a failure.
    let broken_pipe = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    };
    if error.chain().any(broken_pipe) {
        return ExitCode::SUCCESS;
    }
    let _nowhere_to_complain = writeln!(std::io::stderr(), "error: {error:#}");
    let is_usage = error.chain().any(|cause| {
        cause.is::<UsageError>()
            || cause.is::<tokenrouter_engine::config::ConfigError>()
            || matches!(
                cause.downcast_ref::<EngineError>(),
                Some(EngineError::Config(_) | EngineError::Unusable(_) | EngineError::Node(_))
            )
    });
    match () {
        () if error.is::<Interrupted>() => ExitCode::from(INTERRUPTED),
        () if is_usage => ExitCode::from(2),
        () => ExitCode::FAILURE,
    }
}

fn config(command: &ConfigCommand) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    match command {
        ConfigCommand::Reference => out.write_all(tokenrouter_engine::config::reference_yaml().as_bytes())?,
        ConfigCommand::Algorithms => {
            out.write_all(tokenrouter_core::routing::registry::reference_markdown().as_bytes())?;
        }
        ConfigCommand::Check { files } => {
            // All files are looked at; the last error ends the command, as any other one would.
            let mut wrong: Option<ConfigError> = None;
            for file in files {
                match Document::from_file(file).and_then(|document| check(&document)) {
                    Ok(config) => {
                        writeln!(out, "{}: ok, models {}", file.display(), config.model_names().join(", "))?;
                    }
                    Err(error) => {
                        if let Some(earlier) = wrong.replace(error) {
                            say(&format!("error: {earlier}"));
                        }
                    }
                }
            }
            if let Some(error) = wrong {
                return Err(error.into());
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn completions(shell: clap_complete::Shell) -> anyhow::Result<ExitCode> {
    // Into memory first: a closed pipe is not worth a panic.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "trbench", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
