//! Results of earlier runs, found again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::{Summary, read_records, read_summary};
use crate::error::usage;
use crate::record::Record;
use crate::trials::{Slo, TrialRows};

/// Folders below the one that is given in which results are looked for.
const DEPTH: usize = 3;

/// One measured system, as its files tell.
#[derive(Debug)]
pub(crate) struct Found {
    /// Its summary; made from the rows where there is no `summary.json`.
    pub(crate) summary: Summary,
    /// Its `manifest.json`, where there is one.
    pub(crate) manifest: Option<Value>,
    /// The folder or the file.
    pub(crate) path: PathBuf,
}

/// The results of a folder, of all folders below it, or of a `result.csv`.
///
/// # Errors
/// A usage error where there are none, or one of them cannot be read.
pub(crate) fn find(path: &Path) -> anyhow::Result<Vec<Found>> {
    if path.is_file() {
        let beside = path.file_name().is_some_and(|name| name == "result.csv");
        let folder = path.parent().filter(|folder| beside && folder.join("summary.json").is_file());
        return Ok(vec![folder.map_or_else(|| lone(path), read)?]);
    }
    std::fs::read_dir(path).map_err(|error| usage(format!("cannot read `{}`: {error}", path.display())))?;
    let mut folders = Vec::new();
    search(path, DEPTH, &mut folders);
    if folders.is_empty() {
        let path = path.display();
        return Err(usage(format!("`{path}` holds no results (no `summary.json` and no `result.csv`)")));
    }
    folders.iter().map(|folder| read(folder)).collect()
}

/// Folders with results; what is below one is part of it.
fn search(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    if folder.join("summary.json").is_file() || folder.join("result.csv").is_file() {
        found.push(folder.to_owned());
        return;
    }
    let entries = std::fs::read_dir(folder).ok().filter(|_| depth > 0).into_iter().flatten();
    let mut folders: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders.iter().for_each(|below| search(below, depth - 1, found));
}

fn read(folder: &Path) -> anyhow::Result<Found> {
    let file = folder.join("summary.json");
    if !file.is_file() {
        return lone(&folder.join("result.csv"));
    }
    Ok(Found { summary: read_summary(&file)?, manifest: read_manifest(folder)?, path: folder.to_owned() })
}

fn read_manifest(folder: &Path) -> anyhow::Result<Option<Value>> {
    let path = folder.join("manifest.json");
    if !path.is_file() {
        return Ok(None);
    }
    let refuse = |error: String| usage(format!("`{}`: {error}", path.display()));
    let text = std::fs::read_to_string(&path).map_err(|error| refuse(error.to_string()))?;
    serde_json::from_str(&text).map(Some).map_err(|error| refuse(error.to_string()))
}

/// What the rows alone say: everything but what the models did.
fn lone(path: &Path) -> anyhow::Result<Found> {
    let mut trials: BTreeMap<usize, TrialRows> = BTreeMap::new();
    for record in read_records(path)? {
        trials.entry(record.trial).or_default().records.push(record);
    }
    let mut trials: Vec<TrialRows> = trials.into_values().collect();
    for trial in &mut trials {
        trial.duration = duration(&trial.records).unwrap_or_default();
    }
    let label = path.display().to_string();
    let summary = Summary::new(&label, &trials, Slo::default(), None, Value::Null);
    Ok(Found { summary, manifest: path.parent().map(read_manifest).transpose()?.flatten(), path: path.to_owned() })
}

/// From the start of a trial to the last end of its requests; unknown in rows from before `start_ms`.
fn duration(records: &[Record]) -> Option<Duration> {
    let ends = records.iter().filter_map(|record| Some(record.start_ms? + record.e2el_ms?));
    Duration::try_from_secs_f64(ends.max_by(f64::total_cmp)? / 1e3).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_alone_give_the_throughput_of_their_trials() {
        let file = tempfile::Builder::new().suffix(".csv").tempfile().expect("a file");
        let mut csv = csv::Writer::from_path(file.path()).expect("writable");
        for (trial, id, start, e2el, tokens) in
            [(0, 0, 0.0, 1000.0, 30), (0, 1, 500.0, 1500.0, 50), (1, 0, 0.0, 4000.0, 80)]
        {
            let record = Record {
                id,
                trial,
                start_ms: Some(start),
                e2el_ms: Some(e2el),
                completion_tokens: tokens,
                finish_reason: "length".into(),
                ..Record::default()
            };
            csv.serialize(record).expect("a row");
        }
        csv.flush().expect("written");
        let found = find(file.path()).expect("rows");
        let summary = &found[0].summary;
        assert_eq!((summary.duration, summary.completed, summary.total_output_tokens), (6.0, 3, 160));
        assert!((summary.output_throughput - 160.0 / 6.0).abs() < 1e-9);
        let rates: Vec<f64> = summary.trials.iter().map(|trial| trial.output_throughput).collect();
        assert_eq!(rates, [40.0, 20.0]);
        assert!(find(Path::new("no/such/folder")).expect_err("refused").to_string().contains("no/such/folder"));
    }
}
