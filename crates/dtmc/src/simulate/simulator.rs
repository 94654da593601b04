//! The system itself, event by event. Shares nothing with the chain but the description, so each checks the other.

use crate::ClosedSystem;
use crate::measures::Totals;
use crate::random::{Generator, stream};
use rand_distr::{Distribution, StandardUniform, Uniform};

/// A running system and its random streams.
pub(super) struct Simulator<'a> {
    system: &'a ClosedSystem,
    thresholds: &'a [u32],
    streams: Vec<Generator>,
    /// Chooses who joins a capped batch when several routing states wait.
    chooser: Generator,
    cumulative: Vec<Vec<f64>>,
    tokens_per_step: Vec<f64>,
    states_of: Vec<Vec<usize>>,
    waiting: Vec<u32>,
    running: Vec<u32>,
    /// Quanta left of the running batch; `None` when idle.
    left: Vec<Option<u32>>,
    /// Request steps since the start.
    pub(super) steps: u64,
}

impl<'a> Simulator<'a> {
    /// All requests waiting in routing state `start`.
    pub(super) fn new(system: &'a ClosedSystem, thresholds: &'a [u32], seed: u64, start: usize) -> Self {
        let states = system.routing_states();
        let cumulative = system
            .routing()
            .iter()
            .map(|row| {
                let mut sum = 0.0;
                row.iter()
                    .map(|p| {
                        sum += p;
                        sum
                    })
                    .collect()
            })
            .collect();
        let mut waiting = vec![0; states];
        waiting[start] = system.concurrency();
        let mut simulator = Self {
            system,
            thresholds,
            streams: (0..states as u64).map(|state| stream(seed, state)).collect(),
            chooser: stream(seed, u64::MAX),
            cumulative,
            tokens_per_step: (0..states).map(|state| system.tokens_per_step(state)).collect(),
            states_of: (0..system.models()).map(|index| system.states_of(index).collect()).collect(),
            waiting,
            running: vec![0; states],
            left: vec![None; system.models()],
            steps: 0,
        };
        simulator.launch();
        simulator
    }

    /// Runs for `quanta`, adding to `totals`. Returns false when nothing can run any more.
    pub(super) fn run(&mut self, quanta: u64, totals: &mut Totals) -> bool {
        let mut open = quanta;
        while open > 0 {
            let Some(soonest) = self.left.iter().flatten().copied().min() else {
                return false;
            };
            let step = u64::from(soonest).min(open) as u32;
            self.accumulate(step, totals);
            open -= u64::from(step);
            self.left.iter_mut().flatten().for_each(|left| *left -= step);
            if step == soonest {
                self.complete(totals);
                self.launch();
            }
        }
        true
    }

    fn accumulate(&self, step: u32, totals: &mut Totals) {
        let step = f64::from(step);
        totals.quanta += step;
        for (index, left) in self.left.iter().enumerate() {
            if left.is_some() {
                totals.busy[index] += step;
            }
        }
        for (state, &waiting) in self.waiting.iter().enumerate() {
            totals.queue[self.system.state_models()[state]] += step * f64::from(waiting);
        }
    }

    /// Routes every batch that ends now.
    fn complete(&mut self, totals: &mut Totals) {
        for index in 0..self.left.len() {
            if self.left[index] != Some(0) {
                continue;
            }
            self.left[index] = None;
            totals.batches[index] += 1.0;
            for &state in &self.states_of[index] {
                let count = std::mem::take(&mut self.running[state]);
                self.steps += u64::from(count);
                totals.steps[index] += f64::from(count);
                totals.tokens[index] += f64::from(count) * self.tokens_per_step[state];
                for _ in 0..count {
                    let draw: f64 = StandardUniform.sample(&mut self.streams[state]);
                    let row = &self.cumulative[state];
                    let target = row.iter().position(|&sum| draw < sum).unwrap_or_else(|| last_positive(row));
                    self.waiting[target] += 1;
                }
            }
        }
    }

    /// Starts every idle model that has reached its threshold.
    fn launch(&mut self) {
        for index in 0..self.left.len() {
            if self.left[index].is_some() {
                continue;
            }
            let queued: u32 = self.states_of[index].iter().map(|&state| self.waiting[state]).sum();
            if queued < self.thresholds[index] || queued == 0 {
                continue;
            }
            let size = queued.min(self.system.largest_batch(index));
            if size == queued {
                for &state in &self.states_of[index] {
                    self.running[state] = std::mem::take(&mut self.waiting[state]);
                }
            } else {
                self.choose(index, queued, size);
            }
            self.left[index] = Some(self.system.quanta(index, size));
        }
    }

    /// Moves `size` of `queued` requests into the batch, each equally likely.
    fn choose(&mut self, index: usize, queued: u32, size: u32) {
        for taken in 0..size {
            let mut pick = below(queued - taken, &mut self.chooser);
            for &state in &self.states_of[index] {
                if pick < self.waiting[state] {
                    self.waiting[state] -= 1;
                    self.running[state] += 1;
                    break;
                }
                pick -= self.waiting[state];
            }
        }
    }
}

/// A uniform draw from `0..bound`, `bound` at least 1.
fn below(bound: u32, generator: &mut Generator) -> u32 {
    Uniform::new(0, bound).map_or(0, |uniform| uniform.sample(generator))
}

/// First index that already has the row's whole mass: where a draw beyond a sum of just under one belongs.
fn last_positive(row: &[f64]) -> usize {
    let total = row.last().copied().unwrap_or(1.0);
    row.iter().position(|&sum| sum >= total).unwrap_or(0)
}
