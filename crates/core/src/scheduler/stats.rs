//! Counters of one subserver.

use std::time::Duration;

use serde::Serialize;

use crate::request::ModelIndex;

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

/// What one model did so far. Sums only, so that differences of two snapshots describe an interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
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
}

impl ModelStats {
    pub(super) fn new(models: usize) -> Self {
        Self { transitions: vec![0; models], committed: vec![0; models], ..Self::default() }
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

    pub(super) fn record_time(&mut self, rows: usize, extending: usize, prefill: bool, time: Duration) {
        self.busy += time;
        self.row_time += time * rows as u32;
        self.extend_row_time += time * extending as u32;
        if !prefill {
            let (count, sum) = &mut self.step_time_by_batch[rows];
            *count += 1;
            *sum += time;
        }
    }

    pub(super) fn record_transition(&mut self, to: ModelIndex, committed: bool) {
        self.transitions[to] += 1;
        self.committed[to] += u64::from(committed);
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
    }

    /// Mean rows per step.
    pub fn mean_batch(&self) -> f64 {
        if self.steps == 0 { 0.0 } else { self.rows as f64 / self.steps as f64 }
    }
}
