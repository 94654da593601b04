//! `trbench run --endpoint URL` against mocks of other servers' streams, and `MODEL=URL` against our own server.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokenrouter_engine::server::{self, ApiKeys};
use tokenrouter_engine::{Config, Engine};
use tokenrouter_testing::tiny;

/// What a mock was sent: head and body.
type Asked = Arc<Mutex<Vec<(String, Value)>>>;

/// A server on a free port that answers everything with this status and body; it ends with the process.
fn mock(status: &'static str, kind: &'static str, body: String) -> (String, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let asked: Asked = Arc::default();
    let log = Arc::clone(&asked);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let Some(request) = read(&mut stream) else { continue };
            log.lock().expect("no panic").push(request);
            let head = format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n");
            let _gone = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
        }
    });
    (url, asked)
}

fn read(stream: &mut TcpStream) -> Option<(String, Value)> {
    let (mut bytes, mut buffer) = (Vec::new(), [0u8; 4096]);
    loop {
        if let Some(head) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&bytes[..head]).to_lowercase();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: "))?.trim().parse::<usize>();
            if bytes.len() >= head + 4 + length.ok()? {
                return Some((text, serde_json::from_slice(&bytes[head + 4..]).ok()?));
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
        }
    }
}

fn events(events: &[Value]) -> String {
    events.iter().map(|event| format!("data: {event}\n\n")).collect::<String>() + "data: [DONE]\n\n"
}

fn streaming(list: &[Value]) -> (String, Asked) {
    mock("200 OK", "text/event-stream", events(list))
}

fn delta(delta: Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
}

fn ends(reason: Value) -> Value {
    json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

/// Runs one prompt with `--endpoint`, and gives what was printed and the folder of the results.
fn run(args: &[&str], env: &[(&str, &str)]) -> (Output, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name).to_str().expect("utf-8").to_owned();
    std::fs::write(path("prompts.jsonl"), "{\"prompt\": \"Hello\", \"answer\": 336}\n").expect("writable");
    let mut command = Command::new(env!("CARGO_BIN_EXE_trbench"));
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).stdin(Stdio::null());
    command
        .args(["run", "--workload", "custom", "--dataset-path", &path("prompts.jsonl")])
        .env_remove("OPENAI_API_KEY");
    command.args(["--output-dir", &path("out"), "--max-tokens", "64", "--concurrency", "1", "--output", "json"]);
    command.args(args).envs(env.iter().copied());
    (command.output().expect("the binary starts"), dir)
}

fn row(dir: &tempfile::TempDir) -> std::collections::HashMap<String, String> {
    let text = std::fs::read_to_string(dir.path().join("out/result.csv")).expect("result.csv");
    let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
    let (names, values) = (lines.next().expect("names"), lines.next().expect("a row"));
    names.into_iter().zip(values).collect()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn reasoning_counts_as_tokens_and_begins_the_answer() {
    for field in ["reasoning_content", "reasoning"] {
        let mut list = vec![delta(json!({"role": "assistant", "content": ""}))];
        list.extend((0..50).map(|_| delta(json!({"content": null, field: "hm"}))));
        let only = list.clone();
        list.extend([delta(json!({"content": "\\boxed{336}"})), ends(json!("stop"))]);
        let (url, _) = streaming(&list);
        let (output, dir) = run(&["--endpoint", &url], &[]);
        assert!(output.status.success(), "{}", stderr(&output));
        let row = row(&dir);
        assert_eq!((row["completion_tokens"].as_str(), row["correct"].as_str()), ("51", "true"), "{field}");
        // Nothing but reasoning: its first piece is the first token.
        let (url, _) = streaming(&only);
        let (output, dir) = run(&["--endpoint", &url], &[]);
        assert!(output.status.success(), "{}", stderr(&output));
        let row = self::row(&dir);
        assert!(row["ttft_ms"].parse::<f64>().is_ok_and(|ms| ms >= 0.0), "{field}: {row:?}");
        assert_eq!((row["completion_tokens"].as_str(), row["finish_reason"].as_str()), ("50", "stop"));
    }
}

#[test]
fn usage_corrects_the_count() {
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 40, "total_tokens": 47}});
    let (url, _) = streaming(&[delta(json!({"content": "many tokens"})), ends(json!("length")), usage]);
    let (_, dir) = run(&["--endpoint", &url], &[]);
    let row = row(&dir);
    let found = ["prompt_tokens", "completion_tokens", "finish_reason"].map(|name| row[name].clone());
    assert_eq!(found, ["7", "40", "length"]);
}

#[test]
fn ends_of_other_servers_are_no_errors() {
    for (reason, kept, complete) in [
        (json!("eos"), "stop", true),
        (json!("stop_sequence"), "stop", true),
        (json!("max_tokens"), "length", true),
        (json!("content_filter"), "content_filter", true),
        (Value::Null, "stop", true),
        (json!("abort"), "cancelled", false),
    ] {
        let (url, _) = streaming(&[delta(json!({"content": "336"})), ends(reason.clone())]);
        let (_, dir) = run(&["--endpoint", &url], &[]);
        let row = row(&dir);
        assert_eq!((row["finish_reason"].as_str(), row["error"].as_str()), (kept, ""), "{reason}");
        assert_eq!(!row["e2el_ms"].is_empty(), complete, "{reason}");
    }
}

