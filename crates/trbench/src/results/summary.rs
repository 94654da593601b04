//! `summary.json`: totals, latencies, and what the models did.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokenrouter_engine::EngineStats;

use crate::record::Record;
use crate::spec::LatencyMetric;
use crate::stats::{GeometricTest, geometric_test, mean, percentile, ratio, wilson};
use crate::trials::{Slo, TrialMean, TrialRows, TrialSummary, summarise};

/// Percentiles that are reported where the sample supports them.
const PERCENTILES: [(&str, f64); 3] = [("median", 0.5), ("p90", 0.9), ("p99", 0.99)];

/// A measured system: totals, latencies, and what its models did.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Summary {
    /// Version of this file's layout.
    pub schema_version: u32,
    /// System and concurrency.
    pub label: String,
    /// Requests in flight.
    pub max_concurrency: usize,
    /// Launch thresholds, one for each model; empty where they are not known.
    #[serde(default)]
    pub thresholds: Vec<u32>,
    /// Whether latency profiles stood in for models.
    pub emulated: bool,
    /// Whether they did so in virtual time.
    #[serde(default)]
    pub virtual_time: bool,
    /// Whether the run was interrupted.
    pub interrupted: bool,
    /// Seconds from the first send to the last end.
    pub duration: f64,
    /// Requests that ended with `stop` or `length`.
    pub completed: usize,
    /// Requests that failed.
    pub failed: usize,
    /// Prompt tokens of all requests.
    pub total_input_tokens: u64,
    /// Committed tokens of all requests.
    pub total_output_tokens: u64,
    /// Committed tokens per second.
    pub output_throughput: f64,
    /// Mean, median and percentiles in milliseconds, keys as in vLLM's results; `null` where the sample is too small.
    /// Percentiles are there for the latencies of `--percentile-metrics`.
    pub latency: Map<String, Value>,
    /// Share of the tokens not written by the entry model; that of the configuration, where a system runs one model of it.
    pub llm_ratio: Option<f64>,
    /// Its 95 % interval, requests taken as independent.
    #[serde(default)]
    pub llm_ratio_interval: Option<[f64; 2]>,
    /// Moves between models per committed token.
    pub handoffs_per_token: Option<f64>,
    /// Right answers and graded answers.
    pub correct: usize,
    /// See `correct`.
    pub graded: usize,
    /// Answers that ended because they had `max_tokens` tokens.
    #[serde(default)]
    pub cut: usize,
    /// Items of the data set whose answers are no integers: nothing is graded there.
    #[serde(default)]
    pub ungradable: usize,
    /// One entry per model; empty for endpoints.
    pub models: Vec<ModelSummary>,
    /// What the engine decided at launch, or the endpoint.
    pub server_info: Value,
    /// The first error, if any.
    pub first_error: Option<String>,
    /// `closed loop`, or the rate and distribution of arrivals.
    #[serde(default)]
    pub load: String,
    /// Requests before each trial that were not measured.
    #[serde(default)]
    pub warmup: usize,
    /// Every trial by itself. The totals above are over all of them.
    #[serde(default)]
    pub trials: Vec<TrialSummary>,
    /// Means over trials with their 95 % intervals, by name; empty for a single trial.
    #[serde(default)]
    pub intervals: BTreeMap<String, TrialMean>,
    /// Limits behind `request_goodput`.
    #[serde(default)]
    pub slo: Slo,
    /// Requests per second that kept the limits.
    #[serde(default)]
    pub request_goodput: Option<f64>,
    /// Share of the time in which the client's thread was busy: near 1, the client is what was measured.
    #[serde(default)]
    pub client_busy: Option<f64>,
    /// Largest delay between the time at which a request was to be sent and the client's sending it.
    #[serde(default)]
    pub max_client_lag_ms: Option<f64>,
    /// Index of the entry model among `models`.
    #[serde(default)]
    pub entry: usize,
    /// What the model of `--judge` says of the answers.
    #[serde(default)]
    pub judged: Option<Judged>,
    /// Complete requests that were taken over from an interrupted run; `models` does not cover them.
    #[serde(default)]
    pub resumed: usize,
}

