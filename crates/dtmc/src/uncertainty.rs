//! From uncertain measurements of `P` and `L` to the uncertainty of a prediction.
//!
//! Parameters are drawn from what the measurements say (Dirichlet for a row of `P` seen through so many steps, normal for
//! a latency), and every candidate is solved exactly for every draw. The draws are the same for all candidates, so the
//! difference between two candidates is much surer than either.

use crate::random::{Generator, stream};
use crate::simulate::quantile;
use crate::solve::Evaluator;
use crate::{ClosedSystem, Error, SolveOptions, System, Thresholds, TokenCost};
use rand_distr::{Distribution, Gamma, StandardNormal};
use rayon::prelude::*;
use serde::Serialize;

/// What is known about the measurements behind a system.
#[derive(Debug, Clone, PartialEq)]
pub struct Uncertainty {
    /// Relative standard error of the latency of every model (length `M`); 0 when exact.
    pub latency_relative_error: Vec<f64>,
    /// Number of steps observed behind every row of `P` (length `S`); `None` for a row that is exact.
    pub routing_samples: Vec<Option<f64>>,
    /// Parameter draws.
    pub draws: usize,
    /// Seed of the draws.
    pub seed: u64,
    /// Confidence of the intervals, in `(0, 1)`.
    pub confidence: f64,
}

/// The spread of one candidate's throughput.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Spread {
    /// The vector.
    pub thresholds: Thresholds,
    /// Throughput at the parameters as given, tokens per second.
    pub nominal_tok_s: f64,
    /// Mean over the draws.
    pub mean_tok_s: f64,
    /// Lower end of the interval.
    pub low_tok_s: f64,
    /// Upper end of the interval.
    pub high_tok_s: f64,
    /// Interval of the difference to the first candidate.
    pub difference_low: f64,
    /// Upper end of that interval.
    pub difference_high: f64,
    /// Share of draws in which this candidate is the best.
    pub best_share: f64,
    /// False when the difference to the first candidate has no certain sign.
    pub distinguishable: bool,
}

/// Propagates `uncertainty` to the throughput of `candidates`; the first is the reference of the differences.
///
/// # Errors
/// Shapes or numbers out of range, or a draw that can't be solved within the limits.
pub fn propagate(
    system: &ClosedSystem,
    candidates: &[Thresholds],
    uncertainty: &Uncertainty,
    options: &SolveOptions,
) -> Result<Vec<Spread>, Error> {
    check(system, candidates, uncertainty)?;
    let options = crate::search::shared_options(options, uncertainty.draws);
    let nominal = throughputs(system, candidates, &options)?;
    let draws: Vec<Vec<f64>> = (0..uncertainty.draws)
        .into_par_iter()
        .with_max_len(1)
        .map(|index| throughputs(&draw(system, uncertainty, index as u64)?, candidates, &options))
        .collect::<Result<_, _>>()?;
    let tail = 0.5 * (1.0 - uncertainty.confidence);
    let spread = |k: usize| {
        let sorted = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values
        };
        let values = sorted(draws.iter().map(|row| row[k]).collect());
        let differences = sorted(draws.iter().map(|row| row[k] - row[0]).collect());
        let best = draws.iter().filter(|row| row.iter().all(|&other| other <= row[k])).count();
        let (difference_low, difference_high) = (quantile(&differences, tail), quantile(&differences, 1.0 - tail));
        Spread {
            thresholds: candidates[k].clone(),
            nominal_tok_s: nominal[k],
            mean_tok_s: draws.iter().map(|row| row[k]).sum::<f64>() / draws.len() as f64,
            low_tok_s: quantile(&values, tail),
            high_tok_s: quantile(&values, 1.0 - tail),
            difference_low,
            difference_high,
            best_share: best as f64 / draws.len() as f64,
            distinguishable: difference_low > 0.0 || difference_high < 0.0,
        }
    };
    Ok((0..candidates.len()).map(spread).collect())
}

fn check(system: &ClosedSystem, candidates: &[Thresholds], uncertainty: &Uncertainty) -> Result<(), Error> {
    candidates.iter().try_for_each(|candidate| candidate.check(system))?;
    if candidates.is_empty() {
        return Err(Error::option("candidates", "none", "at least one vector"));
    }
    let shape = |name: &str, got: usize, expected: usize| {
        if got == expected {
            Ok(())
        } else {
            Err(Error::option(name, format!("{got} values"), format!("{expected} values")))
        }
    };
    shape("latency relative error", uncertainty.latency_relative_error.len(), system.models())?;
    shape("routing samples", uncertainty.routing_samples.len(), system.routing_states())?;
    if let Some(bad) = uncertainty.latency_relative_error.iter().find(|&&error| !(0.0..0.5).contains(&error)) {
        return Err(Error::option("latency relative error", bad.to_string(), "0 or above and below 0.5"));
    }
    if let Some(bad) =
        uncertainty.routing_samples.iter().flatten().find(|&&samples| !(samples >= 1.0 && samples.is_finite()))
    {
        return Err(Error::option("routing samples", bad.to_string(), "1 or more"));
    }
    if uncertainty.draws < 20 {
        return Err(Error::option("draws", uncertainty.draws.to_string(), "20 or more"));
    }
    if !(uncertainty.confidence > 0.0 && uncertainty.confidence < 1.0) {
        return Err(Error::option("confidence", uncertainty.confidence.to_string(), "above 0 and below 1"));
    }
    Ok(())
}

fn throughputs(system: &ClosedSystem, candidates: &[Thresholds], options: &SolveOptions) -> Result<Vec<f64>, Error> {
    let mut evaluator = Evaluator::new(system)?;
    candidates.iter().map(|b| evaluator.solve(system, b, options).map(|solution| solution.throughput_tok_s())).collect()
}

/// A system with drawn latencies and routing probabilities.
fn draw(system: &ClosedSystem, uncertainty: &Uncertainty, index: u64) -> Result<ClosedSystem, Error> {
    let mut generator = stream(uncertainty.seed, index);
    let factors: Vec<f64> = uncertainty
        .latency_relative_error
        .iter()
        .map(|&error| {
            let deviation: f64 = StandardNormal.sample(&mut generator);
            (1.0 + error * deviation).max(0.05)
        })
        .collect();
    let latencies_ms =
        system.latencies_ms().iter().zip(&factors).map(|(latency, &factor)| latency.scaled(factor)).collect();
    let token_costs = system.token_costs().map(|costs| {
        let scaled = costs.iter().zip(&factors);
        scaled.map(|(cost, &factor)| TokenCost { ms_per_token: cost.ms_per_token * factor, ..*cost }).collect()
    });
    let routing = system
        .routing()
        .iter()
        .zip(&uncertainty.routing_samples)
        .map(|(row, samples)| samples.map_or_else(|| row.clone(), |samples| dirichlet(row, samples, &mut generator)))
        .collect();
    System { latencies_ms, routing, token_costs, ..system.to_system() }.closed(system.concurrency())
}

/// A row drawn around `row` as if it had been estimated from `samples` steps; zeros stay zeros.
fn dirichlet(row: &[f64], samples: f64, generator: &mut Generator) -> Vec<f64> {
    // A probability of 0 is no shape of a gamma distribution, and stays 0.
    let mut gamma = |p: f64| Gamma::new(p * samples, 1.0).map_or(0.0, |gamma| gamma.sample(generator));
    let draws: Vec<f64> = row.iter().map(|&p| gamma(p)).collect();
    let total: f64 = draws.iter().sum();
    if total > 0.0 { draws.iter().map(|draw| draw / total).collect() } else { row.to_vec() }
}
