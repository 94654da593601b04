//! The throughput model.

use pyo3::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};
use tokenrouter_dtmc as dtmc;
use tokenrouter_dtmc::{ClosedSystem, SearchOptions, SimulationOptions, SolveOptions, Strategy, System, Thresholds};

use crate::errors::{Kind, raise};

/// A system and the number of requests in it, as JSON.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Load {
    system: System,
    concurrency: u32,
}

fn closed(load: &str) -> Result<ClosedSystem, String> {
    let Load { system, concurrency } = serde_json::from_str(load).map_err(|error| error.to_string())?;
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
    load: &str,
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
        let found = dtmc::optimize(&closed(load)?, &options).map_err(|error| error.to_string())?;
        Ok(json!({"candidates": found.candidates, "near_ties": found.near_ties, "exhaustive": found.exhaustive}))
    })
}

/// Exact answers for threshold vectors, as JSON.
#[pyfunction]
pub(crate) fn predict(py: Python<'_>, load: &str, vectors: Vec<Vec<u32>>, max_states: usize) -> PyResult<String> {
    work(py, || {
        let (system, options) = (closed(load)?, SolveOptions { max_states, ..SolveOptions::default() });
        let solve = |vector: Vec<u32>| dtmc::solve(&system, &Thresholds::new(vector), &options);
        let solved: Result<Vec<_>, _> = vectors.into_iter().map(solve).collect();
        Ok(json!(solved.map_err(|error| error.to_string())?))
    })
}

/// Simulated answers for threshold vectors, as JSON.
#[pyfunction]
pub(crate) fn simulate(
    py: Python<'_>,
    load: &str,
    vectors: Vec<Vec<u32>>,
    seed: u64,
    max_steps: u64,
    relative_half_width: f64,
) -> PyResult<String> {
    work(py, || {
        let system = closed(load)?;
        let options = SimulationOptions { seed, max_steps, relative_half_width, ..SimulationOptions::default() };
        let simulate = |vector: Vec<u32>| dtmc::simulate(&system, &Thresholds::new(vector), &options);
        let simulated: Result<Vec<_>, _> = vectors.into_iter().map(simulate).collect();
        Ok(json!(simulated.map_err(|error| error.to_string())?))
    })
}
