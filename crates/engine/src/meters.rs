//! Numbers that the threads of an engine publish while they run: atomics only, so that whoever reads them never holds up
//! a step, nor waits for one.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokenrouter_core::scheduler::Occupancy;

/// A number that only rises, or one that is set.
#[derive(Debug, Default)]
pub struct Number(AtomicU64);

impl Number {
    /// Adds to it.
    pub fn add(&self, value: u64) {
        self.0.fetch_add(value, Relaxed);
    }

    /// Takes away from it.
    pub fn sub(&self, value: u64) {
        self.0.fetch_sub(value, Relaxed);
    }

    /// Sets it.
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counts by size, with fixed bounds.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One per bound, and one for what is above the last.
    buckets: Vec<AtomicU64>,
    /// Bits of an `f64`.
    sum: AtomicU64,
}

impl Histogram {
    /// An empty histogram; `bounds` rise.
    pub fn new(bounds: &'static [f64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, buckets, sum: AtomicU64::new(0f64.to_bits()) }
    }

    /// Counts a value.
    pub fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.buckets[bucket].fetch_add(1, Relaxed);
        let _previous = self.sum.fetch_update(Relaxed, Relaxed, |bits| Some((f64::from_bits(bits) + value).to_bits()));
    }

    /// Counts a time in seconds.
    pub fn observe_time(&self, time: Duration) {
        self.observe(time.as_secs_f64());
    }

    /// Every bound with the number of values above the bound before and up to it; the last bound is infinite.
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(self.buckets.iter().map(|bucket| bucket.load(Relaxed))).collect()
    }

    /// Number of all values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum()
    }

    /// Sum of all values.
    pub fn sum(&self) -> f64 {
        f64::from_bits(self.sum.load(Relaxed))
    }
}

/// Rows per step.
const ROWS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 256.0, 512.0];
/// Seconds per step.
const STEP: &[f64] =
    &[0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0];

/// What a step did to its rows: some of it computed a part of a prompt; some row brought several tokens that others had
/// written; or each row brought one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// Part of a prompt.
    Prefill,
    /// Tokens of other models.
    Extend,
    /// One token a row.
    Decode,
}

impl StepKind {
    /// All of them, in the order of [`Meters::step_seconds`].
    pub const ALL: [Self; 3] = [Self::Prefill, Self::Extend, Self::Decode];

    /// The word in labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Extend => "extend",
            Self::Decode => "decode",
        }
    }
}

/// The numbers of one subserver.
#[derive(Debug)]
pub struct Meters {
    /// Requests by state, as of the last event or launch.
    pub queued: Number,
    /// See `queued`.
    pub ready: Number,
    /// See `queued`.
    pub running: Number,
    /// See `queued`.
    pub pending: Number,
    /// Ready requests that launch a batch.
    pub threshold: Number,
    /// Tables of thresholds that replaced the one before.
    pub threshold_changes: Number,
    /// KV blocks of requests.
    pub kv_used: Number,
    /// KV blocks that keep prefixes of ended requests.
    pub kv_cached: Number,
    /// All KV blocks.
    pub kv_total: Number,
    /// Candidates.
    pub generated: Number,
    /// Committed tokens.
    pub committed: Number,
    /// Launches because the threshold was reached.
    pub launches_full: Number,
    /// Launches because a request had waited for `max_wait`.
    pub launches_timeout: Number,
    /// Tokens of requests that came without blocks.
    pub prefix_lookups: Number,
    /// Those of them that the prefix cache knew.
    pub prefix_hits: Number,
    /// Rows launched.
    pub rows: Number,
    /// Nanoseconds that rows waited between ready and launch.
    pub buffer_wait_nanos: Number,
    /// Steps that were one launch of a CUDA graph, and steps on CUDA that no captured shape held.
    pub graph_hits: Number,
    /// See `graph_hits`.
    pub graph_misses: Number,
    /// Handoffs to each model.
    pub handoffs: Vec<Number>,
    /// Tokens that travelled with them.
    pub handoff_tokens: Vec<Number>,
    /// Rows per step.
    pub batch_size: Histogram,
    /// Time per step, by [`StepKind`].
    pub step_seconds: [Histogram; 3],
}

impl Meters {
    /// For one of `models`.
    pub fn new(models: usize) -> Self {
        let numbers = || (0..models).map(|_| Number::default()).collect();
        Self {
            queued: Number::default(),
            ready: Number::default(),
            running: Number::default(),
            pending: Number::default(),
            threshold: Number::default(),
            threshold_changes: Number::default(),
            kv_used: Number::default(),
            kv_cached: Number::default(),
            kv_total: Number::default(),
            generated: Number::default(),
            committed: Number::default(),
            launches_full: Number::default(),
            launches_timeout: Number::default(),
            prefix_lookups: Number::default(),
            prefix_hits: Number::default(),
            rows: Number::default(),
            buffer_wait_nanos: Number::default(),
            graph_hits: Number::default(),
            graph_misses: Number::default(),
            handoffs: numbers(),
            handoff_tokens: numbers(),
            batch_size: Histogram::new(ROWS),
            step_seconds: [(); 3].map(|()| Histogram::new(STEP)),
        }
    }

    /// Requests by state.
    pub fn set_occupancy(&self, occupancy: Occupancy) {
        self.queued.set(occupancy.queued as u64);
        self.ready.set(occupancy.ready as u64);
        self.running.set(occupancy.running as u64);
        self.pending.set(occupancy.pending as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_at_a_bound_counts_below_it() {
        let histogram = Histogram::new(&[1.0, 2.0]);
        for value in [0.5, 1.0, 1.5, 2.0, 9.0] {
            histogram.observe(value);
        }
        assert_eq!(histogram.buckets(), [(1.0, 2), (2.0, 2), (f64::INFINITY, 1)]);
        assert_eq!(histogram.count(), 5);
        assert_eq!(histogram.sum(), 14.0);
    }
}
