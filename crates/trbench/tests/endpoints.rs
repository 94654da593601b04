//! `trbench run --endpoint MODEL=URL`: a client that hops between servers of single models, against a mock that writes
//! numbered words.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokenrouter_core::keyed::{Purpose, draw_unit};

/// What a mock does with a request: the answer.
type Answer = dyn Fn(&Value) -> Value + Send + Sync;

/// A server on a port of its own; keeps what it was asked. It ends with the process.
fn mock(answer: Arc<Answer>) -> (String, Arc<Mutex<Vec<Value>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let asked: Arc<Mutex<Vec<Value>>> = Arc::default();
    let log = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (answer, log) = (Arc::clone(&answer), Arc::clone(&log));
            std::thread::spawn(move || serve(stream, &*answer, &log));
        }
    });
    (url, asked)
}

fn serve(mut stream: TcpStream, answer: &Answer, log: &Mutex<Vec<Value>>) {
    let mut bytes = Vec::new();
    let mut buffer = [0u8; 4096];
    loop {
        let head = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        if let Some(head) = head {
            let text = String::from_utf8_lossy(&bytes[..head]).to_lowercase();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
            let end = head + 4 + length.trim().parse::<usize>().expect("a number");
            if bytes.len() >= end {
                assert!(text.starts_with("post /v1/completions "), "{text}");
                let body: Value = serde_json::from_slice(&bytes[head + 4..end]).expect("JSON");
                bytes.drain(..end);
                let reply = answer(&body).to_string();
                log.lock().expect("no panic").push(body);
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                    reply.len()
                );
                stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(reply.as_bytes())).expect("a client");
                continue;
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
        }
    }
}

/// Words `<letter><position>`; the entropy is high at even positions. `ids`: whether token ids are told and taken.
fn words(letter: char, ids: bool) -> Arc<Answer> {
    Arc::new(move |body| {
        // The prompt is one word; every committed token is another one.
        let position = match &body["prompt"] {
            Value::String(text) => text.split(' ').filter(|word| !word.is_empty()).count() - 1,
            Value::Array(list) => list.len() - 1,
            other => panic!("a prompt of {other}"),
        };
        let count = body["max_tokens"].as_u64().expect("max_tokens") as usize;
        let tokens: Vec<String> = (position..position + count).map(|at| format!(" {letter}{at}")).collect();
        let top = |at: usize| {
            if at.is_multiple_of(2) { json!({"a": -0.7, "b": -0.7}) } else { json!({"a": -0.01, "b": -5.0}) }
        };
        let mut choice = json!({"text": tokens.concat(), "finish_reason": "length", "logprobs": {
            "tokens": tokens, "top_logprobs": (position..position + count).map(top).collect::<Vec<_>>()}});
        if ids {
            choice["token_ids"] = (position..position + count).map(|at| at + 100).collect();
            choice["prompt_token_ids"] = json!([7]);
        }
        json!({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": count}})
    })
}

fn trbench(config: &str, endpoints: &[String], more: &[&str]) -> (Output, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name).to_str().expect("utf-8").to_owned();
    std::fs::write(path("config.yaml"), config).expect("writable");
    std::fs::write(path("prompts.jsonl"), "{\"prompt\": \"Hello\"}\n{\"prompt\": \"World\"}\n").expect("writable");
    let mut command = Command::new(env!("CARGO_BIN_EXE_trbench"));
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).stdin(Stdio::null());
    command.args(["run", "--workload", "custom", "--dataset-path", &path("prompts.jsonl"), "-c", &path("config.yaml")]);
    command.args(["--out", &path("out"), "--max-tokens", "9", "--concurrency", "2", "--output", "json"]);
    for endpoint in endpoints {
        command.args(["--endpoint", endpoint]);
    }
    (command.args(more).output().expect("the binary starts"), dir)
}

fn config(routing: &str) -> String {
    format!(
        "models:\n  small: {{emulated: {{latency_ms: 1}}}}\n  large: {{emulated: {{latency_ms: 1}}}}\nrouting: {routing}\n"
    )
}

fn summary(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice::<Value>(&output.stdout).expect("JSON")[0].take()
}

#[test]
fn entropy_decides_token_by_token() {
    for ids in [false, true] {
        let ((small, asked_small), (large, asked_large)) = (mock(words('s', ids)), mock(words('l', ids)));
        let endpoints = [format!("small={small}"), format!("large={large}/v1/")];
        let (output, _dir) =
            trbench(&config("{method: entropy, entropy_threshold: 0.5}"), &endpoints, &["--num-prompts", "1"]);
        let summary = summary(&output);
        assert_eq!((&summary["completed"], &summary["total_output_tokens"]), (&json!(1), &json!(9)));
        // Even positions 0, 2, 4, 6, 8 are borrowed; after the last nothing comes.
        assert_eq!(summary["llm_ratio"].as_f64().map(|share| (share * 9.0).round()), Some(5.0));
        let prompts = |asked: &Mutex<Vec<Value>>| -> Vec<Value> {
            asked.lock().expect("no panic").iter().map(|body| body["prompt"].clone()).collect()
        };
        let (at_small, at_large) = (prompts(&asked_small), prompts(&asked_large));
        assert_eq!((at_small.len(), at_large.len()), (9, 5));
        if ids {
            // Known after the first answer of each server; the prompt of the first request is text.
            assert_eq!((&at_small[0], &at_small[1]), (&json!("Hello"), &json!([7, 100])));
            assert_eq!((&at_large[0], &at_large[1]), (&json!("Hello"), &json!([7, 100, 101])));
        } else {
            assert_eq!(at_large[..2], [json!("Hello"), json!("Hello l0 s1")]);
        }
        assert_eq!(asked_small.lock().expect("no panic")[0]["logprobs"], json!(20));
    }
}

