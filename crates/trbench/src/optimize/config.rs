//! The YAML file behind `--config`.

use anyhow::Context;
use serde::Deserialize;
use std::path::Path;
use tokenrouter_dtmc::Latency;

/// Keys of the file; the paper's short names are accepted too.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct OptimizeConfig {
    #[serde(alias = "M")]
    pub(super) models: Option<usize>,
    #[serde(alias = "N")]
    pub(super) concurrency: Option<u32>,
    #[serde(alias = "latencies")]
    pub(super) latencies_ms: Vec<LatencyEntry>,
    #[serde(alias = "P")]
    pub(super) routing_matrix: Option<Vec<Vec<f64>>>,
    #[serde(alias = "C")]
    pub(super) commit_matrix: Option<Vec<Vec<f64>>>,
    #[serde(alias = "delta")]
    pub(super) quantum_ms: Option<f64>,
    pub(super) max_batch: Option<Vec<Option<u32>>>,
    pub(super) routing_states: Option<Vec<usize>>,
    pub(super) thresholds: Option<Vec<u32>>,
}

/// A constant, or `[batch, ms]` points.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum LatencyEntry {
    Constant(f64),
    Table(Vec<(u32, f64)>),
}

impl LatencyEntry {
    pub(super) fn into_latency(self) -> Latency {
        match self {
            Self::Constant(ms) => Latency::Constant(ms),
            Self::Table(points) => Latency::Table(points),
        }
    }
}

impl OptimizeConfig {
    /// Latencies and matrices as measured.
    pub(super) fn measured(&mut self, calibration: &crate::predict::Calibration) {
        let points = |latencies: &Vec<f64>| (1u32..).zip(latencies.iter().copied()).collect();
        self.latencies_ms =
            calibration.models.iter().map(|model| LatencyEntry::Table(points(&model.latency_ms))).collect();
        self.routing_matrix = Some(calibration.routing.clone());
        self.commit_matrix = Some(calibration.commit.clone());
    }

    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("`--config`: reading `{}`", path.display()))?;
        serde_saphyr::from_str(&text).map_err(|error| anyhow::anyhow!("`--config`: `{}`: {error}", path.display()))
    }
}
