//! One server, event by event: queue, admission, batches, catch-up and prompts. The rules are those of the scheduler: a
//! model that is idle launches when as many requests wait for it as the threshold of the active count says; a step takes at
//! most so many tokens, rows with one token first; requests end where their last token is written.

use super::records::Records;
use crate::random::Generator;
use crate::{ClosedSystem, MAX_MODELS, Thresholds};
use rand_distr::{Distribution, StandardUniform};
use std::collections::VecDeque;

/// Idle, or never.
pub(super) const NEVER: u64 = u64::MAX;

/// A routing state, ready to be drawn from.
struct State {
    model: usize,
    /// Sum of the probabilities up to each target.
    cumulative: Vec<f64>,
    /// Targets and the tokens that going there commits.
    targets: Vec<(usize, f64)>,
}

/// What all replications of a server share.
pub(super) struct Rules {
    states: Vec<State>,
    models: usize,
    most: usize,
    /// Ticks of a step by model and rows, from one row on.
    ticks: Vec<Vec<u64>>,
    /// Ticks of a further token, and tokens that are free.
    token_ticks: Vec<(f64, u32)>,
    caps: Vec<usize>,
    /// `B_i(n)` at `n * models + i`.
    thresholds: Vec<usize>,
    step_tokens: usize,
}

impl Rules {
    /// `system` has as many requests as may be active; `thresholds` are by active count, the last beyond its end.
    pub(super) fn new(system: &ClosedSystem, thresholds: &[Thresholds], step_tokens: u32, tick_ms: f64) -> Self {
        let models = system.models();
        let most = system.concurrency() as usize;
        let states = (0..system.routing_states()).map(|s| {
            let mut sum = 0.0;
            let row = system.routing()[s].iter().enumerate().filter(|&(_, &p)| p > 0.0);
            let targets: Vec<(usize, f64)> = row.clone().map(|(j, _)| (j, system.commits()[s][j])).collect();
            let cumulative = row.map(|(_, p)| {
                sum += p;
                sum
            });
            State { model: system.state_models()[s], cumulative: cumulative.collect(), targets }
        });
        let free = |model: usize| system.token_costs().map(|costs| costs[model]).unwrap_or_default();
        let in_ticks = |ms: f64| ((ms / tick_ms).round() as u64).max(1);
        let caps: Vec<usize> = (0..models).map(|model| system.largest_batch(model) as usize).collect();
        let table = |n: usize| thresholds[n.max(1).min(thresholds.len()) - 1].as_slice();
        Self {
            states: states.collect(),
            models,
            most,
            ticks: (0..models)
                .map(|model| {
                    // Whole quanta, as in the chain.
                    let quantum = system.quantum_ms();
                    let step = |batch: u32| system.latencies_ms()[model].at(batch).unwrap_or(quantum);
                    (1..=caps[model] as u32)
                        .map(|batch| in_ticks((step(batch) / quantum).round().max(1.0) * quantum))
                        .collect()
                })
                .collect(),
            token_ticks: (0..models).map(|m| (free(m).ms_per_token / tick_ms, free(m).free_tokens)).collect(),
            thresholds: (0..=most)
                .flat_map(|n| (0..models).map(move |m| (n, m)))
                .map(|(n, m)| (table(n)[m] as usize).min(caps[m]))
                .collect(),
            caps,
            step_tokens: step_tokens as usize,
        }
    }
}

/// A request before it is admitted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) arrived: u64,
    pub(super) prompt: u32,
    pub(super) output: u32,
    /// Whether it is among those that are recorded.
    pub(super) counted: bool,
}

/// An active request.
#[derive(Debug, Clone, Copy)]
struct Slot {
    asked: Asked,
    admitted: u64,
    /// Time of its first token; 0 before.
    first: u64,
    written: f64,
    state: usize,
    /// Tokens of prompt and answer so far.
    log: u32,
    /// Tokens that the running step takes.
    taken: u32,
    /// Tokens that each model has read.
    seen: [u32; MAX_MODELS],
}

