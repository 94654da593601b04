//! What a run leaves behind: `result.csv`, `summary.json`, `manifest.json`. Files appear complete or not at all.

mod comparable;
mod manifest;
mod read;
mod summary;

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;

use crate::error::usage;
use crate::files::write_file;
use crate::record::Record;

pub(crate) use comparable::differences;
pub use manifest::{Difference, Inputs, Manifest};
pub(crate) use manifest::{cpu_name, origin};
pub(crate) use read::{Found, find};
pub use summary::{Judged, ModelSummary, Summary, model_summaries};

/// Makes the folder of a run, and checks that it can be written to before anything is measured.
pub fn create_root(given: Option<&Path>, workload: &str) -> anyhow::Result<PathBuf> {
    let root = match given {
        Some(path) => path.to_owned(),
        None => {
            let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            (0..100u32)
                .map(|attempt| match attempt {
                    0 => PathBuf::from(format!("results/{seconds}-{workload}")),
                    n => PathBuf::from(format!("results/{seconds}-{workload}-{n}")),
                })
                .find(|path| !path.exists())
                .context("no free name for the results folder")?
        }
    };
    let refuse = |error| usage(format!("cannot write to the output folder `{}`: {error}", root.display()));
    std::fs::create_dir_all(&root).map_err(refuse)?;
    tempfile::tempfile_in(&root).map_err(refuse)?;
    Ok(root)
}

/// Writes the three files of a run.
pub fn write<'a>(
    dir: &Path,
    records: impl Iterator<Item = &'a Record>,
    summary: &Summary,
    manifest: &Manifest,
) -> anyhow::Result<()> {
    let mut csv = csv::Writer::from_writer(Vec::new());
    for record in records {
        csv.serialize(record)?;
    }
    let csv = csv.into_inner().context("cannot format result.csv")?;
    write_file(&dir.join("result.csv"), &csv)?;
    write_file(&dir.join("summary.json"), &serde_json::to_vec_pretty(summary)?)?;
    write_file(&dir.join("manifest.json"), &serde_json::to_vec_pretty(manifest)?)
}

/// Reads the rows of a `result.csv`.
pub fn read_records(path: &Path) -> anyhow::Result<Vec<Record>> {
    let mut reader = csv::Reader::from_path(path).map_err(|error| usage(format!("`{}`: {error}", path.display())))?;
    let rows = reader.deserialize().collect::<Result<_, _>>();
    rows.map_err(|error| usage(format!("`{}`: {error}", path.display())))
}

/// Reads a `summary.json`.
pub fn read_summary(path: &Path) -> anyhow::Result<Summary> {
    let text =
        std::fs::read_to_string(path).map_err(|error| usage(format!("cannot read `{}`: {error}", path.display())))?;
    serde_json::from_str(&text).map_err(|error| usage(format!("`{}`: {error}", path.display())))
}
