//! `--map`: where routing of tokens pays, predicted for models that are given by three ratios.
//!
//! The large model's step with one row and one token is the unit of time; of it, a share `1 / r` is the token's own, and the
//! rest is paid once a step. The small model is `s` times as fast in both parts. With `T` tokens a step takes
//! `(1 - 1/r) + T/r`, so that a batch, too, becomes bound by its tokens.

use super::args::{PlanArgs, SemanticsArg};
use super::print::{finished, plain_table};
use crate::terminal::{Format, counted, number};
use serde::Serialize;
use tokenrouter_dtmc::{
    Error, Latency, Limits, SearchOptions, SimulationOptions, SolveOptions, System, TokenCost, optimize,
};

/// Milliseconds that stand for the unit, and the quantum.
const UNIT_MS: f64 = 100.0;
const QUANTUM_MS: f64 = 0.5;

/// One point of the map.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Point {
    /// Share of tokens that the large model writes.
    pub(super) share: f64,
    /// Step time of the large model over that of the small one.
    pub(super) step_ratio: f64,
    /// Time of a decoded token over that of a prompt token.
    pub(super) prefill_ratio: f64,
    /// Active requests.
    pub(super) active: u32,
    /// Throughput over that of the large model alone on all hardware.
    pub(super) speedup_over_large: f64,
    /// Throughput over that of whole requests at one model each.
    pub(super) speedup_over_whole_requests: f64,
    /// Tokens in a unit of time: routed tokens, the large model alone, whole requests.
    pub(super) routed: f64,
    pub(super) large: f64,
    pub(super) whole_requests: f64,
    /// The best thresholds.
    pub(super) thresholds: Vec<u32>,
}

pub(super) fn points(args: &PlanArgs) -> anyhow::Result<Vec<Point>> {
    let counts =
        [&args.map_active.len(), &args.map_prefill_ratios.len(), &args.map_step_ratios.len(), &args.map_shares.len()];
    let bar = counted(counts.iter().map(|count| **count as u64).product(), "points");
    let mut all = Vec::new();
    for &active in &args.map_active {
        for &prefill in &args.map_prefill_ratios {
            for &step in &args.map_step_ratios {
                for &share in &args.map_shares {
                    all.push(point(args, [share, step, prefill], active)?);
                    bar.inc(1);
                }
            }
        }
    }
    bar.finish_and_clear();
    Ok(all)
}

/// Units of a step with so many rows, one token each.
fn decode(rows: u32, prefill: f64) -> f64 {
    (1.0 - 1.0 / prefill) + f64::from(rows) / prefill
}

/// Tokens in a unit of time of the large model with `active` requests on one copy.
fn alone(active: u32, prefill: f64) -> f64 {
    if active == 0 { 0.0 } else { f64::from(active) / decode(active, prefill) }
}

fn point(args: &PlanArgs, [share, step, prefill]: [f64; 3], active: u32) -> Result<Point, Error> {
    let found = optimize(&system(args, share, step, prefill).closed(active)?, &search())?;
    let routed = found.best.throughput_tok_s() * UNIT_MS / 1e3;
    let copies = args.large_copies.unwrap_or(2);
    let large: f64 = (0..copies).map(|copy| alone((active + copy) / copies, prefill)).sum();
    let whole_requests = whole(share, step, prefill, active);
    Ok(Point {
        share,
        step_ratio: step,
        prefill_ratio: prefill,
        active,
        speedup_over_large: routed / large,
        speedup_over_whole_requests: routed / whole_requests,
        routed,
        large,
        whole_requests,
        thresholds: found.best.thresholds().as_slice().to_vec(),
    })
}

fn system(args: &PlanArgs, share: f64, step: f64, prefill: f64) -> System {
    let latency = |speed: f64| Latency::by_batch((1..=64).map(|rows| UNIT_MS * decode(rows, prefill) / speed));
    let cost = |speed: f64| TokenCost { ms_per_token: UNIT_MS / prefill / speed, free_tokens: 0 };
    let (routing, commits) = match args.map_semantics {
        SemanticsArg::Borrow => (vec![vec![1.0 - share, share], vec![1.0, 0.0]], vec![vec![1.0, 0.0]; 2]),
        SemanticsArg::Span => {
            // A visit to the small model keeps `run (1 - share) / share` tokens on average, and drops one candidate.
            let leave = 1.0 / (1.0 + args.map_run * (1.0 - share) / share);
            let back = 1.0 / args.map_run;
            (vec![vec![1.0 - leave, leave], vec![back, 1.0 - back]], vec![vec![1.0, 0.0], vec![1.0, 1.0]])
        }
    };
    System {
        commits: Some(commits),
        quantum_ms: QUANTUM_MS,
        token_costs: Some(vec![cost(step), cost(1.0)]),
        ..System::new([latency(step), latency(1.0)], routing)
    }
}

