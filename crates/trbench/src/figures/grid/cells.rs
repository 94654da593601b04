//! The cells of a grid: their command lines, and their runs.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use clap::Parser;
use serde_json::Value;

use super::{Cell, Flags, Settings};
use crate::cli::usage;
use crate::predict;
use crate::results::{self, Summary, read_summary};
use crate::run::{self, RunArgs};

/// Parses the flags of a cell as `trbench run` would.
#[derive(Debug, Parser)]
#[command(name = "trbench run", no_binary_name = true)]
struct CellArgs {
    #[command(flatten)]
    run: RunArgs,
}

/// A cell that may not have been measured.
#[derive(Debug)]
pub(in crate::figures) struct Plan {
    /// The value on each axis.
    pub(in crate::figures) at: Vec<String>,
    /// Flags of `trbench run`, without `--output-dir`.
    pub(in crate::figures) args: Vec<String>,
}

impl Plan {
    /// A name for the folder of its results: the values, and a digest of the flags.
    pub(in crate::figures) fn name(&self) -> String {
        let mut name: String = self.at.join("-").to_lowercase();
        name.retain(|c| c.is_ascii_alphanumeric() || "-.+".contains(c));
        format!("{name}-{}", digest(&self.args.join("\n")))
    }
}

/// Eight characters that tell texts apart.
fn digest(text: &str) -> String {
    let mut digest = crate::fetch::sha256_hex(&mut text.as_bytes()).unwrap_or_default();
    digest.truncate(8);
    digest
}

/// Every combination of the axes. Paths are relative to the folder of the scenario.
pub(in crate::figures) fn plan(settings: &Settings, folder: &Path) -> anyhow::Result<Vec<Plan>> {
    let mut combinations: Vec<Vec<String>> = vec![Vec::new()];
    for values in settings.axes.values() {
        let with = |at: &Vec<String>| -> Vec<Vec<String>> {
            values.keys().map(|name| at.iter().chain([name]).cloned().collect()).collect()
        };
        combinations = combinations.iter().flat_map(with).collect();
    }
    let plan = |at: Vec<String>| {
        let mut flags = settings.run.clone();
        for (values, name) in settings.axes.values().zip(&at) {
            merge(&mut flags, &values[name], &at);
        }
        Ok(Plan { args: arguments(&flags, folder)?, at })
    };
    combinations.into_iter().map(plan).collect()
}

/// Adds the flags of an axis: they replace the ones before, except that lists grow. A map has the values of a flag by
/// the names on another axis; where none is in this cell, the flag is left out.
fn merge(all: &mut Flags, own: &Flags, at: &[String]) {
    for (flag, value) in own {
        let value = match value {
            Value::Object(map) => match at.iter().find_map(|name| map.get(name)) {
                Some(value) => value,
                None => continue,
            },
            value => value,
        };
        match (all.get_mut(flag), value) {
            (Some(Value::Array(list)), Value::Array(more)) => list.extend(more.iter().cloned()),
            _ => drop(all.insert(flag.clone(), value.clone())),
        }
    }
}

fn arguments(flags: &Flags, folder: &Path) -> anyhow::Result<Vec<String>> {
    const PATHS: [&str; 4] = ["config", "calibration", "dataset-path", "replay"];
    let mut args = Vec::new();
    let mut push = |flag: &str, value: &Value| {
        let text = match value {
            Value::String(path) if PATHS.contains(&flag) => folder.join(path).display().to_string(),
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            Value::Bool(true) => return args.push(format!("--{flag}")),
            _ => return,
        };
        args.push(format!("--{flag}={text}"));
    };
    for (flag, value) in flags {
        match value {
            Value::Array(list) => list.iter().for_each(|value| push(flag, value)),
            Value::Object(_) | Value::Null => {
                return Err(usage(format!("flag `{flag}`: expected a value or a list of values, got `{value}`")));
            }
            value => push(flag, value),
        }
    }
    Ok(args)
}

fn parse(args: &[String]) -> anyhow::Result<RunArgs> {
    let parsed = CellArgs::try_parse_from(args);
    let refused = |error: clap::Error| {
        let message = error.to_string();
        usage(format!("cell `{}`: {}", args.join(" "), message.lines().next().unwrap_or_default()))
    };
    Ok(parsed.map_err(refused)?.run)
}

/// Cells with their flags, all of them checked.
pub(in crate::figures) fn checked(settings: &Settings, folder: &Path) -> anyhow::Result<Vec<(Plan, RunArgs)>> {
    let plans = plan(settings, folder)?.into_iter();
    plans.map(|plan| parse(&plan.args).map(|args| (plan, args))).collect()
}

/// Runs what has not been run.
pub(super) fn measure(settings: &Settings, folder: &Path, out: &Path) -> anyhow::Result<Vec<Cell>> {
    let mut calibrations = HashMap::new();
    let cells = checked(settings, folder)?;
    let total = cells.len();
    let mut measured = Vec::new();
    for (index, cell) in cells.into_iter().enumerate() {
        run::note(&format!("{} of {total}: {}", index + 1, cell.0.at.join(", ")));
        measured.push(measure_one(cell, settings.calibrate, out, &mut calibrations)?);
    }
    Ok(measured)
}

