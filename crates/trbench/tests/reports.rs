//! What `report` and `compare` print: widths, data that is read back, and what is refused.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

const EMULATED: &str = "config/random/emulated.yaml";
const ASYNC: &str = "results/reference/runs/async-4requestsclosedloop-a7dc8232";
const DELAYED: &str = "results/reference/runs/delayed-4requestsclosedloop-c8963ea8";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trbench"));
    command.current_dir(root()).args(args).stdin(Stdio::null()).env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
    command
}

fn trbench(args: &[&str]) -> Output {
    command(args).output().expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn ok(args: &[&str]) -> String {
    let output = trbench(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&ok(&[args, &["--output", "json"]].concat())).expect("JSON")
}

fn refused(args: &[&str]) -> String {
    let output = trbench(args);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
    assert!(output.stdout.is_empty(), "{args:?}");
    message
}

/// Lines as maps from their headings.
fn csv(text: &str) -> Vec<Value> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let headings = reader.headers().expect("headings").clone();
    let row = |row: Result<csv::StringRecord, csv::Error>| {
        let row = row.expect("as many cells as headings");
        Value::Object(headings.iter().map(str::to_owned).zip(row.iter().map(|cell| json!(cell))).collect())
    };
    reader.records().map(row).collect()
}

/// Equal but for the last digits, which reading JSON may change.
fn assert_same(a: Option<f64>, b: Option<f64>, what: &str) {
    let same = match (a, b) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-12 * b.abs(),
        (a, b) => a == b,
    };
    assert!(same, "{what}: {a:?} and {b:?}");
}

fn assert_narrow(table: &str) {
    for line in table.lines() {
        assert!(line.chars().count() <= 100, "{} columns: {line}\n{table}", line.chars().count());
    }
}

/// A copy of a reference result, with a changed manifest.
fn copy(from: &str, change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for name in ["summary.json", "result.csv", "manifest.json"] {
        std::fs::copy(root().join(from).join(name), dir.path().join(name)).expect(name);
    }
    let path = dir.path().join("manifest.json");
    let mut manifest = serde_json::from_str(&std::fs::read_to_string(&path).expect("a manifest")).expect("JSON");
    change(&mut manifest);
    std::fs::write(path, manifest.to_string()).expect("writable");
    dir
}

fn path(dir: &tempfile::TempDir) -> &str {
    dir.path().to_str().expect("utf-8")
}

#[test]
fn reports_fit_100_columns_and_lead_with_speed() {
    for results in ["results/reference/runs", ASYNC] {
        let table = ok(&["report", results]);
        assert_narrow(&table);
        // A wide table is turned: its headings are the first column.
        let first = table.lines().take_while(|line| !line.trim().is_empty()).take(4).collect::<Vec<_>>().join("\n");
        assert!(first.contains("tokens/s") && first.contains("ms per token"), "{table}");
        assert!(table.contains("166.6±4.1") || results == ASYNC, "{table}");
        for without_value in ["good req/s", "failed", "timeouts", "x large alone"] {
            let headings: Vec<&str> = table.lines().filter(|line| line.contains("  ")).collect();
            assert!(!headings.iter().any(|line| line.contains(without_value)), "{without_value}: {table}");
        }
    }
    // One rule below each heading.
    let table = ok(&["report", ASYNC, DELAYED]);
    let rules = table.lines().filter(|line| line.starts_with('─')).count();
    assert_eq!(rules, 4, "{table}");
    // No right answers are no failure of the demo.
    assert!(table.contains("none of 72 answers, as expected") && !table.contains("0/36"), "{table}");
}

#[test]
fn csv_is_data_under_the_keys_of_the_summary() {
    let rows = csv(&ok(&["report", "results/reference/runs", "--output", "csv"]));
    let summaries = json(&["report", "results/reference/runs"]);
    let summaries = summaries.as_array().expect("a list");
    assert_eq!(rows.len(), summaries.len());
    for (row, summary) in rows.iter().zip(summaries) {
        let number = |key: &str| row[key].as_str().expect(key).parse::<f64>().ok();
        for key in ["output_throughput", "duration", "completed", "llm_ratio", "correct", "client_busy"] {
            assert_same(number(key), summary[key].as_f64(), key);
        }
        for key in ["mean_tpot_ms", "median_e2el_ms", "p99_ttft_ms"] {
            assert_same(number(key), summary["latency"][key].as_f64(), key);
        }
        let interval = &summary["intervals"]["output_throughput"];
        assert_same(number("output_throughput_low"), interval["low"].as_f64(), "low");
        assert_same(number("output_throughput_high"), interval["high"].as_f64(), "high");
        assert_same(number("llm_ratio_low"), summary["llm_ratio_interval"][0].as_f64(), "share");
        assert_eq!((row["label"].clone(), row["trials"].clone()), (summary["label"].clone(), json!("3")));
    }
}

