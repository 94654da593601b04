//! What the quantum of time does to an answer.

use crate::simulate::{SimulationOptions, simulate};
use crate::{Answer, Error, Model, Solution, SolveOptions, Thresholds, estimate_size, solve};
use serde::Serialize;

/// One quantum of a study.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QuantumRow {
    /// The quantum, in milliseconds.
    pub quantum_ms: f64,
    /// The exact answer at that quantum.
    pub solution: Solution,
    /// Relative change of throughput from the row before; none for the first.
    pub relative_change: Option<f64>,
}

/// A halving study of the quantum.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QuantumStudy {
    /// From the model's own quantum downwards.
    pub rows: Vec<QuantumRow>,
    /// True when the last halving moved the answer by less than the tolerance.
    pub converged: bool,
    /// Why it stopped when it did not converge.
    pub stopped: Option<String>,
}

/// Halves the quantum until throughput moves by less than `tolerance` (relative), the chain no longer fits, or
/// `halvings` are spent.
///
/// # Errors
/// When the tolerance is not positive, or the first chain can't be solved.
pub fn quantum_study(
    model: &Model,
    thresholds: &Thresholds,
    tolerance: f64,
    halvings: usize,
    options: &SolveOptions,
) -> Result<QuantumStudy, Error> {
    if tolerance.is_nan() || tolerance <= 0.0 {
        return Err(Error::option("quantum tolerance", tolerance.to_string(), "above 0"));
    }
    let first = solve(model, thresholds, options)?;
    let mut rows = vec![QuantumRow { quantum_ms: model.quantum_ms(), solution: first, relative_change: None }];
    let mut quantum_ms = model.quantum_ms();
    for _ in 0..halvings {
        quantum_ms *= 0.5;
        let finer = model.with_quantum_ms(quantum_ms).and_then(|finer| solve(&finer, thresholds, options));
        let solution = match finer {
            Ok(solution) => solution,
            Err(error) => {
                return Ok(QuantumStudy { rows, converged: false, stopped: Some(error.to_string()) });
            }
        };
        let before = rows.last().map_or(f64::NAN, |row| row.solution.throughput_tok_s());
        let change = (solution.throughput_tok_s() - before) / before;
        rows.push(QuantumRow { quantum_ms, solution, relative_change: Some(change) });
        if change.abs() < tolerance {
            return Ok(QuantumStudy { rows, converged: true, stopped: None });
        }
    }
    let stopped = Some(format!("{halvings} halvings spent"));
    Ok(QuantumStudy { rows, converged: false, stopped })
}

/// The exact chain on a coarser quantum, with an estimate of the error that this makes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Coarse {
    /// The quantum used, in milliseconds.
    pub quantum_ms: f64,
    /// Its exact answer.
    pub solution: Solution,
    /// Estimated relative error: the change from twice the quantum plus the rounding of latencies.
    pub relative_error: f64,
}

/// Who answered for one vector.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Evaluation {
    /// The exact chain, or the simulator.
    Direct(Answer),
    /// The exact chain on a coarser quantum.
    Coarse(Coarse),
}

/// Evaluates one vector by the surest affordable way: the exact chain; the exact chain on a coarser quantum when its
/// error estimate is within `coarse_tolerance` (relative); otherwise the simulator.
///
/// # Errors
/// As [`solve`], except that a chain over the limits is no error.
pub fn evaluate(
    model: &Model,
    thresholds: &Thresholds,
    coarse_tolerance: f64,
    options: &SolveOptions,
    simulation: &SimulationOptions,
) -> Result<Evaluation, Error> {
    match solve(model, thresholds, options) {
        Ok(solution) => return Ok(Evaluation::Direct(Answer::Exact(solution))),
        Err(Error::TooLarge { .. }) => (),
        Err(error) => return Err(error),
    }
    if let Some(coarse) = coarse(model, thresholds, coarse_tolerance, options)
        && coarse.relative_error <= coarse_tolerance
    {
        return Ok(Evaluation::Coarse(coarse));
    }
    Ok(Evaluation::Direct(Answer::Simulated(simulate(model, thresholds, simulation)?)))
}

/// The finest coarser quantum that fits, chosen for small rounding of the latencies; `None` when rounding alone would
/// break the tolerance.
fn coarse(model: &Model, thresholds: &Thresholds, tolerance: f64, options: &SolveOptions) -> Option<Coarse> {
    let estimate = estimate_size(model, thresholds).ok()?;
    let excess = (estimate.states / options.max_states as f64).max(estimate.bytes / options.memory_bytes() as f64);
    let fitting = model.quantum_ms() * excess.powf(1.0 / estimate.exponent.max(0.1));
    // Among quanta up to half as much again, the one that rounds the latencies least, also when doubled.
    let candidates = (0..40).map(|k| fitting * (1.02 + 0.0125 * f64::from(k)));
    let chosen = candidates
        .filter_map(|quantum| {
            let finer = model.with_quantum_ms(quantum).ok()?;
            let coarser = model.with_quantum_ms(2.0 * quantum).ok()?;
            Some((rounding(model, &finer).max(0.5 * rounding(model, &coarser)), finer, coarser))
        })
        .min_by(|a, b| a.0.total_cmp(&b.0));
    let (error, finer, coarser) = chosen?;
    if error > tolerance {
        return None;
    }
    let solution = solve(&finer, thresholds, options).ok()?;
    let twice = solve(&coarser, thresholds, options).ok()?;
    let change = (solution.throughput_tok_s() / twice.throughput_tok_s() - 1.0).abs();
    let relative_error = change + rounding(model, &finer);
    Some(Coarse { quantum_ms: finer.quantum_ms(), solution, relative_error })
}

/// Largest relative difference between a latency of `model` and what `other` makes of it.
fn rounding(model: &Model, other: &Model) -> f64 {
    let mut worst = 0.0_f64;
    for (index, latency) in model.latencies_ms().iter().enumerate() {
        for batch in 1..=model.largest_batch(index) {
            let exact = latency.at(batch).unwrap_or(f64::NAN);
            worst = worst.max((f64::from(other.quanta(index, batch)) * other.quantum_ms() / exact - 1.0).abs());
        }
    }
    worst
}
