//! Runners: what computes the steps of one model.

mod candle;
mod emulated;
mod native;
pub(crate) mod sampler;

pub use candle::CandleRunner;
pub use emulated::{EmulatedModel, EmulatedRunner};
pub use native::NativeRunner;

use crate::routing::Signals;
use crate::scheduler::Batch;

/// Result of one row that asked for a next token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowOutput {
    /// The candidate token, chosen as the request's sampling parameters say.
    pub token: u32,
    /// Signals that the routing policy needs.
    pub signals: Signals,
}

/// A forward pass failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunnerError {
    /// In candle.
    #[error("forward pass failed: {0}")]
    Tensor(#[from] candle_core::Error),
    /// In the CPU kernels.
    #[error("forward pass failed: {0}")]
    Native(#[from] tokenrouter_kernels::Error),
}

/// Computes steps of one model over its own KV cache.
///
/// A row's result must not depend on the other rows of the batch, nor on how its prompt was cut into chunks: greedy
/// output then cannot depend on scheduling (invariant 6).
pub trait ModelRunner: Send {
    /// Runs one step. Stores keys and values of every new token in the row's blocks; replaces `outputs` by one entry
    /// per row with `sample` set, in order.
    fn forward(&mut self, batch: &Batch, outputs: &mut Vec<RowOutput>) -> Result<(), RunnerError>;
}