#[test]
fn rows_alone_give_the_throughput() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("rows.csv");
    std::fs::copy(root().join(DELAYED).join("result.csv"), &file).expect("rows");
    let of_rows = json(&["report", file.to_str().expect("utf-8")]);
    let whole = json(&["report", DELAYED]);
    let rate = |summaries: &Value| summaries[0]["output_throughput"].as_f64().expect("a rate");
    assert!((rate(&of_rows) / rate(&whole) - 1.0).abs() < 0.01, "{} {}", rate(&of_rows), rate(&whole));
    assert_eq!(of_rows[0]["trials"].as_array().map(Vec::len), Some(3));
}

#[test]
fn a_result_does_not_differ_from_itself() {
    let lines = json(&["compare", DELAYED, DELAYED]);
    let lines = lines.as_array().expect("a list");
    assert_eq!(lines.len(), 3);
    assert!(lines.iter().all(|line| line["verdict"] == "no_difference_shown" && line["percent"] == 0.0), "{lines:?}");
}

#[test]
fn comparisons_show_the_numbers_of_the_report_in_one_table() {
    let lines = json(&["compare", ASYNC, DELAYED]);
    let (a, b) = (json(&["report", ASYNC]), json(&["report", DELAYED]));
    assert_eq!((&lines[0]["a"], &lines[0]["b"]), (&a[0]["output_throughput"], &b[0]["output_throughput"]));
    assert_eq!(lines[1]["b"], b[0]["latency"]["mean_tpot_ms"]);
    let number = |key: &str| lines[0][key].as_f64().expect(key);
    // 132 against 167 tokens/s: on the scale of ratios the upper half is the longer one.
    assert_eq!(lines[0]["verdict"], "faster");
    assert!(number("percent_low") > 0.0);
    assert!(number("percent_high") - number("percent") > number("percent") - number("percent_low"));
    let table = ok(&["compare", ASYNC, DELAYED]);
    assert_narrow(&table);
    assert_eq!(table.matches("delayed-c4 (B) against async-c4 (A)").count(), 1, "{table}");
    assert!(table.contains("faster") && table.contains(" to "), "{table}");
    let rows = csv(&ok(&["compare", ASYNC, DELAYED, "--output", "csv"]));
    let percent = rows[0]["percent"].as_str().and_then(|text| text.parse().ok());
    assert_same(percent, lines[0]["percent"].as_f64(), "percent");
}

#[test]
fn what_is_not_comparable_is_refused_by_name() {
    let other = copy(DELAYED, |manifest| {
        manifest["cpu"] = json!("Intel Xeon");
        manifest["seed"] = json!(7);
        manifest["max_tokens"] = json!(96);
    });
    let message = refused(&["compare", ASYNC, path(&other)]);
    for wanted in
        ["`cpu` is \"AMD EPYC\" and \"Intel Xeon\"", "`seed` is 0 and 7", "`max_tokens` is 48 and 96", "--force"]
    {
        assert!(message.contains(wanted), "`{wanted}` is not in {message}");
    }
    assert!(!message.contains("`cores`"), "{message}");
    let output = trbench(&["compare", ASYNC, path(&other), "--force", "--output", "json"]);
    assert!(output.status.success() && text(&output.stderr).contains("warning: "), "{}", text(&output.stderr));
    let lines: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(lines[0]["forced"], "cpu seed max_tokens");
    // Emulated and measured, with other models and another load.
    let message = refused(&["compare", DELAYED, "results/reference/runs/delayed-2requestssopenloop-5f9e9631"]);
    for wanted in ["`emulated` is false and true", "`max_concurrency` is 4 and 16", "`config_sha256`", "`load`"] {
        assert!(message.contains(wanted), "`{wanted}` is not in {message}");
    }
    // Nobody knows what rows alone have measured.
    let rows = tempfile::tempdir().expect("a folder");
    std::fs::copy(root().join(DELAYED).join("result.csv"), rows.path().join("result.csv")).expect("rows");
    assert!(refused(&["compare", DELAYED, path(&rows)]).contains("has no `manifest.json`"));
    // Many systems with the same names do not pair.
    assert!(refused(&["compare", "results/reference/runs", "results/reference/runs"]).contains("more than once"));
}

