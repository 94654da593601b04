//! A system with its requests in it: checked, defaults filled in, latencies counted in quanta.

use super::{Latency, MAX_CONCURRENCY, MAX_MODELS, MAX_ROUTING_STATES, System, TokenCost, reach, tokens};
use crate::Error;
use serde::Serialize;

/// How far a row of `P` may be from summing to one.
const ROW_SUM_TOLERANCE: f64 = 1e-9;
/// Relative rounding of a latency above which a note is made.
const ROUNDING_NOTE: f64 = 0.01;

/// A [`System`] that always holds `N` requests (a closed queueing system), checked once and then trusted: what chains are
/// built from and simulations run. [`System::closed`] makes one.
///
/// Requests move over `S` *routing states*, each of which belongs to one of `M` models.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClosedSystem {
    concurrency: u32,
    quantum_ms: f64,
    latencies_ms: Vec<Latency>,
    routing: Vec<Vec<f64>>,
    commits: Vec<Vec<f64>>,
    state_models: Vec<usize>,
    max_batch: Vec<Option<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_costs: Option<Vec<TokenCost>>,
    /// Latencies with the mean cost of tokens beyond one a row in them.
    #[serde(skip)]
    step_latencies: Vec<Latency>,
    #[serde(skip)]
    quanta: Vec<Vec<u32>>,
    notes: Vec<String>,
}

impl ClosedSystem {
    /// Checks `system` for `concurrency` requests and converts its latencies to quanta.
    pub(super) fn new(system: &System, concurrency: u32) -> Result<Self, Error> {
        let System { latencies_ms, routing, quantum_ms, .. } = system;
        let (models, quantum_ms) = (latencies_ms.len(), *quantum_ms);
        if models == 0 || models > MAX_MODELS {
            return Err(Error::system("latencies", format!("{models} models"), format!("1 to {MAX_MODELS} models")));
        }
        if concurrency == 0 || concurrency > MAX_CONCURRENCY {
            let allowed = format!("1 to {MAX_CONCURRENCY} requests");
            return Err(Error::system("concurrency", format!("{concurrency} requests"), allowed));
        }
        if !(quantum_ms.is_finite() && quantum_ms > 0.0) {
            return Err(Error::system("quantum", format!("{quantum_ms} ms"), "a finite quantum above 0 ms"));
        }
        let state_models = check_state_models(system.state_models.as_deref(), models, routing.len())?;
        let states = state_models.len();
        check_matrix("P", routing, states)?;
        check_rows(routing)?;
        let commits = system.commits.clone().unwrap_or_else(|| vec![vec![1.0; states]; states]);
        check_matrix("C", &commits, states)?;
        check_commits(routing, &commits)?;
        let max_batch = system.max_batch.clone().unwrap_or_else(|| vec![None; models]);
        check_caps(&max_batch, models)?;
        tokens::check(system.token_costs.as_deref(), models)?;

        let mut notes = Vec::new();
        let mut quanta = Vec::with_capacity(models);
        let mut step_latencies = Vec::with_capacity(models);
        for (index, latency) in latencies_ms.iter().enumerate() {
            let place = format!("latency of model {index}");
            latency.validate(&place)?;
            let largest = max_batch[index].map_or(concurrency, |cap| cap.min(concurrency));
            let step = match system.token_costs.as_ref().map(|costs| costs[index]) {
                Some(cost) if cost.ms_per_token > 0.0 => {
                    let rows = tokens::row_tokens(routing, &commits, &state_models, index, cost.cells());
                    cost.added(latency, &rows, largest)
                }
                _ => latency.clone(),
            };
            let quantised = step.quantise(&place, quantum_ms, largest)?;
            step_latencies.push(step);
            if quantised.worst.abs() > ROUNDING_NOTE {
                notes.push(format!(
                    "{place} is rounded by {:+.2} % at batch size {} with a quantum of {quantum_ms} ms: use a smaller one",
                    100.0 * quantised.worst,
                    quantised.worst_at
                ));
            }
            quanta.push(quantised.quanta);
        }
        reach::describe(routing, &state_models, models, &mut notes);
        let (latencies_ms, routing, token_costs) = (latencies_ms.clone(), routing.clone(), system.token_costs.clone());
        Ok(Self {
            concurrency,
            quantum_ms,
            latencies_ms,
            routing,
            commits,
            state_models,
            max_batch,
            token_costs,
            step_latencies,
            quanta,
            notes,
        })
    }

