//! Threads of one model.
//!
//! A pool runs one region of work at a time, divided into chunks. Each thread claims the chunks of its own part one by
//! one, then the remaining chunks of other threads. If a thread loses its core, it delays the step only by the chunk
//! that it holds. Workers spin only within a [`Step`], yield their core after a long wait, and sleep between steps.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use crate::Error;

/// Rounds of spinning within a step before a waiting thread yields its core: a few hundred microseconds, which is
/// longer than a chunk of work. A core that was yielded to another process returns only after milliseconds.
const SPINS: u32 = 1 << 15;
/// Rounds of spinning after a step before a worker sleeps, because the next step often follows at once.
const SPINS_IDLE: u32 = 1 << 11;
/// Rounds of spinning if the process has more kernel threads than cores.
const SPINS_OVERSUBSCRIBED: u32 = 32;
/// Chunks of a region, per thread.
const CHUNKS_PER_THREAD: usize = 4;

/// How many numbers one thread normalises, quantises or rotates in about the time that two threads need to divide work.
const LIGHT: usize = 4096;

/// Threads of all pools of the process, including callers.
static THREADS: AtomicUsize = AtomicUsize::new(0);
static NEXT_POOL: AtomicUsize = AtomicUsize::new(1);

thread_local! {
    /// The pool whose first core this thread was pinned to.
    static PINNED: Cell<usize> = const { Cell::new(0) };
}

type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// Splits work over a fixed number of threads. With one thread, everything runs on the caller's thread.
#[derive(Debug)]
pub struct Pool {
    id: usize,
    threads: usize,
    /// Threads that count as kernel threads of the process.
    counted: usize,
    cores: Vec<usize>,
    shared: Arc<Control>,
    workers: Vec<JoinHandle<()>>,
    /// Held while a region runs.
    region: Mutex<()>,
}

/// What the caller and the workers share.
struct Control {
    /// The region in progress. Valid for a thread that has claimed one of its chunks, until that chunk is counted in
    /// `done`.
    work: UnsafeCell<Option<*const Work<'static>>>,
    /// The unclaimed chunks of each thread.
    tickets: Vec<Line<AtomicU64>>,
    /// Finished chunks of the region.
    done: Line<AtomicUsize>,
    /// A step is in progress: more regions will follow soon.
    in_step: AtomicBool,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    asleep: Vec<AtomicBool>,
}

/// A value with its own cache line (two, because processors fetch them in pairs). Cores that write to the same line
/// wait for each other.
#[repr(align(128))]
struct Line<T>(T);

/// Region number (32 bits), end of a range of chunks (16 bits) and next chunk of the range (16 bits), in one word, so a
/// claim cannot be mistaken for a claim of another region.
#[derive(Clone, Copy)]
struct Ticket(u64);

impl Ticket {
    fn after(previous: Self, chunks: Range<usize>) -> Self {
        let region = (previous.0 >> 32).wrapping_add(1) & 0xffff_ffff;
        Self(region << 32 | (chunks.end as u64) << 16 | chunks.start as u64)
    }

    fn next(self) -> Option<usize> {
        let (end, next) = (self.0 >> 16 & 0xffff, self.0 & 0xffff);
        (next < end).then_some(next as usize)
    }
}

impl Control {
    /// Claims one of a thread's chunks of the region in progress.
    fn claim(&self, thread: usize) -> Option<usize> {
        let word = &self.tickets[thread].0;
        let mut ticket = word.load(Ordering::Acquire);
        loop {
            let chunk = Ticket(ticket).next()?;
            match word.compare_exchange_weak(ticket, ticket + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(chunk),
                Err(now) => ticket = now,
            }
        }
    }

    /// Runs a thread's own chunks, then those that other threads have not claimed yet.
    fn work_off(&self, thread: usize) {
        let mut finished = 0;
        let threads = self.tickets.len();
        for other in (thread..threads).chain(0..thread) {
            while let Some(chunk) = self.claim(other) {
                // SAFETY: the chunk was claimed, so `work` holds the pointer of its region, whose target lives until
                // all chunks are counted in `done`. This chunk is counted below.
                let result = catch_unwind(AssertUnwindSafe(|| unsafe {
                    if let Some(work) = *self.work.get() {
                        (*work)(chunk);
                    }
                }));
                if let Err(payload) = result {
                    *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
                }
                finished += 1;
            }
        }
        // The region cannot end before this, so all these chunks belong to the same region.
        if finished > 0 {
            self.done.0.fetch_add(finished, Ordering::Release);
        }
    }
}

