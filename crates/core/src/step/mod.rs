//! The contract of one step: a scheduler gives a [`Batch`] to a [`ModelRunner`], which gives a [`StepOutput`] back.

mod batch;
mod output;
mod signals;

pub use batch::{Batch, BatchRow};
pub use output::{Softmax, StepOutput};
pub use signals::{SignalNeeds, Signals};

/// A forward pass failed.
#[derive(Debug, thiserror::Error)]
#[error("forward pass failed: {0}")]
pub struct RunnerError(Box<dyn std::error::Error + Send + Sync>);

impl RunnerError {
    /// From the error of whatever computes the step.
    pub fn new(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(source.into())
    }
}

/// Computes steps of one model over its own KV cache.
///
/// A row's result must not depend on the other rows of the batch, nor on how its prompt was cut into chunks: greedy
/// output then cannot depend on scheduling (invariant 6).
pub trait ModelRunner: Send {
    /// Runs one step. Stores keys and values of every new token in the row's blocks; replaces `output` by candidates and
    /// signals of the rows with `sample` set, in order.
    fn forward(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), RunnerError>;
}
