//! Repeated measurements of one system, and how sure their means are.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::record::Record;
use crate::stats::{mean, student_interval};

/// What one trial measured.
#[derive(Debug, Clone, Default)]
pub struct TrialRows {
    /// Its requests.
    pub records: Vec<Record>,
    /// From the first send to the last end.
    pub duration: Duration,
    /// Time in which the client's thread was busy.
    pub client_busy: Duration,
}

/// Limits that a request must keep to count as good; one that is absent is kept by all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Slo {
    /// Longest time to the first token, in milliseconds.
    pub ttft_ms: Option<f64>,
    /// Longest mean time between tokens, in milliseconds.
    pub tpot_ms: Option<f64>,
    /// Longest time to the end, in milliseconds.
    #[serde(default)]
    pub e2el_ms: Option<f64>,
}

impl Slo {
    /// Whether any limit is set.
    pub fn is_set(&self) -> bool {
        self.ttft_ms.is_some() || self.tpot_ms.is_some() || self.e2el_ms.is_some()
    }

    /// Whether a complete request kept the limits. A request of one token has no time between tokens, and keeps that limit.
    pub fn holds(&self, record: &Record) -> bool {
        let within = |limit: Option<f64>, value: Option<f64>, missing: bool| {
            limit.is_none_or(|limit| value.map_or(missing, |value| value <= limit))
        };
        record.is_complete()
            && within(self.ttft_ms, record.ttft_ms, false)
            && within(self.tpot_ms, record.tpot_ms, true)
            && within(self.e2el_ms, record.e2el_ms, false)
    }
}

/// Totals and means of one trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialSummary {
    /// Seconds from the first send to the last end.
    pub duration: f64,
    /// Seconds in which the client's thread was busy.
    pub client_busy_s: f64,
    /// Requests that ended with `stop` or `length`.
    pub completed: usize,
    /// Committed tokens of all requests.
    pub total_output_tokens: u64,
    /// Committed tokens per second.
    pub output_throughput: f64,
    /// Requests per second that kept the limits, when there are any.
    pub request_goodput: Option<f64>,
    /// Means over its requests, in milliseconds.
    pub mean_ttft_ms: Option<f64>,
    /// See `mean_ttft_ms`.
    pub mean_tpot_ms: Option<f64>,
    /// See `mean_ttft_ms`.
    pub mean_e2el_ms: Option<f64>,
}

impl TrialSummary {
    fn new(trial: &TrialRows, slo: &Slo) -> Self {
        let duration = trial.duration.as_secs_f64();
        let rate = |count: f64| if duration > 0.0 { count / duration } else { 0.0 };
        let tokens: u64 = trial.records.iter().map(|record| record.completion_tokens).sum();
        let mean_of =
            |column: fn(&Record) -> Option<f64>| mean(&trial.records.iter().filter_map(column).collect::<Vec<_>>());
        let good = trial.records.iter().filter(|record| slo.holds(record)).count();
        Self {
            duration,
            client_busy_s: trial.client_busy.as_secs_f64(),
            completed: trial.records.iter().filter(|record| record.is_complete()).count(),
            total_output_tokens: tokens,
            output_throughput: rate(tokens as f64),
            request_goodput: slo.is_set().then(|| rate(good as f64)),
            mean_ttft_ms: mean_of(|record| record.ttft_ms),
            mean_tpot_ms: mean_of(|record| record.tpot_ms),
            mean_e2el_ms: mean_of(|record| record.e2el_ms),
        }
    }

    /// A number by its name in `summary.json`.
    pub fn get(&self, name: &str) -> Option<f64> {
        match name {
            "output_throughput" => Some(self.output_throughput),
            "request_goodput" => self.request_goodput,
            "mean_ttft_ms" => self.mean_ttft_ms,
            "mean_tpot_ms" => self.mean_tpot_ms,
            "mean_e2el_ms" => self.mean_e2el_ms,
            _ => None,
        }
    }
}

/// What intervals are given of.
pub(crate) const NAMES: [&str; 5] =
    ["output_throughput", "request_goodput", "mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms"];

/// A mean over trials, with its 95 % interval (Student's, trials taken as independent).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TrialMean {
    /// The mean.
    pub mean: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl TrialMean {
    /// Half the width of the interval.
    pub fn half(&self) -> f64 {
        (self.high - self.low) / 2.0
    }
}

/// Summaries of all trials, and intervals of their means; none of fewer than two trials.
pub fn summarise(trials: &[TrialRows], slo: &Slo) -> (Vec<TrialSummary>, BTreeMap<String, TrialMean>) {
    let summaries: Vec<_> = trials.iter().map(|trial| TrialSummary::new(trial, slo)).collect();
    let means = NAMES.iter().filter_map(|name| {
        let values: Vec<f64> = summaries.iter().map(|trial| trial.get(name)).collect::<Option<_>>()?;
        let [low, high] = student_interval(&values)?;
        Some(((*name).to_owned(), TrialMean { mean: (low + high) / 2.0, low, high }))
    });
    let means = means.collect();
    (summaries, means)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn record(ttft: f64, tpot: Option<f64>, tokens: u64) -> Record {
        Record {
            ttft_ms: Some(ttft),
            tpot_ms: tpot,
            e2el_ms: Some(ttft + tpot.unwrap_or_default() * (tokens - 1) as f64),
            completion_tokens: tokens,
            finish_reason: "length".into(),
            ..Record::default()
        }
    }

    #[test]
    fn goodput_counts_complete_requests_within_their_limits() {
        let slo = Slo { ttft_ms: Some(100.0), tpot_ms: Some(10.0), e2el_ms: None };
        assert!(slo.holds(&record(100.0, Some(10.0), 5)));
        assert!(slo.holds(&record(100.0, None, 1)));
        assert!(!slo.holds(&record(100.1, Some(10.0), 5)));
        assert!(!slo.holds(&record(1.0, Some(10.1), 5)));
        assert!(!slo.holds(&Record { e2el_ms: None, ..record(1.0, Some(1.0), 5) }));
        let whole = Slo { e2el_ms: Some(139.0), ..slo };
        assert!(
            !whole.holds(&record(100.0, Some(10.0), 5)) && whole.holds(&record(90.0, Some(10.0), 5)),
            "140 and 130 ms"
        );
        let rows = vec![record(50.0, Some(5.0), 10), record(500.0, Some(5.0), 10)];
        let trial = TrialRows { records: rows, duration: Duration::from_secs(4), ..TrialRows::default() };
        let (trials, means) = summarise(std::slice::from_ref(&trial), &slo);
        assert_eq!((trials[0].request_goodput, trials[0].output_throughput), (Some(0.25), 5.0));
        assert!(means.is_empty(), "one trial has no interval");
        let faster = TrialRows { duration: Duration::from_secs(2), ..trial };
        let (_, means) = summarise(&[faster.clone(), faster], &Slo::default());
        assert_eq!(means["output_throughput"], TrialMean { mean: 10.0, low: 10.0, high: 10.0 });
        assert!(!means.contains_key("request_goodput"));
    }
}
