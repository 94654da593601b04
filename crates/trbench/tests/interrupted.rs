//! Runs that are ended by signals, sweeps over concurrencies, folders that hold a run already, and answers without room.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const EMULATED: &str = "config/random/emulated.yaml";
/// Longest wait for what a child process does.
const PATIENCE: Duration = Duration::from_secs(120);

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trbench"));
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn trbench(args: &[&str]) -> Output {
    command(args).output().expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("JSON")
}

/// Ids of the rows that are there, in the order of the file.
fn ids(folder: &Path) -> Vec<u64> {
    let rows = std::fs::read_to_string(folder.join("result.csv")).unwrap_or_default();
    let whole = rows.rfind('\n').map_or("", |end| &rows[..end]);
    whole.lines().skip(1).map(|row| row.split(',').next().and_then(|id| id.parse().ok()).expect("an id")).collect()
}

/// A run of many requests into a folder.
fn long_run<'a>(out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let load = ["--num-prompts", "60", "--max-tokens", "8", "--concurrency", "2", "--seed", "3"];
    [&["run", "-c", EMULATED, "--output-dir", out][..], &load, more].concat()
}

/// Waits until some rows are there while the child runs.
fn await_rows(child: &mut Child, folder: &Path) {
    let start = Instant::now();
    while ids(folder).len() < 3 {
        assert!(child.try_wait().expect("a child").is_none(), "the run ended before it was ended");
        assert!(start.elapsed() < PATIENCE, "no rows appear");
        std::thread::yield_now();
    }
}

fn signal(child: &Child, name: &str) {
    let killed = Command::new("sh").args(["-c", &format!("kill -{name} {}", child.id())]).status().expect("a shell");
    assert!(killed.success());
}

/// A run that a signal ended when its first rows were there.
fn ended_by(name: &str, more: &[&str]) -> (tempfile::TempDir, PathBuf, Output) {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("run");
    let mut child = command(&long_run(out.to_str().expect("utf-8"), more)).spawn().expect("the binary starts");
    await_rows(&mut child, &out);
    signal(&child, name);
    let output = child.wait_with_output().expect("an end");
    (dir, out, output)
}

fn resume(out: &Path, more: &[&str]) -> Output {
    let load = ["--num-prompts", "60", "--max-tokens", "8", "--concurrency", "2", "--seed", "3"];
    trbench(&[&["run", "-c", EMULATED, "--resume", out.to_str().expect("utf-8")][..], &load, more].concat())
}

fn assert_whole(out: &Path) {
    assert_eq!(ids(out), (0..60).collect::<Vec<_>>());
    let summary = json(&out.join("summary.json"));
    assert_eq!((summary["completed"].as_u64(), summary["interrupted"].as_bool()), (Some(60), Some(false)));
}

