//! Data sets: those that ship, public formats, the commands, and the order in which turns are sent.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use trbench::dataset::{BuiltIn, Kind, Source, load};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
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

fn shipped(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(root().join("datasets").join(name)).expect(name);
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
}

#[test]
fn the_shipped_sessions_follow_the_public_schema() {
    let records = shipped("swe_style.jsonl");
    assert!(records.len() >= 20, "{} sessions", records.len());
    let mut instances = HashSet::new();
    let mut resolved = 0;
    for record in &records {
        let keys: Vec<_> = record.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(keys, ["messages", "instance_id", "resolved", "model", "traj_id", "patch"]);
        let instance = record["instance_id"].as_str().expect("text");
        assert!(instances.insert(instance), "{instance} comes twice");
        assert!(record["traj_id"].as_str().expect("text").starts_with(instance));
        resolved += usize::from(record["resolved"].as_bool().expect("true or false"));
        assert!(record["patch"].as_str().expect("text").starts_with("diff --git "), "{instance}");
        let messages = record["messages"].as_array().expect("a list");
        let roles: Vec<_> = messages.iter().map(|message| message["role"].as_str().expect("text")).collect();
        let turns = (roles.len() - 1) / 2;
        assert!((6..=14).contains(&turns), "{instance}: {turns} turns");
        let expected = ["system"].into_iter().chain(["user", "assistant"].into_iter().cycle().take(2 * turns));
        assert_eq!(roles, expected.collect::<Vec<_>>(), "{instance}");
        let lengths = messages.iter().map(|message| message["content"].as_str().expect("text").len());
        assert!(lengths.clone().all(|length| length > 0), "{instance}");
        // What the last turn reads: 2,000 to 12,000 tokens, at three to four characters each.
        let input: usize = lengths.take(roles.len() - 1).sum();
        assert!((8_000..36_000).contains(&input), "{instance}: {input} characters");
    }
    assert!((1..records.len()).contains(&resolved), "some are resolved, some are not");
}

#[test]
fn the_shipped_sets_load_with_all_their_turns() {
    let (_, problems) = load(&Source::BuiltIn(BuiltIn::AimeStyle), None).expect("problems");
    assert_eq!(problems.len(), shipped("aime_style.jsonl").len());
    let answers = problems.iter().map(|session| session.turns[0].answer);
    assert!(answers.clone().all(|answer| answer.is_some_and(|n| (0..1000).contains(&n))));

    let records = shipped("swe_style.jsonl");
    let (_, sessions) = load(&Source::BuiltIn(BuiltIn::SweStyle), None).expect("sessions");
    assert_eq!(sessions.len(), records.len());
    for (session, record) in sessions.iter().zip(&records) {
        let messages = record["messages"].as_array().expect("a list");
        assert_eq!(session.turns.len(), (messages.len() - 1) / 2);
        for turn in &session.turns {
            let recorded = turn.recorded().expect("every turn was recorded");
            assert_eq!(recorded.content, messages[turn.messages().len()]["content"].as_str().expect("text"));
        }
    }
}

#[test]
fn the_sessions_are_what_their_generator_makes() {
    let script = root().join("datasets/make_swe_style.py");
    let output = Command::new("python3").arg(script).arg("--check").output().expect("python3 starts");
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

/// Files written by another implementation (pyarrow), with three ways of compression and of writing messages.
#[test]
fn parquet_files_of_another_writer_are_read() {
    let source = |name: &str, kinds| Source::File(fixture(name), kinds);
    let (_, problems) = load(&source("aime_list.zstd.parquet", &[Kind::Problem]), None).expect("problems");
    let found: Vec<_> = problems
        .iter()
        .map(|s| (s.id.as_str(), s.turns[0].messages()[0].content.as_str(), s.turns[0].answer))
        .collect();
    assert_eq!(
        found,
        [("2024-I-1", "What is $2+2$?", Some(4)), ("2024-I-2", "Find $x$ with $x^2=49$, $x>0$.", Some(7))]
    );
    let read = |name| load(&source(name, &[Kind::Trajectory]), None).expect(name).1;
    let sessions = read("swe_messages_list.snappy.parquet");
    let turns: Vec<_> = sessions.iter().map(|s| (s.id.as_str(), s.turns.len())).collect();
    assert_eq!(turns, [("a__b.1.x", 2), ("c__d.2.y", 1)]);
    assert_eq!(sessions[1].turns[0].messages()[0].content, "grüß dich");
    assert_eq!(sessions, read("swe_messages_text.plain.parquet"));
}

#[test]
fn damaged_parquet_files_are_errors() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("x.parquet");
    let source = Source::File(path.clone(), &Kind::ALL);
    for name in ["aime_list.zstd.parquet", "swe_messages_list.snappy.parquet"] {
        let bytes = std::fs::read(fixture(name)).expect(name);
        for cut in (0..bytes.len()).step_by(97) {
            std::fs::write(&path, &bytes[..cut]).expect("written");
            let error = load(&source, None).expect_err("cut off").to_string();
            assert!(error.contains("x.parquet: not a readable Parquet file"), "{error}");
        }
        for at in (0..bytes.len()).step_by(7) {
            let mut changed = bytes.clone();
            changed[at] ^= 0x55;
            std::fs::write(&path, &changed).expect("written");
            // Some changes stay unnoticed; none may end the program.
            let _any = load(&source, None);
        }
    }
}