/// What one model did in a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ModelSummary {
    /// Its name.
    pub name: String,
    /// Steps.
    pub steps: u64,
    /// Mean rows per step.
    pub mean_batch: f64,
    /// `batch_sizes[b]`: steps with `b` rows.
    pub batch_sizes: Vec<u64>,
    /// Seconds in steps.
    pub busy_s: f64,
    /// Part of `busy_s` that went into choosing tokens.
    #[serde(default)]
    pub sampling_s: f64,
    /// Seconds spent on messages, routing and batches.
    #[serde(default)]
    pub scheduling_s: f64,
    /// Seconds without anything to do.
    #[serde(default)]
    pub idle_s: f64,
    /// Tokens of requests that came here for the first time, and those of them that the prefix cache knew.
    #[serde(default)]
    pub prefix_tokens: u64,
    /// See `prefix_tokens`.
    #[serde(default)]
    pub prefix_hits: u64,
    /// Mean time of pure decode steps by batch size, in milliseconds; `null` where none was seen.
    pub step_ms_by_batch: Vec<Option<f64>>,
    /// Tokens fed: decoded, appended at returns, prefilled.
    pub fed_tokens: u64,
    /// Rows of all steps.
    #[serde(default)]
    pub rows: u64,
    /// Seconds that requests were in steps: a step counts once for each of its rows.
    #[serde(default)]
    pub row_s: f64,
    /// Part of `row_s` in which a request had more than one new token: prefill, and what a return brings along.
    #[serde(default)]
    pub extend_row_s: f64,
    /// Mean wait in the buffer per row, in milliseconds.
    pub buffer_wait_ms: f64,
    /// Steps launched at the threshold, and by `max_wait`.
    pub launches_full: u64,
    /// See `launches_full`.
    pub launches_timeout: u64,
    /// Measured row of the routing matrix P.
    pub p_row: Vec<f64>,
    /// Its 95 % intervals, steps taken as independent.
    #[serde(default)]
    pub p_interval: Vec<Option<[f64; 2]>>,
    /// Measured row of the commit matrix C.
    pub c_row: Vec<f64>,
    /// Its 95 % intervals.
    #[serde(default)]
    pub c_interval: Vec<Option<[f64; 2]>>,
    /// `runs[n]`: visits of `n` steps that ended with a move to another model.
    #[serde(default)]
    pub runs: Vec<u64>,
    /// Those lengths against the geometric distribution that the throughput model assumes.
    #[serde(default)]
    pub geometric: Option<GeometricTest>,
    /// Steps behind `p_row`.
    pub transitions: u64,
}

/// What a model says of the answers of a run, reading them token by token (teacher-forced).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// Name of the model.
    pub model: String,
    /// Tokens that were judged; those beyond the first 512 of prompt and answer are not.
    pub tokens: usize,
    /// Share of the tokens that the model itself would have written greedily.
    pub agreement: f64,
    /// Its 95 % interval, requests taken as independent.
    pub agreement_interval: Option<[f64; 2]>,
    /// Mean natural logarithm of the tokens' probabilities.
    pub log_likelihood: f64,
    /// Its 95 % interval.
    pub log_likelihood_interval: Option<[f64; 2]>,
}

/// Differences of two snapshots, per model.
pub fn model_summaries(after: &EngineStats, before: Option<&EngineStats>) -> Vec<ModelSummary> {
    let models = after.names.iter().zip(&after.models).enumerate();
    models
        .map(|(index, (name, stats))| {
            let stats = before.and_then(|b| b.models.get(index)).map_or_else(|| stats.clone(), |old| stats.since(old));
            let transitions: u64 = stats.transitions.iter().sum();
            let share = |count: &u64| if transitions == 0 { 0.0 } else { *count as f64 / transitions as f64 };
            let commits = stats.committed.iter().zip(&stats.transitions);
            let per_step = |time: Duration, count: u64| (count > 0).then(|| time.as_secs_f64() * 1e3 / count as f64);
            ModelSummary {
                name: name.clone(),
                steps: stats.steps,
                mean_batch: stats.mean_batch(),
                busy_s: stats.busy.as_secs_f64(),
                sampling_s: stats.sampling.as_secs_f64(),
                scheduling_s: stats.scheduling.as_secs_f64(),
                idle_s: stats.idle.as_secs_f64(),
                prefix_tokens: stats.prefix_tokens,
                prefix_hits: stats.prefix_hits,
                step_ms_by_batch: stats.step_time_by_batch.iter().map(|(n, time)| per_step(*time, *n)).collect(),
                fed_tokens: stats.fed_tokens,
                rows: stats.rows,
                row_s: stats.row_time.as_secs_f64(),
                extend_row_s: stats.extend_row_time.as_secs_f64(),
                buffer_wait_ms: per_step(stats.buffer_wait, stats.rows).unwrap_or(0.0),
                launches_full: stats.launches_full,
                launches_timeout: stats.launches_timeout,
                p_row: stats.transitions.iter().map(share).collect(),
                p_interval: stats.transitions.iter().map(|count| wilson(*count, transitions)).collect(),
                c_interval: commits.clone().map(|(c, n)| wilson(*c, *n)).collect(),
                geometric: geometric_test(&stats.runs),
                c_row: commits.map(|(c, n)| if *n == 0 { 0.0 } else { *c as f64 / *n as f64 }).collect(),
                transitions,
                runs: stats.runs,
                batch_sizes: stats.batch_sizes,
            }
        })
        .collect()
}

