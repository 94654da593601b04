//! `trbench doctor`: its report is JSON, its figures agree with each other, and its exit code with its verdict.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn doctor(cache: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trbench"));
    command.current_dir(std::env::temp_dir()).arg("doctor").args(args).env("TRBENCH_CACHE", cache);
    command.stdin(Stdio::null()).output().expect("the binary starts")
}

fn report(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn finding<'a>(report: &'a Value, name: &str) -> &'a Value {
    let findings = report["findings"].as_array().expect("a list");
    findings.iter().find(|finding| finding["name"] == name).unwrap_or_else(|| panic!("{name}: {report}"))
}

#[test]
fn figures_agree_and_the_exit_code_is_that_of_the_verdict() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("two-mib"), vec![0u8; 2 << 20]).expect("writable");
    let output = doctor(dir.path(), &["--output", "json"]);
    let report = report(&output);
    let facts = &report["facts"];
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value} in {report}"));
    assert!(number(&facts["cpu"]["usable"]) >= 1 && number(&facts["cpu"]["usable"]) <= number(&facts["cpu"]["cores"]));
    let sets = facts["cpu"]["instruction_sets"].as_array().expect("a list");
    assert_eq!(sets.last(), Some(&facts["cpu"]["kernels_use"]));
    if !facts["memory"].is_null() {
        assert!(number(&facts["memory"]["available_mib"]) <= number(&facts["memory"]["total_mib"]));
    }
    let gpus = facts["gpus"]["found"].as_array().expect("a list");
    assert_eq!(gpus.is_empty(), facts["gpus"]["why_none"].is_string(), "no GPU has a reason: {report}");
    assert_eq!(number(&facts["cache"]["size_mib"]), 2);
    assert_eq!(finding(&report, "cache")["status"], "ok");
    let demo = finding(&report, "demo model");
    assert_eq!(demo["status"], "warning");
    assert!(demo["advice"].as_str().is_some_and(|advice| advice.contains("trbench models fetch demo")), "{demo}");
    let expected = if report["status"] == "error" { 1 } else { 0 };
    assert_eq!(output.status.code(), Some(expected));
    for finding in report["findings"].as_array().expect("a list") {
        assert_eq!(finding["status"] == "ok", finding["advice"].is_null(), "a problem has an advice: {finding}");
    }
    let table = String::from_utf8_lossy(&doctor(dir.path(), &[]).stdout).into_owned();
    for name in
        ["version", "cores", "instructions", "memory", "huge pages", "GPUs", "cache", "demo model", "open files"]
    {
        assert!(table.lines().any(|line| line.contains(name)), "{name}: {table}");
    }
}

#[test]
fn no_cache_and_no_demo_model_make_runs_impossible() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("file");
    std::fs::write(&file, "").expect("writable");
    let output = doctor(&file.join("cache"), &["--output", "json"]);
    let report = report(&output);
    assert_eq!((output.status.code(), &report["status"]), (Some(1), &"error".into()));
    let cache = finding(&report, "cache");
    assert!(cache["advice"].as_str().is_some_and(|advice| advice.contains("TRBENCH_CACHE")), "{cache}");
}
