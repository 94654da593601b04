//! Threads of one model.

use std::ops::Range;

use crate::Error;

/// Splits work over a fixed number of threads. With one thread everything runs on the caller's.
#[derive(Debug)]
pub struct Pool {
    threads: usize,
    pool: Option<rayon::ThreadPool>,
}

impl Pool {
    /// `threads` threads, pinned to `cores` in turn when given. With one thread the caller itself is pinned.
    pub fn new(threads: usize, cores: Option<Vec<usize>>) -> Result<Self, Error> {
        crate::check("number of threads", threads, (1..=256).contains(&threads), "1 to 256")?;
        if threads == 1 {
            return Ok(Self { threads, pool: None });
        }
        let builder = rayon::ThreadPoolBuilder::new().num_threads(threads).start_handler(move |index| {
            if let Some(cores) = &cores
                && let Some(core) = cores.get(index % cores.len().max(1))
            {
                // An optimisation: a machine that refuses to pin still computes.
                let _pinned = core_affinity::set_for_current(core_affinity::CoreId { id: *core });
            }
        });
        let pool = builder.build().map_err(|error| Error::Threads { threads, reason: error.to_string() })?;
        Ok(Self { threads, pool: Some(pool) })
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `work` with disjoint ranges that cover `0..tasks`, and waits for all of them.
    pub fn split(&self, tasks: usize, work: impl Fn(Range<usize>) + Sync) {
        match &self.pool {
            Some(pool) if tasks > 1 => {
                pool.broadcast(|context| {
                    let (index, count) = (context.index(), context.num_threads());
                    let range = tasks * index / count..tasks * (index + 1) / count;
                    if !range.is_empty() {
                        work(range);
                    }
                });
            }
            _ => work(0..tasks),
        }
    }
}

/// A mutable slice that several threads write disjoint parts of.
pub(crate) struct Shared<'a, T> {
    pointer: *mut T,
    length: usize,
    _borrow: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: `Shared` stands for an exclusive borrow of the slice; access goes through `part`, whose caller keeps parts
// disjoint between threads. `T: Send` lets elements be written from other threads.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { pointer: slice.as_mut_ptr(), length: slice.len(), _borrow: std::marker::PhantomData }
    }

    /// The elements of `range`.
    ///
    /// # Safety
    /// No two live results, on any threads, may overlap.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.length, "part {range:?} of {}", self.length);
        // SAFETY: in bounds by the assertion; exclusive by the caller's promise; the borrow outlives `self`.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_on_any_number_of_threads() {
        for threads in 1..4 {
            let pool = Pool::new(threads, None).expect("starts");
            for tasks in [0, 1, 2, 3, 7, 100] {
                let mut counts = vec![0u8; tasks];
                let shared = Shared::new(&mut counts);
                pool.split(tasks, |range| {
                    // SAFETY: ranges of `split` are disjoint.
                    unsafe { shared.part(range) }.iter_mut().for_each(|count| *count += 1);
                });
                assert!(counts.iter().all(|count| *count == 1));
            }
        }
        assert!(Pool::new(0, None).is_err());
    }
}