#[test]
fn errors_of_a_stream_keep_their_message() {
    for error in [
        json!({"error": "boom went the server"}),
        json!({"error": {"message": "boom went the server", "code": 500}}),
        json!({"object": "error", "message": "boom went the server", "code": 500}),
    ] {
        let (url, _) = streaming(&[delta(json!({"content": "a"})), error.clone()]);
        let (output, dir) = run(&["--endpoint", &url], &[]);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(row(&dir)["error"].contains("the server reported: boom went the server"), "{error}");
    }
    let (url, _) = mock("200 OK", "text/event-stream", "event: error\ndata: boom\n\n".into());
    assert!(stderr(&run(&["--endpoint", &url], &[]).0).contains("the server reported: boom"));
    let (url, _) = mock("200 OK", "text/event-stream", format!("data: {}\n\n", delta(json!({"content": "a"}))));
    assert!(stderr(&run(&["--endpoint", &url], &[]).0).contains("without a finish reason"));
}

#[test]
fn keys_and_headers_are_sent_and_written_nowhere() {
    let (url, asked) = streaming(&[delta(json!({"content": "a"})), ends(json!("stop"))]);
    let args = ["--endpoint", &url, "--header", "X-Team: hush-team", "--header=api-key: hush-key"];
    let (output, dir) = run(&args, &[("OPENAI_API_KEY", "hush-open")]);
    assert!(output.status.success(), "{}", stderr(&output));
    let head = asked.lock().expect("no panic")[0].0.clone();
    for line in ["x-team: hush-team", "api-key: hush-key", "authorization: bearer hush-open"] {
        assert!(head.contains(line), "{line}: {head}");
    }
    for entry in std::fs::read_dir(dir.path().join("out")).expect("results") {
        let text = std::fs::read_to_string(entry.expect("a file").path()).expect("readable");
        assert!(!text.contains("hush"), "{text}");
    }
    assert!(!stderr(&output).contains("hush"));
    let (output, _dir) = run(&["--endpoint", &url, "--header", "hush"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("`Name: value`") && !stderr(&output).contains("hush"), "{}", stderr(&output));
    let (url, _) = mock("401 Unauthorized", "application/json", json!({"error": {"message": "no key"}}).to_string());
    let message = stderr(&run(&["--endpoint", &url], &[]).0);
    assert!(message.contains("401 Unauthorized: no key (keys: OPENAI_API_KEY"), "{message}");
}

#[test]
fn ignore_eos_is_sent_and_its_refusal_explained() {
    let (url, asked) = streaming(&[delta(json!({"content": "a"})), ends(json!("length"))]);
    run(&["--endpoint", &url, "--ignore-eos"], &[]);
    run(&["--endpoint", &url], &[]);
    let bodies: Vec<_> = asked.lock().expect("no panic").iter().map(|(_, body)| body["ignore_eos"].clone()).collect();
    assert_eq!(bodies, [json!(true), Value::Null]);
    let refusal = json!({"error": {"message": "Unrecognized request argument supplied: ignore_eos"}}).to_string();
    let (url, _) = mock("400 Bad Request", "application/json", refusal);
    let message = stderr(&run(&["--endpoint", &url, "--ignore-eos"], &[]).0);
    assert!(
        message.contains("Unrecognized request argument") && message.contains("this server refuses it"),
        "{message}"
    );
}

/// Our server with a small model that reads and writes text.
fn own_server() -> String {
    let dir = tempfile::tempdir().expect("a folder").keep();
    let config = tiny::config("llama");
    tiny::write(&dir, &config, &tiny::tensors(&config, 1));
    let path = serde_json::to_string(&dir).expect("a path");
    let yaml =
        format!("models: {{m: {{path: {path}, dtype: f32}}}}\nrouting: {{method: random, semantics: mixture}}\n");
    let config = Config::from_yaml(&yaml, "own.yaml").expect("a valid configuration");
    let engine = Arc::new(Engine::launch(&config).expect("launches"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("a setting of the socket");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            let ended = server::serve(listener, engine, config.server, ApiKeys::default(), std::future::pending());
            panic!("the server ended: {:?}", ended.await);
        });
    });
    url
}

#[test]
fn our_own_servers_of_single_models_are_servers_like_others() {
    let (small, large) = (own_server(), own_server());
    let dir = tempfile::tempdir().expect("a folder");
    let config = dir.path().join("pair.yaml");
    let models = "models:\n  small: {emulated: {latency_ms: 1}}\n  large: {emulated: {latency_ms: 1}}\n";
    for routing in ["{method: random, probability: 0.5}", "{method: entropy, entropy_threshold: 2.0}"] {
        std::fs::write(&config, format!("{models}routing: {routing}\n")).expect("writable");
        let config = config.to_str().expect("utf-8");
        let (small, large) = (format!("small={small}"), format!("large={large}"));
        let args = ["-c", config, "--endpoint", &small, "--endpoint", &large, "--ignore-eos"];
        let (output, dir) = run(&args, &[]);
        assert!(output.status.success(), "{routing}: {}", stderr(&output));
        let row = row(&dir);
        assert_eq!((row["completion_tokens"].as_str(), row["finish_reason"].as_str()), ("64", "length"), "{routing}");
    }
}
