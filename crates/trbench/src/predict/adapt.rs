//! `trbench adapt`: an adaptive engine under a routing that jumps, second by second, beside the best for each phase.

use std::cell::Cell;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::json;
use tokenrouter_core::request::ModelIndex;
use tokenrouter_core::routing::RoutingConfig;
use tokenrouter_core::routing::registry::SystemView;
use tokenrouter_core::routing::{BatchView, Candidate, Decision, RoutingPolicy, Row};
use tokenrouter_dtmc::{SearchOptions, optimize};
use tokenrouter_engine::config::ThresholdConfig;
use tokenrouter_engine::{Config, Engine};

use super::calibrate::window;
use super::{known_system, steady};
use crate::error::usage;
use crate::terminal::{Format, plain_table};

/// Arguments of `trbench adapt`.
#[derive(Debug, Clone, Args)]
pub struct AdaptArgs {
    /// Configuration of two models with `batching.thresholds: adaptive`. Its routing is replaced by random borrowing.
    #[arg(long, short)]
    config: PathBuf,
    /// Probability that the large model writes a token, one phase each.
    #[arg(long, value_delimiter = ',', default_value = "0.1,0.5,0.1")]
    phases: Vec<f64>,
    /// Seconds of a phase. Its second half is compared with the best fixed thresholds.
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Seed of all draws.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Output format.
    #[arg(long, default_value = "table")]
    output: Format,
}

/// Borrows a token from the large model with a probability that changes while requests run.
#[derive(Debug)]
struct Drifting {
    small: ModelIndex,
    large: ModelIndex,
    probability: Arc<AtomicU64>,
}

impl RoutingPolicy for Drifting {
    fn route(&self, batch: &mut BatchView<'_>) {
        let probability = f64::from_bits(self.probability.load(Relaxed));
        batch.decide(|row, _| match row.model == self.small {
            true if row.draw() < probability => Decision::Switch(self.large),
            true => Decision::Stay,
            false => Decision::Switch(self.small),
        });
    }

    fn send(&self, row: &mut Row, _to: ModelIndex) -> Candidate {
        if row.model == self.small { Candidate::Drop } else { Candidate::Commit }
    }
}

/// What a phase came to.
struct Phase {
    probability: f64,
    thresholds: Vec<usize>,
    changes: u64,
    tok_s: f64,
    best: Vec<u32>,
    best_tok_s: f64,
}

/// Runs the phases, then each phase's best thresholds, and prints both.
pub fn run(args: &AdaptArgs) -> anyhow::Result<ExitCode> {
    let config = Config::from_file(&args.config)?;
    check(args, &config)?;
    let mut phases = follow(args, &config)?;
    for phase in &mut phases {
        (phase.best, phase.best_tok_s) = best(args, &config, phase.probability)?;
    }
    print(&phases, args.output)
}

fn check(args: &AdaptArgs, config: &Config) -> anyhow::Result<()> {
    if config.batching.thresholds != ThresholdConfig::Adaptive {
        return Err(usage(format!("`{}`: `batching.thresholds` must be `adaptive`", args.config.display())));
    }
    if config.models.len() != 2 || !config.is_emulated() {
        return Err(usage(format!("`{}`: two emulated models are needed", args.config.display())));
    }
    if let Some(bad) = args.phases.iter().find(|p| !(0.01..=1.0).contains(*p)) {
        return Err(usage(format!("--phases {bad} is not allowed, allowed are 0.01 to 1")));
    }
    if !(1.0..=3600.0).contains(&args.seconds) {
        return Err(usage(format!("--seconds {} is not allowed, allowed are 1 to 3600", args.seconds)));
    }
    Ok(())
}

/// Tokens of a request: many, so that prompts do not matter.
const TOKENS: usize = 4000;

/// The phases on one adaptive engine, in a closed loop.
fn follow(args: &AdaptArgs, config: &Config) -> anyhow::Result<Vec<Phase>> {
    let probability = Arc::new(AtomicU64::new(args.phases[0].to_bits()));
    let engine = Engine::launch_with(config, &|system: &SystemView| {
        let (small, large) = system.pair("adapt")?;
        Ok(Box::new(Drifting { small, large, probability: Arc::clone(&probability) }))
    })?;
    let tokens = Cell::new(0);
    let window = window(args.seconds, TOKENS, args.seed);
    let requests = config.system.max_active as u64;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let clients = (0..requests).map(|c| steady::client_loop(&engine, c, &window, &tokens, stopped.clone()));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a client")?;
    runtime.block_on(async {
        let mut clients = std::pin::pin!(futures_util::future::try_join_all(clients));
        let phases = async {
            let mut done = Vec::new();
            for phase in &args.phases {
                probability.store(phase.to_bits(), Relaxed);
                done.push(watch(&engine, *phase, args.seconds, &tokens).await?);
            }
            anyhow::Ok(done)
        };
        let phases = tokio::select! {
            phases = phases => phases?,
            ended = &mut clients => bail!("the clients ended early: {:?}", ended.err()),
        };
        let _clients_wait = stop.send(true);
        clients.await?;
        Ok(phases)
    })
}

