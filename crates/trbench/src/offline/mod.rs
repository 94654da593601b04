//! Models that run without a scheduler, for tools that measure or fit: they score given text and generate text of their own.

mod generate;
mod model;
mod text;

use std::path::Path;

use clap::ValueEnum;
use tokenrouter_engine::config::WeightDtype;

use crate::error::usage;
pub(crate) use generate::{Completion, Generation};
pub(crate) use model::{LENGTH, OfflineModel, Use, chunks, model_config};
pub(crate) use text::{built_in_or_files, openings};

/// How a command prints its report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Tables for people.
    Table,
    /// Everything, as JSON.
    Json,
}

/// Checks that a file can be put where the user wants it.
pub(crate) fn check_target(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    match path.parent() {
        _ if path.is_dir() => Err(usage(format!("--out `{shown}` is a folder, a file is needed"))),
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            Err(usage(format!("the folder of --out `{shown}` does not exist")))
        }
        _ => Ok(()),
    }
}

/// Parses a weight type by its name in configurations.
pub(crate) fn weight_dtype(name: &str) -> Result<WeightDtype, String> {
    serde_json::from_value(serde_json::Value::String(name.to_owned()))
        .map_err(|_| format!("`{name}` is no weight type, allowed are native, f32 and bf16"))
}

/// The command as it was typed, to be kept in files.
pub(crate) fn command_line() -> String {
    std::iter::once("trbench".to_owned()).chain(std::env::args().skip(1)).collect::<Vec<_>>().join(" ")
}
