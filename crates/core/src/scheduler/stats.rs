//! Counters of one subserver, and what it publishes of itself.

use std::time::Duration;

use serde::Serialize;

use crate::request::ModelIndex;
use crate::step::{Batch, StepOutput};

/// Visits longer than this are counted together.
const LONGEST_RUN: usize = 1024;

/// Requests at one subserver, by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// In the admission queue (entry model only).
    pub queued: usize,
    /// Waiting for a batch.
    pub ready: usize,
    /// In the batch that runs.
    pub running: usize,
    /// At a peer, with state kept here.
    pub pending: usize,
}

/// What a step did to its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// Some row computed a part of its prompt.
    Prefill,
    /// Some row brought several tokens that other models had written.
    Extend,
    /// Each row brought one token.
    Decode,
}

impl StepKind {
    /// All of them, in the order of [`ModelStats::step_times`].
    pub const ALL: [Self; 3] = [Self::Prefill, Self::Extend, Self::Decode];

    /// The word in labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Extend => "extend",
            Self::Decode => "decode",
        }
    }

    pub(super) fn of(batch: &Batch) -> Self {
        let rows = batch.rows();
        match () {
            () if rows.iter().any(|row| row.start < row.request.prompt.len()) => Self::Prefill,
            () if rows.iter().any(|row| batch.tokens(row).len() > 1) => Self::Extend,
            () => Self::Decode,
        }
    }
}

/// Number of bounds in [`StepTimes::BOUNDS`].
const STEP_BOUNDS: usize = 19;

/// Steps counted by how long they took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct StepTimes {
    /// `counts[i]`: steps that took longer than the bound before and at most `BOUNDS[i]`; the last entry is for longer ones.
    pub counts: [u64; STEP_BOUNDS + 1],
    /// Time of all of them.
    pub sum: Duration,
}

impl StepTimes {
    /// Upper bounds in seconds.
    pub const BOUNDS: [f64; STEP_BOUNDS] = [
        0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0,
    ];

    fn record(&mut self, took: Duration) {
        let seconds = took.as_secs_f64();
        self.counts[Self::BOUNDS.partition_point(|bound| *bound < seconds)] += 1;
        self.sum += took;
    }

    fn since(&self, earlier: &Self) -> Self {
        let counts = std::array::from_fn(|i| self.counts[i] - earlier.counts[i]);
        Self { counts, sum: self.sum - earlier.sum }
    }

    fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(into, from)| *into += from);
        self.sum += other.sum;
    }
}

/// What a subserver says of itself, as of its last event or step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// What it did so far.
    pub stats: ModelStats,
    /// Its requests by state.
    pub occupancy: Occupancy,
    /// Ready requests that launch a batch.
    pub threshold: usize,
    /// KV blocks of requests.
    pub kv_held: usize,
    /// KV blocks that keep prefixes of ended requests.
    pub kv_cached: usize,
    /// All KV blocks.
    pub kv_total: usize,
}

/// What one model did so far. Sums only, so that differences of two snapshots describe an interval.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct ModelStats {
    /// Steps launched.
    pub steps: u64,
    /// `batch_sizes[b]`: steps with `b` rows.
    pub batch_sizes: Vec<u64>,
    /// `step_time_by_batch[b]`: number and time of those steps that computed no part of a prompt. A row that came back
    /// from another model brings the tokens that were written there.
    pub step_time_by_batch: Vec<(u64, Duration)>,
    /// Time spent in steps.
    pub busy: Duration,
    /// Part of `busy` that went into choosing tokens.
    pub sampling: Duration,
    /// Time spent on messages, routing and batches.
    pub scheduling: Duration,
    /// Time without anything to do.
    pub idle: Duration,
    /// New tokens fed to the model: decoded, appended at returns, and prefilled.
    pub fed_tokens: u64,
    /// Sum over rows of the wait between ready and launch.
    pub buffer_wait: Duration,
    /// Rows launched.
    pub rows: u64,
    /// Time of steps, counted once for every row: how long requests were in steps.
    pub row_time: Duration,
    /// Part of `row_time` of rows with more than one new token: prefills, and what returns bring along.
    pub extend_row_time: Duration,
    /// Launches because the threshold was reached / because a request had waited `max_wait`.
    pub launches_full: u64,
    /// See `launches_full`.
    pub launches_timeout: u64,
    /// `transitions[j]`: steps after which a request went on at model `j` (itself included).
    pub transitions: Vec<u64>,
    /// `committed[j]`: tokens committed by those steps.
    pub committed: Vec<u64>,
    /// Steps after which a request ended; they count in neither of the above.
    pub finished: u64,
    /// Tokens of requests that came here without blocks, and those of them whose keys and values were known.
    pub prefix_tokens: u64,
    /// See `prefix_tokens`.
    pub prefix_hits: u64,
    /// `runs[n]`: visits of `n` steps that ended with a switch; the last entry is for all longer ones.
    pub runs: Vec<u64>,
    /// Candidates that the model wrote.
    pub generated: u64,
    /// Candidates that became tokens of the answer, also at the step that ended a request.
    pub emitted: u64,
    /// `handoffs[j]`: requests sent to model `j`.
    pub handoffs: Vec<u64>,
    /// `handoff_tokens[j]`: tokens that travelled with them.
    pub handoff_tokens: Vec<u64>,
    /// Tables of thresholds that replaced the one before.
    pub threshold_changes: u64,
    /// Steps that were one launch of a CUDA graph.
    pub graph_hits: u64,
    /// Steps on CUDA that no captured shape held.
    pub graph_misses: u64,
    /// Time of steps, by [`StepKind`].
    pub step_times: [StepTimes; 3],
}

