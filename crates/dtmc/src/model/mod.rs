//! The system under study: latencies, routing, commits, concurrency. Validated once, then trusted everywhere.

mod builder;
mod latency;
mod reach;

pub use builder::ModelBuilder;
pub use latency::Latency;

use crate::Error;
use serde::Serialize;

/// Most models a chain may have.
pub const MAX_MODELS: usize = 8;
/// Most routing states a chain may have.
pub const MAX_ROUTING_STATES: usize = 16;
/// Most requests `N` in the system.
pub const MAX_CONCURRENCY: u32 = 4096;
/// Most quanta one step may take.
pub const MAX_QUANTA: u32 = 1 << 24;

/// A validated description of `M` models that serve `N` requests in a closed loop.
///
/// Requests move over `S` *routing states*, each of which belongs to a model. In the plain case there is one routing
/// state per model (`S = M`). Build one with [`Model::builder`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Model {
    concurrency: u32,
    quantum_ms: f64,
    latencies_ms: Vec<Latency>,
    routing: Vec<Vec<f64>>,
    commits: Vec<Vec<f64>>,
    state_models: Vec<usize>,
    max_batch: Vec<Option<u32>>,
    #[serde(skip)]
    quanta: Vec<Vec<u32>>,
    notes: Vec<String>,
}

impl Model {
    /// Starts a description; every part without a default is checked by [`ModelBuilder::build`].
    #[must_use]
    pub fn builder() -> ModelBuilder {
        ModelBuilder::default()
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

    /// The builder that would make this model again, for variations of it.
    #[must_use]
    pub fn to_builder(&self) -> ModelBuilder {
        ModelBuilder::default()
            .latencies_ms(self.latencies_ms.iter().cloned())
            .routing(self.routing.clone())
            .commits(self.commits.clone())
            .routing_state_models(self.state_models.clone())
            .concurrency(self.concurrency)
            .quantum_ms(self.quantum_ms)
            .max_batch(self.max_batch.clone())
    }

    /// The same system with another number of requests.
    ///
    /// # Errors
    /// When `concurrency` is out of range, or a latency table does not reach it.
    pub fn with_concurrency(&self, concurrency: u32) -> Result<Self, Error> {
        self.to_builder().concurrency(concurrency).build()
    }

    /// The same system with another quantum.
    ///
    /// # Errors
    /// When the quantum is larger than a latency.
    pub fn with_quantum_ms(&self, quantum_ms: f64) -> Result<Self, Error> {
        self.to_builder().quantum_ms(quantum_ms).build()
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
