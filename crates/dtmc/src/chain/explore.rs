//! Breadth-first exploration of the reachable states, and their layout in time order.

use super::key::{Field, Key, Layout};
use super::matrix::TransitionMatrix;
use super::outcomes::{Outcomes, PoolRange};
use super::table::StateTable;
use crate::{ClosedSystem, Error};
use rayon::slice::ParallelSliceMut;

/// How one model launches.
struct Launcher {
    threshold: u32,
    cap: u32,
    clock: Field,
    idle: u32,
    /// `(waiting, running)` of every routing state of the model.
    fields: Vec<(Field, Field)>,
    /// Quanta of a step by batch size minus one.
    quanta: Vec<u32>,
}

impl Launcher {
    /// The key after a launch of the whole queue of `size` requests.
    #[inline]
    fn launch_all<K: Key>(&self, mut key: K, size: u32) -> K {
        for &(waiting, running) in &self.fields {
            let count = waiting.get(key);
            key = key + running.place(count) - waiting.place(count);
        }
        self.start_clock(key, size)
    }

    /// The clock of an idle model set to the start of a batch of `size`.
    #[inline]
    fn start_clock<K: Key>(&self, key: K, size: u32) -> K {
        key - self.clock.place(self.quanta[size as usize - 1])
    }

    #[inline]
    fn queued<K: Key>(&self, key: K) -> u32 {
        self.fields.iter().map(|(waiting, _)| waiting.get(key)).sum()
    }

    /// True when a launch may have to choose between requests of different routing states.
    const fn may_split(&self, concurrency: u32) -> bool {
        self.fields.len() > 1 && self.cap < concurrency
    }
}

/// Where exploration starts: every request waits in one routing state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Start {
    pub(crate) routing_state: usize,
    pub(crate) requests: u32,
}

/// When exploration stops early.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChainLimits {
    /// Most states.
    pub(crate) states: usize,
    /// Most bytes over all arrays.
    pub(crate) bytes: usize,
}

/// Why exploration stopped.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A limit was reached after this many states were found.
    Limit { found: usize },
    /// The system or the start is at fault.
    Bad(Error),
}

/// The explored chain with packed keys, in time order.
pub(crate) struct Explored<K> {
    pub(crate) keys: Vec<K>,
    pub(crate) matrix: TransitionMatrix,
    pub(crate) elapsed: Vec<u32>,
    /// The state right after the first launch (one of them when a capped batch branches).
    pub(crate) initial: u32,
}

/// Reusable workspace: distributions are shared by all threshold vectors of one system.
pub(crate) struct Explorer<K> {
    pub(crate) layout: Layout,
    outcomes: Outcomes<K>,
    table: StateTable<K>,
    running_masks: Vec<K>,
    launchers: Vec<Launcher>,
    splits: bool,
}

/// What happens next in a state: quanta until the next event, what finishes, and the key before arrivals.
pub(crate) struct Event<K> {
    pub(crate) elapsed: u32,
    pub(crate) finished: K,
    pub(crate) base: K,
    /// Bit `i` set when model `i` is idle after the event.
    pub(crate) idle: u32,
}

impl<K: Key> Explorer<K> {
    pub(crate) fn new(system: &ClosedSystem, layout: Layout) -> Self {
        let running_masks = (0..system.models())
            .map(|index| {
                system
                    .states_of(index)
                    .fold(K::default(), |mask, state| mask | layout.running[state].place(layout.running[state].mask))
            })
            .collect();
        let launchers: Vec<Launcher> = (0..system.models())
            .map(|index| Launcher {
                threshold: 1,
                cap: system.largest_batch(index),
                clock: layout.clock[index],
                idle: layout.idle[index],
                fields: system.states_of(index).map(|state| (layout.waiting[state], layout.running[state])).collect(),
                quanta: (1..=system.largest_batch(index)).map(|batch| system.quanta(index, batch)).collect(),
            })
            .collect();
        let splits = launchers.iter().any(|launcher| launcher.may_split(system.concurrency()));
        let outcomes = Outcomes::new(system);
        Self { layout, outcomes, table: StateTable::new(), running_masks, launchers, splits }
    }

