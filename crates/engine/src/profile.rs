//! Where a subserver's time goes: sums for every run, single spans when a profile is wanted.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

/// What a subserver was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Activity {
    /// A forward pass, up to logits and signals.
    Forward,
    /// Choosing tokens.
    Sampling,
    /// Messages, routing, batches.
    Scheduling,
    /// Nothing: waiting for requests, or for a threshold.
    Idle,
}

/// A stretch of one activity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Span {
    /// What.
    pub activity: Activity,
    /// Since the engine's start.
    pub start: Duration,
    /// How long.
    pub took: Duration,
    /// Rows of the batch, for forward passes.
    pub rows: usize,
    /// New tokens of the batch, for forward passes.
    pub tokens: usize,
}

/// Spans that are kept; later ones are left out, so that a long run cannot fill the memory.
const MOST_SPANS: usize = 1 << 20;

/// Spans of one subserver.
#[derive(Debug, Default)]
pub(crate) struct Recorder(Mutex<Vec<Span>>);

impl Recorder {
    pub(crate) fn push(&self, span: Span) {
        // Only a reader at the end competes for the lock.
        let mut spans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spans.len() < MOST_SPANS {
            spans.push(span);
        }
    }

    pub(crate) fn spans(&self) -> Vec<Span> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
