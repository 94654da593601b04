//! What can be wrong with a head's file or inputs.

use std::path::PathBuf;

use tokenrouter_core::routing::HeadKind;

/// A head cannot be read, written or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeadError {
    /// The operating system refused.
    #[error("cannot access `{}`: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why. It is part of the message, so it is no source.
        reason: std::io::Error,
    },
    /// The contents cannot be used.
    #[error("router head `{}`: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: Box<HeadProblem>,
    },
    /// Inputs that do not fit the head.
    #[error("{what} of a router head has {got} values, expected {expected}")]
    Input {
        /// Which input.
        what: &'static str,
        /// How many values it has.
        got: usize,
        /// How many are allowed.
        expected: String,
    },
    /// A product failed.
    #[error("router head: {reason}")]
    Kernel {
        /// Why. It is part of the message, so it is no source.
        reason: tokenrouter_kernels::Error,
    },
}

impl From<tokenrouter_kernels::Error> for HeadError {
    fn from(reason: tokenrouter_kernels::Error) -> Self {
        Self::Kernel { reason }
    }
}

/// What is wrong with the contents of a head's file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeadProblem {
    /// Not a safetensors file, or a broken one.
    #[error("not a readable safetensors file: {0}")]
    Safetensors(String),
    /// The file ends too early.
    #[error("the file is truncated: it has {got} bytes, its header says {expected}")]
    Truncated {
        /// Bytes of the file.
        got: u64,
        /// Bytes that the header speaks of.
        expected: u64,
    },
    /// The file is larger than any head.
    #[error("the file has {got} bytes, a router head at most {most}")]
    TooLarge {
        /// Bytes of the file.
        got: u64,
        /// Most allowed.
        most: u64,
    },
    /// A metadata entry is missing or not allowed.
    #[error("metadata `{key}` is {got}, expected {expected}")]
    Metadata {
        /// The entry.
        key: &'static str,
        /// Its value, quoted, or `missing`.
        got: String,
        /// What is allowed.
        expected: String,
    },
    /// A tensor is missing.
    #[error("tensor `{tensor}` is missing, a `{}` head needs it", kind.name())]
    Missing {
        /// Its name.
        tensor: String,
        /// What the head is.
        kind: HeadKind,
    },
    /// A tensor that this kind of head does not have. It could change what the scores mean, so it is not passed over.
    #[error("tensor `{tensor}` is not part of a `{}` head", kind.name())]
    Unknown {
        /// Its name.
        tensor: String,
        /// What the head is.
        kind: HeadKind,
    },
    /// A tensor has a type that is not read.
    #[error("tensor `{tensor}` has type {dtype}, allowed are F32 and BF16")]
    Dtype {
        /// Its name.
        tensor: String,
        /// Its type.
        dtype: String,
    },
    /// A tensor has a shape that does not fit.
    #[error("tensor `{tensor}` has shape {shape:?}, expected {expected}")]
    Shape {
        /// Its name.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// What is allowed.
        expected: String,
    },
    /// A tensor has an impossible value.
    #[error("tensor `{tensor}` has {value} at index {index}, expected {expected}")]
    Value {
        /// Its name.
        tensor: String,
        /// Place in row-major order.
        index: usize,
        /// The value.
        value: f32,
        /// What is allowed.
        expected: &'static str,
    },
}
