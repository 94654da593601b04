//! The cells of a grid: the runs that they are, and measuring them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Measured, Settings};
use crate::digest::text_sha256;
use crate::error::usage;
use crate::files::write_file;
use crate::predict;
use crate::results::{Summary, read_summary};
use crate::run::{self, Destination};
use crate::spec::{Overrides, RunSpec};
use crate::terminal::note;

/// A cell that may not have been measured.
#[derive(Debug)]
pub(in crate::figures) struct GridCell {
    /// The value on each axis.
    pub(in crate::figures) at: Vec<String>,
    /// Its settings, with paths relative to the current folder.
    pub(in crate::figures) overrides: Overrides,
    /// The run that these make.
    spec: RunSpec,
}

impl GridCell {
    fn new(settings: &Settings, at: Vec<String>, folder: &Path) -> anyhow::Result<Self> {
        let mut overrides = settings.run.clone();
        for (values, name) in settings.axes.values().zip(&at) {
            merge(&mut overrides, &values[name], &at);
        }
        overrides.join_paths(folder);
        let refuse = |why: String| usage(format!("cell `{}`: {why}", at.join(", ")));
        if let Some((key, value)) = overrides.iter().find(|(_, value)| value.is_null() || value.is_object()) {
            return Err(refuse(format!("`{key}`: expected a value or a list of values, got `{value}`")));
        }
        let spec = overrides.spec().map_err(refuse)?;
        spec.check().map_err(|error| refuse(format!("{error:#}")))?;
        Ok(Self { at, overrides, spec })
    }

    /// A name for the folder of its results: the values, and a digest of the settings as they were given.
    pub(in crate::figures) fn name(&self) -> String {
        let mut name: String = self.at.join("-").to_lowercase();
        name.retain(|c| c.is_ascii_alphanumeric() || "-.+".contains(c));
        format!("{name}-{}", short_digest(&self.overrides.flags().join("\n")))
    }
}

/// Eight characters that tell texts apart.
fn short_digest(text: &str) -> String {
    let mut digest = text_sha256(text);
    digest.truncate(8);
    digest
}

/// Every combination of the axes, checked. Paths are relative to the folder of the scenario.
pub(in crate::figures) fn cells(settings: &Settings, folder: &Path) -> anyhow::Result<Vec<GridCell>> {
    let mut combinations: Vec<Vec<String>> = vec![Vec::new()];
    for values in settings.axes.values() {
        let with = |at: &Vec<String>| -> Vec<Vec<String>> {
            values.keys().map(|name| at.iter().chain([name]).cloned().collect()).collect()
        };
        combinations = combinations.iter().flat_map(with).collect();
    }
    combinations.into_iter().map(|at| GridCell::new(settings, at, folder)).collect()
}

/// Adds the settings of an axis: they replace the ones before, except that lists grow. A map has the values of a setting
/// by the names on another axis; where none is in this cell, the setting is left out.
fn merge(all: &mut Overrides, own: &Overrides, at: &[String]) {
    for (key, value) in own.iter() {
        let value = match value {
            Value::Object(map) => at.iter().find_map(|name| map.get(name)),
            value => Some(value),
        };
        if let Some(value) = value {
            all.add(key, value);
        }
    }
}

/// Runs what has not been run.
pub(super) fn measure(settings: &Settings, folder: &Path, out: &Path) -> anyhow::Result<Vec<Measured>> {
    let mut calibrations = HashMap::new();
    let cells = cells(settings, folder)?;
    let total = cells.len();
    let mut measured = Vec::new();
    for (index, cell) in cells.into_iter().enumerate() {
        note(&format!("{} of {total}: {}", index + 1, cell.at.join(", ")));
        measured.push(measure_one(cell, settings.calibrate, out, &mut calibrations)?);
    }
    Ok(measured)
}

/// Runs a cell, unless it was run to its end before.
pub(in crate::figures) fn measure_one(
    mut cell: GridCell,
    calibrate: bool,
    out: &Path,
    calibrations: &mut HashMap<String, PathBuf>,
) -> anyhow::Result<Measured> {
    let dir = out.join("runs").join(cell.name());
    let summary = match finished(&dir)? {
        Some(summary) => summary,
        None => {
            if calibrate {
                cell.spec.calibration = Some(calibration(&cell.spec, out, calibrations)?);
            }
            one(&cell.spec, &dir)?
        }
    };
    Ok(Measured { at: cell.at, summary })
}

/// The summary of a cell that was measured to its end.
pub(in crate::figures) fn finished(dir: &Path) -> anyhow::Result<Option<Summary>> {
    let path = dir.join("summary.json");
    if !path.is_file() {
        return Ok(None);
    }
    Ok(Some(read_summary(&path)?).filter(|summary| !summary.interrupted))
}

fn one(spec: &RunSpec, dir: &Path) -> anyhow::Result<Summary> {
    let interrupted = dir.join("manifest.json").is_file();
    let destination = if interrupted { Destination::Resume(dir) } else { Destination::Replace(Some(dir)) };
    let mut summaries = run::measure(spec, destination)?;
    match (summaries.pop(), summaries.is_empty()) {
        (Some(summary), true) if summary.failed == 0 => Ok(summary),
        (Some(summary), true) => {
            let first = summary.first_error.unwrap_or_default();
            // Without them it is measured again next time.
            std::fs::remove_file(dir.join("summary.json"))?;
            std::fs::remove_file(dir.join("manifest.json"))?;
            anyhow::bail!("`{}`: {} requests failed, the first with: {first}", dir.display(), summary.failed)
        }
        _ => Err(usage(format!("`{}`: a cell is one system at one concurrency", dir.display()))),
    }
}

