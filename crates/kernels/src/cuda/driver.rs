//! What a device does for the code above it: memory, copies, launches, graphs.

use std::ffi::c_void;

use crate::Error;

/// An argument of a kernel.
#[derive(Debug, Clone, Copy)]
pub(super) enum Arg {
    /// An address on the device; 0 for null.
    Address(u64),
    Int(i32),
    Size(usize),
    Float(f32),
}

impl Arg {
    /// Where its value is, as a launch wants it.
    pub(super) fn pointer(&mut self) -> *mut c_void {
        match self {
            Self::Address(value) => std::ptr::from_mut(value).cast(),
            Self::Int(value) => std::ptr::from_mut(value).cast(),
            Self::Size(value) => std::ptr::from_mut(value).cast(),
            Self::Float(value) => std::ptr::from_mut(value).cast(),
        }
    }
}

/// A kernel, its grid of blocks, and the threads of a block, a multiple of 32.
#[derive(Debug, Clone, Copy)]
pub(super) struct Launch {
    pub(super) kernel: &'static str,
    pub(super) grid: [u32; 3],
    pub(super) threads: u32,
}

/// One device with one stream: everything happens in the order of the calls.
pub(super) trait Driver: Send + Sync {
    fn name(&self) -> String;

    /// Free and total bytes; `None` where there is no limit to ask for.
    fn memory(&self) -> Result<Option<(usize, usize)>, Error>;

    /// Zeroed memory, aligned to 256 bytes.
    fn allocate(&self, bytes: usize) -> Result<u64, Error>;

    /// # Safety
    /// `address` and `bytes` are of one [`Self::allocate`], and nothing uses them afterwards.
    unsafe fn free(&self, address: u64, bytes: usize);

    /// # Safety
    /// `to` is the address of at least as many bytes as `from` has.
    unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<(), Error>;

    /// Waits for everything before it.
    ///
    /// # Safety
    /// `from` is the address of at least as many bytes as `to` has.
    unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<(), Error>;

    /// # Safety
    /// The arguments are those that the kernel declares, and its accesses stay inside of the memory that they name.
    unsafe fn launch(&self, launch: Launch, args: &mut [Arg]) -> Result<(), Error>;

    /// Waits for everything before it.
    fn synchronize(&self) -> Result<(), Error>;

    /// Launches are noted from here on, not run; copies fail.
    fn begin_capture(&self) -> Result<(), Error>;

    /// The GPU, if it is one.
    #[cfg(feature = "cuda")]
    fn gpu(&self) -> Option<&super::gpu::Gpu> {
        None
    }

    /// What was noted.
    fn end_capture(&self) -> Result<Box<dyn Graph>, Error>;
}

/// Launches that run together.
pub(super) trait Graph: Send {
    /// # Safety
    /// The memory that the launches name is still there.
    unsafe fn launch(&self) -> Result<(), Error>;
}

/// A failure of the device.
pub(super) fn failed(what: &'static str, reason: impl std::fmt::Display) -> Error {
    Error::Device { what, reason: reason.to_string() }
}
