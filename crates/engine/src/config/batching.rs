//! The `batching` section: when models launch their batches.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::LatencyProfile;
use super::error::{Problem, in_range};

/// When a subserver launches a batch.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BatchingConfig {
    /// Delayed batching: one threshold `B_i` per model in the order of `models`, or `auto` (found by the throughput
    /// model from `batching.profile`), or `adaptive` (as `auto` where the profile is known, and found again from what is
    /// measured while serving), or `eager` (all 1). A model launches when at least `B_i` requests wait there;
    /// feasible means `sum(B_i - 1) < max_active`. With fewer active requests the thresholds shrink to stay feasible.
    pub thresholds: ThresholdConfig,
    /// Longest time that a request waits below the threshold, in milliseconds.
    pub max_wait_ms: f64,
    /// What `auto` computes with.
    pub profile: Option<ProfileConfig>,
    /// How `adaptive` follows the load (`docs/concepts/online-adaptation.md`).
    pub adaptation: AdaptationConfig,
}

/// How `thresholds: adaptive` follows the load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdaptationConfig {
    /// Seconds between two looks at the counters.
    pub period_s: f64,
    /// Predicted gain in throughput over the thresholds in use below which they stay, as a share: 0.02 is 2 %.
    pub hysteresis: f64,
    /// Steps of each model over which routing is estimated; older ones are forgotten.
    pub memory_steps: usize,
    /// No threshold is set above this; 0: only feasibility bounds them.
    pub max_threshold: usize,
}

impl Default for AdaptationConfig {
    fn default() -> Self {
        Self { period_s: 5.0, hysteresis: 0.02, memory_steps: 4096, max_threshold: 0 }
    }
}

/// Where thresholds come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ThresholdConfig {
    /// All 1: launch whatever is ready.
    #[default]
    Eager,
    /// Computed by the throughput model at start-up, for every number of active requests.
    Auto,
    /// Computed by the throughput model, from what is measured while serving.
    Adaptive,
    /// Given, one per model.
    Fixed(Vec<u32>),
}

/// Latencies, routing and commit matrices of the throughput model (`docs/concepts/throughput-model.md`).
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProfileConfig {
    /// Step time of each model in milliseconds: a number, or a list by batch size. Emulated models bring their own.
    #[serde(default)]
    pub latencies_ms: Option<Vec<LatencyProfile>>,
    /// `routing[i][j]`: probability that a step on model `i` sends the request to model `j`; rows sum to 1. Random
    /// routing brings its own.
    #[serde(default)]
    pub routing: Option<Vec<Vec<f64>>>,
    /// `commit[i][j]`: tokens committed by such a step; 1 everywhere when absent.
    #[serde(default)]
    pub commit: Option<Vec<Vec<f64>>>,
    /// Time quantum of the chain in milliseconds.
    #[serde(default = "default_quantum")]
    pub quantum_ms: f64,
}

fn default_quantum() -> f64 {
    0.1
}

impl Default for BatchingConfig {
    fn default() -> Self {
        Self {
            thresholds: ThresholdConfig::Eager,
            max_wait_ms: 1000.0,
            profile: None,
            adaptation: AdaptationConfig::default(),
        }
    }
}

/// How far a measured row of probabilities may be from a sum of 1; it is scaled then.
const ROW_SUM: f64 = 1e-3;

impl ProfileConfig {
    pub(super) fn validate(&self, models: usize) -> Result<(), Problem> {
        let at = |key: &str, message: String| Problem::new(["batching", "profile", key], message);
        if let Some(given) = self.latencies_ms.as_ref().map(Vec::len).filter(|given| *given != models) {
            return Err(at("latencies_ms", format!("`latencies_ms` has {given} entries, there are {models} models")));
        }
        for (key, matrix) in [("routing", &self.routing), ("commit", &self.commit)] {
            let Some(matrix) = matrix else { continue };
            if matrix.len() != models || matrix.iter().any(|row| row.len() != models) {
                return Err(at(
                    key,
                    format!("`{key}` must have {models} rows of {models} numbers, one for each model"),
                ));
            }
            let bad = |value: &f64| !(value.is_finite() && *value >= 0.0);
            if let Some(row) = matrix.iter().position(|row| row.iter().any(bad)) {
                let message = format!("entry {} of `{key}` has a number that is not 0 or above", row + 1);
                return Err(at(key, message).entry(row));
            }
        }
        let rows = self.routing.iter().flatten().enumerate();
        let off = |row: &[f64]| (row.iter().sum::<f64>() - 1.0).abs() > ROW_SUM;
        match rows.into_iter().find(|(_, row)| off(row)) {
            None => Ok(()),
            Some((index, row)) => {
                let sum: f64 = row.iter().sum();
                let message = format!("entry {} of `routing` sums to {sum}, allowed is 1 within {ROW_SUM}", index + 1);
                Err(at("routing", message).entry(index))
            }
        }
    }
}

impl AdaptationConfig {
    pub(super) fn validate(&self) -> Result<(), Problem> {
        let path = |key| ["batching", "adaptation", key];
        in_range(path("period_s"), self.period_s, [0.05, 3600.0])?;
        in_range(path("hysteresis"), self.hysteresis, [0.005, 1.0])?;
        in_range(path("memory_steps"), self.memory_steps, [256, 1_000_000])
    }
}
