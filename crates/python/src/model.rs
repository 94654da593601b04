//! The throughput model.

use pyo3::prelude::*;
use serde_json::{Value, json};
use tokenrouter_dtmc as dtmc;
use tokenrouter_dtmc::{ClosedSystem, SearchOptions, SimulationOptions, SolveOptions, Strategy, System, Thresholds};

use crate::errors::{Kind, raise};

/// A system with its requests, from the JSON of [`System`].
fn closed(system: &str, concurrency: i64) -> Result<ClosedSystem, String> {
    let system: System = serde_json::from_str(system).map_err(|error| error.to_string())?;
    // Whatever is no number of requests is refused as 0 is, with what is allowed.
    let concurrency = u32::try_from(concurrency).unwrap_or(0);
    system.closed(concurrency).map_err(|error| error.to_string())
}

/// Computes without the interpreter's lock.
fn work(py: Python<'_>, body: impl FnOnce() -> Result<Value, String> + Send) -> PyResult<String> {
    py.detach(body).map(|value| value.to_string()).map_err(|error| raise(py, Kind::ThroughputModel, error))
}

/// The best thresholds, as JSON: the candidates, best first, and statistics of the search.
#[pyfunction]
pub(crate) fn optimize(
    py: Python<'_>,
    system: &str,
    concurrency: i64,
    strategy: &str,
    max_wait_ms: Option<f64>,
    near_tie: f64,
) -> PyResult<String> {
    work(py, || {
        let strategy = match strategy {
            "auto" => Strategy::Auto,
            "exhaustive" => Strategy::Exhaustive,
            "screening" => Strategy::Screening,
            "local" => Strategy::Local,
            other => {
                return Err(format!("strategy is `{other}`, allowed are `auto`, `exhaustive`, `screening`, `local`"));
            }
        };
        let options = SearchOptions { strategy, max_wait_ms, near_tie, ..SearchOptions::default() };
        let found = dtmc::optimize(&closed(system, concurrency)?, &options).map_err(|error| error.to_string())?;
        Ok(json!({"candidates": found.candidates, "near_ties": found.near_ties, "exhaustive": found.exhaustive}))
    })
}

/// Exact answers for threshold vectors, as JSON.
#[pyfunction]
pub(crate) fn predict(
    py: Python<'_>,
    system: &str,
    concurrency: i64,
    vectors: Vec<Vec<u32>>,
    max_states: usize,
) -> PyResult<String> {
    work(py, || {
        let (system, options) = (closed(system, concurrency)?, SolveOptions { max_states, ..SolveOptions::default() });
        let solve = |vector: Vec<u32>| dtmc::solve(&system, &Thresholds::new(vector), &options);
        let solved: Result<Vec<_>, _> = vectors.into_iter().map(solve).collect();
        Ok(json!(solved.map_err(|error| error.to_string())?))
    })
}

/// Simulated answers for threshold vectors, as JSON.
#[pyfunction]
pub(crate) fn simulate(
    py: Python<'_>,
    system: &str,
    concurrency: i64,
    vectors: Vec<Vec<u32>>,
    seed: u64,
    max_steps: u64,
    relative_half_width: f64,
) -> PyResult<String> {
    work(py, || {
        let system = closed(system, concurrency)?;
        let options = SimulationOptions { seed, max_steps, relative_half_width, ..SimulationOptions::default() };
        let simulate = |vector: Vec<u32>| dtmc::simulate(&system, &Thresholds::new(vector), &options);
        let simulated: Result<Vec<_>, _> = vectors.into_iter().map(simulate).collect();
        Ok(json!(simulated.map_err(|error| error.to_string())?))
    })
}