// SAFETY: `work` is written only between regions, when every chunk of the last one is counted in `done` (acquire), and
// read only after a claim (acquire) of a chunk that was published after the write (release). All else is atomic or
// locked.
unsafe impl Sync for Control {}
// SAFETY: as above; the pointer in `work` is only followed while the caller that owns its target waits.
unsafe impl Send for Control {}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("done", &self.done.0).finish_non_exhaustive()
    }
}

/// Keeps the workers of a pool awake until it is dropped.
#[derive(Debug)]
pub(crate) struct Step<'a>(&'a Control);

impl Drop for Step<'_> {
    fn drop(&mut self) {
        self.0.in_step.store(false, Ordering::Release);
    }
}

fn spins(most: u32) -> u32 {
    if oversubscribed() { SPINS_OVERSUBSCRIBED } else { most }
}

fn oversubscribed() -> bool {
    // Read once, before any thread is pinned, because a pinned thread sees one core.
    static CORES: OnceLock<usize> = OnceLock::new();
    let cores = CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from));
    THREADS.load(Ordering::Relaxed) > *cores
}

fn pin(cores: &[usize], index: usize) {
    if let Some(core) = cores.get(index % cores.len().max(1)) {
        // Pinning is an optimisation, so a failure is ignored.
        let _pinned = core_affinity::set_for_current(core_affinity::CoreId { id: *core });
    }
}

impl Pool {
    /// Creates a pool of `threads` threads, including the caller of [`split`](Self::split). They are pinned to `cores`
    /// in order, if given. The caller is pinned to the first core when it runs its first step.
    pub fn new(threads: usize, cores: Option<Vec<usize>>) -> Result<Self, Error> {
        crate::check("number of threads", threads, (1..=256).contains(&threads), "1 to 256")?;
        let _asked_before_pinning = oversubscribed();
        THREADS.fetch_add(threads, Ordering::Relaxed);
        let mut pool = Self::without_workers(threads, threads, cores.unwrap_or_default());
        for index in 1..threads {
            let (id, shared, cores) = (pool.id, Arc::clone(&pool.shared), pool.cores.clone());
            let worker = std::thread::Builder::new().name(format!("kernel-{id}-{index}")).spawn(move || {
                pin(&cores, index);
                worker(&shared, index);
            });
            // Dropping the pool stops the workers that have started.
            pool.workers.push(worker.map_err(|error| Error::Threads { threads, reason: error.to_string() })?);
        }
        Ok(pool)
    }

    /// A pool without workers: everything runs on the caller's thread, which is not counted. For callers whose thread
    /// another pool already counts, such as the small products of a routing policy.
    pub fn caller() -> Self {
        Self::without_workers(1, 0, Vec::new())
    }

    fn without_workers(threads: usize, counted: usize, cores: Vec<usize>) -> Self {
        let shared = Arc::new(Control {
            work: UnsafeCell::new(None),
            tickets: (0..threads).map(|_| Line(AtomicU64::new(0))).collect(),
            done: Line(AtomicUsize::new(0)),
            in_step: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
            asleep: (1..threads).map(|_| AtomicBool::new(false)).collect(),
        });
        let id = NEXT_POOL.fetch_add(1, Ordering::Relaxed);
        Self { id, threads, counted, cores, shared, workers: Vec::new(), region: Mutex::new(()) }
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// With fewer tasks than this, some threads have no work.
    pub(crate) fn tasks_wanted(&self) -> usize {
        if self.threads > 1 { CHUNKS_PER_THREAD * self.threads } else { 1 }
    }

    /// Whether the pools of this process have more threads than the process has cores. Waiting threads then take time
    /// from working ones, and steps are slower.
    pub fn oversubscribed(&self) -> bool {
        oversubscribed()
    }

    /// Wakes the workers, and keeps them awake until the result is dropped.
    pub(crate) fn step(&self) -> Step<'_> {
        if !self.cores.is_empty() && PINNED.replace(self.id) != self.id {
            pin(&self.cores, 0);
        }
        self.shared.in_step.store(true, Ordering::SeqCst);
        self.wake();
        Step(&self.shared)
    }

    /// Calls `work` with disjoint ranges that cover `0..tasks`, and waits for all of them. A panic in one of them is
    /// resumed here after all have ended. Calls from inside `work`, and calls while another thread splits, run entirely
    /// on the calling thread.
    pub fn split(&self, tasks: usize, work: impl Fn(Range<usize>) + Sync) {
        let region = if self.threads > 1 && tasks > 1 { self.region.try_lock().ok() } else { None };
        if region.is_none() {
            return work(0..tasks);
        }
        let count = tasks.min(CHUNKS_PER_THREAD * self.threads);
        self.run(count, &|chunk| work(tasks * chunk / count..tasks * (chunk + 1) / count));
    }

