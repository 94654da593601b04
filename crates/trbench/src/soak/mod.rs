//! `trbench soak`: more load than a system can take, with clients that give up, for a while; then what was promised is
//! checked. The load is open: requests arrive whether the system keeps up or not.

mod client;
mod hostile;
mod memory;
mod report;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use tokenrouter_core::keyed::{Purpose, draw_u64, draw_unit};
use tokenrouter_core::{CommittedToken, FinishReason, Request, SamplingParams};
use tokenrouter_engine::{Config, Engine, SubmitError};
use tokio::task::JoinSet;

use crate::error::usage;
use crate::fetch;
use client::{End, Plan, Visit};
use report::Report;

/// Different requests. All others repeat one of them, and must come to the same tokens.
const KINDS: u64 = 16;
/// Time for models to free what ended requests held.
const SETTLE: Duration = Duration::from_secs(10);

/// Form of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Md,
    Json,
    Csv,
}

/// Arguments of `trbench soak`.
#[derive(Debug, Args)]
pub struct SoakArgs {
    /// Configuration of the routed system.
    #[arg(long, short, env = "TRBENCH_CONFIG")]
    config: PathBuf,
    /// How long to overload it, such as `90s` or `2m`.
    #[arg(long, default_value = "2m", value_parser = parse_duration)]
    duration: Duration,
    /// Arrivals per second, as a multiple of the measured capacity.
    #[arg(long, default_value_t = 3.0)]
    overload: f64,
    /// Part of the requests that their clients give up at a random time.
    #[arg(long, default_value_t = 0.2)]
    cancel_rate: f64,
    /// Longest wait of a client for its first token; it gives up then.
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    queue_timeout: Duration,
    /// Most requests that wait for admission, instead of `system.max_queued`. More are refused.
    #[arg(long)]
    max_queued: Option<usize>,
    /// Time to measure the capacity for.
    #[arg(long, default_value = "5s", value_parser = parse_duration)]
    measure: Duration,
    /// Tokens of a prompt.
    #[arg(long, default_value_t = 32)]
    prompt_tokens: usize,
    /// Most tokens of an answer.
    #[arg(long, default_value_t = 32)]
    max_tokens: usize,
    /// Seed of arrivals, prompts and cancellations.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Largest growth of resident memory, in MiB, between the first and the last quarter.
    #[arg(long, default_value_t = 32.0)]
    max_growth_mib: f64,
    /// Form of the report.
    #[arg(long, value_enum, default_value_t = Output::Md)]
    output: Output,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let seconds = match &text[digits.len()..] {
        "s" | "" => 1.0,
        "ms" => 1e-3,
        "m" => 60.0,
        "h" => 3600.0,
        unit => return Err(format!("unknown unit `{unit}`, expected `ms`, `s`, `m` or `h`")),
    };
    let number = digits.parse::<f64>().ok().filter(|number| *number > 0.0 && *number < 1e6);
    number.map(|number| Duration::from_secs_f64(number * seconds)).ok_or_else(|| format!("`{text}` is no duration"))
}

