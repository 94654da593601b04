//! Decoder-only transformers: architecture, weights, and the candle implementation over ragged batches.
//!
//! Llama, Qwen2 and Qwen3 (dense), from GGUF or from a directory with `config.json` and safetensors.

mod arch;
mod decoder;
mod export;
mod gguf;
mod hf;
mod patch;
mod safetensors;
mod shape;
mod source;
mod weights;

pub use arch::{Arch, Family, RopeScaling};
pub use decoder::Decoder;
pub use export::export_gguf;
pub(crate) use gguf::{Metadata as GgufMetadata, as_usize as gguf_usize};
pub use patch::{LinearPatch, LinearPatches};
pub use shape::Shape;
pub use source::{cache_dir, demo_gguf_path, locate};
pub use weights::{Slot, StoredTensor, Weights};

use std::path::{Path, PathBuf};

use crate::config::ModelConfig;
use crate::tokenizer::TextCodec;

/// A model could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file could not be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is there but its content cannot be used.
    #[error("{path}: {message}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong and what is allowed.
        message: String,
    },
    /// The weights are not where the configuration says.
    #[error("{0}")]
    NotFound(String),
    /// Candle refused.
    #[error("{path}: {source}")]
    Tensor {
        /// The file.
        path: PathBuf,
        /// Why.
        source: candle_core::Error,
    },
}

impl ModelError {
    pub(crate) fn invalid(path: &Path, message: impl Into<String>) -> Self {
        Self::Invalid { path: path.to_owned(), message: message.into() }
    }
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }
    pub(crate) fn tensor(path: &Path, source: candle_core::Error) -> Self {
        Self::Tensor { path: path.to_owned(), source }
    }
}

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
        if let Some(keep) = &config.layers {
            let have = files.arch.layers.len();
            if let Some(bad) = keep.iter().find(|layer| **layer >= have) {
                let message = format!("`layers` names layer {bad}, the model has layers 0 to {}", have - 1);
                return Err(ModelError::invalid(&path, message));
            }
            files.arch.layers.clone_from(keep);
            if let Some(path) = &config.patch {
                files.patches = patch::read(path, files.arch.d_model, keep)?;
            }
        }
        Ok(files)
    }
}
