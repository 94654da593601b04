//! `trbench simulate` and `trbench soak`, briefly.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn trbench(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trbench"));
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    command.args(args).stdin(Stdio::null()).output().expect("the binary starts")
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_simulation_holds_and_says_what_it_saw() {
    let output = trbench(&["simulate", "--seeds", "300", "--seed", "1000", "--output", "json"]);
    let report = json(&output);
    assert!(output.status.success(), "{report}");
    assert_eq!((&report["seeds"], &report["violation"]), (&300.into(), &Value::Null));
    for seen in
        ["requests_completed", "requests_failed_by_loss", "messages_repeated", "messages_duplicated", "peer_losses"]
    {
        assert!(report[seen].as_u64() > Some(0), "{seen}: {report}");
    }
}

#[test]
fn faults_and_requests_can_be_chosen() {
    let output = trbench(&[
        "simulate",
        "--seeds",
        "1",
        "--seed",
        "5",
        "--faults",
        "none",
        "--requests",
        "0",
        "--output",
        "json",
    ]);
    let report = json(&output);
    assert!(output.status.success(), "{report}");
    let ended = ["requests_completed", "requests_failed_by_loss"].map(|name| report[name].as_u64());
    assert_eq!(ended, [Some(1), Some(0)]);
    let output = trbench(&["simulate", "--faults", "los"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no fault `los`; there are delay, loss"));
}

#[test]
fn a_soak_keeps_its_promises_and_a_full_queue_refuses() {
    let output = trbench(&[
        "soak",
        "--config",
        "config/random/emulated.yaml",
        "--duration",
        "4s",
        "--measure",
        "1s",
        "--max-tokens",
        "4",
        "--max-queued",
        "4",
        "--queue-timeout",
        "2s",
        "--output",
        "json",
    ]);
    let report = json(&output);
    assert!(output.status.success(), "{report}");
    for seen in ["completed", "refused", "cancelled", "hostile"] {
        assert!(report[seen].as_u64() > Some(0), "{seen}: {report}");
    }
    for none in ["lost", "doubled", "wrong", "failed", "held_blocks", "open_requests"] {
        assert_eq!(report[none], 0, "{none}: {report}");
    }
}
