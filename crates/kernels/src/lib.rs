//! Hot loops of the serving engine on the CPU.
//!
//! Every kernel exists once, as plain Rust over arrays of 16 lanes, and is compiled for each instruction set that is
//! chosen at run time ([`Isa`]); products of integers also have versions for AVX2, VNNI and NEON. All versions use fused
//! multiply-adds in the same order, so their results are equal to the last bit, and a row's result never depends on the
//! batch it is in, on the tile it falls in, or on the number of threads.
//!
//! This is the only crate that may use `unsafe`.

mod attention;
pub mod cuda;
mod decoder;
mod isa;
mod kv;
mod matrix;
mod memory;
mod ops;
mod pool;
mod quantize;
mod signals;

pub use decoder::{Decoder, DecoderConfig, LayerWeights, Patch, RowInput, StepNeeds, StepOutput};
pub use isa::Isa;
pub use kv::{KvCache, KvDtype};
pub use matrix::{BlockKind, PackedMatrix};
pub use ops::{argmax, softmax_weights};
pub use pool::Pool;
pub use quantize::Activations;
pub use signals::{LogitSignals, SignalSet, entropy, logit_signals};

/// Lanes of a tile: outputs that are computed side by side.
pub const LANES: usize = 16;

/// Something was given that the kernels cannot work with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A shape does not fit.
    #[error("{what} is {got}, expected {expected}")]
    Shape {
        /// What has the shape.
        what: &'static str,
        /// What it is.
        got: usize,
        /// What is allowed.
        expected: String,
    },
    /// A device failed, or is not there.
    #[error("{what}: {reason}")]
    Device {
        /// What was to be done.
        what: &'static str,
        /// Why it was not.
        reason: String,
    },
    /// Threads could not be started.
    #[error("cannot start {threads} threads: {reason}")]
    Threads {
        /// How many.
        threads: usize,
        /// Why not.
        reason: String,
    },
}

/// `expected` becomes text only when it is needed: steps check their shapes.
pub(crate) fn check(what: &'static str, got: usize, ok: bool, expected: impl std::fmt::Display) -> Result<(), Error> {
    if ok { Ok(()) } else { Err(Error::Shape { what, got, expected: expected.to_string() }) }
}
