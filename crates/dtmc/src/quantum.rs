//! What the quantum of time does to an answer.

use crate::{ClosedSystem, Error, Solution, SolveOptions, Thresholds, solve};
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
    /// From the system's own quantum downwards.
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
    system: &ClosedSystem,
    thresholds: &Thresholds,
    tolerance: f64,
    halvings: usize,
    options: &SolveOptions,
) -> Result<QuantumStudy, Error> {
    if tolerance.is_nan() || tolerance <= 0.0 {
        return Err(Error::option("quantum tolerance", tolerance.to_string(), "above 0"));
    }
    let first = solve(system, thresholds, options)?;
    let mut rows = vec![QuantumRow { quantum_ms: system.quantum_ms(), solution: first, relative_change: None }];
    let mut quantum_ms = system.quantum_ms();
    for _ in 0..halvings {
        quantum_ms *= 0.5;
        let finer = system.with_quantum_ms(quantum_ms).and_then(|finer| solve(&finer, thresholds, options));
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
