//! Decoder-only transformers: architecture, weights, tokenizer.
//!
//! Llama, Qwen2 and Qwen3 (dense), from GGUF or from a directory with `config.json` and safetensors. What a file says and
//! is not computed is refused by name: `keys` has the tables, `names` the tensors.

mod arch;
mod config_json;
mod export;
mod finite;
mod gguf;
mod header;
mod hf;
mod json;
mod keys;
mod names;
mod parts;
mod patch;
mod rope;
mod safetensors;
mod shape;
mod shards;
mod source;
mod stored;
mod student;
mod weights;

pub use crate::files::ModelError;
pub use arch::{Arch, Family};
pub use export::export_gguf;
pub use patch::{LinearPatch, LinearPatches};
pub use rope::{RopeScaling, Yarn};
pub use shape::Shape;
pub use source::{cache_dir, demo_gguf_path, locate};
pub use stored::{StoredTensor, candle_dtype};
pub use weights::{Slot, Weights};

use crate::config::ModelConfig;
use crate::tokenizer::TextCodec;

/// A model's files, read: architecture, weights (lazily), text codec.
pub struct ModelFiles {
    /// Shape and constants.
    pub arch: Arch,
    /// What stands in for dropped layers.
    pub patches: LinearPatches,
    /// Access to the tensors.
    pub weights: Weights,
    /// Tokenizer and chat template.
    pub text: TextCodec,
    /// Token ids that end a sequence.
    pub eos: Vec<u32>,
    /// What the files say that could change results and is not used, or changes what can be done.
    pub warnings: Vec<String>,
}

impl std::fmt::Debug for ModelFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelFiles").field("arch", &self.arch).field("eos", &self.eos).finish_non_exhaustive()
    }
}

impl ModelFiles {
    /// Opens what a model's configuration points at, and applies its `layers`.
    pub fn open(config: &ModelConfig) -> Result<Self, ModelError> {
        let path = locate(config)?;
        let mut files = if path.is_dir() { hf::open(&path)? } else { gguf::open(&path)? };
        if let Some(path) = &config.student {
            return student::open(path, files);
        }
        if let Some(keep) = &config.layers {
            let have = files.arch.layers.len();
            if let Some(bad) = keep.iter().find(|layer| **layer >= have) {
                let message = format!("`layers` names layer {bad}, the model has layers 0 to {}", have - 1);
                return Err(ModelError::invalid(&path, message));
            }
            files.arch.layers.clone_from(keep);
            if let Some(path) = &config.patch {
                (files.patches, files.arch.head_tokens) = patch::read(path, &files.arch)?;
            }
        }
        Ok(files)
    }
}