fn search() -> SearchOptions {
    let limits = Limits {
        solve: SolveOptions { max_states: 200_000, ..SolveOptions::default() },
        simulation: SimulationOptions {
            max_steps: 1_000_000,
            relative_half_width: 0.002,
            ..SimulationOptions::default()
        },
        coarse_tolerance: 0.0,
    };
    SearchOptions { limits, ..SearchOptions::default() }
}

/// Whole requests, of which a share goes to the large model: the number there is a birth-death process, because every end
/// is replaced by a request of either kind.
fn whole(share: f64, step: f64, prefill: f64, active: u32) -> f64 {
    let small = |count: u32| step * alone(count, prefill);
    let mut weights = vec![1.0];
    for at_large in 0..active {
        let up = small(active - at_large) * share;
        let down = alone(at_large + 1, prefill) * (1.0 - share);
        weights.push(weights[at_large as usize] * up / down);
    }
    let total: f64 = weights.iter().sum();
    let rates = weights
        .iter()
        .zip(0..)
        .map(|(weight, at_large)| weight * (alone(at_large, prefill) + small(active - at_large)));
    rates.sum::<f64>() / total
}

pub(super) fn render(points: &[Point], format: Format) -> anyhow::Result<String> {
    Ok(match format {
        Format::Json => serde_json::to_string_pretty(points)? + "\n",
        Format::Csv => csv(points)?,
        format => {
            let rows = points.iter().map(|one| {
                [
                    one.active.to_string(),
                    one.prefill_ratio.to_string(),
                    one.step_ratio.to_string(),
                    one.share.to_string(),
                    number(Some(one.speedup_over_large), 3),
                    number(Some(one.speedup_over_whole_requests), 3),
                ]
            });
            plain_table(
                &["active", "prefill ratio", "step ratio", "share", "over large", "over whole requests"],
                rows,
                format,
            )
        }
    })
}

fn csv(points: &[Point]) -> anyhow::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record([
        "active",
        "prefill_ratio",
        "step_ratio",
        "share",
        "speedup_over_large",
        "speedup_over_whole_requests",
        "routed",
        "large",
        "whole_requests",
        "thresholds",
    ])?;
    for one in points {
        let thresholds: Vec<String> = one.thresholds.iter().map(u32::to_string).collect();
        let numbers = [
            one.prefill_ratio,
            one.step_ratio,
            one.share,
            one.speedup_over_large,
            one.speedup_over_whole_requests,
            one.routed,
            one.large,
            one.whole_requests,
        ];
        let mut row = vec![one.active.to_string()];
        row.extend(numbers.iter().map(f64::to_string));
        row.push(thresholds.join(" "));
        writer.write_record(&row)?;
    }
    finished(writer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: PlanArgs,
    }

    fn args(more: &[&str]) -> PlanArgs {
        Cli::parse_from([&["plan", "--map"], more].concat()).args
    }

    /// One request: a small step for every token, a large one for a share, and every token once through the large model.
    #[test]
    fn one_request_has_its_closed_form() {
        for (share, step, prefill) in [(0.1, 5.0, 20.0), (0.5, 20.0, 5.0), (0.3, 2.0, 100.0)] {
            let found = point(&args(&[]), [share, step, prefill], 1).expect("solvable");
            let expected = 1.0 / (1.0 / step + share * (1.0 - 1.0 / prefill) + 1.0 / prefill);
            assert!((found.speedup_over_large / expected - 1.0).abs() < 0.02, "{found:?} {expected}");
            let whole = 1.0 / (share + (1.0 - share) / step);
            assert!((found.whole_requests / whole - 1.0).abs() < 1e-9, "{found:?} {whole}");
            let span = point(&args(&["--map-semantics", "span"]), [share, step, prefill], 1).expect("solvable");
            assert!(span.speedup_over_large > found.speedup_over_large * 0.98, "{span:?} {found:?}");
        }
    }
}