    /// Explores from all requests waiting in routing state `start`.
    pub(crate) fn explore(
        &mut self,
        thresholds: &[u32],
        start: Start,
        limits: ChainLimits,
    ) -> Result<Explored<K>, Stop> {
        for (launcher, &threshold) in self.launchers.iter_mut().zip(thresholds) {
            launcher.threshold = threshold;
        }
        self.table.clear();
        let mut keys: Vec<K> = Vec::new();
        let mut matrix = TransitionMatrix { row_start: vec![0], ..TransitionMatrix::default() };
        let mut elapsed: Vec<u32> = Vec::new();
        let mut split = Vec::new();
        self.split_launches(self.initial(start), self.all_models(), 1.0, &mut split);
        for &(key, _) in &split {
            if self.table.insert(key).1 {
                keys.push(key);
            }
        }
        let mut at = 0;
        while at < keys.len() {
            let event = self.next_event(keys[at]).ok_or_else(|| Stop::Bad(self.deadlock(keys[at])))?;
            let Some(span) = self.outcomes.span(&self.layout, event.finished, limits.bytes) else {
                return Err(Stop::Limit { found: keys.len() });
            };
            elapsed.push(event.elapsed);
            if self.splits {
                self.expand_split(&event, span, &mut keys, &mut matrix);
            } else {
                matrix.pool_start.push(span.start);
                self.expand(&event, span, &mut keys, &mut matrix.columns);
            }
            matrix.row_start.push(matrix.columns.len() as u32);
            at += 1;
            if keys.len() > limits.states || (at % 256 == 0 && self.bytes(keys.len(), &matrix) > limits.bytes) {
                return Err(Stop::Limit { found: keys.len() });
            }
        }
        if !self.splits {
            matrix.pool.clone_from(&self.outcomes.probs);
        }
        Ok(in_time_order(keys, matrix, elapsed))
    }

    fn bytes(&self, states: usize, matrix: &TransitionMatrix) -> usize {
        super::estimate_bytes(states, matrix.columns.len(), size_of::<K>())
            + 8 * matrix.pool.len()
            + self.outcomes.bytes()
    }

    pub(crate) const fn all_models(&self) -> u32 {
        (1 << self.launchers.len()) - 1
    }

    /// All requests waiting in one routing state, every model idle, nothing launched yet.
    pub(crate) fn initial(&self, Start { routing_state, requests }: Start) -> K {
        let idle = self.launchers.iter().fold(K::default(), |key, launcher| key + launcher.clock.place(launcher.idle));
        idle + self.layout.waiting[routing_state].place(requests)
    }

    /// The next event of a state; `None` when nothing runs.
    #[inline]
    pub(crate) fn next_event(&self, key: K) -> Option<Event<K>> {
        let mut soonest = u32::MAX;
        for launcher in &self.launchers {
            let left = launcher.idle - launcher.clock.get(key);
            if left > 0 {
                soonest = soonest.min(left);
            }
        }
        if soonest == u32::MAX {
            return None;
        }
        let (mut finished, mut base, mut idle) = (K::default(), key, 0);
        for (index, launcher) in self.launchers.iter().enumerate() {
            let left = launcher.idle - launcher.clock.get(key);
            if left > 0 {
                base = base + launcher.clock.place(soonest);
            }
            if left == soonest {
                finished = finished | (key & self.running_masks[index]);
            }
            if left == 0 || left == soonest {
                idle |= 1 << index;
            }
        }
        Some(Event { elapsed: soonest, finished, base: base - finished, idle })
    }

    /// Arrivals when `finished` completes: packed counts to add, with probabilities.
    /// `None` when they alone would take more than `bytes`.
    pub(crate) fn arrivals(&mut self, finished: K, bytes: usize) -> Option<(&[K], &[f64])> {
        let span = self.outcomes.span(&self.layout, finished, bytes)?;
        let range = span.start as usize..(span.start + span.len) as usize;
        Some((&self.outcomes.deltas[range.clone()], &self.outcomes.probs[range]))
    }

    #[inline]
    fn expand(&mut self, event: &Event<K>, span: PoolRange, keys: &mut Vec<K>, columns: &mut Vec<u32>) {
        for &delta in &self.outcomes.deltas[span.start as usize..(span.start + span.len) as usize] {
            let mut key = event.base + delta;
            let mut idle = event.idle;
            while idle != 0 {
                let launcher = &self.launchers[idle.trailing_zeros() as usize];
                idle &= idle - 1;
                let queued = launcher.queued(key);
                if queued >= launcher.threshold {
                    key = if queued <= launcher.cap {
                        launcher.launch_all(key, queued)
                    } else {
                        // One routing state: the batch takes `cap` of it.
                        let (waiting, running) = launcher.fields[0];
                        launcher
                            .start_clock(key + running.place(launcher.cap) - waiting.place(launcher.cap), launcher.cap)
                    };
                }
            }
            let (number, is_new) = self.table.insert(key);
            if is_new {
                keys.push(key);
            }
            columns.push(number);
        }
    }

