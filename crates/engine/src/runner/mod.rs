//! Runners: what computes the steps of one model.

mod cuda;
mod emulated;
mod native;
pub(crate) mod sampler;

pub use cuda::{CudaRunner, CudaShapes};
pub use emulated::EmulatedRunner;
pub use native::NativeRunner;

use std::sync::Arc;

use smallvec::SmallVec;
use tokenrouter_core::step::{Batch, BatchRow};
use tokenrouter_kernels::RowInput;

use crate::config::KvDtypeConfig;
use tokenrouter_core::routing::{Head, SignalNeeds};

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
    pub head: Option<Arc<dyn Head>>,
}

/// The rows of a batch as the kernels' decoders take them, on the stack for all but very large batches.
fn row_inputs(batch: &Batch) -> SmallVec<[RowInput<'_>; 32]> {
    let input = |row: &'_ BatchRow| RowInput {
        tokens: batch.tokens(row),
        start: row.start,
        blocks: batch.blocks(row),
        sample: row.sample,
    };
    batch.rows().iter().map(input).collect()
}
