//! `calibration.json`: what was measured of a system, in the form that the throughput model takes.

use std::path::Path;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokenrouter_core::emulated::LatencyProfile;
use tokenrouter_dtmc::{DEFAULT_QUANTUM_MS, Latency, System};
use tokenrouter_engine::Config;
use tokenrouter_engine::adaptation::latency;
use tokenrouter_engine::config::{ProfileConfig, ThresholdConfig};

use super::measured;
use crate::error::usage;
use crate::stats::GeometricTest;
use crate::terminal::say;

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
    /// The system that was measured, field by field; absent in files from before it was recorded.
    #[serde(default)]
    pub system: Option<IndexMap<String, Value>>,
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
        let mut calibration: Self =
            serde_json::from_str(&text).map_err(|error| usage(format!("calibration `{}`: {error}", path.display())))?;
        calibration.check().map_err(|why| usage(format!("calibration `{}`: {why}", path.display())))?;
        for note in calibration.normalise() {
            say(&format!("note: calibration `{}`: {note}", path.display()));
        }
        Ok(calibration)
    }

    /// Reads a file for the system of a configuration. One that was measured on another system is refused, or with `any`
    /// taken while that is said.
    pub fn read_for(path: &Path, config: &Config, any: bool) -> anyhow::Result<Self> {
        let calibration = Self::read(path)?;
        let name = path.display();
        calibration.check_models(config)?;
        let Some(theirs) = &calibration.system else {
            say(&format!(
                "note: calibration `{name}` does not say what system it was measured on; measure it again to know"
            ));
            return Ok(calibration);
        };
        let differences = measured::differences(theirs, &measured::system(config));
        match differences.is_empty() {
            true => {}
            false if any => {
                say(&format!("note: calibration `{name}` is of another system: {}", differences.join("; ")));
            }
            false => {
                return Err(usage(format!(
                    "calibration `{name}` is of another system: {}; measure this one with `trbench calibrate`, or take it all \
                     the same with `--any-calibration`",
                    differences.join("; ")
                )));
            }
        }
        Ok(calibration)
    }

    /// Scales measured rows of shares that are rounded, and says so.
    fn normalise(&mut self) -> Vec<String> {
        let (System { routing, .. }, notes) = self.system().normalised();
        self.routing = routing;
        notes
    }

    fn check(&self) -> Result<(), String> {
        let models = self.models.len();
        for (name, matrix) in [("routing", &self.routing), ("commit", &self.commit)] {
            if matrix.len() != models || matrix.iter().any(|row| row.len() != models) {
                return Err(format!("`{name}` is not a {models} by {models} matrix, as the {models} models need"));
            }
        }
        for (row, model) in self.routing.iter().zip(&self.models) {
            let sum: f64 = row.iter().sum();
            if (sum - 1.0).abs() > 1e-3 || row.iter().any(|share| *share < 0.0) {
                return Err(format!(
                    "the row of model `{}` in `routing` sums to {sum}; allowed are shares with a sum of 1 within 0.001",
                    model.name
                ));
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

    /// Thresholds of a configuration are computed from the calibration in a file, for every number of active requests.
    pub fn apply(path: &Path, config: &mut Config, any: bool) -> anyhow::Result<()> {
        let calibration = Self::read_for(path, config, any)?;
        config.batching.profile = Some(ProfileConfig {
            latencies_ms: Some(calibration.profiles()),
            routing: Some(calibration.routing),
            commit: Some(calibration.commit),
            quantum_ms: DEFAULT_QUANTUM_MS,
        });
        config.batching.thresholds = ThresholdConfig::Auto;
        Ok(())
    }

    fn check_models(&self, config: &Config) -> anyhow::Result<()> {
        let (names, own): (Vec<_>, Vec<_>) =
            (config.model_names(), self.models.iter().map(|model| model.name.clone()).collect());
        if names != own {
            return Err(usage(format!(
                "the calibration is of models {}, the configuration has {}",
                own.join(", "),
                names.join(", ")
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn emulated(latency: &str) -> Config {
        let yaml = format!(
            "models: {{a: {{emulated: {{latency_ms: {latency}}}}}, b: {{emulated: {{latency_ms: 9}}}}}}\n\
             routing: {{method: random, probability: 0.5}}\n"
        );
        Config::from_yaml(&yaml, "x.yaml").expect("valid")
    }

    fn file(system: &Value, routing: &Value) -> tempfile::NamedTempFile {
        let model = |name: &str| {
            json!({"name": name, "latency_ms": [3.0], "steps": [9], "scheduling_ms": 0.0,
            "transitions": 9, "geometric": null})
        };
        let text = json!({"schema_version": 1, "config": "x.yaml", "emulated": true, "cpu": "x", "concurrency": [1],
            "system": system, "models": [model("a"), model("b")], "routing": routing,
            "routing_interval": [[null, null], [null, null]], "commit": [[1.0, 0.0], [1.0, 0.0]],
            "commit_interval": [[null, null], [null, null]]});
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text.to_string()).expect("writable");
        file
    }

    #[test]
    fn another_systems_calibration_is_refused_by_name() {
        let own = json!(measured::system(&emulated("3")));
        let file = file(&own, &json!([[0.5, 0.5], [1.0, 0.0]]));
        Calibration::apply(file.path(), &mut emulated("3"), false).expect("its own");
        let why = Calibration::apply(file.path(), &mut emulated("4"), false).expect_err("another").to_string();
        assert!(why.contains("`models.a.emulated` was") && !why.contains("models.b"), "{why}");
        assert!(why.contains("--any-calibration"), "{why}");
        let mut config = emulated("4");
        Calibration::apply(file.path(), &mut config, true).expect("taken");
        assert_eq!(config.batching.thresholds, ThresholdConfig::Auto);
    }

    #[test]
    fn rows_are_scaled_when_they_are_near_a_sum_of_one() {
        let near = file(&Value::Null, &json!([[0.5004, 0.5], [1.0, 0.0]]));
        let sum: f64 = Calibration::read(near.path()).expect("read").routing[0].iter().sum();
        assert!((sum - 1.0).abs() < 1e-12, "{sum}");
        let far = file(&Value::Null, &json!([[0.5, 0.502], [1.0, 0.0]]));
        let why = Calibration::read(far.path()).expect_err("refused").to_string();
        assert!(why.contains("model `a` in `routing` sums to 1.002"), "{why}");
    }
}
