//! How large a model is, from its shape alone: no weights are read.

use super::{Arch, Family, ModelError, ModelFiles, RopeScaling, Slot};
use crate::config::WeightDtype;

/// A model without its weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// The architecture.
    pub arch: Arch,
    /// Whether the output head is the embedding.
    pub tied: bool,
    /// Bytes of the weights as stored, where files are there.
    pub stored: Option<u64>,
}

/// Published shapes: hub id, layers, width, query heads, feed-forward width, tied. All have 8 key/value heads of 128 and
/// a vocabulary of 151,936.
const QWEN3: [(&str, usize, usize, usize, usize, bool); 6] = [
    ("Qwen/Qwen3-0.6B", 28, 1024, 16, 3072, true),
    ("Qwen/Qwen3-1.7B", 28, 2048, 16, 6144, true),
    ("Qwen/Qwen3-4B", 36, 2560, 32, 9728, true),
    ("Qwen/Qwen3-8B", 36, 4096, 32, 12_288, false),
    ("Qwen/Qwen3-14B", 40, 5120, 40, 17_408, false),
    ("Qwen/Qwen3-32B", 64, 5120, 64, 25_600, false),
];

impl Shape {
    /// Of a hub model whose shape is known here, so that memory can be planned before anything is downloaded.
    pub fn known(id: &str) -> Option<Self> {
        let (_, layers, d_model, heads, ffn, tied) = *QWEN3.iter().find(|(name, ..)| *name == id)?;
        let arch = Arch {
            family: Family::Qwen3,
            layers: (0..layers).collect(),
            d_model,
            heads,
            kv_heads: 8,
            head_dim: 128,
            ffn,
            vocab: 151_936,
            head_tokens: None,
            context: 40_960,
            qkv_bias: false,
            eps: 1e-6,
            rope_theta: 1e6,
            rope_scaling: RopeScaling::None,
            rope_interleaved: false,
        };
        Some(Self { arch, tied, stored: None })
    }

    /// Ids that [`Self::known`] knows.
    pub fn known_ids() -> impl Iterator<Item = &'static str> {
        QWEN3.iter().map(|(id, ..)| *id)
    }

    /// Of files that are there.
    pub fn of(files: &ModelFiles) -> Result<Self, ModelError> {
        let stored = Some(files.weights.stored_bytes()?);
        Ok(Self { arch: files.arch.clone(), tied: !files.weights.has(Slot::Head), stored })
    }

    /// Number of weights.
    pub fn parameters(&self) -> u64 {
        let Arch { d_model, heads, kv_heads, head_dim, ffn, vocab, .. } = self.arch;
        let (query, key) = (heads * head_dim, kv_heads * head_dim);
        let extras = match self.arch.family {
            Family::Llama | Family::Qwen2 => 0,
            Family::Qwen3 => 2 * head_dim,
        };
        let extras = extras + if self.arch.qkv_bias { query + 2 * key } else { 0 };
        let layer = 2 * d_model * query + 2 * d_model * key + 3 * d_model * ffn + 2 * d_model + extras;
        let embeddings = if self.tied { 1 } else { 2 };
        (embeddings * vocab * d_model + self.arch.layers.len() * layer + d_model) as u64
    }

    /// Bytes of the weights; `native` is what the files take, and bf16 where there are none.
    pub fn weight_bytes(&self, dtype: WeightDtype) -> u64 {
        match dtype {
            WeightDtype::Native => self.stored.unwrap_or_else(|| 2 * self.parameters()),
            WeightDtype::F32 => 4 * self.parameters(),
            WeightDtype::Bf16 | WeightDtype::F16 => 2 * self.parameters(),
        }
    }

    /// Bytes of the weights that each of `ranks` ranks holds: its part of the layers, and all of embedding and head.
    pub fn weight_bytes_per_rank(&self, dtype: WeightDtype, ranks: u64) -> u64 {
        let all = self.weight_bytes(dtype);
        let tables = (if self.tied { 1 } else { 2 }) * (self.arch.vocab * self.arch.d_model) as u64;
        // In the proportion of the numbers, whatever their types are.
        let shared = (u128::from(all) * u128::from(tables) / u128::from(self.parameters().max(1))) as u64;
        shared + (all - shared).div_ceil(ranks.max(1))
    }

    /// Bytes of the activations of a step of `tokens` tokens that asks for logits of `rows` of them, in f32: the residual
    /// stream and what attention and the feed-forward layer hold beside it.
    pub fn workspace_bytes(&self, tokens: usize, rows: usize) -> u64 {
        let Arch { d_model, heads, kv_heads, head_dim, ffn, vocab, .. } = self.arch;
        let per_token = 3 * d_model + (2 * heads + 2 * kv_heads) * head_dim + 2 * ffn;
        4 * (tokens * per_token + rows * vocab) as u64
    }
}