/// Time-weighted sums of one server within the window that is measured, in ticks.
#[derive(Debug, Clone)]
pub(super) struct Sums {
    /// By number of active requests.
    pub(super) active: Vec<u64>,
    pub(super) queued: u128,
    pub(super) busy: Vec<u64>,
}

/// A running server.
pub(super) struct Machine<'a> {
    rules: &'a Rules,
    slots: Vec<Slot>,
    free: Vec<usize>,
    ready: Vec<Vec<usize>>,
    running: Vec<Vec<usize>>,
    done_at: Vec<u64>,
    active: usize,
    queue: VecDeque<Asked>,
    routing: Generator,
    window: (u64, u64),
    since: u64,
    pub(super) sums: Sums,
    /// The next instant at which a step ends.
    pub(super) next: u64,
    /// Request steps made.
    pub(super) steps: u64,
}

impl<'a> Machine<'a> {
    pub(super) fn new(rules: &'a Rules, routing: Generator, window: (u64, u64)) -> Self {
        let nobody = Asked { arrived: 0, prompt: 0, output: 0, counted: false };
        let slot = Slot {
            asked: nobody,
            admitted: 0,
            first: 0,
            written: 0.0,
            state: 0,
            log: 0,
            taken: 0,
            seen: [0; MAX_MODELS],
        };
        Self {
            rules,
            slots: vec![slot; rules.most],
            free: (0..rules.most).rev().collect(),
            ready: vec![Vec::with_capacity(rules.most); rules.models],
            running: vec![Vec::with_capacity(rules.most); rules.models],
            done_at: vec![NEVER; rules.models],
            active: 0,
            queue: VecDeque::new(),
            routing,
            window,
            since: 0,
            sums: Sums { active: vec![0; rules.most + 1], queued: 0, busy: vec![0; rules.models] },
            next: NEVER,
            steps: 0,
        }
    }

    /// Requests here, active or not.
    pub(super) fn load(&self) -> usize {
        self.active + self.queue.len()
    }

    /// A request arrives.
    pub(super) fn arrive(&mut self, now: u64, asked: Asked) {
        self.pass(now);
        if self.active < self.rules.most && self.queue.is_empty() {
            self.admit(now, asked);
            self.launch(now);
        } else {
            self.queue.push_back(asked);
        }
    }

    /// The steps that end now.
    pub(super) fn step(&mut self, now: u64, records: &mut Records) {
        self.pass(now);
        for model in 0..self.rules.models {
            if self.done_at[model] == now {
                self.done_at[model] = NEVER;
                self.complete(model, now, records);
            }
        }
        while self.active < self.rules.most
            && let Some(asked) = self.queue.pop_front()
        {
            self.admit(now, asked);
        }
        self.launch(now);
    }

    /// Adds the time since the last event to the sums.
    pub(super) fn pass(&mut self, now: u64) {
        let from = self.since.max(self.window.0);
        let to = now.min(self.window.1);
        self.since = now;
        if to <= from {
            return;
        }
        let time = to - from;
        self.sums.active[self.active] += time;
        self.sums.queued += u128::from(time) * self.queue.len() as u128;
        for (busy, &done) in self.sums.busy.iter_mut().zip(&self.done_at) {
            if done != NEVER {
                *busy += time;
            }
        }
    }

    fn admit(&mut self, now: u64, asked: Asked) {
        let Some(id) = self.free.pop() else { return };
        let seen = [0; MAX_MODELS];
        let log = asked.prompt.max(1);
        self.slots[id] = Slot { asked, admitted: now, first: 0, written: 0.0, state: 0, log, taken: 0, seen };
        self.active += 1;
        self.ready[self.rules.states[0].model].push(id);
    }