impl Clone for ModelStats {
    fn clone(&self) -> Self {
        let mut new = Self::default();
        new.clone_from(self);
        new
    }

    /// Keeps the buffers of the lists: a subserver publishes after every step.
    fn clone_from(&mut self, from: &Self) {
        fn reuse<T: Clone>(mine: &mut Vec<T>, theirs: &Vec<T>) -> Vec<T> {
            let mut list = std::mem::take(mine);
            list.clone_from(theirs);
            list
        }
        *self = Self {
            batch_sizes: reuse(&mut self.batch_sizes, &from.batch_sizes),
            step_time_by_batch: reuse(&mut self.step_time_by_batch, &from.step_time_by_batch),
            transitions: reuse(&mut self.transitions, &from.transitions),
            committed: reuse(&mut self.committed, &from.committed),
            runs: reuse(&mut self.runs, &from.runs),
            handoffs: reuse(&mut self.handoffs, &from.handoffs),
            handoff_tokens: reuse(&mut self.handoff_tokens, &from.handoff_tokens),
            ..*from
        };
    }
}

impl ModelStats {
    pub(super) fn new(models: usize) -> Self {
        let zeros = || vec![0; models];
        Self { transitions: zeros(), committed: zeros(), handoffs: zeros(), handoff_tokens: zeros(), ..Self::default() }
    }

    pub(super) fn record_run(&mut self, steps: u32) {
        let steps = (steps as usize).min(LONGEST_RUN);
        if self.runs.len() <= steps {
            self.runs.resize(steps + 1, 0);
        }
        self.runs[steps] += 1;
    }

    pub(super) fn record_launch(&mut self, rows: usize, fed: usize) {
        self.steps += 1;
        self.rows += rows as u64;
        self.fed_tokens += fed as u64;
        let needed = rows + 1;
        if self.batch_sizes.len() < needed {
            self.batch_sizes.resize(needed, 0);
            self.step_time_by_batch.resize(needed, (0, Duration::ZERO));
        }
        self.batch_sizes[rows] += 1;
    }

    pub(super) fn record_time(&mut self, rows: usize, extending: usize, kind: StepKind, time: Duration) {
        self.step_times[kind as usize].record(time);
        self.busy += time;
        self.row_time += time * rows as u32;
        self.extend_row_time += time * extending as u32;
        if kind != StepKind::Prefill {
            let (count, sum) = &mut self.step_time_by_batch[rows];
            *count += 1;
            *sum += time;
        }
    }

    pub(super) fn record_transition(&mut self, to: ModelIndex, committed: bool) {
        self.transitions[to] += 1;
        self.committed[to] += u64::from(committed);
    }

    pub(super) fn record_handoff(&mut self, to: ModelIndex, tokens: usize) {
        self.handoffs[to] += 1;
        self.handoff_tokens[to] += tokens as u64;
    }

    pub(super) fn record_output(&mut self, output: &StepOutput) {
        self.generated += output.tokens.len() as u64;
        match output.graph {
            Some(true) => self.graph_hits += 1,
            Some(false) => self.graph_misses += 1,
            None => {}
        }
    }