/// Runs a cell, unless it was run to its end before.
pub(in crate::figures) fn measure_one(
    (plan, mut args): (Plan, RunArgs),
    calibrate: bool,
    out: &Path,
    calibrations: &mut HashMap<String, PathBuf>,
) -> anyhow::Result<Cell> {
    let dir = out.join("runs").join(plan.name());
    let summary = match finished(&dir)? {
        Some(summary) => summary,
        None => {
            if calibrate {
                args.calibration = Some(calibration(&args, out, calibrations)?);
            }
            one(args, &dir)?
        }
    };
    Ok(Cell { at: plan.at, summary })
}

/// The summary of a cell that was measured to its end.
pub(in crate::figures) fn finished(dir: &Path) -> anyhow::Result<Option<Summary>> {
    let path = dir.join("summary.json");
    if !path.is_file() {
        return Ok(None);
    }
    Ok(Some(read_summary(&path)?).filter(|summary| !summary.interrupted))
}

fn one(mut args: RunArgs, dir: &Path) -> anyhow::Result<Summary> {
    if dir.join("summary.json").is_file() {
        args.resume = Some(dir.to_owned());
    } else {
        args.output_dir = Some(dir.to_owned());
    }
    let mut summaries = run::measure(&args)?;
    match (summaries.pop(), summaries.is_empty()) {
        (Some(summary), true) if summary.failed == 0 => Ok(summary),
        (Some(summary), true) => {
            let first = summary.first_error.unwrap_or_default();
            // Without a summary it is measured again next time.
            std::fs::remove_file(dir.join("summary.json"))?;
            anyhow::bail!("`{}`: {} requests failed, the first with: {first}", dir.display(), summary.failed)
        }
        _ => Err(usage(format!("`{}`: a cell is one system at one concurrency", dir.display()))),
    }
}

/// Measures the step times and matrices of a configuration once.
fn calibration(args: &RunArgs, out: &Path, known: &mut HashMap<String, PathBuf>) -> anyhow::Result<PathBuf> {
    const SECONDS: f64 = 4.0;
    let document = run::config_document(args)?;
    let text = document.text();
    let concurrency = args.concurrency[0];
    let digest = digest(&format!("{concurrency} {text}"));
    if let Some(path) = known.get(&digest) {
        return Ok(path.clone());
    }
    let path = out.join("runs").join(format!("calibration-{digest}.json"));
    if !path.is_file() {
        let calibration = predict::calibrate_document(&document, concurrency, SECONDS)?;
        results::write_file(&path, &serde_json::to_vec_pretty(&calibration)?)?;
    }
    known.insert(digest, path.clone());
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Settings {
        serde_saphyr::from_str(text).expect("valid")
    }

    const GRID: &str = "
run: {workload: aime, set: [a.b=1], config: ../config/x.yaml}
axes:
  method: {R2R: {set: [c=2]}, CITER: {max-tokens: 7, ignore-eos: true}}
  system: {async: {system: async, seed: {CITER: 3}}, 'delayed 2': {system: delayed, workload: random}}
draw: {kind: bars, x: method, series: system, metrics: [output_throughput], baseline: async}
";

    #[test]
    fn every_combination_is_a_command_line() {
        let plans = plan(&settings(GRID), Path::new("scenarios")).expect("plans");
        assert_eq!(plans.len(), 4);
        let last = ["--workload=random", "--set=a.b=1", "--config=scenarios/../config/x.yaml"];
        assert_eq!(plans[3].args[..3], last);
        assert_eq!(plans[3].args[3..], ["--max-tokens=7", "--ignore-eos", "--system=delayed"]);
        assert_eq!(plans[0].args[1..3], ["--set=a.b=1", "--set=c=2"]);
        assert_eq!(plans[2].args.last().map(String::as_str), Some("--seed=3"));
        assert!(!plans[0].args.iter().any(|arg| arg.starts_with("--seed")), "{:?}", plans[0].args);
        assert!(plans[3].name().starts_with("citer-delayed2-"), "{}", plans[3].name());
        assert_eq!(plans.iter().map(Plan::name).collect::<std::collections::HashSet<_>>().len(), 4);
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
        let bad = plan(&settings(&GRID.replace("max-tokens: 7", "max-tokens: x")), Path::new("")).expect("plans");
        let why = format!("{:#}", parse(&bad[2].args).expect_err("refused"));
        assert!(why.contains("invalid value 'x' for '--max-tokens"), "{why}");
        let nested = GRID.replace("max-tokens: 7", "max-tokens: null");
        assert!(plan(&settings(&nested), Path::new("")).expect_err("refused").to_string().contains("`max-tokens`"));
    }
}