#[test]
fn check_reports_what_a_file_holds() {
    let output = run(&["datasets", "check", "datasets/swe_style.jsonl"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let out = text(&output.stdout);
    let count = shipped("swe_style.jsonl").len();
    for expected in [
        "datasets/swe_style.jsonl: JSONL (SWE-smith trajectories)".to_owned(),
        format!("sessions: {count}, requests: "),
        format!("fields: id from `traj_id` ({count}), messages from `messages` ({count})"),
        "characters of a prompt".to_owned(),
    ] {
        assert!(out.contains(&expected), "{expected}\n{out}");
    }
    let list = text(&run(&["datasets", "list"]).stdout);
    assert!(list.contains("aime (datasets/aime_style.jsonl)") && list.contains("swe-smith"), "{list}");
}

#[test]
fn check_names_every_bad_line() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("set.jsonl");
    let path = path.to_str().expect("utf-8");
    std::fs::write(path, "{\"problem\": \"A\", \"answer\": 1}\n{\"problem\": 7}\nnope\n").expect("written");
    let output = run(&["datasets", "check", path]);
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(error.contains("2 of 3 records are not valid"), "{error}");
    assert!(error.contains("set.jsonl:2: field `problem` is `7`, expected text"), "{error}");
    assert!(error.contains("set.jsonl:3: not valid JSON"), "{error}");
    std::fs::write(path, b"{\"problem\": \"A\"}\n\xff\n").expect("written");
    assert!(text(&run(&["datasets", "check", path]).stderr).contains("set.jsonl:2: byte 17 of the file is not UTF-8"));
    assert_eq!(run(&["datasets", "check", "nowhere.jsonl"]).status.code(), Some(2));
}

#[test]
fn workloads_refuse_what_does_not_go_together() {
    for (args, expected) in [
        (vec!["--workload", "custom"], "--workload custom needs --dataset-path"),
        (vec!["--workload", "random"], "--workload random needs --input-len"),
        (vec!["--workload", "aime", "--input-len", "5"], "--input-len is for `--workload random`"),
        (vec!["--workload", "random", "--input-len", "5-1"], "a range such as `256-1024`"),
        (vec!["--workload", "random", "--input-len", "5", "--dataset-path", "x"], "--dataset-path does not go with it"),
        (vec!["--workload", "aime", "--dataset-path", "datasets/swe_style.jsonl"], "holds SWE-smith trajectories"),
    ] {
        let output = trbench(&["run", "-c", "config/random/emulated.yaml"]).args(&args).output().expect("starts");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(expected), "{args:?}: {}", text(&output.stderr));
    }
}

#[test]
fn random_prompts_have_their_lengths() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().to_str().expect("utf-8");
    let args = ["run", "-c", "config/random/emulated.yaml", "--workload", "random", "--input-len", "40"];
    let output =
        trbench(&args).args(["--num-prompts", "3", "--max-tokens", "4", "--out", out]).output().expect("starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows = trbench::results::read_records(&dir.path().join("result.csv")).expect("rows");
    assert_eq!(rows.iter().map(|row| row.item.as_str()).collect::<Vec<_>>(), ["random-0", "random-1", "random-2"]);
    // Emulated models count four characters of the text as a token; the words have about five, with their space.
    assert!(rows.iter().all(|row| row.prompt_tokens.is_some_and(|n| (40..80).contains(&n))), "{rows:?}");
}

