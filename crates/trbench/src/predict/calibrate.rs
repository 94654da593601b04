//! `trbench calibrate`: step times by batch size, routing and commit matrices, from short runs of the system itself.
//!
//! Measuring the routed system and not its models one by one means that the step times include what the models do to each
//! other on one machine, and the few tokens that a request brings back from the other model.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokenrouter_core::scheduler::ModelStats;
use tokenrouter_engine::Config;
use tokenrouter_engine::adaptation::{StepTime, interpolate};
use tokenrouter_engine::config::Document;

use super::calibration::{Calibration, ModelCalibration};
use super::measured;
use super::steady::{self, Window};
use crate::error::usage;
use crate::files::write_file;
use crate::results::cpu_name;
use crate::stats::{geometric_test, wilson};
use crate::terminal::spinner;
use crate::terminal::{Format, plain_table};

/// Arguments of `trbench calibrate`.
#[derive(Debug, Clone, Args)]
pub struct CalibrateArgs {
    /// Configuration of the routed system.
    #[arg(long, short)]
    config: PathBuf,
    /// Where all models compute, instead of what the configuration says: `cpu`, `cuda:N` or `auto`.
    #[arg(long, env = "TRBENCH_DEVICE")]
    device: Option<crate::device::DeviceChoice>,
    /// Requests in flight, one run each; together they should show every batch size.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    concurrency: Vec<usize>,
    /// Seconds of each run that are measured.
    #[arg(long, default_value_t = 8.0)]
    seconds: f64,
    /// Tokens of a request.
    #[arg(long, default_value_t = 256)]
    max_tokens: usize,
    /// Tokens of its prompt: step times are those of contexts from here to `--max-tokens` more.
    #[arg(long, default_value_t = steady::PROMPT)]
    input_len: usize,
    /// Seed of all draws.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Where to write the calibration.
    #[arg(long, short, default_value = "calibration.json", value_name = "FILE")]
    out: PathBuf,
    /// Output format.
    #[arg(long, default_value = "table")]
    output: Format,
}

/// Measures, writes the file, prints what was measured.
pub fn run(args: &CalibrateArgs) -> anyhow::Result<ExitCode> {
    check_load(&args.concurrency, args.seconds)?;
    let mut config = Config::from_file(&args.config)?;
    crate::device::place(&mut config, args.device)?;
    crate::fetch::ensure_sources(&config)?;
    if !(1..=1_000_000).contains(&args.input_len) {
        return Err(usage(format!("--input-len {} is not allowed, allowed are 1 to 1000000", args.input_len)));
    }
    let window = Window { prompt: args.input_len, ..window(args.seconds, args.max_tokens, args.seed) };
    let calibration = measure(&config, &args.config.display().to_string(), &args.concurrency, &window)?;
    write_file(&args.out, &serde_json::to_vec_pretty(&calibration)?)?;
    print(&calibration, args.output)?;
    Ok(ExitCode::SUCCESS)
}

/// Measures the system of a configuration at one concurrency: enough for the thresholds at that concurrency.
pub(crate) fn calibrate_document(
    document: &Document,
    device: Option<crate::device::DeviceChoice>,
    concurrency: usize,
    seconds: f64,
) -> anyhow::Result<Calibration> {
    let mut config = Config::from_document(document)?;
    crate::device::place(&mut config, device)?;
    crate::fetch::ensure_sources(&config)?;
    measure(&config, &document.origin().path().display().to_string(), &[1, concurrency], &window(seconds, 256, 0))
}

/// Checks flags that `calibrate` and `validate` share.
pub(super) fn check_load(concurrency: &[usize], seconds: f64) -> anyhow::Result<()> {
    if let Some(bad) = concurrency.iter().find(|n| !(1..=256).contains(*n)) {
        return Err(usage(format!("--concurrency {bad} is not allowed, allowed are 1 to 256")));
    }
    if !(0.1..=3600.0).contains(&seconds) {
        return Err(usage(format!("--seconds {seconds} is not allowed, allowed are 0.1 to 3600")));
    }
    Ok(())
}

