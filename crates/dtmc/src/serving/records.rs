//! What ended requests leave behind, and summaries of it.

use super::machine::Asked;
use crate::simulate::{Estimate, interval, quantile};
use serde::Serialize;

/// Ended requests of one replication.
#[derive(Debug, Default)]
pub(super) struct Records {
    tick_ms: f64,
    wait: Vec<f64>,
    ttft: Vec<f64>,
    tpot: Vec<f64>,
    e2e: Vec<f64>,
    pub(super) tokens: u64,
    /// Recorded requests that have not ended.
    pub(super) open: usize,
    /// Requests that ended at the last event, recorded or not: users think from here on.
    pub(super) just_ended: u32,
    /// Times in the system, in ticks.
    pub(super) sojourn: u128,
}

impl Records {
    pub(super) fn new(tick_ms: f64, expected: usize) -> Self {
        let room = || Vec::with_capacity(expected);
        Self { tick_ms, wait: room(), ttft: room(), tpot: room(), e2e: room(), ..Self::default() }
    }

    pub(super) fn ended(&mut self, asked: &Asked, admitted: u64, first: u64, now: u64) {
        self.just_ended += 1;
        if !asked.counted {
            return;
        }
        self.open -= 1;
        let ms = |ticks: u64| ticks as f64 * self.tick_ms;
        self.wait.push(ms(admitted - asked.arrived));
        self.ttft.push(ms(first - asked.arrived));
        self.e2e.push(ms(now - asked.arrived));
        self.sojourn += u128::from(now - asked.arrived);
        self.tokens += u64::from(asked.output);
        if asked.output > 1 {
            self.tpot.push(ms(now - first) / f64::from(asked.output - 1));
        }
    }

    /// Recorded requests that ended.
    pub(super) fn len(&self) -> usize {
        self.wait.len()
    }

    pub(super) fn metrics(&mut self, percentile: f64) -> [Option<Points>; 4] {
        [&mut self.ttft, &mut self.tpot, &mut self.wait, &mut self.e2e].map(|values| Points::of(values, percentile))
    }
}

/// Mean and percentiles of one replication.
#[derive(Debug, Clone, Copy)]
pub(super) struct Points([f64; 5]);

impl Points {
    /// `None` without values.
    fn of(values: &mut [f64], percentile: f64) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        values.sort_unstable_by(f64::total_cmp);
        let at = |p: f64| quantile(values, p);
        Some(Self([mean, at(0.5), at(0.9), at(0.99), at(percentile / 100.0)]))
    }
}

/// A time over requests: its mean and percentiles, each with its interval over replications.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentiles {
    /// The mean.
    pub mean: Estimate,
    /// Half of the requests are below this.
    pub p50: Estimate,
    /// 90 % are.
    pub p90: Estimate,
    /// 99 % are.
    pub p99: Estimate,
    /// The percentile that was asked for.
    pub asked: Estimate,
}

impl Percentiles {
    pub(super) fn over(replications: &[Option<Points>], confidence: f64) -> Option<Self> {
        let points: Vec<[f64; 5]> = replications.iter().flatten().map(|points| points.0).collect();
        if points.is_empty() {
            return None;
        }
        let of = |index: usize| interval(&points.iter().map(|point| point[index]).collect::<Vec<_>>(), confidence);
        Some(Self { mean: of(0), p50: of(1), p90: of(2), p99: of(3), asked: of(4) })
    }
}
