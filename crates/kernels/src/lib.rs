//! Hot loops of the serving engine on the CPU.
//!
//! Every kernel is written once, in plain Rust over arrays of 16 lanes. It is compiled for several instruction sets,
//! and [`Isa`] selects one at run time. Integer products also have separate versions for AVX2, VNNI and NEON. All
//! versions use fused multiply-adds in the same order, so their results are equal to the last bit. The result of a row
//! never depends on its batch, on its tile, or on the number of threads.
//!
//! This is the only crate that may use `unsafe`.
//!
//! ```
//! use tokenrouter_kernels::{Activations, Isa, PackedMatrix, Pool};
//!
//! // A matrix of 2 outputs and 32 inputs, and one row of inputs.
//! let values: Vec<f32> = (0..64).map(|i| (i % 7) as f32).collect();
//! let matrix = PackedMatrix::from_f32(2, 32, &values)?;
//! let (x, mut out) = ([0.5; 32], [0.0; 2]);
//! matrix.multiply(Isa::detect(), &Pool::caller(), (&x, &Activations::default()), &mut out, (2, 0))?;
//! let expected: Vec<f32> = values.chunks(32).map(|row| row.iter().map(|w| 0.5 * w).sum()).collect();
//! assert_eq!(out.as_slice(), expected);
//! # Ok::<(), tokenrouter_kernels::Error>(())
//! ```

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
pub use matrix::{Format, PackedMatrix};
pub use ops::{argmax, softmax_weights};
pub use pool::Pool;
pub use quantize::Activations;
pub use signals::{LogitSignals, SignalSet, entropy, logit_signals};

/// Lanes of a tile: the outputs that are computed together.
pub const LANES: usize = 16;

/// The kernels cannot work with their input, or a resource is missing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A size has a wrong value.
    #[error("{what} is {got}, expected {expected}")]
    Shape {
        /// Name of the size.
        what: &'static str,
        /// Its value.
        got: usize,
        /// The allowed values.
        expected: String,
    },
    /// A device failed or does not exist.
    #[error("{what}: {reason}")]
    Device {
        /// The operation that failed.
        what: &'static str,
        /// The reason.
        reason: String,
    },
    /// Threads could not be started.
    #[error("cannot start {threads} threads: {reason}")]
    Threads {
        /// Number of threads.
        threads: usize,
        /// The reason.
        reason: String,
    },
}

/// Checks a size. `expected` is formatted only for the error, because every step checks its shapes.
pub(crate) fn check(what: &'static str, got: usize, ok: bool, expected: impl std::fmt::Display) -> Result<(), Error> {
    if ok { Ok(()) } else { Err(Error::Shape { what, got, expected: expected.to_string() }) }
}