/// A window of `seconds`, after a quarter of it as warm-up.
pub(super) fn window(seconds: f64, max_tokens: usize, seed: u64) -> Window {
    let measured = Duration::from_secs_f64(seconds);
    Window { warmup: measured / 4, measured, max_tokens, prompt: steady::PROMPT, seed }
}

/// Runs the system eagerly at every concurrency, and at the highest also with the large models' batches held back, so that
/// large batches are seen.
pub(super) fn measure(
    config: &Config,
    origin: &str,
    concurrency: &[usize],
    window: &Window,
) -> anyhow::Result<Calibration> {
    let models = config.models.len();
    let mut sums: Vec<ModelStats> = vec![ModelStats::default(); models];
    let mut handoff_ms = None;
    for requests in concurrency {
        let mut vectors = vec![vec![1; models]];
        if *requests > 1 && models > 1 {
            let mut held = vec![1; models];
            held[models - 1] = *requests as u32;
            vectors.push(held);
        }
        for thresholds in vectors {
            let bar = spinner(&format!("{requests} requests, thresholds {thresholds:?}"));
            let steady = steady::real(&steady::at(config, *requests, &thresholds), *requests, window)?;
            bar.finish_and_clear();
            if *requests == 1 {
                handoff_ms = handoff_ms.or(handoff(&steady.models));
            }
            sums.iter_mut().zip(&steady.models).for_each(|(sum, stats)| sum.add(stats));
        }
    }
    let calibration = of_counters(config, origin, concurrency, &sums)?;
    Ok(Calibration { input_len: window.prompt, handoff_ms, ..calibration })
}

/// Milliseconds of a move between models, from a run with a single request: the time in which no model did anything.
fn handoff(models: &[ModelStats]) -> Option<f64> {
    let first = models.first()?;
    let all = first.busy + first.scheduling + first.idle;
    let worked: Duration = models.iter().map(|stats| stats.busy + stats.scheduling).sum();
    let moves: u64 = (models.iter().enumerate())
        .map(|(own, stats)| stats.transitions.iter().sum::<u64>() - stats.transitions.get(own).copied().unwrap_or(0))
        .sum();
    (moves > 0).then(|| all.saturating_sub(worked).as_secs_f64() * 1e3 / moves as f64)
}

/// What counters of the models say: the step times, and the matrices.
pub(super) fn of_counters(
    config: &Config,
    origin: &str,
    concurrency: &[usize],
    sums: &[ModelStats],
) -> anyhow::Result<Calibration> {
    let largest = concurrency.iter().copied().max().unwrap_or(1);
    let names = config.model_names();
    let share = |counts: &[u64], total: u64| -> Vec<f64> {
        counts.iter().map(|count| if total == 0 { 0.0 } else { *count as f64 / total as f64 }).collect()
    };
    let total = |stats: &ModelStats| stats.transitions.iter().sum::<u64>();
    let pairs = |stats: &ModelStats| -> Vec<(u64, u64)> {
        stats.committed.iter().copied().zip(stats.transitions.iter().copied()).collect()
    };
    if let Some(idle) = sums.iter().position(|stats| total(stats) == 0) {
        anyhow::bail!("model `{}` made no step: nothing can be said of it; measure longer", names[idle]);
    }
    Ok(Calibration {
        schema_version: 1,
        config: origin.to_owned(),
        emulated: config.is_emulated(),
        cpu: cpu_name(),
        system: Some(measured::system(config)),
        concurrency: concurrency.to_vec(),
        input_len: steady::PROMPT,
        handoff_ms: None,
        models: names.iter().zip(sums).map(|(name, stats)| model(name, stats, largest)).collect::<Result<_, _>>()?,
        routing: sums.iter().map(|stats| share(&stats.transitions, total(stats))).collect(),
        routing_interval: sums
            .iter()
            .map(|stats| stats.transitions.iter().map(|count| wilson(*count, total(stats))).collect())
            .collect(),
        commit: sums
            .iter()
            .map(|stats| {
                pairs(stats).into_iter().map(|(c, n)| if n == 0 { 0.0 } else { c as f64 / n as f64 }).collect()
            })
            .collect(),
        commit_interval: sums
            .iter()
            .map(|stats| pairs(stats).into_iter().map(|(c, n)| wilson(c, n)).collect())
            .collect(),
    })
}