/// Soaks; exit code 1 when a promise was broken.
pub fn run(args: &SoakArgs) -> anyhow::Result<ExitCode> {
    let overload = args.overload > 0.0 && args.overload <= 1000.0;
    if !overload || !(0.0..=1.0).contains(&args.cancel_rate) {
        return Err(usage("`--cancel-rate` must be from 0 to 1, `--overload` above 0 up to 1000"));
    }
    let mut config = Config::from_file(&args.config)?;
    config.system.max_queued = args.max_queued.unwrap_or(config.system.max_queued);
    fetch::ensure_sources(&config)?;
    let engine = Arc::new(Engine::launch(&config)?);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    let report = runtime.block_on(soak(args, &engine, &config))?;
    let mut out = std::io::stdout().lock();
    match args.output {
        Output::Md => report.write_markdown(&mut out)?,
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?,
        Output::Csv => report.write_csv(&mut out)?,
    }
    Ok(if report.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn soak(args: &SoakArgs, engine: &Arc<Engine>, config: &Config) -> anyhow::Result<Report> {
    let kinds: Vec<Request> = (0..KINDS).map(|kind| request(args, engine, kind)).collect();
    let mut expected = Vec::new();
    for kind in &kinds {
        expected.push(alone(engine, kind.clone()).await?);
    }
    let (kinds, expected) = (Arc::new(kinds), Arc::new(expected));
    let (capacity, latency) = capacity(args, engine, &kinds, config.system.max_active).await?;
    let memory = memory::Watch::start();
    let start = Instant::now();
    let mut clients = JoinSet::new();
    let mut report = Report { capacity, latency_s: latency.as_secs_f64(), seed: args.seed, ..Report::default() };
    let mut due = Duration::ZERO;
    for number in 0.. {
        let gap = -(1.0 - draw_unit(args.seed, number, 0, Purpose::Arrival)).ln() / (capacity * args.overload);
        due += Duration::from_secs_f64(gap);
        if due > args.duration {
            break;
        }
        tokio::time::sleep_until((start + due).into()).await;
        let kind = (draw_u64(args.seed, number, 1, Purpose::Arrival) % KINDS) as usize;
        report.sent += 1;
        match engine.generate(kinds[kind].clone()) {
            Err(SubmitError::Overloaded { .. }) => report.refused += 1,
            Err(error) => bail!("a request was not taken: {error}"),
            Ok(stream) => {
                let plan = Plan {
                    give_up: give_up(args, number, latency),
                    by_abort: number % 2 == 0,
                    queue_timeout: args.queue_timeout,
                };
                let (engine, expected) = (Arc::clone(engine), Arc::clone(&expected));
                clients.spawn(async move { client::visit(&engine, stream, plan, &expected[kind]).await });
            }
        }
        while let Some(visit) = clients.try_join_next() {
            report.note(visit.context("a client failed")?);
        }
    }
    report.load_s = start.elapsed().as_secs_f64();
    while let Some(visit) = clients.join_next().await {
        report.note(visit.context("a client failed")?);
    }
    report.memory_mib = memory.stop();
    (report.hostile, report.hostile_wrong) = hostile::send(engine, &config.server).await?;
    settle(engine, &mut report).await;
    report.judge(args.queue_timeout, latency, args.max_growth_mib);
    Ok(report)
}

/// When the client of a request gives up, if it does.
fn give_up(args: &SoakArgs, number: u64, latency: Duration) -> Option<Duration> {
    let gives_up = draw_unit(args.seed, number, 2, Purpose::Arrival) < args.cancel_rate;
    gives_up.then(|| latency.mul_f64(4.0 * draw_unit(args.seed, number, 3, Purpose::Arrival)))
}

fn request(args: &SoakArgs, engine: &Engine, kind: u64) -> Request {
    // Ids below 256 may be special in real vocabularies.
    let vocab = engine.vocab() as u64;
    let least = 256.min(vocab / 2);
    let token = |at| (least + draw_u64(args.seed, kind, at, Purpose::Workload) % (vocab - least)) as u32;
    let prompt = (0..args.prompt_tokens.max(1) as u64).map(token).collect();
    let sampling = SamplingParams { max_tokens: args.max_tokens, seed: args.seed, ..SamplingParams::default() };
    Request::new(prompt, sampling, kind)
}

/// What a request comes to when nothing else is there.
async fn alone(engine: &Arc<Engine>, request: Request) -> anyhow::Result<Vec<CommittedToken>> {
    let stream = engine.generate(request)?;
    let visit = client::visit(engine, stream, Plan::patient(), &[]).await;
    match visit.end {
        End::Finished(FinishReason::Stop | FinishReason::Length) => Ok(visit.tokens),
        end => bail!("a request alone did not complete: {end:?}"),
    }
}

/// Requests per second and mean latency when as many clients as fit wait for each answer.
async fn capacity(
    args: &SoakArgs,
    engine: &Arc<Engine>,
    kinds: &Arc<Vec<Request>>,
    max_active: usize,
) -> anyhow::Result<(f64, Duration)> {
    let start = Instant::now();
    let mut clients = JoinSet::new();
    for client in 0..max_active {
        let (engine, kinds, measure) = (Arc::clone(engine), Arc::clone(kinds), args.measure);
        clients.spawn(async move {
            let mut latencies = Vec::new();
            while start.elapsed() < measure {
                let sent = Instant::now();
                let request = kinds[(client + latencies.len()) % kinds.len()].clone();
                let Ok(stream) = engine.generate(request) else { break };
                client::visit(&engine, stream, Plan::patient(), &[]).await;
                latencies.push(sent.elapsed());
            }
            latencies
        });
    }
    let mut latencies = Vec::new();
    while let Some(client) = clients.join_next().await {
        latencies.extend(client.context("a client failed")?);
    }
    let seconds = start.elapsed().as_secs_f64();
    anyhow::ensure!(!latencies.is_empty(), "no request was answered within `--measure`");
    let count = latencies.len();
    Ok((count as f64 / seconds, latencies.iter().sum::<Duration>() / count as u32))
}

/// Waits until the models have freed everything.
async fn settle(engine: &Engine, report: &mut Report) {
    let end = Instant::now() + SETTLE;
    loop {
        let stats = engine.stats();
        report.held_blocks = stats.held_blocks.iter().sum();
        report.open_requests = stats.open_requests;
        if (report.held_blocks == 0 && report.open_requests == 0) || Instant::now() > end {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl Report {
    fn note(&mut self, visit: Visit) {
        self.tokens += visit.tokens.len() as u64;
        self.wrong += u64::from(!visit.as_expected);
        self.doubled += u64::from(visit.after_end);
        match visit.end {
            End::Finished(FinishReason::Stop | FinishReason::Length) => {
                self.completed += 1;
                self.queue_waits_s.push(visit.queue_wait.as_secs_f64());
                self.latencies_s.push(visit.latency.as_secs_f64());
            }
            End::Finished(FinishReason::Cancelled) if visit.timed_out => self.timed_out += 1,
            End::Finished(FinishReason::Cancelled) | End::Dropped => self.cancelled += 1,
            End::Finished(reason) => {
                self.failed += 1;
                self.last_error = Some(format!("{reason:?}"));
            }
            End::Lost => self.lost += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(parse_duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("20ms"), Ok(Duration::from_millis(20)));
        assert!(parse_duration("5 parsecs").is_err() && parse_duration("0s").is_err());
    }
}
