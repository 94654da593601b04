//! The folder of a run: its name, and what may be in it before.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::error::usage;

/// The rows.
pub(crate) const ROWS: &str = "result.csv";
/// Totals.
pub(crate) const SUMMARY: &str = "summary.json";
/// Where the numbers come from.
pub(crate) const MANIFEST: &str = "manifest.json";
/// Prompts and answers, with `--save-detailed`.
pub(crate) const DETAILED: &str = "detailed.jsonl";

/// Everything that a run writes.
const FILES: [&str; 6] = [ROWS, SUMMARY, MANIFEST, DETAILED, "trace.jsonl", "profile.json"];

/// Whether a folder holds the results of one system.
pub(crate) fn is_run_alone(folder: &Path) -> bool {
    [ROWS, SUMMARY, MANIFEST].iter().any(|name| folder.join(name).is_file())
}

/// Whether a folder holds results, of one system or of several in folders below.
pub(crate) fn is_run(folder: &Path) -> bool {
    is_run_alone(folder) || folders(folder).iter().any(|below| is_run_alone(below))
}

fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir()).collect()
}

/// Refuses a folder in which results are, unless they may be replaced.
pub fn check_root(given: Option<&Path>, overwrite: bool) -> anyhow::Result<()> {
    let Some(folder) = given.filter(|folder| !overwrite && is_run(folder)) else { return Ok(()) };
    let name = folder.display();
    Err(usage(format!(
        "the output folder `{name}` holds a run already: `--resume {name}` continues it, `--overwrite` replaces it, another \
         `--output-dir` keeps both"
    )))
}

/// Removes the results in a folder, and nothing else that is there.
pub(crate) fn clear(folder: &Path) -> anyhow::Result<()> {
    let remove = |folder: &Path| -> anyhow::Result<()> {
        for path in FILES.map(|name| folder.join(name)) {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("cannot remove `{}`", path.display()));
                }
                _ => {}
            }
        }
        Ok(())
    };
    for below in folders(folder).into_iter().filter(|below| is_run_alone(below)) {
        remove(&below)?;
        // Fails where something else is in it, and should.
        let _emptied = std::fs::remove_dir(&below);
    }
    remove(folder)
}

/// Makes the folder of a run, and checks that it can be written to before anything is measured.
pub fn create_root(given: Option<&Path>, workload: &str) -> anyhow::Result<PathBuf> {
    let root = match given {
        Some(path) => path.to_owned(),
        None => {
            let now = chrono::DateTime::<chrono::Utc>::from(std::time::SystemTime::now());
            let name = format!("results/{}-{workload}", now.format("%Y-%m-%dT%H-%M-%S"));
            let names = (1..100u32).map(|n| if n == 1 { name.clone() } else { format!("{name}-{n}") });
            names.map(PathBuf::from).find(|path| !path.exists()).context("no free name for the results folder")?
        }
    };
    let refuse = |error| usage(format!("cannot write to the output folder `{}`: {error}", root.display()));
    std::fs::create_dir_all(&root).map_err(refuse)?;
    tempfile::tempfile_in(&root).map_err(refuse)?;
    Ok(root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_replaced_when_asked_for_and_other_files_never() {
        let dir = tempfile::tempdir().expect("a folder");
        let (root, cell) = (dir.path(), dir.path().join("async-c4"));
        check_root(Some(root), false).expect("an empty folder");
        std::fs::create_dir(&cell).expect("a folder");
        for path in [root.join("notes.txt"), cell.join(ROWS), cell.join(MANIFEST)] {
            std::fs::write(path, "x").expect("writable");
        }
        let why = check_root(Some(root), false).expect_err("a run").to_string();
        let name = root.display().to_string();
        assert!(why.contains(&format!("--resume {name}")) && why.contains("--overwrite"), "{why}");
        check_root(Some(root), true).expect("may be replaced");
        clear(root).expect("removed");
        assert!(!cell.exists() && root.join("notes.txt").is_file() && !is_run(root));
    }
}