/// One phase: a line every second, and the throughput of its second half.
async fn watch(engine: &Engine, probability: f64, seconds: f64, tokens: &Cell<u64>) -> anyhow::Result<Phase> {
    let changes = || engine.snapshots().iter().map(|model| model.stats.threshold_changes).max().unwrap_or_default();
    let thresholds = || -> Vec<usize> { engine.snapshots().iter().map(|model| model.threshold).collect() };
    let (before, begin) = (changes(), Instant::now());
    let mut half = None;
    let mut last = (begin, tokens.get());
    while begin.elapsed().as_secs_f64() < seconds {
        let rest = (seconds - begin.elapsed().as_secs_f64()).clamp(0.001, 1.0);
        tokio::time::sleep(Duration::from_secs_f64(rest)).await;
        let now = (Instant::now(), tokens.get());
        let rate = (now.1 - last.1) as f64 / (now.0 - last.0).as_secs_f64();
        writeln!(
            std::io::stderr(),
            "P {probability}, {:4.0} s: {rate:7.1} tok/s, thresholds {:?}",
            begin.elapsed().as_secs_f64(),
            thresholds()
        )?;
        if half.is_none() && begin.elapsed().as_secs_f64() >= seconds / 2.0 {
            half = Some(now);
        }
        last = now;
    }
    let (start, first) = half.unwrap_or((begin, 0));
    let tok_s = (last.1 - first) as f64 / (last.0 - start).as_secs_f64().max(1e-9);
    let changes = changes() - before;
    Ok(Phase { probability, thresholds: thresholds(), changes, tok_s, best: Vec::new(), best_tok_s: 0.0 })
}

/// The best thresholds of a phase by the throughput model, and what the same engine does with them fixed.
fn best(args: &AdaptArgs, config: &Config, probability: f64) -> anyhow::Result<(Vec<u32>, f64)> {
    let mut config = config.clone();
    config.routing = RoutingConfig::new("random", json!({"semantics": "borrow", "probability": probability}));
    let requests = config.system.max_active;
    let system = known_system(&config, requests).context("emulated models are known")?;
    let best =
        optimize(&system.closed(requests as u32)?, &SearchOptions::default())?.best.thresholds().as_slice().to_vec();
    let window = window(args.seconds / 2.0, TOKENS, args.seed);
    let measured = steady::real(&steady::at(&config, requests, &best), requests, &window)?;
    Ok((best, measured.tok_s))
}

fn print(phases: &[Phase], format: Format) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    let row = |phase: &Phase| {
        [
            phase.probability.to_string(),
            phase.changes.to_string(),
            format!("{:?}", phase.thresholds),
            format!("{:.1}", phase.tok_s),
            format!("{:?}", phase.best),
            format!("{:.1}", phase.best_tok_s),
            format!("{:+.1} %", (phase.tok_s / phase.best_tok_s - 1.0) * 100.0),
        ]
    };
    if format == Format::Json {
        let phases: Vec<_> = phases
            .iter()
            .map(|p| {
                json!({"probability": p.probability, "changes": p.changes, "thresholds": p.thresholds, "tok_s": p.tok_s,
                       "best": p.best, "best_tok_s": p.best_tok_s, "emulated": true})
            })
            .collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&phases)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if format == Format::Csv {
        let mut csv = csv::Writer::from_writer(out);
        csv.write_record(["p", "changes", "thresholds", "tok_s", "best", "best_tok_s", "difference"])?;
        phases.iter().map(row).try_for_each(|row| csv.write_record(row))?;
        csv.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    let headings = ["P", "changes", "thresholds", "tok/s", "best fixed", "tok/s", "difference"];
    writeln!(out, "{}", plain_table(&headings, phases.iter().map(row), format))?;
    writeln!(out, "\nemulated: latency profiles stand in for the models. tok/s of the second half of each phase.")?;
    Ok(ExitCode::SUCCESS)
}
