//! The decision process behind the thresholds: states before a launch decision, one action per set of models to launch.

use crate::chain::{ChainLimits, Explorer, Key, Layout, Start, StateTable, StateView};
use crate::estimate::human_bytes;
use crate::{ClosedSystem, Error, SolveOptions, Thresholds, estimate_size};

/// One decision in one state.
#[derive(Debug, Clone, Copy)]
pub(super) struct Action {
    /// Bit `i` set: launch model `i`.
    pub(super) launches: u32,
    /// Expected quanta until the next decision.
    pub(super) quanta: f64,
    /// Expected tokens committed until then.
    pub(super) tokens: f64,
    first: u32,
    pub(super) last: u32,
}

/// All reachable decision states, in time order, with their actions.
pub(super) struct Process {
    /// First action of each state, and one past the last.
    pub(super) action_start: Vec<u32>,
    pub(super) actions: Vec<Action>,
    columns: Vec<u32>,
    probs: Vec<f64>,
    pub(super) views: Vec<StateView>,
}

impl Process {
    /// Targets and probabilities of an action.
    pub(super) fn targets(&self, action: usize) -> (&[u32], &[f64]) {
        let range = self.actions[action].first as usize..self.actions[action].last as usize;
        (&self.columns[range.clone()], &self.probs[range])
    }

    /// Numbers of the actions of a state.
    pub(super) fn actions_of(&self, state: usize) -> std::ops::Range<usize> {
        self.action_start[state] as usize..self.action_start[state + 1] as usize
    }

    pub(super) const fn states(&self) -> usize {
        self.views.len()
    }
}

/// Explores every state that some sequence of decisions reaches.
///
/// The eager chain has about as many states, so its estimate decides whether to start at all.
pub(super) fn build(system: &ClosedSystem, options: &SolveOptions) -> Result<Process, Error> {
    let expected = estimate_size(system, &Thresholds::eager(system.models()))?;
    let limits = options.limits();
    if expected.states > limits.states as f64
        || bytes::<u64>(expected.states, 2.0 * expected.nonzeros) > limits.bytes as f64
    {
        return Err(too_large(expected.states, limits));
    }
    let layout = Layout::new(system)?;
    if layout.bits <= 64 { explore::<u64>(system, layout, options) } else { explore::<u128>(system, layout, options) }
}

fn bytes<K>(states: f64, transitions: f64) -> f64 {
    states * (size_of::<K>() as f64 * 6.0 + 160.0) + transitions * 40.0
}

fn too_large(states: f64, limits: ChainLimits) -> Error {
    let problem = format!("the decision process has about {states:.0} states or more");
    let allowed = format!("{} states and {}; use a coarser quantum", limits.states, human_bytes(limits.bytes as f64));
    Error::option("certificate", problem, allowed)
}

struct Exploration<K> {
    explorer: Explorer<K>,
    table: StateTable<K>,
    keys: Vec<K>,
    limits: ChainLimits,
    tokens_per_step: Vec<f64>,
}

fn explore<K: Key>(system: &ClosedSystem, layout: Layout, options: &SolveOptions) -> Result<Process, Error> {
    let explorer = Explorer::<K>::new(system, layout);
    let start = explorer.initial(Start { routing_state: options.start, requests: system.concurrency() });
    let mut exploration = Exploration {
        explorer,
        table: StateTable::new(),
        keys: vec![start],
        limits: options.limits(),
        tokens_per_step: (0..system.routing_states()).map(|state| system.tokens_per_step(state)).collect(),
    };
    exploration.table.insert(start);
    let mut process = Process {
        action_start: vec![0],
        actions: Vec::new(),
        columns: Vec::new(),
        probs: Vec::new(),
        views: Vec::new(),
    };
    let mut at = 0;
    while at < exploration.keys.len() {
        exploration.expand(at, &mut process)?;
        process.action_start.push(process.actions.len() as u32);
        at += 1;
        exploration.check(&process)?;
    }
    Ok(in_time_order(&exploration, process))
}

