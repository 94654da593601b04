//! One process against two nodes on the same machine: time of a handoff, and throughput.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use comfy_table::Table;
use tokenrouter_core::{CommittedToken, Request, SamplingParams};
use tokenrouter_engine::node::link_latency;
use tokenrouter_engine::{Config, Engine, EngineError};

use super::on_this_machine;
use crate::error::usage;
use crate::fetch;
use crate::stats::quantile;

/// Arguments of `trbench bench-link`.
#[derive(Debug, Args)]
pub struct BenchLinkArgs {
    /// Handoffs that are timed in either direction.
    #[arg(long, value_parser = at_least_one(), default_value_t = 20_000)]
    rounds: usize,
    /// A system of two models whose throughput is measured, in one process and on two nodes of this machine. Without one,
    /// only the time of a handoff is measured.
    #[arg(long, short)]
    config: Option<PathBuf>,
    /// Requests of a run.
    #[arg(long, value_parser = at_least_one(), default_value_t = 16)]
    requests: usize,
    /// Tokens of an answer.
    #[arg(long, value_parser = at_least_one(), default_value_t = 64)]
    max_tokens: usize,
    /// Runs of each, in alternation; the median counts.
    #[arg(long, value_parser = at_least_one(), default_value_t = 5)]
    trials: usize,
}

fn at_least_one() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

/// Measures and prints a table.
pub fn run(args: &BenchLinkArgs) -> anyhow::Result<ExitCode> {
    handoffs(args.rounds)?;
    match &args.config {
        Some(path) => throughput(args, path),
        None => Ok(ExitCode::SUCCESS),
    }
}

const PAIR: &str = "models:\n  small: {emulated: {latency_ms: 1}}\n  large: {emulated: {latency_ms: 1}}\n\
                    routing: {method: random}\n";

/// The time of one way, without any model.
fn handoffs(rounds: usize) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("cannot make a folder for keys")?;
    let mut config = Config::built_in("bench-link", PAIR)?;
    on_this_machine(&mut config, folder.path())?;
    let latency = link_latency(&config, &config, rounds).map_err(EngineError::from)?;
    let mut table = Table::new();
    table.load_style(comfy_table::presets::ASCII_MARKDOWN);
    table.set_header(["one way of a handoff (microseconds)", "median", "90 %", "99 %", "99.9 %"]);
    let microseconds = |times: &[Duration], q: f64| {
        let times: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e6).collect();
        quantile(&times, q).unwrap_or_default()
    };
    for (name, times) in [("between threads", &latency.in_process), ("between nodes (loopback)", &latency.over_link)] {
        let at = |q: f64| format!("{:.1}", microseconds(times, q));
        table.add_row([name.to_owned(), at(0.5), at(0.9), at(0.99), at(0.999)]);
    }
    let added = microseconds(&latency.over_link, 0.5) - microseconds(&latency.in_process, 0.5);
    let mut out = std::io::stdout().lock();
    writeln!(out, "{table}\n\nadded by the network, median of {rounds}: {added:.1} microseconds\n")?;
    Ok(())
}

/// What a run came to.
struct Run {
    took: Duration,
    tokens: Vec<Vec<CommittedToken>>,
    handoffs: u64,
}

