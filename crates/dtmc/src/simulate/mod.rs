//! Simulation of the same abstract system, for chains that are too large and as a check on those that are not.
//!
//! Windows of equal length in time give batch means; more windows are added, in pairs merged into longer ones, until the
//! interval is narrow enough or the budget of steps is spent. The seed fixes everything, and the same seed with other
//! thresholds uses the same draws per routing state.

mod simulator;
mod stats;

pub use stats::Estimate;

use crate::measures::{Measures, Totals};
use crate::{ClosedSystem, Error, Thresholds};
use serde::Serialize;
use simulator::Simulator;
pub(crate) use stats::{interval, quantile};

/// Windows in an interval after merging.
const WINDOWS: usize = 40;

/// Options of [`simulate`].
#[derive(Debug, Clone, PartialEq)]
pub struct SimulationOptions {
    /// Seed of all random streams.
    pub seed: u64,
    /// Confidence of the interval, in `(0, 1)`.
    pub confidence: f64,
    /// Stop when the half width is at most this share of the mean; 0 to use the whole budget.
    pub relative_half_width: f64,
    /// Stop after about this many request steps (each request of each batch is one).
    pub max_steps: u64,
    /// Routing state in which all requests wait at the start.
    pub start: usize,
}

impl Default for SimulationOptions {
    fn default() -> Self {
        Self { seed: 1, confidence: 0.95, relative_half_width: 0.0005, max_steps: 50_000_000, start: 0 }
    }
}

/// A simulated answer for one threshold vector.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Simulation {
    /// The vector.
    pub thresholds: Thresholds,
    /// Throughput in tokens per second, with its standard error and confidence interval.
    pub throughput: Estimate,
    /// Throughput and per-model measures over the whole run.
    #[serde(flatten)]
    pub measures: Measures,
    /// Confidence of the interval.
    pub confidence: f64,
    /// Request steps simulated, the warm-up included.
    pub steps: u64,
    /// Seed used.
    pub seed: u64,
    /// Tokens per second in each window, for paired comparisons between runs with the same seed.
    #[serde(skip)]
    pub windows: Vec<f64>,
    /// Length of a window in quanta.
    #[serde(skip)]
    pub window_quanta: u64,
}

/// Simulates `system` under `thresholds`.
///
/// # Errors
/// Thresholds that don't suit the system or can deadlock; options out of range.
pub fn simulate(
    system: &ClosedSystem,
    thresholds: &Thresholds,
    options: &SimulationOptions,
) -> Result<Simulation, Error> {
    thresholds.check(system)?;
    check(system, options)?;
    let mut simulator = Simulator::new(system, thresholds.as_slice(), options.seed, options.start);
    // A first window long enough for every request to visit the slowest model a few times.
    let slowest = (0..system.models()).map(|index| u64::from(system.largest_quanta(index))).max().unwrap_or(1);
    let mut length = 25 * slowest;
    let mut ignored = Totals::new(system.models());
    simulator.run(4 * length, &mut ignored);
    let mut totals = Totals::new(system.models());
    let mut windows: Vec<f64> = Vec::with_capacity(2 * WINDOWS);
    loop {
        while windows.len() < 2 * WINDOWS {
            let before: f64 = totals.tokens.iter().sum();
            simulator.run(length, &mut totals);
            let tokens = totals.tokens.iter().sum::<f64>() - before;
            windows.push(tokens * 1000.0 / (length as f64 * system.quantum_ms()));
        }
        windows = windows.chunks_exact(2).map(|pair| 0.5 * (pair[0] + pair[1])).collect();
        length *= 2;
        let throughput = interval(&windows, options.confidence);
        let precise = throughput.half_width <= options.relative_half_width * throughput.mean;
        // The next round doubles the run: stop when that would overshoot the budget.
        if precise || simulator.steps * 2 > options.max_steps {
            return Ok(Simulation {
                thresholds: thresholds.clone(),
                throughput,
                measures: totals.measures(system),
                confidence: options.confidence,
                steps: simulator.steps,
                seed: options.seed,
                windows,
                window_quanta: length,
            });
        }
    }
}

/// Interval of the difference in throughput `a - b` of two runs over the same draws, from paired windows. `None` when the
/// runs have different seeds or lengths.
#[must_use]
pub fn paired_difference(a: &Simulation, b: &Simulation) -> Option<Estimate> {
    if a.windows.len() != b.windows.len() || a.window_quanta != b.window_quanta || a.seed != b.seed {
        return None;
    }
    let differences: Vec<f64> = a.windows.iter().zip(&b.windows).map(|(x, y)| x - y).collect();
    Some(interval(&differences, a.confidence))
}

fn check(system: &ClosedSystem, options: &SimulationOptions) -> Result<(), Error> {
    if !(options.confidence > 0.0 && options.confidence < 1.0) {
        return Err(Error::option("confidence", options.confidence.to_string(), "above 0 and below 1"));
    }
    if options.relative_half_width.is_nan() || options.relative_half_width < 0.0 {
        return Err(Error::option("relative half width", options.relative_half_width.to_string(), "0 or above"));
    }
    if options.start >= system.routing_states() {
        let allowed = format!("a routing state from 0 to {}", system.routing_states() - 1);
        return Err(Error::option("start", format!("routing state {}", options.start), allowed));
    }
    Ok(())
}