impl<K: Key> Exploration<K> {
    fn check(&self, process: &Process) -> Result<(), Error> {
        let bytes = bytes::<K>(self.keys.len() as f64, process.columns.len() as f64);
        if self.keys.len() <= self.limits.states && bytes <= self.limits.bytes as f64 {
            return Ok(());
        }
        Err(too_large(self.keys.len() as f64, self.limits))
    }

    /// Adds the actions of state `at`.
    fn expand(&mut self, at: usize, process: &mut Process) -> Result<(), Error> {
        let key = self.keys[at];
        let view = self.explorer.layout.decode(key);
        let busy = view.remaining.iter().any(|&left| left > 0);
        let launchable = (0..view.remaining.len())
            .filter(|&index| view.remaining[index] == 0 && self.explorer.queued(index, key) > 0)
            .fold(0_u32, |mask, index| mask | 1 << index);
        process.views.push(view);
        // All subsets of the launchable models, from none to all; something has to run afterwards.
        let mut subset = 0_u32;
        loop {
            if busy || subset != 0 {
                self.act(key, subset, process)?;
            }
            subset = subset.wrapping_sub(launchable) & launchable;
            if subset == 0 {
                return Ok(());
            }
        }
    }

    fn act(&mut self, key: K, launches: u32, process: &mut Process) -> Result<(), Error> {
        let mut after = vec![(key, 1.0)];
        for index in (0..u32::BITS as usize).filter(|index| launches >> index & 1 == 1) {
            let mut next = Vec::with_capacity(after.len());
            for (key, weight) in after {
                self.explorer.launches_of(index, key, |launched, share| next.push((launched, weight * share)));
            }
            after = next;
        }
        let first = process.columns.len() as u32;
        let (mut quanta, mut tokens) = (0.0, 0.0);
        for (key, weight) in after {
            let Some(event) = self.explorer.next_event(key) else { continue };
            quanta += weight * f64::from(event.elapsed);
            let running = &self.explorer.layout.running;
            tokens += weight
                * running
                    .iter()
                    .zip(&self.tokens_per_step)
                    .map(|(f, t)| f64::from(f.get(event.finished)) * t)
                    .sum::<f64>();
            let bytes = self.limits.bytes;
            let Some((deltas, probs)) = self.explorer.arrivals(event.finished, bytes) else {
                return Err(Error::option(
                    "certificate",
                    "a routing distribution beyond the memory limit",
                    "fewer requests",
                ));
            };
            for (&delta, &p) in deltas.iter().zip(probs) {
                let target = event.base + delta;
                let (number, is_new) = self.table.insert(target);
                if is_new {
                    self.keys.push(target);
                }
                process.columns.push(number);
                process.probs.push(weight * p);
            }
        }
        process.actions.push(Action { launches, quanta, tokens, first, last: process.columns.len() as u32 });
        Ok(())
    }
}

fn in_time_order<K: Key>(exploration: &Exploration<K>, process: Process) -> Process {
    let mut order: Vec<u32> = (0..exploration.keys.len() as u32).collect();
    order.sort_unstable_by_key(|&state| exploration.keys[state as usize]);
    let mut rank = vec![0_u32; order.len()];
    for (new, &old) in order.iter().enumerate() {
        rank[old as usize] = new as u32;
    }
    let mut sorted = Process {
        action_start: vec![0],
        actions: Vec::with_capacity(process.actions.len()),
        columns: process.columns.iter().map(|&column| rank[column as usize]).collect(),
        probs: Vec::new(),
        views: Vec::with_capacity(order.len()),
    };
    for &old in &order {
        sorted.actions.extend_from_slice(&process.actions[process.actions_of(old as usize)]);
        sorted.action_start.push(sorted.actions.len() as u32);
        sorted.views.push(process.views[old as usize].clone());
    }
    sorted.probs = process.probs;
    sorted
}
