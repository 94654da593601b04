//! The CUDA backend: kernels of `cuda/*.cu`, compiled ahead of time, and the forward pass over them.
//!
//! | part | what |
//! |---|---|
//! | [`Device`], [`Buffer`] | a device with one stream, and its memory |
//! | `driver` | what a device does: two implementations, cudarc's, and the host's for tests |
//! | `ops` | one launch per kernel, shapes checked |
//! | [`BatchInputs`] | a ragged batch, its ids checked, at fixed addresses |
//! | [`CudaWeights`] | a model's weights |
//! | [`CudaDecoder`] | the forward pass, its KV cache and its graphs |
//! | [`CudaHead`] | a routing head, run right after the forward pass |
//! | [`Collective`] | sums over the ranks of a tensor-parallel model |
//! | [`checks`] | every kernel against a reference on the host |
//! | [`mod@bench`] | how close each kernel is to its bound |
//!
//! Without feature `cuda` everything is here but a device. With `cuda-emulation` the same kernels run on the host, thread
//! by thread: too slow for anything but tests, which need no GPU.

pub mod bench;
pub mod checks;
mod collective;
mod decoder;
#[cfg_attr(
    not(any(feature = "cuda", feature = "cuda-emulation")),
    allow(dead_code, reason = "without a device nothing is launched")
)]
mod driver;
#[cfg(feature = "cuda-emulation")]
mod emulated;
#[cfg(feature = "cuda")]
mod gpu;
mod head;
mod inputs;
mod matrix;
mod memory;
#[cfg(feature = "cuda")]
mod nccl;
mod ops;
mod weights;

pub use collective::{Alone, Collective, Group, InProcess};
pub use decoder::{CudaDecoder, CudaLimits, CudaNeeds, CudaOutput, GraphCounts};
pub use head::{CudaHead, HeadLinear, HeadNorm, HostHead};
pub use inputs::{BatchInputs, Limits};
pub use matrix::{ActivationType, DeviceMatrix, HostMatrix, MatrixKind};
pub use memory::{Buffer, Device, Element, Slice};
pub use ops::{ATTENTION_SPLIT, Activations, Heads, LayerCache, MAX_TOP, ROW_PADDING, RopeWeights, SIGNAL_WORDS};
pub use weights::{CudaLayer, CudaWeights};
