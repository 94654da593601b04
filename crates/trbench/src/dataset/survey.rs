//! What a file of records holds, and which of them are not valid.

use std::path::Path;

use super::error::DatasetError;
use super::records::{self, Container, Records};
use super::stats::Stats;
use super::{Kind, Reader};
use crate::error::usage;

/// Errors that `check` prints one by one.
const MOST_ERRORS: usize = 20;

/// What a file holds.
pub(super) struct Report {
    pub(super) file: String,
    pub(super) container: Container,
    pub(super) kind: Option<Kind>,
    pub(super) stats: Stats,
    pub(super) errors: Vec<DatasetError>,
}

impl Report {
    /// The error of a file that has errors, or no records.
    pub(super) fn refusal(&self) -> anyhow::Error {
        if self.errors.is_empty() {
            return anyhow::anyhow!("`{}`: the data set is empty, it has no records", self.file);
        }
        let mut lines: Vec<_> = self.errors.iter().take(MOST_ERRORS).map(ToString::to_string).collect();
        if self.errors.len() > MOST_ERRORS {
            lines.push(format!("and {} more", self.errors.len() - MOST_ERRORS));
        }
        let records = self.stats.sessions + self.errors.len();
        let count = format!("{} of {records} records are not valid", self.errors.len());
        usage(format!("`{}`: {count}\n  {}", self.file, lines.join("\n  ")))
    }

    pub(super) fn is_valid(&self) -> bool {
        self.errors.is_empty() && self.stats.sessions > 0
    }
}

/// Reads a whole file.
pub(super) fn survey(path: &Path) -> anyhow::Result<Report> {
    let file = path.display().to_string();
    let records = records::open(path).map_err(|error| usage(error.to_string()))?;
    Ok(survey_records(file, records))
}

/// The same for records that are open.
pub(super) fn survey_records(file: String, records: Records) -> Report {
    let container = records.container;
    let mut reader = Reader::new(file.clone(), records);
    let mut stats = Stats::default();
    let mut errors = Vec::new();
    for parsed in reader.by_ref() {
        match parsed {
            Ok(parsed) => stats.add(&parsed),
            Err(error) => errors.push(error),
        }
    }
    Report { file, container, kind: reader.kind, stats, errors }
}