    /// What happened since `earlier`, an older snapshot of the same model.
    pub fn since(&self, earlier: &Self) -> Self {
        let zip = |new: &[u64], old: &[u64]| -> Vec<u64> {
            new.iter().enumerate().map(|(i, n)| n - old.get(i).copied().unwrap_or(0)).collect()
        };
        Self {
            steps: self.steps - earlier.steps,
            batch_sizes: zip(&self.batch_sizes, &earlier.batch_sizes),
            step_time_by_batch: (self.step_time_by_batch.iter().enumerate())
                .map(|(i, (count, time))| {
                    let (old_count, old_time) = earlier.step_time_by_batch.get(i).copied().unwrap_or_default();
                    (count - old_count, *time - old_time)
                })
                .collect(),
            busy: self.busy - earlier.busy,
            sampling: self.sampling - earlier.sampling,
            scheduling: self.scheduling - earlier.scheduling,
            idle: self.idle - earlier.idle,
            fed_tokens: self.fed_tokens - earlier.fed_tokens,
            buffer_wait: self.buffer_wait - earlier.buffer_wait,
            rows: self.rows - earlier.rows,
            row_time: self.row_time - earlier.row_time,
            extend_row_time: self.extend_row_time - earlier.extend_row_time,
            launches_full: self.launches_full - earlier.launches_full,
            launches_timeout: self.launches_timeout - earlier.launches_timeout,
            transitions: zip(&self.transitions, &earlier.transitions),
            committed: zip(&self.committed, &earlier.committed),
            finished: self.finished - earlier.finished,
            prefix_tokens: self.prefix_tokens - earlier.prefix_tokens,
            prefix_hits: self.prefix_hits - earlier.prefix_hits,
            runs: zip(&self.runs, &earlier.runs),
            generated: self.generated - earlier.generated,
            emitted: self.emitted - earlier.emitted,
            handoffs: zip(&self.handoffs, &earlier.handoffs),
            handoff_tokens: zip(&self.handoff_tokens, &earlier.handoff_tokens),
            threshold_changes: self.threshold_changes - earlier.threshold_changes,
            graph_hits: self.graph_hits - earlier.graph_hits,
            graph_misses: self.graph_misses - earlier.graph_misses,
            step_times: std::array::from_fn(|i| self.step_times[i].since(&earlier.step_times[i])),
        }
    }

    /// Adds what happened in another interval.
    pub fn add(&mut self, other: &Self) {
        let sum = |into: &mut Vec<u64>, from: &[u64]| {
            into.resize(into.len().max(from.len()), 0);
            into.iter_mut().zip(from).for_each(|(into, from)| *into += from);
        };
        self.steps += other.steps;
        sum(&mut self.batch_sizes, &other.batch_sizes);
        let times = &mut self.step_time_by_batch;
        times.resize(times.len().max(other.step_time_by_batch.len()), (0, Duration::ZERO));
        for (into, (count, time)) in times.iter_mut().zip(&other.step_time_by_batch) {
            *into = (into.0 + count, into.1 + *time);
        }
        self.busy += other.busy;
        self.sampling += other.sampling;
        self.scheduling += other.scheduling;
        self.idle += other.idle;
        self.fed_tokens += other.fed_tokens;
        self.buffer_wait += other.buffer_wait;
        self.rows += other.rows;
        self.row_time += other.row_time;
        self.extend_row_time += other.extend_row_time;
        self.launches_full += other.launches_full;
        self.launches_timeout += other.launches_timeout;
        sum(&mut self.transitions, &other.transitions);
        sum(&mut self.committed, &other.committed);
        self.finished += other.finished;
        self.prefix_tokens += other.prefix_tokens;
        self.prefix_hits += other.prefix_hits;
        sum(&mut self.runs, &other.runs);
        self.generated += other.generated;
        self.emitted += other.emitted;
        sum(&mut self.handoffs, &other.handoffs);
        sum(&mut self.handoff_tokens, &other.handoff_tokens);
        self.threshold_changes += other.threshold_changes;
        self.graph_hits += other.graph_hits;
        self.graph_misses += other.graph_misses;
        self.step_times.iter_mut().zip(&other.step_times).for_each(|(into, from)| into.add(from));
    }

    /// Mean rows per step.
    pub fn mean_batch(&self) -> f64 {
        if self.steps == 0 { 0.0 } else { self.rows as f64 / self.steps as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_at_a_bound_counts_below_it() {
        let mut times = StepTimes::default();
        for millis in [0, 1, 2, 3, 60_000] {
            times.record(Duration::from_millis(millis));
        }
        assert_eq!((times.counts[0], times.counts[1], times.counts[2], times.counts[3]), (1, 1, 1, 1));
        assert_eq!((times.counts[STEP_BOUNDS], times.sum), (1, Duration::from_millis(60_006)));
    }

    #[test]
    fn what_happened_since_a_snapshot_adds_up_again() {
        let mut stats = ModelStats::new(2);
        let work = |stats: &mut ModelStats, rows: usize| {
            stats.record_launch(rows, 2 * rows);
            stats.record_time(rows, 1, StepKind::Decode, Duration::from_millis(rows as u64));
            stats.record_transition(1, true);
            stats.record_handoff(1, rows);
            stats.record_run(3);
            stats.emitted += 1;
        };
        work(&mut stats, 2);
        let before = stats.clone();
        work(&mut stats, 5);
        let mut sum = before.clone();
        sum.add(&stats.since(&before));
        assert_eq!(sum, stats);
        assert_eq!((stats.since(&before).steps, stats.since(&before).handoff_tokens[1]), (1, 5));
    }
}