#[test]
fn a_killed_run_loses_nothing_that_was_written_and_goes_on() {
    let (_dir, out, output) = ended_by("KILL", &["--save-detailed"]);
    assert_eq!(output.status.code(), None, "it had no time for anything");
    let kept = ids(&out);
    assert!(kept.len() >= 3 && kept.len() < 60 && !out.join("summary.json").exists(), "{kept:?}");
    // As if the last row and the last text had been cut while they were written.
    for name in ["result.csv", "detailed.jsonl"] {
        let path = out.join(name);
        let mut bytes = std::fs::read(&path).expect("a file");
        bytes.extend_from_slice(if name == "result.csv" { b"59,trs-060,0,12" } else { b"{\"id\":59,\"tri" });
        std::fs::write(&path, bytes).expect("writable");
    }
    let output = resume(&out, &["--save-detailed"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("its last line was cut off and is left out"), "{}", text(&output.stderr));
    assert_whole(&out);
    assert_eq!(json(&out.join("summary.json"))["resumed"].as_u64(), Some(kept.len() as u64));
    let detailed = std::fs::read_to_string(out.join("detailed.jsonl")).expect("prompts and answers");
    let mut lines: Vec<Value> = detailed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    lines.sort_by_key(|line| line["id"].as_u64());
    assert_eq!(lines.iter().filter_map(|line| line["id"].as_u64()).collect::<Vec<_>>(), (0..60).collect::<Vec<_>>());
    assert!(
        lines.iter().all(|line| line["prompt"][0]["role"] == "user" && line["completion_tokens"] == 8),
        "{}",
        lines[0]
    );
}

#[test]
fn signals_that_end_a_process_end_a_run_as_ctrl_c_does() {
    for name in ["TERM", "HUP", "INT"] {
        let (_dir, out, output) = ended_by(name, &[]);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{name}: {errors}");
        assert!(errors.contains("interrupted: partial results are in"), "{name}: {errors}");
        assert_eq!(json(&out.join("summary.json"))["interrupted"], Value::Bool(true), "{name}");
        let rows = ids(&out).len();
        assert!((3..60).contains(&rows), "{name}: {rows}");
        assert!(resume(&out, &[]).status.success(), "{name}");
        assert_whole(&out);
    }
}

#[test]
fn a_folder_with_a_run_is_kept() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("run");
    let name = out.to_str().expect("utf-8");
    let run = |args: &[&str]| {
        let few = ["run", "-c", EMULATED, "--num-prompts", "2", "--max-tokens", "2", "--output-dir", name];
        trbench(&[&few[..], args].concat())
    };
    assert!(run(&["--concurrency", "4"]).status.success());
    let before = std::fs::read(out.join("result.csv")).expect("rows");
    for more in [&["--concurrency", "4"][..], &["--concurrency", "2,4"]] {
        let output = run(more);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        for word in [name, "--resume", "--overwrite"] {
            assert!(errors.contains(word), "{word}: {errors}");
        }
    }
    assert_eq!(std::fs::read(out.join("result.csv")).expect("rows"), before);
    let output = run(&["--concurrency", "2,4", "--overwrite"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!out.join("result.csv").exists() && out.join("config-c2/result.csv").exists(), "nothing is mixed");
    let few =
        ["run", "-c", EMULATED, "--num-prompts", "2", "--max-tokens", "2", "--resume", name, "--concurrency", "4"];
    let errors = text(&trbench(&few).stderr);
    assert!(errors.contains("several systems or concurrencies"), "{errors}");
}

#[test]
fn a_sweep_over_concurrencies_says_its_thresholds() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("sweep");
    let args = ["run", "-c", EMULATED, "--set", "batching.thresholds=[1,4]", "--num-prompts", "4", "--max-tokens", "4"];
    let more = ["--concurrency", "1,2,4,8", "--output-dir", out.to_str().expect("utf-8"), "--output", "json"];
    let output = trbench(&[&args[..], &more].concat());
    let errors = text(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let rows: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for (row, (concurrency, wanted)) in [(1, [1, 1]), (2, [1, 2]), (4, [1, 4]), (8, [1, 4])].into_iter().enumerate() {
        assert_eq!(rows[row]["max_concurrency"], concurrency);
        assert_eq!(rows[row]["thresholds"], serde_json::json!(wanted), "{concurrency}");
        let csv = std::fs::read_to_string(out.join(format!("config-c{concurrency}/result.csv"))).expect("rows");
        let in_csv = format!(",{} {}", wanted[0], wanted[1]);
        assert!(csv.lines().skip(1).all(|line| line.ends_with(&in_csv)), "{csv}");
        assert!(errors.contains(&format!("config-c{concurrency}: thresholds {wanted:?}")), "{errors}");
    }
    assert!(errors.contains("[1, 4] of the configuration, shrunk to be feasible (sum(B_i - 1) < 2)"), "{errors}");
}

#[test]
fn answers_without_room_are_refused_before_the_run() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("run");
    let args = ["run", "-c", EMULATED, "--set", "system.max_tokens_per_request=200", "--workload", "random"];
    let run = |most: &str| {
        let more = ["--input-len", "32", "--num-prompts", "3", "--max-tokens", most, "--output-dir"];
        trbench(&[&args[..], &more, &[out.to_str().expect("utf-8")]].concat())
    };
    let output = run("500");
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("--max-tokens is 500") && errors.contains("a request may have 200"), "{errors}");
    assert!(!out.exists(), "nothing was begun");
    // What it says fits does, and one token more does not.
    let fits: usize = errors
        .split("--max-tokens ")
        .last()
        .and_then(|rest| rest.split(' ').next())
        .expect("a number")
        .parse()
        .expect("a number");
    assert_eq!(run(&(fits + 1).to_string()).status.code(), Some(2));
    let output = run(&fits.to_string());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(json(&out.join("summary.json"))["total_output_tokens"].as_u64(), Some(3 * fits as u64));
}