fn model(name: &str, stats: &ModelStats, largest: usize) -> anyhow::Result<ModelCalibration> {
    let scheduling_ms = stats.scheduling.as_secs_f64() * 1e3 / stats.steps.max(1) as f64;
    let seen: Vec<StepTime> = (stats.step_time_by_batch.iter().enumerate())
        .filter(|(batch, (count, _))| *batch > 0 && *count > 0)
        .map(|(batch, (count, time))| {
            let steps = *count as f64;
            StepTime { batch, mean_ms: time.as_secs_f64() * 1e3 / steps, steps }
        })
        .collect();
    let latency_ms: Option<_> = (1..=largest).map(|batch| Some(interpolate(&seen, batch)? + scheduling_ms)).collect();
    let latency_ms = latency_ms.with_context(|| format!("model `{name}` made no decode step: measure longer"))?;
    let steps = (1..=largest).map(|batch| stats.step_time_by_batch.get(batch).map_or(0, |(count, _)| *count));
    Ok(ModelCalibration {
        name: name.to_owned(),
        latency_ms,
        steps: steps.collect(),
        scheduling_ms,
        transitions: stats.transitions.iter().sum(),
        geometric: geometric_test(&stats.runs),
    })
}

fn print(calibration: &Calibration, format: Format) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if format == Format::Json {
        writeln!(out, "{}", serde_json::to_string_pretty(calibration)?)?;
        return Ok(());
    }
    let matrix = |values: &[f64]| values.iter().map(|v| format!("{v:.4}")).collect::<Vec<_>>().join(" ");
    let row = |(index, model): (usize, &ModelCalibration)| {
        let latencies = model.latency_ms.iter().map(|ms| format!("{ms:.2}")).collect::<Vec<_>>().join(" ");
        [
            model.name.clone(),
            latencies,
            format!("{:.4}", model.scheduling_ms),
            matrix(&calibration.routing[index]),
            matrix(&calibration.commit[index]),
            model.geometric.as_ref().map_or_else(|| "-".into(), |test| format!("{:.3}", test.p_value)),
        ]
    };
    let headings = ["model", "step ms at batch 1, 2, ...", "of it scheduling", "P row", "C row", "geometric p"];
    let rows = calibration.models.iter().enumerate().map(row);
    if format == Format::Csv {
        let mut csv = csv::Writer::from_writer(out);
        csv.write_record(headings)?;
        rows.into_iter().try_for_each(|row| csv.write_record(row))?;
        csv.flush()?;
        return Ok(());
    }
    writeln!(out, "{}", plain_table(&headings, rows, format))?;
    if let Some(ms) = calibration.handoff_ms {
        writeln!(out, "\na move between models takes {:.0} µs beside the steps", 1e3 * ms)?;
    }
    if calibration.emulated {
        writeln!(out, "\nemulated: latency profiles stand in for the models.")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_takes_what_no_model_worked() {
        let ms = Duration::from_millis;
        let model = |busy, scheduling, idle, transitions: [u64; 2]| ModelStats {
            busy: ms(busy),
            scheduling: ms(scheduling),
            idle: ms(idle),
            transitions: transitions.to_vec(),
            ..ModelStats::default()
        };
        // A second in which the models worked 600 and 300 ms, and 40 moves.
        let models = [model(590, 10, 400, [80, 20]), model(295, 5, 700, [20, 0])];
        assert_eq!(handoff(&models), Some(2.5));
        assert_eq!(handoff(&[model(590, 10, 400, [80, 0])]), None);
    }
}