fn throughput(args: &BenchLinkArgs, path: &std::path::Path) -> anyhow::Result<ExitCode> {
    let folder = tempfile::tempdir().context("cannot make a folder for keys")?;
    let mut config = Config::from_file(path)?;
    if config.models.len() != 2 {
        return Err(usage(format!("{} has {} models, two nodes need 2", path.display(), config.models.len())));
    }
    fetch::ensure_sources(&config)?;
    on_this_machine(&mut config, folder.path())?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let share = (cores / config.models.len()).max(1);
    // The same for both: a node would take all cores of its machine.
    config.models.values_mut().filter(|model| model.threads == 0).for_each(|model| model.threads = share);
    config.system.max_queued = config.system.max_queued.max(args.requests);
    let names = config.model_names();
    let entry = config.entry_index();
    let mut times: [Vec<f64>; 2] = Default::default();
    let mut first: Option<Run> = None;
    for trial in 0..2 * args.trials {
        let nodes = trial % 2 == 1;
        let run = if nodes {
            let near = Engine::launch_node(&config, &names[entry])?;
            let mut there = config.clone();
            let address = near.peer_address().context("the entry model's node accepts connections")?;
            there.system.peer_endpoints[entry].advertise = format!("tcp://{address}");
            let _far = Engine::launch_node(&there, &names[1 - entry])?;
            measure(&near, args)?
        } else {
            measure(&Engine::launch(&config)?, args)?
        };
        let count: usize = run.tokens.iter().map(Vec::len).sum();
        times[usize::from(nodes)].push(count as f64 / run.took.as_secs_f64());
        match &first {
            None if run.handoffs == 0 => bail!("no request was handed over: the comparison would say nothing"),
            None => first = Some(run),
            Some(first) if first.tokens != run.tokens => {
                bail!("run {trial} committed other tokens than the first one: a fault of the engine");
            }
            Some(_) => {}
        }
    }
    report(args, &config, &times, first.map_or(0, |run| run.handoffs))
}

fn report(args: &BenchLinkArgs, config: &Config, times: &[Vec<f64>; 2], handoffs: u64) -> anyhow::Result<ExitCode> {
    let median = |values: &[f64]| quantile(values, 0.5).unwrap_or_default();
    let mut table = Table::new();
    table.load_style(comfy_table::presets::ASCII_MARKDOWN);
    table.set_header(["", "tokens/s (median)", "lowest", "highest", "to one process"]);
    for (name, values) in ["one process", "two nodes"].iter().zip(times) {
        let (low, high) =
            values.iter().fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(*value), high.max(*value)));
        let ratio = format!("{:.3}", median(values) / median(&times[0]));
        table.add_row([
            (*name).to_owned(),
            format!("{:.1}", median(values)),
            format!("{low:.1}"),
            format!("{high:.1}"),
            ratio,
        ]);
    }
    let emulated = if config.is_emulated() { " (emulated)" } else { "" };
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{table}\n\n{}{emulated}, {} requests of {} tokens, {handoffs} handoffs, {} runs of each; both commit the same \
         tokens",
        config.routing.method, args.requests, args.max_tokens, args.trials
    )?;
    Ok(ExitCode::SUCCESS)
}

const TEXTS: [&str; 4] = [
    "Explain in a few sentences how a sailing boat can go against the wind.",
    "A train leaves at noon with 60 km/h, another one an hour later with 90 km/h. When do they meet?",
    "Write a function that returns the n-th Fibonacci number, and explain it.",
    "List five things to check before a long journey by bicycle.",
];

fn prompt(engine: &Engine, index: usize) -> anyhow::Result<Vec<u32>> {
    match engine.text() {
        Some(text) => Ok(text.encode(TEXTS[index % TEXTS.len()])?),
        None => Ok((0..32 + index as u32).map(|position| (position * 31 + index as u32) % 1000).collect()),
    }
}

fn measure(engine: &Engine, args: &BenchLinkArgs) -> anyhow::Result<Run> {
    let request = |index: usize| -> anyhow::Result<Request> {
        let sampling = SamplingParams { max_tokens: args.max_tokens, ignore_eos: true, ..SamplingParams::default() };
        Ok(Request::new(prompt(engine, index)?, sampling, index as u64))
    };
    // The link is there, and the models are warm.
    engine.generate(request(0)?)?.collect_blocking();
    let requests = (0..args.requests).map(request).collect::<anyhow::Result<Vec<_>>>()?;
    let start = Instant::now();
    let streams = requests.into_iter().map(|request| engine.generate(request)).collect::<Result<Vec<_>, _>>()?;
    let (mut tokens, mut handoffs) = (Vec::new(), 0);
    for stream in streams {
        let (committed, reason, stats) = stream.collect_blocking();
        if let Some(why) = reason.error() {
            bail!("a request failed: {why}");
        }
        handoffs += stats.handoffs;
        tokens.push(committed);
    }
    Ok(Run { took: start.elapsed(), tokens, handoffs })
}
