//! Runners: what computes the steps of one model.

mod candle;
mod cuda;
mod emulated;
mod native;
mod output;
pub(crate) mod sampler;

pub use candle::CandleRunner;
pub use cuda::{CudaRunner, CudaShapes};
pub(crate) use emulated::missing_signal;
pub use emulated::{EmulatedModel, EmulatedRunner};
pub use native::NativeRunner;
pub use output::{Softmax, StepOutput};

use std::sync::Arc;

use crate::config::KvDtypeConfig;
use crate::routing::SignalNeeds;
use crate::routing::heads::Head;
use crate::scheduler::Batch;

/// What a runner needs to know besides its model.
#[derive(Debug, Clone, Default)]
pub struct RunnerOptions {
    /// Signals that the routing policy reads.
    pub needs: SignalNeeds,
    /// Tokens from this id on are not chosen, because some other model does not have them; 0: no bound.
    pub vocab: usize,
    /// Tokens that end a sequence.
    pub eos: Vec<u32>,
    /// Blocks of the KV cache, and positions per block.
    pub kv: (usize, usize),
    /// How the native runner holds keys and values.
    pub kv_dtype: KvDtypeConfig,
    /// A routing head, to be run by a runner that can.
    pub head: Option<Arc<Head>>,
}

/// A forward pass failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunnerError {
    /// In candle.
    #[error("forward pass failed: {0}")]
    Tensor(#[from] candle_core::Error),
    /// In this project's kernels.
    #[error("forward pass failed: {0}")]
    Native(#[from] tokenrouter_kernels::Error),
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