    /// Routes the rows of a step that ends.
    fn complete(&mut self, model: usize, now: u64, records: &mut Records) {
        let mut running = std::mem::take(&mut self.running[model]);
        self.steps += running.len() as u64;
        for &id in &running {
            let slot = &mut self.slots[id];
            slot.seen[model] = (slot.seen[model] + slot.taken).min(slot.log);
            if slot.seen[model] < slot.log {
                // A part of a prompt: nothing is written yet.
                self.ready[model].push(id);
                continue;
            }
            let state = &self.rules.states[slot.state];
            let choice = if state.targets.len() == 1 {
                0
            } else {
                let draw: f64 = StandardUniform.sample(&mut self.routing);
                state.cumulative.iter().position(|&sum| draw < sum).unwrap_or(state.targets.len() - 1)
            };
            let (target, tokens) = state.targets[choice];
            if tokens > 0.0 {
                let before = slot.written.floor();
                slot.written += tokens;
                slot.log += (slot.written.floor() - before) as u32;
                if slot.first == 0 {
                    slot.first = now;
                }
                if slot.written + 1e-9 >= f64::from(slot.asked.output) {
                    records.ended(&slot.asked, slot.admitted, slot.first, now);
                    self.free.push(id);
                    self.active -= 1;
                    continue;
                }
            }
            slot.state = target;
            self.ready[self.rules.states[target].model].push(id);
        }
        running.clear();
        self.running[model] = running;
    }

    /// Starts every idle model that has reached its threshold.
    fn launch(&mut self, now: u64) {
        for model in 0..self.rules.models {
            if self.done_at[model] != NEVER {
                continue;
            }
            let queued = self.ready[model].len();
            if queued == 0 || queued < self.rules.thresholds[self.active * self.rules.models + model] {
                continue;
            }
            let tokens = self.assemble(model);
            let rows = self.running[model].len();
            let (per_token, free) = self.rules.token_ticks[model];
            let extra = per_token * tokens.saturating_sub(rows.max(free as usize)) as f64;
            self.done_at[model] = now + self.rules.ticks[model][rows - 1] + extra.round() as u64;
        }
        self.next = self.done_at.iter().copied().min().unwrap_or(NEVER);
    }

    /// Fills a batch from those that wait longest; returns its tokens.
    fn assemble(&mut self, model: usize) -> usize {
        let (ready, running) = (&mut self.ready[model], &mut self.running[model]);
        let rows = ready.len().min(self.rules.caps[model]);
        let mut tokens = 0;
        for &id in &ready[..rows] {
            let slot = &mut self.slots[id];
            // A dropped candidate's position is computed again.
            slot.taken = (slot.log - slot.seen[model]).max(1);
            tokens += slot.taken as usize;
        }
        let budget = self.rules.step_tokens.max(self.rules.caps[model]);
        if tokens <= budget {
            if rows == ready.len() {
                std::mem::swap(ready, running);
            } else {
                running.extend(ready.drain(..rows));
            }
            return tokens;
        }
        self.assemble_within(model, budget)
    }

    /// The same where the tokens do not fit: rows with one token first, then what is left in the order of waiting.
    fn assemble_within(&mut self, model: usize, budget: usize) -> usize {
        let cap = self.rules.caps[model];
        let (ready, running) = (&mut self.ready[model], &mut self.running[model]);
        let missing = |slot: &Slot| ((slot.log - slot.seen[model]).max(1)) as usize;
        let mut singles = ready.iter().filter(|&&id| missing(&self.slots[id]) == 1).count().min(cap);
        let mut left = budget;
        ready.retain(|&id| {
            if running.len() == cap {
                return true;
            }
            let slot = &mut self.slots[id];
            let wanted = missing(slot);
            let reserve = if wanted == 1 { 0 } else { singles };
            let take = wanted.min(left.saturating_sub(reserve));
            if wanted == 1 {
                singles = singles.saturating_sub(1);
            }
            if take == 0 {
                return true;
            }
            left -= take;
            slot.taken = take as u32;
            running.push(id);
            false
        });
        budget - left
    }
}
