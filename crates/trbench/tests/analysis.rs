//! Traces, threshold sweeps, calibration, validation and figures through the command line, on emulated models.

use std::path::Path;
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;

fn trbench(dir: &Path, args: &[&str]) -> Output {
    Command::cargo_bin("trbench").expect("the binary").current_dir(dir).args(args).output().expect("runs")
}

fn ok(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn refused(output: &Output, wanted: &str) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains(wanted), "{message}");
}

fn config(dir: &Path, routing: &str) -> String {
    let text = format!(
        "models:\n  small: {{emulated: {{latency_ms: 0.2}}}}\n  large: {{emulated: {{latency_ms: 0.5}}}}\nrouting: {routing}\n"
    );
    let path = dir.join("system.yaml");
    std::fs::write(&path, text).expect("writable");
    path.display().to_string()
}

#[test]
fn a_traced_run_can_be_shown_and_swept() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let config = config(dir, "{method: entropy, entropy_threshold: 0.7}");
    ok(&trbench(
        dir,
        &["run", "--config", &config, "--num-prompts", "6", "--max-tokens", "60", "--trace", "--out", "out"],
    ));
    let text = ok(&trbench(dir, &["trace", "out", "--request", "2", "--out", "page.html"]));
    assert!(text.starts_with("request 2") && text.contains("small -> large, score"), "{text}");
    let page = std::fs::read_to_string(dir.join("page.html")).expect("the page");
    assert!(page.contains("<del class=\"m0\"") && page.contains("</html>"));
    let trace: Value =
        serde_json::from_str(&ok(&trbench(dir, &["trace", "out", "--output", "json"]))).expect("a trace as JSON");
    let steps = trace["steps"].as_array().expect("steps");
    assert_eq!(steps.iter().filter(|step| step["committed"] == true).count(), 60);
    // Emulated entropies are uniform between 0 and 1, so that a share of 0.2 is a threshold of about 0.8; over 360 scores
    // the quantile's standard deviation is 0.021.
    let sweep = ok(&trbench(dir, &["sweep-threshold", "out", "--share", "0.2", "--output", "json"]));
    let sweep: Value = serde_json::from_str(&sweep).expect("JSON");
    let threshold = sweep["points"][0]["threshold"].as_f64().expect("a threshold");
    assert!((threshold - 0.8).abs() < 0.11, "{threshold}");
    refused(&trbench(dir, &["trace", "out", "--request", "9"]), "has no request 9");
    refused(&trbench(dir, &["trace", "elsewhere"]), "elsewhere");
    refused(&trbench(dir, &["sweep-threshold", "out", "--share", "1.5"]), "--share 1.5");
    std::fs::write(dir.join("bad.jsonl"), "{\"id\": 1}\n").expect("writable");
    refused(&trbench(dir, &["trace", "bad.jsonl"]), "line 1");
}

#[test]
fn prediction_and_the_scheduler_agree_in_virtual_time() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("system.yaml");
    let text = "models:\n  small: {emulated: {latency_ms: 6.0}}\n  large: {emulated: {latency_ms: 27.9}}\n\
                routing: {method: random, semantics: borrow, probability: 0.65}\n";
    std::fs::write(&path, text).expect("writable");
    let path = path.display().to_string();
    let args = [
        "validate",
        "--config",
        &path,
        "--concurrency",
        "2,4",
        "--virtual-time",
        "--seconds",
        "300",
        "--output",
        "json",
    ];
    let validation: Value = serde_json::from_str(&ok(&trbench(dir.path(), &args))).expect("JSON");
    assert_eq!(validation["points"].as_array().map(Vec::len), Some(6));
    // A function of the seed: no clock is involved.
    assert!(validation["max_error"].as_f64().expect("an error") < 0.03, "{validation}");
    assert!(validation["best"].as_array().expect("best").iter().all(|best| best["agrees"] == true));
    refused(&trbench(dir.path(), &["validate", "--config", &path, "--seconds", "0"]), "--seconds 0");
}

#[test]
fn a_calibration_feeds_the_throughput_model() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let config = config(dir, "{method: random, semantics: borrow, probability: 0.5}");
    let args = ["calibrate", "--config", &config, "--concurrency", "1,2", "--seconds", "0.4", "-o", "c.json"];
    let table = ok(&trbench(dir, &args));
    assert!(table.contains("emulated"), "{table}");
    let file: Value =
        serde_json::from_str(&std::fs::read_to_string(dir.join("c.json")).expect("the file")).expect("JSON");
    // An emulated step never takes less than its profile says, and borrow routing always returns.
    for (model, least) in [(0, 0.2), (1, 0.5)] {
        let latencies = file["models"][model]["latency_ms"].as_array().expect("latencies");
        assert_eq!(latencies.len(), 2);
        assert!(latencies.iter().all(|ms| ms.as_f64().expect("a number") >= least), "{latencies:?}");
    }
    assert_eq!(file["routing"][1], serde_json::json!([1.0, 0.0]));
    let answer = ok(&trbench(dir, &["optimize", "--calibration", "c.json", "--N", "2", "--output", "json"]));
    assert!(answer.contains("throughput_tok_s"), "{answer}");
    let run = ["run", "--config", &config, "--calibration", "c.json", "--num-prompts", "2", "--max-tokens", "20"];
    ok(&trbench(dir, &[&run[..], &["--concurrency", "2", "--out", "out"]].concat()));
    let broken = std::fs::read_to_string(dir.join("c.json")).expect("the file").replace("\"commit\"", "\"comit\"");
    std::fs::write(dir.join("broken.json"), broken).expect("writable");
    refused(&trbench(dir, &["optimize", "--calibration", "broken.json", "--N", "2"]), "comit");
}

#[test]
fn figures_are_drawn_with_their_data_and_go_on_where_they_stopped() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    config(dir, "{method: random, semantics: borrow, probability: 0.5}");
    let scenario = "title: T\npaper: P\nkind: validate\nprofiles:\n  emulated: {config: system.yaml, concurrency: [2], seconds: 5, \
                    virtual_time: true}\n";
    std::fs::write(dir.join("fig.yaml"), scenario).expect("writable");
    let made = ok(&trbench(dir, &["figures", "fig.yaml", "--out", "figures"]));
    assert!(made.contains("index.html"));
    for file in ["fig-emulated.svg", "fig-emulated.csv", "REPORT.md", "index.html"] {
        assert!(dir.join("figures").join(file).is_file(), "{file}");
    }
    // What is there is not made again.
    std::fs::write(dir.join("figures/fig-emulated.csv"), "kept").expect("writable");
    ok(&trbench(dir, &["figures", "fig.yaml", "--out", "figures"]));
    assert_eq!(std::fs::read_to_string(dir.join("figures/fig-emulated.csv")).expect("the file"), "kept");
    std::fs::write(dir.join("bad.yaml"), "title: T\npaper: P\nkind: dance\nprofiles: {}\n").expect("writable");
    refused(&trbench(dir, &["figures", "bad.yaml"]), "bad.yaml");
}
