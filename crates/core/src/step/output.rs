//! What a step gives back.

use std::time::Duration;

use super::signals::Signals;
use crate::request::{RequestId, TokenLogprobs};

/// Entropy and normaliser of one row's softmax.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Softmax {
    /// In nats.
    pub entropy: f32,
    /// Logarithm of the sum of the exponentials of all logits.
    pub log_sum_exp: f32,
}

/// Candidates and signals of the rows that asked for a next token, in order; a signal that nobody asked for is empty.
/// Reused from step to step.
#[derive(Debug, Default)]
pub struct StepOutput {
    /// The candidate of each row, chosen as the request's sampling parameters say.
    pub tokens: Vec<u32>,
    /// One per row, or empty.
    pub softmax: Vec<Softmax>,
    /// The largest logits, `[rows, k]`.
    pub top: Vec<(f32, u32)>,
    /// Hidden states, `[rows, d_model]`.
    pub hidden: Vec<f32>,
    /// Input embeddings of the candidates, `[rows, d_model]`.
    pub embedding: Vec<f32>,
    /// Logits of the extra row, one per row.
    pub extra: Vec<f32>,
    /// Scores of the routing head, one per row, from a runner that runs the head itself; otherwise empty.
    pub scores: Vec<f32>,
    /// Log-probabilities of the candidates, in the order of the rows, for the requests that ask for them; otherwise empty.
    pub logprobs: Vec<(RequestId, TokenLogprobs)>,
    /// Time that choosing the tokens took.
    pub sampling: Duration,
    /// On CUDA: whether the step was one launch of a graph.
    pub graph: Option<bool>,
}

impl StepOutput {
    /// Empties everything and keeps the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.softmax.clear();
        self.top.clear();
        self.hidden.clear();
        self.embedding.clear();
        self.extra.clear();
        self.scores.clear();
        self.logprobs.clear();
        self.sampling = Duration::ZERO;
        self.graph = None;
    }

    /// Signals of row `index`.
    pub fn signals(&self, index: usize) -> Signals<'_> {
        fn part<T>(values: &[T], rows: usize, index: usize) -> &[T] {
            let width = values.len() / rows;
            &values[index * width..(index + 1) * width]
        }
        let rows = self.tokens.len();
        let softmax = self.softmax.get(index);
        Signals {
            entropy: softmax.map_or(f32::NAN, |s| s.entropy),
            log_sum_exp: softmax.map_or(f32::NAN, |s| s.log_sum_exp),
            top: part(&self.top, rows, index),
            hidden: part(&self.hidden, rows, index),
            embedding: part(&self.embedding, rows, index),
            extra: self.extra.get(index).copied().unwrap_or(f32::NAN),
        }
    }
}
