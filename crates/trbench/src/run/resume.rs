//! What an earlier, interrupted run has left in a folder.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::error::usage;
use crate::record::Record;
use crate::results::{self, Manifest, Summary};
use crate::trials::TrialRows;

/// Complete rows of a cell, and its summary.
#[derive(Debug)]
pub(super) struct Earlier {
    records: Vec<Record>,
    pub(super) summary: Summary,
}

impl Earlier {
    /// Reads a cell's folder; `None` when it has no results. What is measured must be what was measured there.
    pub(super) fn read(dir: &Path, manifest: &Manifest) -> anyhow::Result<Option<Self>> {
        if !dir.join("summary.json").is_file() {
            return Ok(None);
        }
        let path = dir.join("manifest.json");
        let text = std::fs::read_to_string(&path)
            .map_err(|error| usage(format!("cannot read `{}`: {error}", path.display())))?;
        let theirs: Value =
            serde_json::from_str(&text).map_err(|error| usage(format!("`{}`: {error}", path.display())))?;
        let differences = manifest.differences(&theirs);
        let differences = differences.map_err(|why| usage(format!("`{}`: {why}", path.display())))?;
        if !differences.is_empty() {
            let named: Vec<_> = differences.iter().map(ToString::to_string).collect();
            return Err(usage(format!("--resume: `{}` is of another run: {}", path.display(), named.join("; "))));
        }
        let mut records = results::read_records(&dir.join("result.csv"))?;
        records.retain(Record::is_complete);
        Ok(Some(Self { records, summary: results::read_summary(&dir.join("summary.json"))? }))
    }

    /// The part of a trial that is complete, and the ids of its requests.
    pub(super) fn trial(&self, trial: usize) -> (TrialRows, HashSet<u64>) {
        let records: Vec<_> = self.records.iter().filter(|record| record.trial == trial).cloned().collect();
        let ids = records.iter().map(|record| record.id).collect();
        let known = self.summary.trials.get(trial).filter(|_| !records.is_empty());
        let seconds = |value: Option<f64>| Duration::try_from_secs_f64(value.unwrap_or_default()).unwrap_or_default();
        let duration = seconds(known.map(|trial| trial.duration));
        let client_busy = seconds(known.map(|trial| trial.client_busy_s));
        (TrialRows { records, duration, client_busy }, ids)
    }
}
