//! Collects the parts of a [`Model`] and checks them together.

use super::{Latency, MAX_CONCURRENCY, MAX_MODELS, MAX_ROUTING_STATES, Model, reach};
use crate::Error;

/// How far a row of `P` may be from summing to one.
const ROW_SUM_TOLERANCE: f64 = 1e-9;
/// Relative rounding of a latency above which a note is made.
const ROUNDING_NOTE: f64 = 0.01;
/// Quantum used when none is given, in milliseconds.
pub(crate) const DEFAULT_QUANTUM_MS: f64 = 0.1;

/// Parts of a [`Model`]. Defaults: every step commits one token, quantum 0.1 ms, no batch cap, one routing state per
/// model.
///
/// ```
/// use tokenrouter_dtmc::Model;
/// let model = Model::builder()
///     .latencies_ms([6.0, 27.9])
///     .routing(vec![vec![0.35, 0.65], vec![1.0, 0.0]])
///     .commits(vec![vec![1.0, 0.0], vec![1.0, 0.0]])
///     .concurrency(8)
///     .build()?;
/// assert_eq!(model.models(), 2);
/// # Ok::<(), tokenrouter_dtmc::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct ModelBuilder {
    latencies_ms: Vec<Latency>,
    routing: Vec<Vec<f64>>,
    commits: Option<Vec<Vec<f64>>>,
    state_models: Option<Vec<usize>>,
    concurrency: Option<u32>,
    quantum_ms: Option<f64>,
    max_batch: Option<Vec<Option<u32>>>,
}

impl ModelBuilder {
    /// Latency of one step of every model, in milliseconds, constant or by batch size. Length `M`.
    #[must_use]
    pub fn latencies_ms<L: Into<Latency>>(mut self, latencies: impl IntoIterator<Item = L>) -> Self {
        self.latencies_ms = latencies.into_iter().map(Into::into).collect();
        self
    }

    /// Routing matrix `P`, `S x S`: probability that a request that finished a step in state `i` goes on to state `j`.
    #[must_use]
    pub fn routing(mut self, routing: Vec<Vec<f64>>) -> Self {
        self.routing = routing;
        self
    }

    /// Commit matrix `C`, `S x S`: tokens committed by such a step.
    #[must_use]
    pub fn commits(mut self, commits: Vec<Vec<f64>>) -> Self {
        self.commits = Some(commits);
        self
    }

    /// The model of every routing state (length `S`); without it state `i` belongs to model `i`.
    #[must_use]
    pub fn routing_state_models(mut self, models: Vec<usize>) -> Self {
        self.state_models = Some(models);
        self
    }

    /// Number of requests `N` always in the system.
    #[must_use]
    pub const fn concurrency(mut self, concurrency: u32) -> Self {
        self.concurrency = Some(concurrency);
        self
    }

    /// Length of a quantum of time, in milliseconds.
    #[must_use]
    pub const fn quantum_ms(mut self, quantum_ms: f64) -> Self {
        self.quantum_ms = Some(quantum_ms);
        self
    }

    /// Largest batch of every model (length `M`); `None` for no cap.
    #[must_use]
    pub fn max_batch(mut self, max_batch: Vec<Option<u32>>) -> Self {
        self.max_batch = Some(max_batch);
        self
    }

