//! What an earlier, interrupted run has left in a folder.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::error::usage;
use crate::record::Record;
use crate::results::{self, MANIFEST, Manifest, ROWS, SUMMARY, Summary};
use crate::trials::TrialRows;

/// Complete rows of a cell in the order of the file, and its summary. A run that was killed has left none, or one from
/// before it was resumed.
#[derive(Debug)]
pub(super) struct Earlier {
    records: Vec<Record>,
    pub(super) summary: Option<Summary>,
}

impl Earlier {
    /// Reads a cell's folder; `None` when it has no results. What is measured must be what was measured there.
    pub(super) fn read(dir: &Path, manifest: &Manifest) -> anyhow::Result<Option<Self>> {
        if !results::is_run_alone(dir) {
            return Ok(None);
        }
        let path = dir.join(MANIFEST);
        let text = std::fs::read_to_string(&path)
            .map_err(|error| usage(format!("--resume: cannot read `{}`: {error}", path.display())))?;
        let theirs: Value =
            serde_json::from_str(&text).map_err(|error| usage(format!("`{}`: {error}", path.display())))?;
        let differences = manifest.differences(&theirs);
        let differences = differences.map_err(|why| usage(format!("`{}`: {why}", path.display())))?;
        if !differences.is_empty() {
            let named: Vec<_> = differences.iter().map(ToString::to_string).collect();
            return Err(usage(format!("--resume: `{}` is of another run: {}", path.display(), named.join("; "))));
        }
        let (rows, summary) = (dir.join(ROWS), dir.join(SUMMARY));
        let mut records = if rows.is_file() { results::read_records(&rows)? } else { Vec::new() };
        records.retain(Record::is_complete);
        let summary = if summary.is_file() { Some(results::read_summary(&summary)?) } else { None };
        Ok(Some(Self { records, summary }))
    }

    /// The part of a trial that is complete.
    pub(super) fn trial(&self, trial: usize) -> TrialRows {
        let records: Vec<_> = self.records.iter().filter(|record| record.trial == trial).cloned().collect();
        let known = self.summary.as_ref().and_then(|summary| summary.trials.get(trial));
        let known = known.filter(|_| !records.is_empty());
        let seconds = |value: Option<f64>| Duration::try_from_secs_f64(value.unwrap_or_default()).unwrap_or_default();
        // Rows that the summary does not cover come after the others: their process was killed.
        let since = records.iter().skip(known.map_or(0, |trial| trial.completed));
        let ends = since.filter_map(|record| Some((record.start_ms? + record.e2el_ms?) / 1e3));
        let duration = seconds(known.map(|trial| trial.duration)) + seconds(ends.max_by(f64::total_cmp));
        let client_busy = seconds(known.map(|trial| trial.client_busy_s));
        TrialRows { records, duration, client_busy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trials::{Slo, summarise};

    fn row(id: u64, start_ms: f64, e2el_ms: f64) -> Record {
        Record { id, start_ms: Some(start_ms), e2el_ms: Some(e2el_ms), ..Record::default() }
    }

    #[test]
    fn the_time_of_a_killed_process_is_that_of_its_rows() {
        let rows = vec![row(0, 0.0, 400.0), row(2, 400.0, 600.0), row(1, 0.0, 500.0)];
        let killed = Earlier { records: rows.clone(), summary: None };
        assert_eq!(killed.trial(0).duration, Duration::from_secs(1));
        // A summary of the first two, which took three seconds, and half a second of one more.
        let known = TrialRows { records: rows[..2].to_vec(), duration: Duration::from_secs(3), ..TrialRows::default() };
        let mut summary = Summary::new("x", std::slice::from_ref(&known), Slo::default(), None, Value::Null);
        summary.trials = summarise(&[known], &Slo::default()).0;
        let resumed = Earlier { records: rows, summary: Some(summary) };
        assert_eq!(resumed.trial(0).duration, Duration::from_millis(3500));
        assert_eq!(resumed.trial(1).duration, Duration::ZERO);
    }
}