/// What a server saw, to judge the order of the requests.
#[derive(Default)]
struct Seen {
    /// Number of messages of the last request, by session.
    last: HashMap<String, usize>,
    active: HashSet<String>,
    most_active: usize,
    wrong: Vec<String>,
    requests: usize,
}

/// Answers one chat completion; holds it until a second one is there, so that requests do overlap.
fn answer(stream: TcpStream, shared: &(Mutex<Seen>, Condvar)) {
    let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
    let mut length = 0;
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|n| n > 2) {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a number");
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    let messages = body["messages"].as_array().expect("a list");
    let session = messages[1]["content"].as_str().expect("the issue").to_owned();
    let (lock, arrived) = shared;
    let mut seen = lock.lock().expect("not poisoned");
    seen.requests += 1;
    let last = seen.last.insert(session.clone(), messages.len()).unwrap_or(0);
    if messages.len() != last + 2 || !seen.active.insert(session.clone()) {
        seen.wrong.push(format!("{} messages after {last}", messages.len()));
    }
    seen.most_active = seen.most_active.max(seen.active.len());
    arrived.notify_all();
    let alone = |seen: &mut Seen| seen.active.len() < 2 && seen.wrong.is_empty();
    let (mut seen, _) = arrived.wait_timeout_while(seen, Duration::from_millis(300), alone).expect("not poisoned");
    seen.active.remove(&session);
    drop(seen);
    let chunk = json!({"choices": [{"delta": {"content": "ok"}, "finish_reason": "stop"}]});
    let reply = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\ndata: {chunk}\n\ndata: [DONE]\n\n"
    );
    let _client_may_be_gone = (&stream).write_all(reply.as_bytes());
}

#[test]
fn turns_of_a_session_follow_each_other() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let shared = Arc::new((Mutex::new(Seen::default()), Condvar::new()));
    let for_server = Arc::clone(&shared);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let shared = Arc::clone(&for_server);
            std::thread::spawn(move || answer(stream, &shared));
        }
    });
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().to_str().expect("utf-8");
    let output = run(&[
        "run",
        "--endpoint",
        &url,
        "--workload",
        "swe-smith",
        "--num-prompts",
        "5",
        "--concurrency",
        "3",
        "--max-tokens",
        "4",
        "--out",
        out,
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let turns: usize =
        shipped("swe_style.jsonl")[..5].iter().map(|r| (r["messages"].as_array().map_or(0, Vec::len) - 1) / 2).sum();
    let seen = shared.0.lock().expect("not poisoned");
    assert_eq!((seen.requests, &seen.wrong), (turns, &Vec::new()));
    assert!(seen.most_active >= 2, "sessions run beside each other");
    let rows = trbench::results::read_records(&dir.path().join("result.csv")).expect("rows");
    assert_eq!(rows.len(), turns);
    for pair in rows.windows(2) {
        let expected = if pair[0].item == pair[1].item { pair[0].turn + 1 } else { 1 };
        assert_eq!(pair[1].turn, expected, "ids are in the order of the sessions and their turns");
    }
}

/// Serves one file under any path, cut off after `most` bytes.
fn file_server(body: Vec<u8>, most: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(&stream);
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|n| n > 2) {
                line.clear();
            }
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            let _client_may_be_gone = (&stream).write_all(head.as_bytes());
            let _client_may_be_gone = (&stream).write_all(&body[..most.min(body.len())]);
        }
    });
    format!("http://{address}")
}

