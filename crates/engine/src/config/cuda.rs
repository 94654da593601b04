//! What models on CUDA devices can be told.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::Problem;

/// Shapes of steps that are captured as CUDA graphs at launch. A step takes the smallest one that holds it, and runs kernel
/// by kernel where there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CudaGraphsConfig {
    /// Batch sizes of steps in which every request brings one token.
    pub decode: Vec<usize>,
    /// `[batch size, tokens]` of steps in which some bring more, such as those that return from another model.
    pub extend: Vec<[usize; 2]>,
}

impl Default for CudaGraphsConfig {
    fn default() -> Self {
        Self { decode: vec![1, 2, 4, 8, 16, 32], extend: vec![[1, 4], [2, 8], [4, 16], [8, 32], [16, 64]] }
    }
}

impl CudaGraphsConfig {
    /// Shapes as tokens and rows.
    pub(crate) fn shapes(&self) -> Vec<(usize, usize)> {
        let decode = self.decode.iter().map(|batch| (*batch, *batch));
        decode.chain(self.extend.iter().map(|[batch, tokens]| (*tokens, *batch))).collect()
    }

    pub(super) fn validate(&self, name: &str) -> Result<(), Problem> {
        let keys = ["decode", "extend"].into_iter().zip([self.decode.len(), self.extend.len()]);
        let places = keys.flat_map(|(key, length)| (0..length).map(move |index| (key, index)));
        for ((tokens, batch), (key, index)) in self.shapes().into_iter().zip(places) {
            if batch == 0 || tokens < batch || tokens > 512 {
                let message = format!(
                    "model `{name}`: a graph for {batch} requests and {tokens} tokens is not possible, allowed are 1 to \
                     512 tokens, and at least one per request"
                );
                return Err(Problem::new(["models", name, "cuda_graphs", key], message).entry(index));
            }
        }
        Ok(())
    }
}
