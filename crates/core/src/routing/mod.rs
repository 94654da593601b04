//! Routing policies: which model writes the next token, seen from one request.
//!
//! After every step the model that holds a request has a *candidate* token. [`RoutingPolicy::route`] decides whether
//! the request stays or switches; at a switch [`RoutingPolicy::send`] says what becomes of the candidate, and
//! [`RoutingPolicy::receive`] takes over the tokens at the other side (paper, section 3). Adding a method takes one
//! file here and one line in [`registry`]; `docs/guides/write-a-routing-method.md` shows a whole one.

mod aleatoric;
mod citer;
mod collm;
mod config;
mod ensemble;
mod entropy;
mod glimp;
mod head;
mod query;
mod r2r;
mod random;
pub mod registry;
pub mod replay;
mod rstitch;
mod rule;
mod scored;
mod state;

pub use config::RoutingConfig;
pub use head::{Head, HeadKind, HeadSizes, LoadHead};
pub use state::RequestState;

use std::sync::Arc;

use crate::keyed::{Purpose, draw_unit};
use crate::request::{ModelIndex, Request, RequestId};
use crate::step::StepOutput;
pub use crate::step::{SignalNeeds, Signals};

/// What a policy sees of one request after a step, and where it leaves its decision.
#[derive(Debug)]
pub struct Row {
    /// The request, to be named in errors.
    pub request: RequestId,
    /// Seed and key of the request's draws.
    pub seed: u64,
    /// See `seed`.
    pub key: u64,
    /// The model that made the step.
    pub model: ModelIndex,
    /// This request's threshold, instead of the configured one ([`RoutingPolicy::takes_threshold`]).
    pub threshold: Option<f64>,
    /// Length of the prompt.
    pub prompt_tokens: usize,
    /// Index of the candidate in the committed stream: the number of tokens committed before it.
    pub position: usize,
    /// The candidate token.
    pub candidate: u32,
    /// Steps that this model has made since the request came to it, before this one.
    pub visit_steps: u32,
    /// Tokens committed by those steps.
    pub visit_tokens: u32,
    /// What the policy keeps of this request from step to step; travels with it.
    pub state: RequestState,
    /// The number that decided, for traces and threshold sweeps; NaN when there is none.
    pub score: f32,
    /// The decision: staying, unless the policy says otherwise.
    pub decision: Decision,
}

impl Row {
    /// A step of `model` on a request that has just come to it: the candidate for `position` in the committed stream.
    /// The decision is to stay until a policy sets another.
    pub fn new(id: RequestId, request: &Request, model: ModelIndex, position: usize, candidate: u32) -> Self {
        Self {
            request: id,
            seed: request.routing.seed.unwrap_or(request.sampling.seed),
            key: request.key,
            model,
            threshold: request.routing.threshold,
            prompt_tokens: request.prompt_tokens(),
            position,
            candidate,
            visit_steps: 0,
            visit_tokens: 0,
            state: RequestState::default(),
            score: f32::NAN,
            decision: Decision::Stay,
        }
    }

    /// A draw in `[0, 1)`, the same for this request and position whatever the schedule.
    pub fn draw(&self) -> f64 {
        draw_unit(self.seed, self.key, self.position as u64, Purpose::Route)
    }
}

/// The rows of one step that have a candidate, with their signals.
#[derive(Debug)]
pub struct BatchView<'a> {
    rows: &'a mut [Row],
    output: &'a StepOutput,
}

impl<'a> BatchView<'a> {
    /// One row per entry of `output`, in the same order.
    pub fn new(rows: &'a mut [Row], output: &'a StepOutput) -> Self {
        assert_eq!(rows.len(), output.tokens.len(), "one output per row that has a candidate");
        Self { rows, output }
    }

    /// The rows.
    pub fn rows(&self) -> &[Row] {
        self.rows
    }

    /// The rows, for a policy that wraps another one.
    pub fn rows_mut(&mut self) -> &mut [Row] {
        self.rows
    }

    /// Candidates and signals of all rows.
    pub fn output(&self) -> &'a StepOutput {
        self.output
    }

    /// Signals of row `index`.
    pub fn signals(&self, index: usize) -> Signals<'a> {
        self.output.signals(index)
    }

    /// Decides every row by itself.
    pub fn decide(&mut self, mut one: impl FnMut(&mut Row, Signals<'a>) -> Decision) {
        for (index, row) in self.rows.iter_mut().enumerate() {
            row.decision = one(row, self.output.signals(index));
        }
    }
}

/// How a request goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The candidate is committed and the request stays.
    Stay,
    /// The request moves to this model.
    Switch(ModelIndex),
    /// The candidate is dropped and the same model writes this position again.
    Retry,
    /// The candidate is committed and the request ends, as when `max_tokens` is reached.
    Finish,
    /// The request ends with this error.
    Fail(String),
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
    /// Signals of `model` that [`Self::route`] reads. Nothing else is computed.
    fn needs(&self, model: ModelIndex) -> SignalNeeds {
        let _ = model;
        SignalNeeds::default()
    }

    /// The head whose scores of `model`'s rows are all that [`Self::route`] reads of its signals. A runner that can
    /// computes them itself, into [`StepOutput::scores`], and gives nothing else; the policy must bear both.
    fn head(&self, model: ModelIndex) -> Option<Arc<dyn Head>> {
        let _ = model;
        None
    }

    /// The routing and commit matrices `(P, C)` of the throughput model, where they follow from the method alone.
    fn transition_model(&self) -> Option<(Matrix, Matrix)> {
        None
    }

    /// Whether [`Row::threshold`] replaces the configured threshold. A request that brings one is refused otherwise.
    fn takes_threshold(&self) -> bool {
        false
    }

    /// Sets the decision of every row, usually with [`BatchView::decide`]. A row's decision must be a function of that
    /// row alone: the other rows of the batch depend on the schedule.
    fn route(&self, batch: &mut BatchView<'_>);

    /// What is sent when `row` switches to `to`: by default everything, with the candidate.
    fn send(&self, row: &mut Row, to: ModelIndex) -> Candidate {
        let _ = (row, to);
        Candidate::Commit
    }

    /// Takes the tokens that arrive with a request into this model's copy of its token log: by default commits them.
    fn receive(&self, log: &mut Vec<u32>, delta: &[u32]) {
        log.extend_from_slice(delta);
    }
}

#[cfg(test)]
mod testing {
    //! Decisions on hand-made signals.

    use super::*;
    use crate::request::SamplingParams;
    use crate::step::Softmax;

    /// A row of `model` at `position`.
    pub(super) fn row(model: ModelIndex, position: usize) -> Row {
        let sampling = SamplingParams { seed: 42, ..SamplingParams::default() };
        Row::new(RequestId(1), &Request::new(vec![1; 10], sampling, 9), model, position, 5)
    }

    /// The output of one row with this entropy.
    pub(super) fn with_entropy(entropy: f32) -> StepOutput {
        StepOutput { tokens: vec![5], softmax: vec![Softmax { entropy, log_sum_exp: 0.0 }], ..StepOutput::default() }
    }

    /// The decision on one row, and what its candidate's fate would be at a switch.
    pub(super) fn decide(policy: &dyn RoutingPolicy, row: &mut Row, output: &StepOutput) -> (Decision, Candidate) {
        policy.route(&mut BatchView::new(std::slice::from_mut(row), output));
        let to = if let Decision::Switch(to) = row.decision { to } else { 1 - row.model.min(1) };
        (row.decision.clone(), policy.send(row, to))
    }
}