    /// Number of models `M`.
    #[must_use]
    pub const fn models(&self) -> usize {
        self.latencies_ms.len()
    }

    /// Number of routing states `S`.
    #[must_use]
    pub const fn routing_states(&self) -> usize {
        self.routing.len()
    }

    /// Number of requests `N`.
    #[must_use]
    pub const fn concurrency(&self) -> u32 {
        self.concurrency
    }

    /// Length of a quantum in milliseconds.
    #[must_use]
    pub const fn quantum_ms(&self) -> f64 {
        self.quantum_ms
    }

    /// Latency of every model, in milliseconds.
    #[must_use]
    pub fn latencies_ms(&self) -> &[Latency] {
        &self.latencies_ms
    }

    /// Mean milliseconds of a step of `model` with `batch` requests, before rounding to quanta: its latency, and what the
    /// tokens beyond one a row cost on average. `None` above the largest batch of a table.
    #[must_use]
    pub fn step_ms(&self, model: usize, batch: u32) -> Option<f64> {
        self.step_latencies[model].at(batch)
    }

    /// What tokens beyond one a row cost at every model; `None` where they cost nothing.
    #[must_use]
    pub fn token_costs(&self) -> Option<&[TokenCost]> {
        self.token_costs.as_deref()
    }

    /// Routing matrix `P`, `S x S`, rows summing to one.
    #[must_use]
    pub fn routing(&self) -> &[Vec<f64>] {
        &self.routing
    }

    /// Commit matrix `C`, `S x S`: tokens committed by a step in state `i` that goes on to state `j`.
    #[must_use]
    pub fn commits(&self) -> &[Vec<f64>] {
        &self.commits
    }

    /// The model of every routing state.
    #[must_use]
    pub fn state_models(&self) -> &[usize] {
        &self.state_models
    }

    /// Cap on the batch size of every model.
    #[must_use]
    pub fn max_batch(&self) -> &[Option<u32>] {
        &self.max_batch
    }

    /// Largest batch that model `i` can run: its cap, or `N`.
    #[must_use]
    pub fn largest_batch(&self, model: usize) -> u32 {
        self.max_batch[model].map_or(self.concurrency, |cap| cap.min(self.concurrency))
    }

    /// Quanta of a step of `model` with `batch >= 1` requests.
    #[must_use]
    pub fn quanta(&self, model: usize, batch: u32) -> u32 {
        self.quanta[model][batch as usize - 1]
    }

    /// Largest number of quanta of any step of `model`.
    #[must_use]
    pub fn largest_quanta(&self, model: usize) -> u32 {
        self.quanta[model].iter().copied().max().unwrap_or(1)
    }

    /// Remarks about the description that don't make it invalid: rounding above 1 %, models never reached or left.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Expected tokens committed by one request's step in routing state `s`: `sum_j P_sj C_sj`.
    #[must_use]
    pub fn tokens_per_step(&self, state: usize) -> f64 {
        self.routing[state].iter().zip(&self.commits[state]).map(|(p, c)| p * c).sum()
    }

    /// The description that would make this again, defaults written out: for variations of it.
    #[must_use]
    pub fn to_system(&self) -> System {
        System {
            latencies_ms: self.latencies_ms.clone(),
            routing: self.routing.clone(),
            commits: Some(self.commits.clone()),
            state_models: Some(self.state_models.clone()),
            quantum_ms: self.quantum_ms,
            max_batch: Some(self.max_batch.clone()),
            token_costs: self.token_costs.clone(),
        }
    }

    /// The same system with another number of requests.
    ///
    /// # Errors
    /// When `concurrency` is out of range, or a latency table does not reach it.
    pub fn with_concurrency(&self, concurrency: u32) -> Result<Self, Error> {
        self.to_system().closed(concurrency)
    }

