//! What a run leaves behind: `result.csv`, `summary.json`, `manifest.json`. The rows appear as requests end, the other
//! files complete or not at all.

mod comparable;
mod folder;
mod manifest;
mod read;
mod rows;
mod summary;

use std::path::Path;

use crate::error::usage;
use crate::files::write_file;
use crate::record::Record;

pub(crate) use comparable::differences;
pub(crate) use folder::{DETAILED, MANIFEST, ROWS, SUMMARY, clear, is_run, is_run_alone};
pub use folder::{check_root, create_root};
pub use rows::read_records;
pub(crate) use rows::{Log, csv_of};

pub use manifest::{Difference, Inputs, Manifest};
pub(crate) use manifest::{cpu_name, origin};
pub(crate) use read::{Found, find};
pub use summary::{Judged, ModelSummary, Summary, model_summaries};

/// Writes the three files of a run.
pub fn write<'a>(
    dir: &Path,
    records: impl Iterator<Item = &'a Record>,
    summary: &Summary,
    manifest: &Manifest,
) -> anyhow::Result<()> {
    write_file(&dir.join(ROWS), &csv_of(records, true)?)?;
    write_file(&dir.join(SUMMARY), &serde_json::to_vec_pretty(summary)?)?;
    write_file(&dir.join(MANIFEST), &serde_json::to_vec_pretty(manifest)?)
}

/// Reads a `summary.json`.
pub fn read_summary(path: &Path) -> anyhow::Result<Summary> {
    let text =
        std::fs::read_to_string(path).map_err(|error| usage(format!("cannot read `{}`: {error}", path.display())))?;
    serde_json::from_str(&text).map_err(|error| usage(format!("`{}`: {error}", path.display())))
}