fn fetch(cache: &Path, name: &str, url: &str, sha256: &str) -> Output {
    let mut command = trbench(&["datasets", "fetch", name, "--url", url, "--sha256", sha256]);
    command.env("TRBENCH_CACHE", cache).output().expect("the binary starts")
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir.join("datasets")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

#[test]
fn fetched_files_are_verified_and_nothing_partial_stays() {
    let cache = tempfile::tempdir().expect("a folder");
    let body = std::fs::read(fixture("aime_list.zstd.parquet")).expect("the fixture");
    let sha256 = hex::encode(Sha256::digest(&body));
    let good = format!("{}/train.parquet", file_server(body.clone(), usize::MAX));
    let cut = format!("{}/train.parquet", file_server(body.clone(), 700));
    let zeros = "0".repeat(64);
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let closed = format!("http://127.0.0.1:{port}/train.parquet");
    for (name, url, sum, code, expected) in [
        ("aime", good.as_str(), zeros.as_str(), 1, "expected 000000"),
        ("aime", &cut, &sha256, 1, "nothing was stored"),
        ("aime", &closed, &sha256, 1, "without a network, copy the file here"),
        ("swe-smith", &good, &sha256, 2, "it holds problems, `swe-smith` means SWE-smith trajectories"),
        ("aime", &good, "abc", 2, "expected 64 hexadecimal digits"),
        ("aime", "ftp://x/y.json", &sha256, 2, "allowed are `https://`"),
        ("aime", "hf://datasets/owner", &sha256, 2, "expected `hf://datasets/OWNER/NAME/PATH`"),
        ("aime", "http://127.0.0.1:1/x.zip", &sha256, 2, "does not end like a data set"),
    ] {
        let output = fetch(cache.path(), name, url, sum);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{url}: {error}");
        assert!(error.contains(expected), "{url}: {error}");
        assert_eq!(files_below(cache.path()), Vec::<PathBuf>::new(), "{url}");
    }
    let output = fetch(cache.path(), "aime", &good, &sha256.to_uppercase());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let path = PathBuf::from(text(&output.stdout).trim());
    assert_eq!(std::fs::read(&path).expect("the file"), body);
    assert_eq!(files_below(cache.path()), vec![path.clone()]);
    let list = trbench(&["datasets", "list"]).env("TRBENCH_CACHE", cache.path()).output().expect("starts");
    assert!(text(&list.stdout).contains(&format!("fetched: {}", path.display())));
}

#[test]
fn hub_addresses_are_built_from_the_endpoint() {
    let cache = tempfile::tempdir().expect("a folder");
    let body = b"{\"problem\": \"A?\", \"answer\": 1}\n".to_vec();
    let sha256 = hex::encode(Sha256::digest(&body));
    let hub = file_server(body, usize::MAX);
    let url = "hf://datasets/owner/name@v1/data/train.jsonl";
    let mut command = trbench(&["datasets", "fetch", "aime", "--url", url, "--sha256", &sha256]);
    let output = command.env("TRBENCH_CACHE", cache.path()).env("HF_ENDPOINT", &hub).output().expect("starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let wrong = command.args(["--url", "x"]).output().expect("starts");
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn answers_that_cannot_be_graded_are_counted_aloud() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("set.jsonl");
    let path = path.to_str().expect("utf-8");
    let rows = [
        r#"{"problem": "A", "answer": "336^\\circ"}"#,
        r#"{"problem": "B", "answer": "\\frac{1}{2}"}"#,
        r#"{"problem": "C", "solution": "We see that $\\boxed{7}$."}"#,
        r#"{"problem": "D", "solution": "Left to the reader."}"#,
        r#"{"problem": "E"}"#,
    ];
    std::fs::write(path, rows.join("\n")).expect("written");
    let (_, sessions) = load(&Source::File(path.into(), &[Kind::Problem]), None).expect("problems");
    let found: Vec<_> = sessions.iter().map(|s| (s.turns[0].answer, s.turns[0].ungradable)).collect();
    assert_eq!(found, [(Some(336), false), (None, true), (Some(7), false), (None, true), (None, false)]);
    let output = run(&["datasets", "check", path]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("answers that are no integers: 2;"), "{}", text(&output.stdout));
    let out = dir.path().join("out");
    let out = out.to_str().expect("utf-8");
    let emulated = "config/random/emulated.yaml";
    let args =
        ["run", "-c", emulated, "--dataset-path", path, "--max-tokens", "2", "--output-dir", out, "--output", "json"];
    let output = run(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("2 of 5 answers are no integers"), "{}", text(&output.stderr));
    let summary: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(summary[0]["ungradable"], 2);
}

#[test]
fn a_data_set_without_rows_fails_the_check() {
    let dir = tempfile::tempdir().expect("a folder");
    for (name, content) in [("a.jsonl", ""), ("b.json", "[]"), ("c.json", r#"{"data": []}"#), ("d.jsonl", "\n \n")] {
        let path = dir.path().join(name);
        std::fs::write(&path, content).expect("written");
        let output = run(&["datasets", "check", path.to_str().expect("utf-8")]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name}: {error}");
        assert!(error.contains(name) && error.contains("the data set is empty"), "{error}");
    }
}
