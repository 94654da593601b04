//! `calibration.json`: what was measured of a system, in the form that the throughput model takes.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tokenrouter_core::emulated::LatencyProfile;
use tokenrouter_dtmc::{DEFAULT_QUANTUM_MS, Latency, System};
use tokenrouter_engine::Config;
use tokenrouter_engine::adaptation::latency;
use tokenrouter_engine::config::{ProfileConfig, ThresholdConfig};

use crate::error::usage;
use crate::stats::GeometricTest;

/// Step times, routing and commit matrices of a system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Version of this file's layout.
    pub schema_version: u32,
    /// The configuration that was measured.
    pub config: String,
    /// Whether latency profiles stood in for models.
    pub emulated: bool,
    /// The machine's processor.
    pub cpu: String,
    /// Requests in flight, one run each.
    pub concurrency: Vec<usize>,
    /// Prompt tokens of the requests: step times are those of contexts from here on.
    #[serde(default)]
    pub input_len: usize,
    /// Milliseconds of a move between models beside the steps, where a run with one request was among them.
    #[serde(default)]
    pub handoff_ms: Option<f64>,
    /// The models, in order.
    pub models: Vec<ModelCalibration>,
    /// `routing[i][j]`: share of the steps of model `i` after which a request went on at `j`.
    pub routing: Vec<Vec<f64>>,
    /// Its 95 % intervals, steps taken as independent.
    pub routing_interval: Vec<Vec<Option<[f64; 2]>>>,
    /// `commit[i][j]`: tokens committed by such a step.
    pub commit: Vec<Vec<f64>>,
    /// Its 95 % intervals.
    pub commit_interval: Vec<Vec<Option<[f64; 2]>>>,
}

/// What was measured of one model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelCalibration {
    /// Its name.
    pub name: String,
    /// Milliseconds from the launch of a step with `b` requests to the next possible launch, at index `b - 1`: the forward
    /// pass, choosing tokens, and the scheduling that comes with it. Batch sizes that were not seen are interpolated.
    pub latency_ms: Vec<f64>,
    /// Steps behind each of them; 0: interpolated.
    pub steps: Vec<u64>,
    /// Part of the latencies that is scheduling, in milliseconds a step.
    pub scheduling_ms: f64,
    /// Steps behind the row of `routing`.
    pub transitions: u64,
    /// Visit lengths against the geometric distribution that the throughput model assumes.
    pub geometric: Option<GeometricTest>,
}

impl Calibration {
    /// Reads a file.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| usage(format!("cannot read calibration `{}`: {error}", path.display())))?;
        let calibration: Self =
            serde_json::from_str(&text).map_err(|error| usage(format!("calibration `{}`: {error}", path.display())))?;
        calibration.check().map_err(|why| usage(format!("calibration `{}`: {why}", path.display())))?;
        Ok(calibration)
    }

    fn check(&self) -> Result<(), String> {
        let models = self.models.len();
        for (name, matrix) in [("routing", &self.routing), ("commit", &self.commit)] {
            if matrix.len() != models || matrix.iter().any(|row| row.len() != models) {
                return Err(format!("`{name}` is not a {models} by {models} matrix, as the {models} models need"));
            }
        }
        for model in &self.models {
            let valid = |ms: &f64| ms.is_finite() && *ms > 0.0;
            if model.latency_ms.is_empty() || !model.latency_ms.iter().all(valid) {
                return Err(format!("`latency_ms` of model `{}` must be numbers above 0", model.name));
            }
        }
        Ok(())
    }

    /// The system as measured: step times end at the largest batch that was seen or interpolated.
    pub fn system(&self) -> System {
        let latencies = self.models.iter().map(|model| Latency::by_batch(model.latency_ms.iter().copied()));
        System { commits: Some(self.commit.clone()), ..System::new(latencies, self.routing.clone()) }
    }

    /// The same with step times continued along their last two up to `largest_batch`, as a configuration's would be.
    pub fn continued_system(&self, largest_batch: usize) -> System {
        let latencies_ms = self.profiles().iter().map(|profile| latency(profile, largest_batch)).collect();
        System { latencies_ms, ..self.system() }
    }

    fn profiles(&self) -> Vec<LatencyProfile> {
        self.models.iter().map(|model| LatencyProfile::Table(model.latency_ms.clone())).collect()
    }

    /// Thresholds of a configuration are computed from this, for every number of active requests.
    pub fn apply(&self, config: &mut Config) -> anyhow::Result<()> {
        let (names, own): (Vec<_>, Vec<_>) =
            (config.model_names(), self.models.iter().map(|model| model.name.clone()).collect());
        if names != own {
            return Err(usage(format!(
                "the calibration is of models {}, the configuration has {}",
                own.join(", "),
                names.join(", ")
            )));
        }
        config.batching.profile = Some(ProfileConfig {
            latencies_ms: Some(self.profiles()),
            routing: Some(self.routing.clone()),
            commit: Some(self.commit.clone()),
            quantum_ms: DEFAULT_QUANTUM_MS,
        });
        config.batching.thresholds = ThresholdConfig::Auto;
        Ok(())
    }
}
