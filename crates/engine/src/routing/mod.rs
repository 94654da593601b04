//! Routing policies: which model writes the next token, seen from one request.
//!
//! After every step the model that holds a request has a *candidate* token. [`RoutingPolicy::route`] decides whether
//! the request stays or switches; at a switch [`RoutingPolicy::send`] says what becomes of the candidate, and
//! [`RoutingPolicy::receive`] takes over the tokens at the other side (paper, section 3). Adding a method takes one
//! file here and one line in [`registry`].

mod entropy;
mod query;
mod random;
pub mod registry;
mod rstitch;

use crate::request::{ModelIndex, RequestId};

/// Signals that a policy wants from the runner. Nothing else is computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SignalNeeds {
    /// Entropy of the next-token distribution at temperature 1 over the whole vocabulary.
    pub entropy: bool,
}

/// Signals of one row's logits.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Signals {
    /// Entropy in nats, of the raw logits' softmax (temperature 1, full vocabulary, f32 log-softmax). 0 when not asked
    /// for.
    pub entropy: f32,
}

/// What a policy sees of one request after a step.
#[derive(Debug, Clone, Copy)]
pub struct RowView<'a> {
    /// The request, to be named in errors.
    pub request: RequestId,
    /// Seed and key of the request's draws.
    pub seed: u64,
    /// See `seed`.
    pub key: u64,
    /// The model that made the step.
    pub model: ModelIndex,
    /// Index of the candidate in the committed stream: the number of tokens committed before it.
    pub position: usize,
    /// The candidate token.
    pub candidate: u32,
    /// Signals of the logits that the candidate was chosen from.
    pub signals: &'a Signals,
}

/// Where a request goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The candidate is committed and the request stays.
    Stay,
    /// The request moves to this model.
    Switch(ModelIndex),
}

/// What becomes of the candidate at a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Candidate {
    /// Committed, then sent.
    Commit,
    /// Dropped: the other model writes this position.
    Drop,
}

/// A square matrix over models, by rows.
pub type Matrix = Vec<Vec<f64>>;

/// A routing method.
pub trait RoutingPolicy: Send + Sync + std::fmt::Debug {
    /// Signals that [`Self::route`] reads.
    fn needs(&self) -> SignalNeeds {
        SignalNeeds::default()
    }

    /// The routing and commit matrices `(P, C)` of the throughput model, where they follow from the method alone.
    fn transition_model(&self) -> Option<(Matrix, Matrix)> {
        None
    }

    /// One decision per row, in order, appended to `decisions`. Must be a function of the rows alone.
    fn route(&self, rows: &[RowView<'_>], decisions: &mut Vec<Decision>);

    /// What is sent when `row` switches to `to`: by default everything, with the candidate.
    fn send(&self, row: &RowView<'_>, to: ModelIndex) -> Candidate {
        let _ = (row, to);
        Candidate::Commit
    }

    /// Takes the tokens that arrive with a request into this model's copy of its token log: by default commits them.
    fn receive(&self, log: &mut Vec<u32>, delta: &[u32]) {
        log.extend_from_slice(delta);
    }
}