#[test]
fn settings_of_specs_are_compared_except_for_the_system() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = |name: &str, more: &[&str]| {
        let out = dir.path().join(name).display().to_string();
        let base = ["run", "-c", EMULATED, "--num-prompts", "4", "--max-tokens", "6", "--out", &out];
        let output = trbench(&[&base[..], more].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains(&format!("results in {out}")), "{}", text(&output.stderr));
        (out, text(&output.stdout))
    };
    let (all, table) = run("all", &["--system", "single:small,single:large,delayed"]);
    assert_narrow(&table);
    assert!(table.contains("x large alone") && table.contains("emulated: latency profiles"), "{table}");
    let summaries = json(&["report", &all]);
    let share = |label: &str| {
        let summaries = summaries.as_array().expect("a list");
        summaries.iter().find(|summary| summary["label"] == label).expect(label)["llm_ratio"].as_f64()
    };
    assert_eq!((share("single-large-c4"), share("single-small-c4")), (Some(1.0), Some(0.0)));
    let (large, delayed) = (format!("{all}/single-large-c4"), format!("{all}/delayed-c4"));
    assert!(ok(&["compare", &large, &delayed]).contains("not tested"));
    let (other, _) = run("other", &["--system", "delayed", "--temperature", "0.5", "--seed", "3"]);
    let message = refused(&["compare", &large, &other]);
    assert!(message.contains("`temperature` is 0.0 and 0.5") && message.contains("`seed` is 0 and 3"), "{message}");
    assert!(!message.contains("`system`"), "{message}");
}

#[test]
fn old_spellings_of_flags_and_variables_still_work() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("run").display().to_string();
    let base = ["run", "-c", EMULATED, "--num-prompts", "1", "--max-tokens", "4"];
    let mut run = command(&[&base[..], &["--profile", "--trace"]].concat());
    let output = run.env("TRBENCH_OUTPUT_DIR", &out).output().expect("the binary starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(dir.path().join("run/timeline.json").is_file());
    assert!(ok(&["report", "--result", &out]).contains("tokens/s"));
    let page = dir.path().join("page.html").display().to_string();
    ok(&["trace", &out, "--html", &page]);
    assert!(dir.path().join("page.html").is_file());
}

/// All subcommands with their full names.
fn subcommands(command: &clap::Command, name: &str, all: &mut Vec<(String, clap::Command)>) {
    for sub in command.get_subcommands() {
        let name = format!("{name} {}", sub.get_name());
        subcommands(sub, &name, all);
        all.push((name, sub.clone()));
    }
}

#[test]
fn one_word_stands_for_the_format_and_one_for_the_file() {
    let mut all = Vec::new();
    subcommands(&trbench::cli::command(), "trbench", &mut all);
    assert!(all.len() > 20);
    let mut profiles = Vec::new();
    for (name, command) in &all {
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            let Some(flag) = arg.get_long() else { continue };
            assert!(!["json", "csv", "html", "format", "result", "output-dir"].contains(&flag), "{name} --{flag}");
            let values: Vec<String> =
                arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
            match flag {
                "output" => assert!(values.contains(&"json".to_owned()), "{name} --output {values:?}"),
                "out" => {
                    assert!(values.is_empty(), "{name} --out {values:?}");
                    assert_eq!(arg.get_short(), Some('o'), "{name} --out");
                }
                "profile" => profiles.push(values),
                _ => {}
            }
        }
    }
    assert_eq!(profiles.len(), 3, "`figures`, `scenario cells` and `scenario run`");
    assert!(profiles.iter().all(|values| *values == ["emulated", "demo"]), "{profiles:?}");
}

#[test]
fn no_color_is_respected() {
    let coloured = |args: &[&str], no_color: &str| {
        let output = command(args).env("CLICOLOR_FORCE", "1").env("NO_COLOR", no_color).output().expect("starts");
        [output.stdout, output.stderr].concat().contains(&0x1b)
    };
    assert!(coloured(&["--help"], ""), "colours can be had");
    for args in [&["--help"][..], &["run", "--help"], &["run", "--no-such-flag"], &["report", ASYNC]] {
        assert!(!coloured(args, "1"), "{args:?}");
    }
}