#[test]
fn random_routing_is_that_of_the_engine_and_asks_for_runs() {
    let ((small, asked), (large, _)) = (mock(words('s', false)), mock(words('l', false)));
    let endpoints = [format!("small={small}"), format!("large={large}")];
    let routing = config("{method: random, probability: 0.4}");
    let (output, dir) = trbench(&routing, &endpoints, &["--num-prompts", "2", "--seed", "3", "--model", "small=tiny"]);
    let measured = summary(&output);
    let borrowed = |key: u64| (0..9).filter(|at| draw_unit(3, key, *at, Purpose::Route) < 0.4).count();
    let total = (borrowed(0) + borrowed(1)) as f64;
    assert!(total > 0.0 && total < 18.0, "both models write");
    assert!(measured["llm_ratio"].as_f64().is_some_and(|share| (share * 18.0 - total).abs() < 1e-9), "{measured}");
    // One call for each run at the small model, with the candidate that is dropped at its end.
    let calls = asked.lock().expect("no panic").clone();
    assert!(calls.iter().all(|body| body["model"] == "tiny"));
    let tokens: u64 = calls.iter().filter_map(|body| body["max_tokens"].as_u64()).sum();
    assert_eq!(tokens, 18, "every position is tried once");
    assert!(calls.len() < 18, "runs are asked at once: {}", calls.len());
    let csv = std::fs::read_to_string(dir.path().join("out/result.csv")).expect("result.csv");
    assert_eq!(csv.lines().skip(1).filter(|line| line.contains(",length,")).count(), 2);
}

#[test]
fn an_end_token_ends_the_request_unless_it_is_dropped() {
    // Nothing comes from position 4 on.
    let ending = |letter: char| -> Arc<Answer> {
        let words = words(letter, false);
        Arc::new(move |body| {
            let at = body["prompt"].as_str().expect("a text").split(' ').count() - 1;
            let mut body = body.clone();
            let most = body["max_tokens"].as_u64().expect("max_tokens").min(4u64.saturating_sub(at as u64));
            let stops = json!(most) != body["max_tokens"];
            body["max_tokens"] = json!(most);
            let mut answer = words(&body);
            if stops {
                answer["choices"][0]["finish_reason"] = json!("stop");
            }
            answer
        })
    };
    let ((small, _), (large, _)) = (mock(ending('s')), mock(ending('l')));
    let endpoints = [format!("small={small}"), format!("large={large}")];
    for probability in ["0.0", "0.5", "1.0"] {
        let routing = config(&format!("{{method: random, probability: {probability}}}"));
        let (output, dir) = trbench(&routing, &endpoints, &["--num-prompts", "2"]);
        assert_eq!(summary(&output)["total_output_tokens"], json!(8));
        let csv = std::fs::read_to_string(dir.path().join("out/result.csv")).expect("result.csv");
        assert_eq!(csv.lines().skip(1).filter(|line| line.contains(",stop,")).count(), 2, "{csv}");
    }
}

#[test]
fn errors_name_the_endpoint_and_the_field() {
    let (good, _) = mock(words('s', false));
    let (bad, _) = mock(Arc::new(|_: &Value| json!({"choices": [{"text": "x", "finish_reason": "length"}]})));
    let routing = config("{method: random, probability: 1.0}");
    let (output, _dir) = trbench(&routing, &[format!("small={good}"), format!("large={bad}")], &["--num-prompts", "1"]);
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("endpoint `large`") && message.contains("`choices[0].logprobs.tokens`"), "{message}");
    let (small, large) = (format!("small={good}"), format!("large={good}"));
    for (routing, endpoints, wanted) in [
        ("{method: random}", vec![small.clone()], "model `large` has none"),
        ("{method: random}", vec![small.clone(), "huge=http://x".into()], "unknown model `huge`"),
        ("{method: random}", vec![small.clone(), "large=ftp://x".into()], "ftp://x"),
        ("{method: random}", vec![small.clone(), small.clone()], "second value for `small`"),
        ("{method: random}", vec![good.clone()], "--config"),
        ("{method: aleatoric}", vec![small.clone(), large.clone()], "method `aleatoric`"),
        ("{method: rstitch, entropy_norm: vocab}", vec![small, large], "`nats`"),
    ] {
        let (output, _dir) = trbench(&config(routing), &endpoints, &[]);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{wanted}: {message}");
        assert!(message.contains(wanted), "`{wanted}` is not in: {message}");
    }
}