/// Measures the step times and matrices of a configuration once.
fn calibration(spec: &RunSpec, out: &Path, known: &mut HashMap<String, PathBuf>) -> anyhow::Result<PathBuf> {
    const SECONDS: f64 = 4.0;
    let document = spec.document()?;
    let concurrency = spec.concurrency[0];
    let device = spec.device.map(|device| format!(" {device}")).unwrap_or_default();
    let digest = short_digest(&format!("{concurrency} {}{device}", document.text()));
    if let Some(path) = known.get(&digest) {
        return Ok(path.clone());
    }
    let path = out.join("runs").join(format!("calibration-{digest}.json"));
    if !path.is_file() {
        let calibration = predict::calibrate_document(&document, spec.device, concurrency, SECONDS)?;
        write_file(&path, &serde_json::to_vec_pretty(&calibration)?)?;
    }
    known.insert(digest, path.clone());
    Ok(path)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::figures::{Profile, Scenario, read};
    use crate::spec::{System, Workload};

    fn settings(text: &str) -> Settings {
        serde_saphyr::from_str(text).expect("valid")
    }

    const GRID: &str = "
run: {workload: aime, set: [a.b=1], config: ../config/x.yaml}
axes:
  method: {R2R: {set: [c=2]}, CITER: {max-tokens: 7, ignore-eos: true}}
  system: {async: {system: async, seed: {CITER: 3}}, 'delayed 2': {system: delayed, workload: custom}}
draw: {kind: bars, x: method, series: system, metrics: [output_throughput], baseline: async}
";

    #[test]
    fn every_combination_is_a_run() {
        let cells = cells(&settings(GRID), Path::new("scenarios")).expect("cells");
        assert_eq!(cells.len(), 4);
        let last = RunSpec {
            workload: Workload::Custom,
            set: vec!["a.b=1".into()],
            config: Some("scenarios/../config/x.yaml".into()),
            max_tokens: Some(7),
            ignore_eos: true,
            system: vec![System::Delayed],
            ..RunSpec::default()
        };
        assert_eq!(cells[3].spec, last);
        assert_eq!(cells[0].spec.set, ["a.b=1", "c=2"], "lists grow");
        assert_eq!((cells[0].spec.seed, cells[2].spec.seed), (0, 3), "a value for each name on another axis");
        // Names are those of folders that may be there: they must not change.
        assert_eq!(cells[3].name(), "citer-delayed2-a9778859");
        assert_eq!(cells.iter().map(GridCell::name).collect::<std::collections::HashSet<_>>().len(), 4);
    }

    #[derive(Debug, Parser)]
    #[command(no_binary_name = true)]
    struct CommandLine {
        #[command(flatten)]
        run: run::RunArgs,
    }

    /// For everything in `scenarios/`.
    #[test]
    fn a_cell_is_what_its_flags_would_run() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
        let mut count = 0;
        for entry in std::fs::read_dir(&folder).expect("scenarios") {
            let path = entry.expect("an entry").path();
            if path.extension().is_none_or(|extension| extension != "yaml") {
                continue;
            }
            let Scenario::Grid { profiles, .. } = read(&path).expect("a scenario") else { continue };
            for profile in [Profile::Emulated, Profile::Demo] {
                let Some(settings) = profiles.get(&profile) else { continue };
                for cell in cells(settings, &folder).expect("cells") {
                    let parsed = CommandLine::try_parse_from(cell.overrides.flags()).expect("flags");
                    assert_eq!(parsed.run.spec().expect("a spec"), cell.spec, "{}: {:?}", path.display(), cell.at);
                    count += 1;
                }
            }
        }
        assert!(count > 200, "{count} cells");
    }

    #[test]
    fn mistakes_are_named() {
        settings(GRID).check().expect("valid");
        for (from, to, says) in [
            ("x: method", "x: methods", "unknown axis `methods`, the axes are method, system"),
            ("baseline: async", "baseline: standard", "`standard` is not on the axis `system`"),
            ("kind: bars", "kind: lines", "`R2R` on the axis `method` is not a number"),
            ("kind: bars", "kind: breakdown", "a breakdown none"),
            ("axes:", "axes:\n  extra: {a: {}, b: {}}", "axis `extra` has"),
        ] {
            let why = settings(&GRID.replace(from, to)).check().expect_err("refused");
            assert!(why.contains(says), "{why}");
        }
        for (from, to, says) in [
            ("max-tokens: 7", "max-tokens: x", "cell `CITER, async`: `max-tokens`: invalid value 'x'"),
            ("max-tokens: 7", "max-tokens: null", "`max-tokens`: expected a value or a list of values, got `null`"),
            ("max-tokens: 7", "max-tokens: 0", "--max-tokens 0 is not allowed"),
            ("max-tokens: 7", "max_tokens: 7", "did you mean `max-tokens`?"),
        ] {
            let why = cells(&settings(&GRID.replace(from, to)), Path::new("")).expect_err("refused").to_string();
            assert!(why.contains(says), "{why}");
        }
    }
}