    /// Rows of models whose capped batches mix routing states: their own probabilities per row.
    fn expand_split(&mut self, event: &Event<K>, span: PoolRange, keys: &mut Vec<K>, matrix: &mut TransitionMatrix) {
        let mut found: Vec<(K, f64)> = Vec::new();
        for at in span.start as usize..(span.start + span.len) as usize {
            let key = event.base + self.outcomes.deltas[at];
            self.split_launches(key, event.idle, self.outcomes.probs[at], &mut found);
        }
        matrix.pool_start.push(matrix.pool.len() as u32);
        for (key, p) in found {
            let (number, is_new) = self.table.insert(key);
            if is_new {
                keys.push(key);
            }
            matrix.columns.push(number);
            matrix.pool.push(p);
        }
    }

    /// Launches every model in `idle` that has reached its threshold; a capped batch over several routing states is a
    /// uniform choice among those waiting, so it branches.
    fn split_launches(&self, key: K, idle: u32, weight: f64, found: &mut Vec<(K, f64)>) {
        let mut current = vec![(key, weight)];
        for (index, launcher) in self.launchers.iter().enumerate().filter(|(index, _)| idle >> index & 1 == 1) {
            let mut next = Vec::with_capacity(current.len());
            for (key, p) in current {
                let queued = launcher.queued(key);
                if queued < launcher.threshold {
                    next.push((key, p));
                } else {
                    self.launches_of(index, key, |after, share| next.push((after, p * share)));
                }
            }
            current = next;
        }
        found.append(&mut current);
    }

    /// Every way to launch model `index` now, with its probability. The queue must not be empty.
    pub(crate) fn launches_of(&self, index: usize, key: K, mut each: impl FnMut(K, f64)) {
        let launcher = &self.launchers[index];
        let queued = launcher.queued(key);
        if queued <= launcher.cap {
            return each(launcher.launch_all(key, queued), 1.0);
        }
        // Take `cap` of `queued` without replacement: hypergeometric, one routing state after another.
        let mut partial = vec![(key, launcher.cap, queued, 1.0)];
        for &(waiting, running) in &launcher.fields {
            let mut next = Vec::new();
            for (key, open, pool, p) in partial {
                let here = waiting.get(key);
                for taken in open.saturating_sub(pool - here)..=open.min(here) {
                    let share = hypergeometric(here, pool, open, taken);
                    next.push((
                        key + running.place(taken) - waiting.place(taken),
                        open - taken,
                        pool - here,
                        p * share,
                    ));
                }
            }
            partial = next;
        }
        for (key, _, _, p) in partial {
            each(launcher.start_clock(key, launcher.cap), p);
        }
    }

    /// Requests waiting for model `index`.
    pub(crate) fn queued(&self, index: usize, key: K) -> u32 {
        self.launchers[index].queued(key)
    }

    fn deadlock(&self, key: K) -> Error {
        Error::system("state", self.layout.decode(key).to_string(), "a state in which some model runs")
    }
}

/// Probability of `taken` marked among `draws` from `pool` with `marked` marked.
fn hypergeometric(marked: u32, pool: u32, draws: u32, taken: u32) -> f64 {
    // Draw by draw: C(draws, taken) sequences, each with the same probability.
    let mut p = 1.0;
    for k in 0..taken {
        p *= f64::from(draws - k) / f64::from(k + 1) * f64::from(marked - k) / f64::from(pool - k);
    }
    for k in 0..draws - taken {
        p *= f64::from(pool - marked - k) / f64::from(pool - taken - k);
    }
    p
}

/// Renumbers states by key, which lays transitions out forward in time (see [`super::key`]).
fn in_time_order<K: Key>(keys: Vec<K>, matrix: TransitionMatrix, elapsed: Vec<u32>) -> Explored<K> {
    let mut order: Vec<(K, u32)> = keys.into_iter().zip(0..).collect();
    order.par_sort_unstable();
    let mut rank = vec![0_u32; order.len()];
    for (new, &(_, old)) in order.iter().enumerate() {
        rank[old as usize] = new as u32;
    }
    let mut sorted = TransitionMatrix {
        row_start: Vec::with_capacity(order.len() + 1),
        columns: Vec::with_capacity(matrix.columns.len()),
        pool_start: Vec::with_capacity(order.len()),
        pool: matrix.pool,
    };
    sorted.row_start.push(0);
    let mut sorted_elapsed = Vec::with_capacity(order.len());
    for &(_, old) in &order {
        let old = old as usize;
        let row = matrix.row_start[old] as usize..matrix.row_start[old + 1] as usize;
        sorted.columns.extend(matrix.columns[row].iter().map(|&column| rank[column as usize]));
        sorted.row_start.push(sorted.columns.len() as u32);
        sorted.pool_start.push(matrix.pool_start[old]);
        sorted_elapsed.push(elapsed[old]);
    }
    Explored {
        keys: order.into_iter().map(|(key, _)| key).collect(),
        matrix: sorted,
        elapsed: sorted_elapsed,
        initial: rank.first().copied().unwrap_or(0),
    }
}
