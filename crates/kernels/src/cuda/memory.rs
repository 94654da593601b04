//! Devices and their memory.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use super::driver::{Arg, Driver, Graph, Launch, failed};
use crate::{Error, check};

/// A device with a stream of its own. Clones share both.
#[derive(Clone)]
pub struct Device(pub(super) Arc<dyn Driver>);

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.0.name())
    }
}

impl Device {
    /// The CUDA device of that ordinal, with a new stream. The error says what is missing.
    pub fn cuda(ordinal: usize) -> Result<Self, Error> {
        #[cfg(feature = "cuda")]
        return Ok(Self(Arc::new(super::gpu::Gpu::new(ordinal)?)));
        #[cfg(not(feature = "cuda"))]
        Err(failed(
            "CUDA device",
            format!("`cuda:{ordinal}` is not possible: this binary was built without feature `cuda`"),
        ))
    }

    /// How many CUDA devices there are; why there are none.
    pub fn count() -> Result<usize, Error> {
        #[cfg(feature = "cuda")]
        return super::gpu::count();
        #[cfg(not(feature = "cuda"))]
        Err(failed("CUDA", "this binary was built without feature `cuda`"))
    }

    /// A device whose kernels run on the host, from the same source: for tests.
    #[cfg(feature = "cuda-emulation")]
    pub fn emulated() -> Self {
        Self(Arc::new(super::emulated::Emulated::default()))
    }

    #[cfg(feature = "cuda")]
    pub(super) fn gpu(&self) -> Option<&super::gpu::Gpu> {
        self.0.gpu()
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.0.name()
    }

    /// Free and total bytes; `None` where there is no limit to ask for.
    pub fn memory(&self) -> Result<Option<(usize, usize)>, Error> {
        self.0.memory()
    }

    /// Waits for everything that was launched.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.0.synchronize()
    }

    /// Zeroed memory for `len` elements.
    pub fn buffer<T: Element>(&self, len: usize) -> Result<Buffer<T>, Error> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| failed("allocation", format!("{len} elements")))?;
        let address = self.0.allocate(bytes)?;
        Ok(Buffer { device: self.clone(), address, len, element: PhantomData })
    }

    /// Memory with these elements.
    pub fn upload<T: Element>(&self, values: &[T]) -> Result<Buffer<T>, Error> {
        let buffer = self.buffer(values.len())?;
        buffer.write(0, values)?;
        Ok(buffer)
    }

    /// Launches a kernel. See [`Driver::launch`].
    ///
    /// # Safety
    /// The arguments are those that the kernel declares, and its accesses stay inside of the memory that they name.
    pub(super) unsafe fn launch(
        &self,
        kernel: &'static str,
        grid: [usize; 3],
        threads: usize,
        args: &mut [Arg],
    ) -> Result<(), Error> {
        // Limits of CUDA for y and z; x may be far larger.
        let fits = grid[0] <= i32::MAX as usize && grid[1] <= 65_535 && grid[2] <= 65_535;
        check("blocks of a kernel", grid.into_iter().max().unwrap_or(0), fits, "at most 65535, and 2^31 - 1 along x")?;
        if grid.contains(&0) {
            return Ok(());
        }
        let launch = Launch { kernel, grid: grid.map(|n| n as u32), threads: threads as u32 };
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.launch(launch, args) }
    }

    pub(super) fn capture(&self, work: impl FnOnce() -> Result<(), Error>) -> Result<Box<dyn Graph>, Error> {
        self.0.begin_capture()?;
        let worked = work();
        // Ends in any case: a stream that captures is of no other use.
        let graph = self.0.end_capture();
        worked.and(graph)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// Numbers that a device and the host hold alike, all bit patterns of which are values.
pub trait Element: sealed::Sealed + Copy + Default + Send + 'static {}

macro_rules! elements {
    ($($t:ty),*) => { $(impl sealed::Sealed for $t {} impl Element for $t {})* };
}
elements!(f32, i32, u32, u16, u8, i8);

fn bytes_of<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: numbers have no padding, and any of their bytes is a `u8`.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn bytes_of_mut<T: Element>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: numbers have no padding, and any bytes make numbers.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

/// Memory of a device.
pub struct Buffer<T> {
    device: Device,
    address: u64,
    len: usize,
    element: PhantomData<T>,
}

impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} elements)", self.len)
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of what `allocate` gave.
        unsafe { self.device.0.free(self.address, self.len * size_of::<T>()) };
    }
}

impl<T: Element> Buffer<T> {
    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of it.
    pub fn all(&self) -> Slice<'_, T> {
        Slice { address: self.address, len: self.len, buffer: PhantomData }
    }

    /// A part of it.
    ///
    /// # Panics
    /// When the range does not lie in it.
    pub fn slice(&self, range: Range<usize>) -> Slice<'_, T> {
        self.all().slice(range)
    }

    /// Copies `values` to the elements from `start` on, after everything before it.
    pub fn write(&self, start: usize, values: &[T]) -> Result<(), Error> {
        let to = self.slice(start..start + values.len());
        if values.is_empty() {
            return Ok(());
        }
        // SAFETY: `slice` checked the range.
        unsafe { self.device.0.upload(to.address, bytes_of(values)) }
    }

    /// Copies the elements from `start` on to `values`, after everything before it; waits for that.
    pub fn read(&self, start: usize, values: &mut [T]) -> Result<(), Error> {
        let from = self.slice(start..start + values.len());
        if values.is_empty() {
            return Ok(());
        }
        // SAFETY: `slice` checked the range.
        unsafe { self.device.0.download(from.address, bytes_of_mut(values)) }
    }

    /// All elements, on the host.
    pub fn to_vec(&self) -> Result<Vec<T>, Error> {
        let mut values = vec![T::default(); self.len];
        self.read(0, &mut values)?;
        Ok(values)
    }
}

/// A part of a buffer. Kernels write through it, too: a device's stream orders all accesses.
#[derive(Debug, Clone, Copy)]
pub struct Slice<'a, T> {
    address: u64,
    len: usize,
    buffer: PhantomData<&'a Buffer<T>>,
}

impl<T: Element> Slice<'_, T> {
    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it.
    ///
    /// # Panics
    /// When the range does not lie in it.
    #[must_use]
    pub fn slice(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} is not in 0..{}", self.len);
        Self { address: self.address + (range.start * size_of::<T>()) as u64, len: range.end - range.start, ..self }
    }

    #[cfg(feature = "cuda")]
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn arg(&self) -> Arg {
        Arg::Address(self.address)
    }
}

impl<'a> Slice<'a, u32> {
    /// The same words, as signed numbers.
    pub(super) fn as_ints(self) -> Slice<'a, i32> {
        Slice { address: self.address, len: self.len, buffer: PhantomData }
    }

    /// The same words, as floats.
    pub(super) fn as_floats(self) -> Slice<'a, f32> {
        Slice { address: self.address, len: self.len, buffer: PhantomData }
    }
}

/// The address of a slice, or null.
pub(super) fn optional<T: Element>(slice: Option<Slice<'_, T>>) -> Arg {
    slice.map_or(Arg::Address(0), |slice| slice.arg())
}