#[test]
fn flags_of_vllm_bench_do_what_ours_do() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("run");
    let args = [
        "run",
        "-c",
        EMULATED,
        "--max-concurrency",
        "4",
        "--request-rate",
        "200",
        "--burstiness",
        "0.25",
        "--random-input-len",
        "16",
        "--random-output-len",
        "4",
        "--num-prompts",
        "5",
        "--percentile-metrics",
        "ttft,itl",
        "--save-detailed",
        "--result-dir",
        out.to_str().expect("utf-8"),
        "--goodput",
        "ttft:60000",
        "e2el:60000",
    ];
    let output = trbench(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let summary = json(&out.join("summary.json"));
    assert_eq!(summary["load"], "open loop, 200/s, gamma:2");
    assert_eq!(summary["total_output_tokens"].as_u64(), Some(20));
    assert_eq!(summary["slo"]["e2el_ms"].as_f64(), Some(60000.0));
    assert!(summary["request_goodput"].as_f64().is_some_and(|rate| rate > 0.0));
    let latency = summary["latency"].as_object().expect("latencies");
    assert!(
        latency["mean_itl_ms"].is_number()
            && latency.contains_key("p99_ttft_ms")
            && latency["mean_tpot_ms"].is_number()
    );
    assert!(!latency.contains_key("p99_tpot_ms") && !latency.contains_key("median_e2el_ms"), "{latency:?}");
    let detailed = std::fs::read_to_string(out.join("detailed.jsonl")).expect("prompts and answers");
    assert_eq!(detailed.lines().count(), 5);
}

#[test]
fn config_check_finds_what_a_run_would_refuse() {
    let dir = tempfile::tempdir().expect("a folder");
    let check = |name: &str, yaml: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, yaml).expect("writable");
        let output = trbench(&["config", "check", path.to_str().expect("utf-8")]);
        (output.status.code(), text(&output.stderr))
    };
    let models = "models:\n  a: {emulated: {latency_ms: 1}}\n  b: {emulated: {latency_ms: 1}}\n";
    let random = format!("{models}routing: {{method: random}}\n");
    let rule = |to: &str| format!("{models}routing:\n  method: rule\n  rules:\n    a: {{when: 'true', to: {to}}}\n");
    let gguf = dir.path().join("a.gguf");
    std::fs::write(&gguf, "").expect("writable");
    let real = |extra: &str| {
        format!("models:\n  a: {{path: a.gguf, {extra}}}\n  b: {{path: a.gguf}}\nrouting: {{method: entropy}}\n")
    };
    let auto = "batching:\n  thresholds: auto\n";
    for (name, yaml, says) in [
        (
            "auto",
            format!("{}{auto}", real("threads: 1")),
            "thresholds: auto` cannot be computed: the step times are not known",
        ),
        (
            "p",
            format!("{random}batching:\n  profile:\n    routing: [[0.5, 0.4], [1, 0]]\n"),
            "entry 1 of `routing` sums to 0.9",
        ),
        ("rule", rule("c"), "`routing.rules.a.to` names model `c`, known are `a`, `b`"),
        ("file", real("patch: no.safetensors, layers: [0]"), "no.safetensors` does not exist"),
        ("model", real("threads: 1").replacen("a.gguf", "no.gguf", 1), "no.gguf` does not exist"),
        (
            "weights",
            format!("{models}routing: {{method: r2r, weights: no.safetensors}}\n"),
            "no.safetensors` does not exist",
        ),
        ("cores", real("cores: [99999]"), "names core 99999, this machine has 0 to"),
        ("twice", real("cores: [0, 0]"), "names core 0 twice"),
        (
            "source",
            "models: {a: {source: x.gguf}}\nrouting: {method: random, semantics: mixture}\n".to_owned(),
            "a file goes under `path`",
        ),
    ] {
        let (code, errors) = check(&format!("{name}.yaml"), &yaml);
        assert_eq!(code, Some(2), "{name}: {errors}");
        let place = format!("{name}.yaml:");
        assert!(errors.contains(says) && errors.contains(&place), "{name}: {errors}");
        assert_eq!(errors.matches(says).count(), 1, "{name}: said once: {errors}");
    }
    // Every file is looked at.
    let (bad, good) = (dir.path().join("p.yaml"), dir.path().join("q.yaml"));
    std::fs::write(&good, &random).expect("writable");
    let paths = [&bad, &good, &bad].map(|path| path.to_str().expect("utf-8"));
    let output = trbench(&[&["config", "check"], &paths[..]].concat());
    assert_eq!((output.status.code(), text(&output.stderr).matches("p.yaml:").count()), (Some(2), 2));
    assert!(text(&output.stdout).contains("q.yaml: ok"), "{}", text(&output.stdout));
    for (name, yaml) in [("good", random.clone()), ("rules", rule("b")), ("known", format!("{random}{auto}"))] {
        assert_eq!(check(&format!("{name}.yaml"), &yaml), (Some(0), String::new()));
    }
}
