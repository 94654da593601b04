//! What model files and tokenizers have in common: the error that names a file, and typed access to GGUF metadata.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::Value;

/// A model could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file could not be read.
    #[error("{path}: {reason}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why. It is part of the message, so it is no source: whoever prints sources would print it twice.
        reason: std::io::Error,
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
    #[error("{path}: {reason}")]
    Tensor {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: candle_core::Error,
    },
}

impl ModelError {
    pub(crate) fn invalid(path: &Path, message: impl Into<String>) -> Self {
        Self::Invalid { path: path.to_owned(), message: message.into() }
    }
    pub(crate) fn io(path: &Path, reason: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), reason }
    }
    pub(crate) fn tensor(path: &Path, reason: candle_core::Error) -> Self {
        Self::Tensor { path: path.to_owned(), reason }
    }
}

/// Metadata of a GGUF file with typed access; messages name file and key.
pub(crate) struct GgufMetadata<'a> {
    pub(crate) path: &'a Path,
    pub(crate) values: &'a HashMap<String, Value>,
}

impl GgufMetadata<'_> {
    pub(crate) fn find(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    fn optional<T>(&self, key: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>, ModelError> {
        let Some(value) = self.find(key) else { return Ok(None) };
        let wrong = || self.invalid(format!("metadata key `{key}` has an unexpected type or value"));
        read(value).ok_or_else(wrong).map(Some)
    }

    fn get<T>(&self, key: &str, read: impl Fn(&Value) -> Option<T>) -> Result<T, ModelError> {
        self.optional(key, read)?.ok_or_else(|| self.invalid(format!("metadata key `{key}` is missing")))
    }

    pub(crate) fn optional_usize(&self, key: &str) -> Result<Option<usize>, ModelError> {
        self.optional(key, gguf_usize)
    }

    pub(crate) fn optional_f32(&self, key: &str) -> Result<Option<f32>, ModelError> {
        self.optional(key, |value| value.to_f32().ok())
    }

    pub(crate) fn optional_bool(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.optional(key, |value| value.to_bool().ok())
    }

    pub(crate) fn optional_str(&self, key: &str) -> Result<Option<String>, ModelError> {
        self.optional(key, |value| value.to_string().ok().cloned())
    }

    pub(crate) fn usize(&self, key: &str) -> Result<usize, ModelError> {
        self.get(key, gguf_usize)
    }

    pub(crate) fn f32(&self, key: &str) -> Result<f32, ModelError> {
        self.get(key, |value| value.to_f32().ok())
    }

    pub(crate) fn str(&self, key: &str) -> Result<String, ModelError> {
        self.get(key, |value| value.to_string().ok().cloned())
    }

    pub(crate) fn strings(&self, key: &str) -> Result<Vec<String>, ModelError> {
        self.get(key, |value| value.to_vec().ok()?.iter().map(|item| item.to_string().ok().cloned()).collect())
    }

    pub(crate) fn invalid(&self, message: impl Into<String>) -> ModelError {
        ModelError::invalid(self.path, message)
    }
}

pub(crate) fn gguf_usize(value: &Value) -> Option<usize> {
    match value {
        Value::U8(v) => Some(usize::from(*v)),
        Value::U16(v) => Some(usize::from(*v)),
        Value::U32(v) => usize::try_from(*v).ok(),
        Value::U64(v) => usize::try_from(*v).ok(),
        Value::I8(v) => usize::try_from(*v).ok(),
        Value::I16(v) => usize::try_from(*v).ok(),
        Value::I32(v) => usize::try_from(*v).ok(),
        Value::I64(v) => usize::try_from(*v).ok(),
        _ => None,
    }
}
