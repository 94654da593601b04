//! Figures made of runs, through the command line, on emulated models.

use std::path::Path;
use std::process::Output;
use std::time::SystemTime;

use assert_cmd::Command;

fn figures(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::cargo_bin("trbench").expect("the binary");
    command.current_dir(dir).args(["figures", "--profile", "emulated", "--out", "out"]).args(args);
    command.output().expect("runs")
}

const SYSTEM: &str = "
models:
  small: {emulated: {latency_ms: 0.2, prefill_ms_per_token: 0.01}}
  large: {emulated: {latency_ms: 0.9}}
routing: {method: random, semantics: borrow, probability: 0.5}
";

const SCENARIO: &str = "
title: A small grid
paper: None.
kind: grid
profiles:
  emulated:
    run: {config: system.yaml, num-prompts: 4, max-tokens: 16, ignore-eos: true, trials: 2, set: [batching.thresholds=auto]}
    axes:
      system: {standard: {system: standard}, async: {system: async}, delayed: {system: delayed}}
      requests: {'2': {concurrency: 2}, '4': {concurrency: 4}}
    draw: {kind: lines, x: requests, series: system, metrics: [output_throughput, mean_ttft_ms], baseline: standard}
";

fn rows(dir: &Path, name: &str) -> Vec<std::collections::HashMap<String, String>> {
    let mut reader = csv::Reader::from_path(dir.join("out").join(name)).expect("data");
    reader.deserialize().collect::<Result<_, _>>().expect("rows")
}

fn changed(dir: &Path) -> Vec<SystemTime> {
    let runs = std::fs::read_dir(dir.join("out/runs")).expect("runs");
    let mut times: Vec<(std::path::PathBuf, SystemTime)> = runs
        .map(|run| {
            let path = run.expect("a run").path().join("summary.json");
            let time = path.metadata().expect("a summary").modified().expect("a time");
            (path, time)
        })
        .collect();
    times.sort();
    times.into_iter().map(|(_, time)| time).collect()
}

#[test]
fn every_cell_is_a_run_that_figures_share() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    std::fs::write(dir.join("system.yaml"), SYSTEM).expect("writable");
    std::fs::write(dir.join("grid.yaml"), SCENARIO).expect("writable");
    // The same cells as another picture: bars of where the time goes.
    let from = SCENARIO.find("    draw:").expect("there");
    let bars = "    draw: {kind: breakdown, x: requests, series: system, metrics: []}\n";
    std::fs::write(dir.join("parts.yaml"), format!("{}{bars}", &SCENARIO[..from])).expect("writable");
    let output = figures(dir, &["grid.yaml"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let data = rows(dir, "grid-emulated.csv");
    assert_eq!(data.len(), 6);
    assert!(data.iter().all(|row| (row["completed"].as_str(), row["trials"].as_str()) == ("8", "2")));
    for row in &data {
        let value = |name: &str| row[name].parse::<f64>().expect("a number");
        assert!(value("output_throughput_low") <= value("output_throughput"));
        // The parts are those of the whole: the time of a request from its sending to its end, in ms a token.
        let parts: f64 =
            row.iter().filter(|(k, _)| k.ends_with("_ms_per_token")).map(|(_, v)| v.parse::<f64>().unwrap()).sum();
        assert!((parts - value("mean_e2el_ms") / 16.0).abs() < 0.05 * parts, "{row:?}");
    }
    let picture = std::fs::read_to_string(dir.join("out/grid-emulated.svg")).expect("a picture");
    assert!(picture.contains("A small grid (emulated)") && picture.contains("delayed"));
    let words = std::fs::read_to_string(dir.join("out/REPORT.md")).expect("a report");
    assert!(words.contains("tokens per second, delayed over standard: "), "{words}");
    let before = changed(dir);
    let output = figures(dir, &["--force", "grid.yaml", "parts.yaml"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(changed(dir), before, "cells that are there are not measured again");
    assert_eq!(rows(dir, "parts-emulated.csv").len(), 6);
}

#[test]
fn cells_run_one_by_one_as_tasks_of_a_job_array() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    std::fs::write(dir.join("system.yaml"), SYSTEM).expect("writable");
    std::fs::write(dir.join("grid.yaml"), SCENARIO).expect("writable");
    let scenario = |args: &[&str]| {
        let mut command = Command::cargo_bin("trbench").expect("the binary");
        let output = command.current_dir(dir).arg("scenario").args(args).output().expect("runs");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.code(), out.into_owned(), err.into_owned())
    };
    let (code, cells, _) = scenario(&["cells", "grid.yaml"]);
    assert_eq!((code, cells.lines().count()), (Some(0), 6));
    let first: serde_json::Value = serde_json::from_str(cells.lines().next().expect("a cell")).expect("JSON");
    assert_eq!(first["spec"]["concurrency"], 2);
    assert_eq!(first["run"][0], "--config=system.yaml");
    let array = |args: &[&str]| {
        let (code, script, err) =
            scenario(&[&["run", "grid.yaml", "--backend", "slurm", "--dry-run", "--out", "out"], args].concat());
        assert_eq!(code, Some(0), "{err}");
        script.lines().find_map(|line| Some(line.strip_prefix("#SBATCH --array=")?.to_owned())).expect("an array")
    };
    assert_eq!(array(&[]), "0-5");
    for cell in ["1", "2"] {
        assert_eq!(scenario(&["run", "grid.yaml", "--out", "out", "--cell", cell]).0, Some(0));
    }
    assert_eq!(array(&["--parallel", "2"]), "0,3-5%2");
    assert!(!dir.join("out/grid-emulated.csv").exists(), "a cell draws nothing");
    let measured = changed(dir);
    assert_eq!(scenario(&["run", "grid.yaml", "--out", "out"]).0, Some(0));
    assert!(measured.iter().all(|time| changed(dir).contains(time)), "measured cells are kept");
    assert_eq!(rows(dir, "grid-emulated.csv").len(), 6);
    let (code, _, err) = scenario(&["run", "grid.yaml", "--out", "out", "--cell", "6"]);
    assert!(code == Some(2) && err.contains("--cell 6: the scenario has 6 cells"), "{err}");
    let (code, _, err) = scenario(&["cells", "grid.yaml", "--profile", "demo"]);
    assert!(code == Some(2) && err.contains("no profile `demo`"), "{err}");
}

#[test]
fn mistakes_in_a_scenario_are_named_before_anything_runs() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    std::fs::write(dir.join("system.yaml"), SYSTEM).expect("writable");
    for (from, to, says) in [
        ("x: requests", "x: request", "unknown axis `request`"),
        ("concurrency: 4", "concurrency: four", "invalid value 'four'"),
        ("metrics: [", "metrics: [speed, ", "speed"),
        ("max-tokens: 16", "max_tokens: 16", "did you mean `max-tokens`?"),
        ("system.yaml", "other.yaml", "other.yaml"),
    ] {
        std::fs::write(dir.join("bad.yaml"), SCENARIO.replace(from, to)).expect("writable");
        let output = figures(dir, &["bad.yaml"]);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(says), "{message}");
        assert!(!dir.join("out/bad-emulated.svg").exists());
    }
}
