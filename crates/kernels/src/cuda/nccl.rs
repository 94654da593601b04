//! Sums over the GPUs of a tensor-parallel model, by NCCL. Its library is loaded when it is first asked for.

use cudarc::nccl::{Comm, Id, ReduceOp};

use super::collective::Collective;
use super::driver::failed;
use super::gpu::Gpu;
use super::memory::Buffer;
use crate::Error;

/// A rank of a group.
pub(super) struct Nccl {
    comm: Comm,
}

// SAFETY: a communicator may move between threads as long as one at a time uses it; the decoder that owns it is `&mut`.
unsafe impl Send for Nccl {}

impl Nccl {
    /// A name for a group, to be given to all its ranks.
    pub(super) fn group() -> Result<Id, Error> {
        // SAFETY: tries to open the library, which has no preconditions.
        if !unsafe { cudarc::nccl::sys::is_culib_present() } {
            return Err(failed("tensor parallelism", "NCCL (libnccl) is not on this machine"));
        }
        Id::new().map_err(|error| failed("tensor parallelism", format!("{error:?}")))
    }

    /// Joins a group; returns when all its ranks have.
    pub(super) fn join(gpu: &Gpu, (rank, ranks): (usize, usize), group: Id) -> Result<Self, Error> {
        let comm = Comm::from_rank(gpu.stream().clone(), rank, ranks, group);
        comm.map(|comm| Self { comm }).map_err(|error| failed("tensor parallelism", format!("{error:?}")))
    }
}

impl Collective for Nccl {
    fn all_reduce(&self, buffer: &Buffer<f32>, count: usize) -> Result<(), Error> {
        let address = buffer.slice(0..count).address();
        // SAFETY: the address is of `count` numbers, which `buffer` keeps alive; `leak` gives them back to it.
        let mut numbers = unsafe { self.comm.stream().upgrade_device_ptr::<f32>(address, count) };
        let result = self.comm.all_reduce_in_place(&mut numbers, &ReduceOp::Sum);
        let _address = numbers.leak();
        result.map(drop).map_err(|error| failed("sum over ranks", format!("{error:?}")))
    }

    fn can_be_captured(&self) -> bool {
        true
    }
}
