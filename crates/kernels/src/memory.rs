//! Memory for data that every step reads from end to end. It uses huge pages where the system has them, because
//! hardware prefetching stops at the end of a page, and address translation of small pages costs time.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Size and alignment of a huge page.
const HUGE: usize = 2 << 20;
/// Size of the chunks that small buffers are allocated from.
const CHUNK: usize = 8 * HUGE;
/// Alignment of buffers: a cache line.
const ALIGN: usize = 64;

/// The current chunk for small buffers, and how much of it is in use.
static CURRENT: Mutex<(Weak<Chunk>, usize)> = Mutex::new((Weak::new(), 0));

/// Asks the system to use huge pages for the untouched part of the `bytes` bytes from `start` on.
pub(crate) fn prefer_huge_pages(start: *const u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        unsafe extern "C" {
            fn madvise(start: *mut std::ffi::c_void, length: usize, advice: std::ffi::c_int) -> std::ffi::c_int;
        }
        const MADV_HUGEPAGE: std::ffi::c_int = 14;
        let skipped = start.align_offset(HUGE);
        if bytes >= skipped + HUGE {
            let length = (bytes - skipped) / HUGE * HUGE;
            // SAFETY: the range is within the caller's memory, and the advice does not change its contents. A system
            // without huge pages refuses, which does no harm.
            let _refused = unsafe { madvise(start.wrapping_add(skipped).cast_mut().cast(), length, MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
}

/// Memory that several buffers share. It is freed with the last of them.
#[derive(Debug)]
struct Chunk {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a chunk is only memory; the buffers determine who may access which part.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

impl Chunk {
    fn new(bytes: usize) -> Self {
        // Cannot fail: the alignment is a power of two, and the length of a slice is far below the largest size.
        let layout = Layout::from_size_align(bytes.max(1).next_multiple_of(HUGE), HUGE).expect("a valid layout");
        // SAFETY: the size is not 0.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        prefer_huge_pages(start.as_ptr(), layout.size());
        Self { start, layout }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and no buffer remains.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// A slice in huge pages. Buffers that are created in sequence are adjacent in memory.
#[derive(Debug)]
pub(crate) struct Buffer<T> {
    start: NonNull<T>,
    length: usize,
    _chunk: Arc<Chunk>,
}

// SAFETY: a buffer owns its elements, like a `Vec`.
unsafe impl<T: Send> Send for Buffer<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Buffer<T> {}

impl<T: Copy + Send> Buffer<T> {
    /// Creates a buffer of `length` elements with `make(index)`, on all cores if it is large.
    pub(crate) fn from_fn(length: usize, make: impl Fn(usize) -> T + Sync) -> Self {
        const { assert!(align_of::<T>() <= ALIGN) };
        let (chunk, offset) = take(length * size_of::<T>());
        // SAFETY: `take` gave this part of the chunk to this buffer alone; it has room for the elements, and is
        // aligned.
        let (start, elements) = unsafe {
            let start = chunk.start.add(offset).cast::<T>();
            (start, std::slice::from_raw_parts_mut(start.cast::<MaybeUninit<T>>().as_ptr(), length))
        };
        fill(elements, 1, |first, part| {
            for (index, element) in part.iter_mut().enumerate() {
                element.write(make(first + index));
            }
        });
        Self { start, length, _chunk: chunk }
    }
}

/// Calls `work(first, part)` for parts of `items` that are whole numbers of units and begin with unit `first`: on all
/// cores if there is much to do.
pub(crate) fn fill<T: Send>(items: &mut [T], unit: usize, work: impl Fn(usize, &mut [T]) + Sync) {
    const SMALL: usize = 1 << 20;
    let cores = if size_of_val(items) < SMALL { 1 } else { std::thread::available_parallelism().map_or(1, Into::into) };
    let units = (items.len() / unit).div_ceil(cores);
    if cores == 1 || units == 0 {
        return work(0, items);
    }
    std::thread::scope(|scope| {
        for (index, part) in items.chunks_mut(units * unit).enumerate() {
            let work = &work;
            scope.spawn(move || work(index * units, part));
        }
    });
}

/// Takes an unused part of a chunk. Large parts get their own chunk.
fn take(bytes: usize) -> (Arc<Chunk>, usize) {
    let bytes = bytes.next_multiple_of(ALIGN);
    if bytes > CHUNK / 4 {
        return (Arc::new(Chunk::new(bytes)), 0);
    }
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let (chunk, taken) = &mut *current;
    match chunk.upgrade().filter(|chunk| *taken + bytes <= chunk.layout.size()) {
        Some(chunk) => {
            *taken += bytes;
            (chunk, *taken - bytes)
        }
        None => {
            let new = Arc::new(Chunk::new(CHUNK));
            *current = (Arc::downgrade(&new), bytes);
            (new, 0)
        }
    }
}

impl<T> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `from_fn` wrote all elements; nobody else has this part of the chunk.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl<T> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_keep_their_elements_whatever_their_size() {
        let lengths = [0, 1, 7, 1000, CHUNK / 16, 5, CHUNK / 8 + 1, CHUNK / 4 + 1, CHUNK / 2, 3];
        for _ in 0..2 {
            let make = |which: usize, index: usize| (which as u32) << 28 | index as u32;
            let buffers: Vec<_> =
                lengths.iter().enumerate().map(|(which, n)| Buffer::from_fn(*n, |index| make(which, index))).collect();
            for (which, (buffer, length)) in buffers.iter().zip(lengths).enumerate() {
                assert_eq!(buffer.len(), length);
                assert_eq!(buffer.as_ptr() as usize % ALIGN, 0);
                assert!(buffer.iter().enumerate().all(|(index, value)| *value == make(which, index)));
            }
        }
    }

    #[test]
    fn threads_get_buffers_of_their_own() {
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                scope.spawn(move || {
                    let buffers: Vec<_> = (0..200).map(|i| Buffer::from_fn(50, |_| thread << 32 | i)).collect();
                    assert!((0..).zip(&buffers).all(|(i, buffer)| buffer.iter().all(|x| *x == thread << 32 | i)));
                });
            }
        });
    }
}
