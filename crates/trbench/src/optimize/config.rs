//! The YAML file behind `--config`.

use anyhow::Context;
use serde::Deserialize;
use std::path::Path;
use tokenrouter_dtmc::{Latency, System};

/// Keys of the file; the paper's short names are accepted too.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct OptimizeConfig {
    #[serde(alias = "M")]
    pub(super) models: Option<usize>,
    #[serde(alias = "N")]
    pub(super) concurrency: Option<u32>,
    #[serde(alias = "latencies")]
    pub(super) latencies_ms: Vec<Latency>,
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

impl OptimizeConfig {
    /// Latencies and matrices as measured.
    pub(super) fn measured(&mut self, calibration: &crate::predict::Calibration) {
        let System { latencies_ms, routing, commits, .. } = calibration.system();
        self.latencies_ms = latencies_ms;
        self.routing_matrix = Some(routing);
        self.commit_matrix = commits;
    }

    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("`--config`: reading `{}`", path.display()))?;
        serde_saphyr::from_str(&text).map_err(|error| anyhow::anyhow!("`--config`: `{}`: {error}", path.display()))
    }
}
