//! `trbench simulate`: the scheduler under virtual time, random schedules and faults.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use serde::Serialize;
use tokenrouter_core::simulation::Fault;
use tokenrouter_core::simulation::campaign::{self, Failure, Options, Summary};

use crate::error::usage;
use crate::terminal::counted;

/// Arguments of `trbench simulate`.
#[derive(Debug, clap::Args)]
pub struct SimulateArgs {
    /// Number of seeds. Each is a random system, workload and set of faults.
    #[arg(long, default_value_t = 1000, env = "TRBENCH_SIMULATE_SEEDS")]
    seeds: u64,
    /// First seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// What may go wrong: `all`, `none`, or some of delay, loss, duplicate, reorder, crash, partition, cancel, jitter.
    #[arg(long, value_delimiter = ',', default_value = "all")]
    faults: Vec<String>,
    /// Only these requests of every scenario, to replay a small one.
    #[arg(long, value_delimiter = ',')]
    requests: Option<Vec<u64>>,
    /// A mistake on purpose, which must be noticed. Needs a build with the feature `mutations`.
    #[arg(long)]
    mutation: Option<String>,
    /// Format of the result.
    #[arg(long, default_value = "text")]
    output: Output,
    /// The old word for `--output json`.
    #[arg(long, hide = true, conflicts_with = "output")]
    json: bool,
}

/// Form of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// Sentences.
    Text,
    /// Everything, as JSON.
    Json,
}

#[derive(Debug, Serialize)]
struct Report {
    seeds: u64,
    first_seed: u64,
    failing_seeds: Vec<u64>,
    events: u64,
    requests_completed: u64,
    requests_cancelled: u64,
    requests_failed_by_loss: u64,
    tokens: u64,
    messages_repeated: u64,
    messages_duplicated: u64,
    messages_early: u64,
    peer_losses: u64,
    seconds: f64,
    replay: Option<String>,
    violation: Option<String>,
}

/// Seeds that broke a promise.
struct Failures {
    seeds: Vec<u64>,
    /// The first one, made as small as it goes.
    first: Option<Failure>,
}

/// Runs the scenarios; exit code 1 when a promise was broken.
pub fn run(args: &SimulateArgs) -> anyhow::Result<ExitCode> {
    let options = options(args)?;
    let start = Instant::now();
    let seeds = args.seed..args.seed.saturating_add(args.seeds);
    let bar = counted(args.seeds, "seeds");
    let (summary, failures) = campaign::run_many(seeds, &options, &|| bar.inc(1));
    bar.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64();
    let seeds: Vec<u64> = failures.iter().map(|(seed, _)| *seed).collect();
    let first = seeds.first().and_then(|seed| campaign::shrink(*seed, &options));
    let failures = Failures { seeds, first };
    let mut out = std::io::stdout().lock();
    if args.json || args.output == Output::Json {
        let report = report(args, &summary, &failures, seconds);
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        write_text(&mut out, &summary, &failures, seconds)?;
    }
    Ok(if failures.seeds.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn options(args: &SimulateArgs) -> anyhow::Result<Options> {
    let faults = match &args.faults[..] {
        [all] if all == "all" => Options::all_faults().faults,
        [none] if none == "none" => Vec::new(),
        names => names.iter().map(|name| name.parse::<Fault>().map_err(usage)).collect::<Result<_, _>>()?,
    };
    let options = Options { faults, requests: args.requests.clone() };
    with_mutation(options, args.mutation.as_deref())
}

#[cfg(feature = "mutations")]
fn with_mutation(options: Options, name: Option<&str>) -> anyhow::Result<Options> {
    let mutation = name.map(|name| name.parse().map_err(usage)).transpose()?;
    Ok(Options { mutation, ..options })
}

#[cfg(not(feature = "mutations"))]
fn with_mutation(options: Options, name: Option<&str>) -> anyhow::Result<Options> {
    match name {
        Some(_) => Err(usage("`--mutation` needs a build with `--features mutations`")),
        None => Ok(options),
    }
}

fn report(args: &SimulateArgs, summary: &Summary, failures: &Failures, seconds: f64) -> Report {
    Report {
        seeds: summary.seeds,
        first_seed: args.seed,
        failing_seeds: failures.seeds.clone(),
        events: summary.events,
        requests_completed: summary.completed,
        requests_cancelled: summary.cancelled,
        requests_failed_by_loss: summary.failed,
        tokens: summary.tokens,
        messages_repeated: summary.repeated,
        messages_duplicated: summary.duplicates,
        messages_early: summary.early,
        peer_losses: summary.losses,
        seconds,
        replay: failures.first.as_ref().map(Failure::replay),
        violation: failures.first.as_ref().map(|failure| failure.message.clone()),
    }
}

fn write_text(
    out: &mut impl std::io::Write,
    summary: &Summary,
    failures: &Failures,
    seconds: f64,
) -> std::io::Result<()> {
    let Summary { seeds, events, completed, cancelled, failed, tokens, .. } = summary;
    let Summary { repeated, duplicates, early, losses, .. } = summary;
    writeln!(out, "{seeds} seeds, {events} events in {seconds:.1} s")?;
    writeln!(out, "requests: {completed} completed, {cancelled} cancelled, {failed} failed by the loss of a model")?;
    writeln!(out, "tokens: {tokens}, each compared with the one-request loop")?;
    writeln!(
        out,
        "links: {repeated} messages repeated, {duplicates} duplicates, {early} early, {losses} losses of peers"
    )?;
    let Some(failure) = &failures.first else {
        return writeln!(out, "all invariants held after every event");
    };
    let seeds = &failures.seeds;
    writeln!(out, "\nBROKEN by seeds {seeds:?}{}", if seeds.len() >= 8 { " and perhaps more" } else { "" })?;
    for line in &failure.trace {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "\nseed {}: {}\nreplay: {}", failure.seed, failure.message, failure.replay())
}