    /// Checks everything and converts latencies to quanta.
    ///
    /// # Errors
    /// [`Error::InvalidModel`] with the place, the value and what is allowed.
    pub fn build(self) -> Result<Model, Error> {
        let models = self.latencies_ms.len();
        if models == 0 || models > MAX_MODELS {
            return Err(Error::model("latencies", format!("{models} models"), format!("1 to {MAX_MODELS} models")));
        }
        let concurrency = check_concurrency(self.concurrency)?;
        let quantum_ms = self.quantum_ms.unwrap_or(DEFAULT_QUANTUM_MS);
        if !(quantum_ms.is_finite() && quantum_ms > 0.0) {
            return Err(Error::model("quantum", format!("{quantum_ms} ms"), "a finite quantum above 0 ms"));
        }
        let state_models = check_state_models(self.state_models, models, self.routing.len())?;
        let states = state_models.len();
        check_matrix("P", &self.routing, states)?;
        check_rows(&self.routing)?;
        let commits = self.commits.unwrap_or_else(|| vec![vec![1.0; states]; states]);
        check_matrix("C", &commits, states)?;
        let max_batch = self.max_batch.unwrap_or_else(|| vec![None; models]);
        check_caps(&max_batch, models)?;

        let mut notes = Vec::new();
        let mut quanta = Vec::with_capacity(models);
        for (index, latency) in self.latencies_ms.iter().enumerate() {
            let place = format!("latency of model {index}");
            latency.validate(&place)?;
            let largest = max_batch[index].map_or(concurrency, |cap| cap.min(concurrency));
            let quantised = latency.quantise(&place, quantum_ms, largest)?;
            if quantised.worst.abs() > ROUNDING_NOTE {
                notes.push(format!(
                    "{place} is rounded by {:+.2} % at batch size {} with a quantum of {quantum_ms} ms: use a smaller one",
                    100.0 * quantised.worst,
                    quantised.worst_at
                ));
            }
            quanta.push(quantised.quanta);
        }
        reach::describe(&self.routing, &state_models, models, &mut notes);
        Ok(Model {
            concurrency,
            quantum_ms,
            latencies_ms: self.latencies_ms,
            routing: self.routing,
            commits,
            state_models,
            max_batch,
            quanta,
            notes,
        })
    }
}

fn check_concurrency(concurrency: Option<u32>) -> Result<u32, Error> {
    let allowed = format!("1 to {MAX_CONCURRENCY} requests");
    match concurrency {
        None => Err(Error::model("concurrency", "missing", allowed)),
        Some(n) if n == 0 || n > MAX_CONCURRENCY => Err(Error::model("concurrency", format!("{n} requests"), allowed)),
        Some(n) => Ok(n),
    }
}

fn check_state_models(given: Option<Vec<usize>>, models: usize, rows: usize) -> Result<Vec<usize>, Error> {
    let Some(state_models) = given else {
        if rows != models {
            let problem = format!("{rows} rows for {models} models");
            return Err(Error::model("P", problem, "one row per model, or a list of routing states with their models"));
        }
        return Ok((0..models).collect());
    };
    let states = state_models.len();
    if states == 0 || states > MAX_ROUTING_STATES {
        let allowed = format!("1 to {MAX_ROUTING_STATES} routing states");
        return Err(Error::model("routing states", format!("{states} states"), allowed));
    }
    if let Some((state, &model)) = state_models.iter().enumerate().find(|&(_, &model)| model >= models) {
        return Err(Error::model(
            format!("routing state {state}"),
            format!("model {model}"),
            format!("a model from 0 to {}", models - 1),
        ));
    }
    Ok(state_models)
}

fn check_matrix(name: &str, matrix: &[Vec<f64>], size: usize) -> Result<(), Error> {
    if matrix.len() != size {
        return Err(Error::model(name, format!("{} rows", matrix.len()), format!("{size} rows of {size} numbers")));
    }
    for (i, row) in matrix.iter().enumerate() {
        if row.len() != size {
            return Err(Error::model(
                format!("{name} row {i}"),
                format!("{} numbers", row.len()),
                format!("{size} numbers"),
            ));
        }
        if let Some((j, value)) = row.iter().enumerate().find(|&(_, &value)| !(value.is_finite() && value >= 0.0)) {
            return Err(Error::model(format!("{name}[{i}][{j}]"), format!("{value}"), "a finite number, 0 or above"));
        }
    }
    Ok(())
}

fn check_rows(routing: &[Vec<f64>]) -> Result<(), Error> {
    for (i, row) in routing.iter().enumerate() {
        let sum: f64 = row.iter().sum();
        if (sum - 1.0).abs() > ROW_SUM_TOLERANCE {
            let problem = format!("the probabilities sum to {sum}");
            return Err(Error::model(
                format!("P row {i}"),
                problem,
                format!("a sum of 1 within {ROW_SUM_TOLERANCE:.0e}"),
            ));
        }
    }
    Ok(())
}

fn check_caps(max_batch: &[Option<u32>], models: usize) -> Result<(), Error> {
    if max_batch.len() != models {
        let problem = format!("{} values for {models} models", max_batch.len());
        return Err(Error::model("max batch", problem, format!("{models} values")));
    }
    if let Some(model) = max_batch.iter().position(|&cap| cap == Some(0)) {
        return Err(Error::model(format!("max batch of model {model}"), "0", "1 or more"));
    }
    Ok(())
}