impl Summary {
    /// A number by its name in `summary.json`: what every report and comparison of this run shows.
    pub fn value(&self, name: &str) -> Option<f64> {
        match name {
            "output_throughput" => (self.duration > 0.0).then_some(self.output_throughput),
            "request_goodput" => self.request_goodput,
            _ => self.latency.get(name).and_then(Value::as_f64),
        }
    }

    /// Totals and percentiles over all trials of a run.
    pub fn new(
        label: &str,
        trials: &[TrialRows],
        slo: Slo,
        models: Option<Vec<ModelSummary>>,
        server_info: Value,
    ) -> Self {
        let records: Vec<&Record> = trials.iter().flat_map(|trial| &trial.records).collect();
        let output: u64 = records.iter().map(|record| record.completion_tokens).sum();
        let seconds = |part: fn(&TrialRows) -> Duration| trials.iter().map(part).sum::<Duration>().as_secs_f64();
        let duration = seconds(|trial| trial.duration);
        let per_second = |count: f64| if duration > 0.0 { count / duration } else { 0.0 };
        let handoffs: Option<u64> = records.iter().map(|record| record.handoffs).sum();
        let routed = records
            .iter()
            .filter_map(|r| Some((r.llm_ratio? * r.completion_tokens as f64, r.completion_tokens as f64)));
        let large = ratio(&routed.collect::<Vec<_>>());
        let (trial_summaries, intervals) = summarise(trials, &slo);
        let good = records.iter().filter(|record| slo.holds(record)).count() as f64;
        Self {
            schema_version: 1,
            label: label.to_owned(),
            max_concurrency: 0,
            thresholds: Vec::new(),
            emulated: server_info["emulated"].as_bool().unwrap_or(false),
            virtual_time: server_info["virtual_time"].as_bool().unwrap_or(false),
            interrupted: false,
            duration,
            completed: records.iter().filter(|record| record.is_complete()).count(),
            failed: records.iter().filter(|record| record.error.is_some()).count(),
            total_input_tokens: records.iter().filter_map(|record| record.prompt_tokens).sum(),
            total_output_tokens: output,
            output_throughput: per_second(output as f64),
            latency: latencies(&records),
            llm_ratio: large.map(|ratio| ratio.value),
            llm_ratio_interval: large.and_then(|ratio| ratio.interval),
            handoffs_per_token: handoffs.filter(|_| output > 0).map(|handoffs| handoffs as f64 / output as f64),
            correct: records.iter().filter(|record| record.correct == Some(true)).count(),
            graded: records.iter().filter(|record| record.correct.is_some()).count(),
            cut: records.iter().filter(|record| record.finish_reason == "length").count(),
            ungradable: 0,
            models: models.unwrap_or_default(),
            server_info,
            first_error: records.iter().find_map(|record| record.error.clone()),
            load: String::new(),
            warmup: 0,
            trials: trial_summaries,
            intervals,
            slo,
            request_goodput: slo.is_set().then(|| per_second(good)),
            client_busy: (duration > 0.0).then(|| per_second(seconds(|trial| trial.client_busy))),
            max_client_lag_ms: records.iter().filter_map(|record| record.client_lag_ms).max_by(f64::total_cmp),
            entry: 0,
            judged: None,
            resumed: 0,
        }
    }
}

/// `mean_x_ms`, `median_x_ms`, `p90_x_ms`, `p99_x_ms` for ttft, tpot and e2el.
pub(crate) fn latencies(records: &[&Record]) -> Map<String, Value> {
    type Column = fn(&Record) -> Option<f64>;
    let columns: [(&str, Column); 3] = [("ttft", |r| r.ttft_ms), ("tpot", |r| r.tpot_ms), ("e2el", |r| r.e2el_ms)];
    let mut map = Map::new();
    for (name, column) in columns {
        let values: Vec<f64> = records.iter().filter_map(|record| column(record)).collect();
        describe(&mut map, name, &values);
    }
    map
}

/// Mean and percentiles of one kind of latency.
fn describe(map: &mut Map<String, Value>, name: &str, values: &[f64]) {
    map.insert(format!("mean_{name}_ms"), json!(mean(values)));
    for (label, q) in PERCENTILES {
        map.insert(format!("{label}_{name}_ms"), json!(percentile(values, q)));
    }
}

impl Summary {
    /// Keeps the percentiles of these latencies alone; the means stay. `gaps` are the times between tokens, which no row
    /// has: they are described where `itl` is asked for.
    pub(crate) fn keep_percentiles(&mut self, metrics: &[LatencyMetric], gaps: &[f64]) {
        if metrics.contains(&LatencyMetric::Itl) {
            describe(&mut self.latency, "itl", gaps);
        }
        for dropped in LatencyMetric::ALL.iter().filter(|metric| !metrics.contains(metric)) {
            for (label, _) in PERCENTILES {
                self.latency.shift_remove(&format!("{label}_{dropped}_ms"));
            }
        }
    }
}