    /// The same system with another quantum.
    ///
    /// # Errors
    /// When the quantum is larger than a latency.
    pub fn with_quantum_ms(&self, quantum_ms: f64) -> Result<Self, Error> {
        System { quantum_ms, ..self.to_system() }.closed(self.concurrency)
    }

    /// Indices of models from the slowest to the fastest (by their longest step).
    pub(crate) fn slowest_first(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.models()).collect();
        order.sort_by_key(|&model| std::cmp::Reverse(self.largest_quanta(model)));
        order
    }

    /// Routing states that belong to `model`.
    pub(crate) fn states_of(&self, model: usize) -> impl Iterator<Item = usize> + '_ {
        self.state_models.iter().enumerate().filter(move |&(_, &owner)| owner == model).map(|(state, _)| state)
    }
}

fn check_state_models(given: Option<&[usize]>, models: usize, rows: usize) -> Result<Vec<usize>, Error> {
    let Some(state_models) = given else {
        if rows != models {
            let problem = format!("{rows} rows for {models} models");
            return Err(Error::system(
                "P",
                problem,
                "one row per model, or a list of routing states with their models",
            ));
        }
        return Ok((0..models).collect());
    };
    let states = state_models.len();
    if states == 0 || states > MAX_ROUTING_STATES {
        let allowed = format!("1 to {MAX_ROUTING_STATES} routing states");
        return Err(Error::system("routing states", format!("{states} states"), allowed));
    }
    if let Some((state, &model)) = state_models.iter().enumerate().find(|&(_, &model)| model >= models) {
        return Err(Error::system(
            format!("routing state {state}"),
            format!("model {model}"),
            format!("a model from 0 to {}", models - 1),
        ));
    }
    Ok(state_models.to_vec())
}

fn check_matrix(name: &str, matrix: &[Vec<f64>], size: usize) -> Result<(), Error> {
    if matrix.len() != size {
        return Err(Error::system(name, format!("{} rows", matrix.len()), format!("{size} rows of {size} numbers")));
    }
    for (i, row) in matrix.iter().enumerate() {
        if row.len() != size {
            return Err(Error::system(
                format!("{name} row {i}"),
                format!("{} numbers", row.len()),
                format!("{size} numbers"),
            ));
        }
        if let Some((j, value)) = row.iter().enumerate().find(|&(_, &value)| !(value.is_finite() && value >= 0.0)) {
            return Err(Error::system(format!("{name}[{i}][{j}]"), format!("{value}"), "a finite number, 0 or above"));
        }
    }
    Ok(())
}

fn check_rows(routing: &[Vec<f64>]) -> Result<(), Error> {
    for (i, row) in routing.iter().enumerate() {
        let sum: f64 = row.iter().sum();
        if (sum - 1.0).abs() > ROW_SUM_TOLERANCE {
            let problem = format!("the probabilities sum to {sum}");
            return Err(Error::system(
                format!("P row {i}"),
                problem,
                format!("a sum of 1 within {ROW_SUM_TOLERANCE:.0e}"),
            ));
        }
    }
    Ok(())
}

/// Without a token there is no throughput, and no time per token.
fn check_commits(routing: &[Vec<f64>], commits: &[Vec<f64>]) -> Result<(), Error> {
    let commits_some =
        routing.iter().zip(commits).any(|(p, c)| p.iter().zip(c).any(|(share, tokens)| share * tokens > 0.0));
    if commits_some {
        return Ok(());
    }
    let allowed = "a number above 0 where `P` is above 0";
    Err(Error::system("C", "no token is ever committed: every entry that `P` leads to is 0", allowed))
}

fn check_caps(max_batch: &[Option<u32>], models: usize) -> Result<(), Error> {
    if max_batch.len() != models {
        let problem = format!("{} values for {models} models", max_batch.len());
        return Err(Error::system("max batch", problem, format!("{models} values")));
    }
    if let Some(model) = max_batch.iter().position(|&cap| cap == Some(0)) {
        return Err(Error::system(format!("max batch of model {model}"), "0", "1 or more"));
    }
    Ok(())
}