    /// Like [`split`](Self::split), for fast tasks that handle `numbers` numbers each: a few such tasks are not worth
    /// the round trip to another core.
    pub(crate) fn split_light(&self, tasks: usize, numbers: usize, work: impl Fn(Range<usize>) + Sync) {
        if tasks * numbers < LIGHT { work(0..tasks) } else { self.split(tasks, work) }
    }

    /// Runs `work(chunk)` for `0..chunks`. The caller holds `region`.
    fn run(&self, chunks: usize, work: &Work<'_>) {
        let control = &*self.shared;
        // SAFETY: only the lifetime changes. The pointer is followed only for chunks of this region, and this function
        // neither returns nor unwinds before all of them are done.
        let erased = unsafe { std::mem::transmute::<&Work<'_>, *const Work<'static>>(work) };
        // SAFETY: no region runs (`region` is held), so no worker reads `work`.
        unsafe { *control.work.get() = Some(erased) };
        control.done.0.store(0, Ordering::Relaxed);
        // As far as possible, a thread gets the same part of every region, so it finds its earlier writes in its cache.
        for (thread, Line(word)) in control.tickets.iter().enumerate() {
            let part = chunks * thread / self.threads..chunks * (thread + 1) / self.threads;
            word.store(Ticket::after(Ticket(word.load(Ordering::Relaxed)), part).0, Ordering::SeqCst);
        }
        self.wake();
        control.work_off(0);
        wait_until(|| control.done.0.load(Ordering::Acquire) == chunks);
        let thrown = control.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = thrown {
            resume_unwind(payload);
        }
    }

    fn wake(&self) {
        for (asleep, worker) in self.shared.asleep.iter().zip(&self.workers) {
            if asleep.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches panics of its work, so its result says nothing.
            let _ended = worker.join();
        }
        THREADS.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

/// Spins for a while, then yields the core between checks.
fn wait_until(done: impl Fn() -> bool) {
    let mut left = spins(SPINS);
    while !done() {
        if left > 0 {
            left -= 1;
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

fn worker(control: &Control, index: usize) {
    let asleep = &control.asleep[index - 1];
    let has_work = || Ticket(control.tickets[index].0.load(Ordering::SeqCst)).next().is_some();
    while !control.stop.load(Ordering::Acquire) {
        control.work_off(index);
        let (mut left, mut idle_left) = (spins(SPINS), spins(SPINS_IDLE));
        while !has_work() && !control.stop.load(Ordering::Acquire) {
            let in_step = control.in_step.load(Ordering::Acquire);
            let budget = if in_step { &mut left } else { &mut idle_left };
            if *budget > 0 {
                *budget -= 1;
                std::hint::spin_loop();
            } else if in_step {
                std::thread::yield_now();
            } else {
                // A thread that changes one of these checks `asleep` afterwards, so no wake-up is lost.
                asleep.store(true, Ordering::SeqCst);
                let idle = !control.stop.load(Ordering::SeqCst) && !control.in_step.load(Ordering::SeqCst);
                if idle && !has_work() {
                    std::thread::park();
                }
                asleep.store(false, Ordering::SeqCst);
            }
        }
    }
}

/// A mutable slice of which several threads write disjoint parts.
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

    /// Replaces an element.
    ///
    /// # Safety
    /// No other thread uses the element, and no live result of `part` contains it.
    pub(crate) unsafe fn set(&self, index: usize, value: T) {
        assert!(index < self.length, "element {index} of {}", self.length);
        // SAFETY: in bounds by the assertion; exclusive by the caller's promise.
        unsafe { *self.pointer.add(index) = value };
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

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_still_works() {
        let pool = Pool::new(3, None).expect("starts");
        for bad in 0..3 {
            let _step = pool.step();
            let thrown = catch_unwind(AssertUnwindSafe(|| {
                pool.split(3, |range| assert!(!range.contains(&bad), "task {bad}"));
            }));
            assert!(thrown.is_err());
            let count = AtomicUsize::new(0);
            pool.split(30, |range| {
                count.fetch_add(range.len(), Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 30);
        }
    }

    #[test]
    fn nested_and_concurrent_regions_run_everything_once() {
        let pool = Pool::new(2, None).expect("starts");
        let count = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.split(4, |outer| {
                            pool.split(outer.len(), |inner| {
                                count.fetch_add(inner.len(), Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 3 * 200 * 4);
    }
}
