//! The throughput model.

use pyo3::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};
use tokenrouter_dtmc as dtmc;
use tokenrouter_dtmc::{Latency, Model, SearchOptions, SimulationOptions, SolveOptions, Strategy, Thresholds};

use crate::errors::{Kind, raise};

/// A system, as JSON.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct System {
    latencies_ms: Vec<OneLatency>,
    routing: Vec<Vec<f64>>,
    commits: Option<Vec<Vec<f64>>>,
    concurrency: u32,
    quantum_ms: f64,
    max_batch: Option<Vec<Option<u32>>>,
    state_models: Option<Vec<usize>>,
}

/// A number for all batch sizes, or a list whose entry `b - 1` is for batch size `b`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneLatency {
    Constant(f64),
    ByBatch(Vec<f64>),
}

impl System {
    fn model(json: &str) -> Result<Model, String> {
        let system: Self = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let latencies = system.latencies_ms.into_iter().map(|latency| match latency {
            OneLatency::Constant(ms) => Latency::Constant(ms),
            OneLatency::ByBatch(ms) => Latency::Table((1..).zip(ms).collect()),
        });
        let mut builder = Model::builder()
            .latencies_ms(latencies)
            .routing(system.routing)
            .concurrency(system.concurrency)
            .quantum_ms(system.quantum_ms);
        if let Some(commits) = system.commits {
            builder = builder.commits(commits);
        }
        if let Some(max_batch) = system.max_batch {
            builder = builder.max_batch(max_batch);
        }
        if let Some(models) = system.state_models {
            builder = builder.routing_state_models(models);
        }
        builder.build().map_err(|error| error.to_string())
    }
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
        let found = dtmc::optimize(&System::model(system)?, &options).map_err(|error| error.to_string())?;
        Ok(json!({"candidates": found.candidates, "near_ties": found.near_ties, "exhaustive": found.exhaustive}))
    })
}

/// Exact answers for threshold vectors, as JSON.
#[pyfunction]
pub(crate) fn predict(py: Python<'_>, system: &str, vectors: Vec<Vec<u32>>, max_states: usize) -> PyResult<String> {
    work(py, || {
        let (model, options) = (System::model(system)?, SolveOptions { max_states, ..SolveOptions::default() });
        let solve = |vector: Vec<u32>| dtmc::solve(&model, &Thresholds::new(vector), &options);
        let solved: Result<Vec<_>, _> = vectors.into_iter().map(solve).collect();
        Ok(json!(solved.map_err(|error| error.to_string())?))
    })
}

/// Simulated answers for threshold vectors, as JSON.
#[pyfunction]
pub(crate) fn simulate(
    py: Python<'_>,
    system: &str,
    vectors: Vec<Vec<u32>>,
    seed: u64,
    max_steps: u64,
    relative_half_width: f64,
) -> PyResult<String> {
    work(py, || {
        let model = System::model(system)?;
        let options = SimulationOptions { seed, max_steps, relative_half_width, ..SimulationOptions::default() };
        let simulate = |vector: Vec<u32>| dtmc::simulate(&model, &Thresholds::new(vector), &options);
        let simulated: Result<Vec<_>, _> = vectors.into_iter().map(simulate).collect();
        Ok(json!(simulated.map_err(|error| error.to_string())?))
    })
}
