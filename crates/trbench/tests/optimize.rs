//! `trbench optimize` from the outside: answers, formats, files, and every kind of bad input.

use assert_cmd::Command;
use serde_json::Value;

const MODEL: [&str; 7] = ["--latencies", "6.0", "27.9", "--P", "[[0.35,0.65],[1,0]]", "--C", "[[1,0],[1,0]]"];

fn optimize(arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::cargo_bin("trbench").expect("the binary is built");
    let output = command.arg("optimize").args(arguments).output().expect("it starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.code().expect("an exit code"), text(output.stdout), text(output.stderr))
}

/// Arguments on the two-model system of the paper.
fn on_model(more: &[&str]) -> (i32, String, String) {
    optimize(&[&MODEL, more].concat())
}

fn json(more: &[&str]) -> Value {
    let (code, out, err) = on_model(&[more, &["--output", "json"]].concat());
    assert_eq!((code, err.as_str()), (0, ""));
    serde_json::from_str(&out).expect("standard output is one JSON object")
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

#[test]
fn the_papers_flags_find_the_best_vector() {
    let found = json(&["--M", "2", "--N", "8", "--delta", "0.1"]);
    let best = &found["best"];
    assert_eq!(best["thresholds"], serde_json::json!([1, 7]));
    assert!((number(&best["throughput_tok_s"]) - 281.8128134192).abs() < 1e-8);
    assert_eq!((best["states"].as_u64(), best["nonzeros"].as_u64()), (Some(18), Some(58)));
    assert!(number(&best["residual"]) <= 1e-12 && best["method"].is_string());
    assert_eq!(found["candidates"].as_array().map(Vec::len), Some(36));
    assert_eq!(found["search"]["exhaustive"], Value::Bool(true));
    assert_eq!(found["model"]["concurrency"].as_u64(), Some(8));
}

#[test]
fn long_names_and_a_config_file_say_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.yaml");
    let yaml = "concurrency: 4\nlatencies_ms: [6.0, 27.9]\nrouting_matrix: [[0.35, 0.65], [1, 0]]\n\
                commit_matrix: [[1, 0], [1, 0]]\nquantum_ms: 0.1\n";
    std::fs::write(&path, yaml).expect("written");
    let config = path.to_str().expect("text");
    let (code, out, _) = optimize(&["--config", config, "--concurrency", "8", "--output", "csv"]);
    assert_eq!(code, 0);
    let mut lines = out.lines();
    assert!(lines.next().is_some_and(|header| header.starts_with("threshold_0,threshold_1,throughput_tok_s,")));
    assert!(lines.next().is_some_and(|line| line.starts_with("1,7,281.8128134")));
    assert_eq!(lines.count(), 35);
    let long = [
        "--latencies-ms",
        "6.0",
        "27.9",
        "--routing-matrix",
        "[[0.35,0.65],[1,0]]",
        "--commit-matrix",
        "[[1,0],[1,0]]",
        "--concurrency",
        "8",
        "--quantum-ms",
        "0.1",
        "--thresholds",
        "1,5",
        "--output",
        "csv",
    ];
    let (code, out, _) = optimize(&long);
    assert!(code == 0 && out.contains("1,5,274.990623"), "{out}");

    std::fs::write(&path, "concurrency: 4\nlatencys_ms: [6.0]\n").expect("written");
    let (code, _, err) = optimize(&["--config", config]);
    assert!(code == 2 && err.contains("latencys_ms"), "{err}");
}

#[test]
fn the_default_output_is_a_short_table() {
    let (code, out, err) = on_model(&["--N", "8", "--top", "3", "--explain", "--certify", "--delta-study", "--table"]);
    assert_eq!((code, err.as_str()), (0, ""));
    for expected in [
        "best thresholds (1,7): 281.8128 tok/s",
        "36 of 36 feasible vectors",
        "and 33 more",
        "no policy above 281.9189",
        "the answer has settled",
        "best thresholds by active requests",
        "1 recurrent, 0 transient states",
    ] {
        assert!(out.contains(expected), "{expected}\n{out}");
    }
}

#[test]
fn additions_appear_in_json() {
    let found = json(&[
        "--N",
        "4",
        "--certify",
        "--table",
        "--delta-study",
        "1e-6",
        "--explain",
        "--latency-error",
        "0.02,0.03",
        "--routing-samples",
        "2000,1300",
        "--draws",
        "40",
        "--max-time-per-token-ms",
        "26",
    ]);
    assert_eq!(found["table"].as_array().map(Vec::len), Some(4));
    assert_eq!(found["within_latency"]["active"].as_u64(), Some(2));
    assert!(number(&found["certificate"]["gap"]) >= -1e-12);
    assert_eq!(found["delta_study"]["converged"], Value::Bool(true));
    assert_eq!(found["chain"]["recurrent_classes"].as_u64(), Some(1));
    assert!(found["uncertainty"].as_array().is_some_and(|list| list.len() >= 2));
}

#[test]
fn files_are_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let (code, _, err) =
        on_model(&["--N", "8", "--plot", &at("plot.svg"), "--export", "prism", "--export-to", &at("chain")]);
    assert_eq!((code, err.as_str()), (0, ""));
    for name in ["chain.tra", "chain.sta", "chain.lab", "chain1.srew", "chain2.srew"] {
        assert!(std::fs::metadata(at(name)).is_ok_and(|file| file.len() > 0), "{name}");
    }
    assert!(std::fs::read_to_string(at("plot.svg")).is_ok_and(|svg| svg.starts_with("<svg") && svg.contains("B_1")));
    for (format, first) in [("drn", "@type: DTMC"), ("dot", "digraph"), ("json", "{")] {
        let path = at(format);
        let (code, ..) = on_model(&["--N", "4", "--thresholds", "1,4", "--export", format, "--export-to", &path]);
        assert!(code == 0 && std::fs::read_to_string(&path).is_ok_and(|text| text.starts_with(first)), "{format}");
    }
    let (code, _, err) = on_model(&["--N", "4", "--plot", &at("no/such/folder.svg")]);
    assert!(code == 1 && err.contains("folder.svg"), "{err}");
}

#[test]
fn latencies_by_batch_size_come_from_json_or_csv() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        format!("@{}", path.display())
    };
    let as_json = write("l.json", r#"[{"1": 6.0, "4": 9.0}, [[1, 27.9], [4, 30.9]]]"#);
    let as_csv = write("l.csv", "model,batch,ms\n0,1,6.0\n0,4,9.0\n1,4,30.9\n1,1,27.9\n");
    let run = |latencies: &str, n: &str| {
        optimize(&["--latencies", latencies, "--P", MODEL[4], "--C", MODEL[6], "--N", n, "--output", "csv"])
    };
    let (a, b) = (run(&as_json, "4"), run(&as_csv, "4"));
    assert_eq!((a.0, &a.1), (0, &b.1));
    let (code, _, err) = run(&as_json, "5");
    assert!(code == 2 && err.contains("the table ends below batch size 5"), "{err}");
    let (code, _, err) = run(&write("bad.json", r#"[{"1": "x"}]"#), "4");
    assert!(code == 2 && err.contains("model 0"), "{err}");
}

#[test]
fn routing_states_are_exact() {
    let glimp = [
        "--latencies",
        "6.0",
        "27.9",
        "--routing-states",
        "0,0,1",
        "--N",
        "1",
        "--delta",
        "0.1",
        "--P",
        "[[0,0.7,0.3],[0.025,0.975,0],[0.02,0,0.98]]",
        "--C",
        "[[0,0,0],[1,1,1],[1,1,1]]",
        "--output",
        "csv",
    ];
    let (code, out, _) = optimize(&glimp);
    // A round: one probe, then 40 tokens at the small model or 50 at the large one.
    let expected = 1000.0 * (0.7 * 40.0 + 0.3 * 50.0) / (6.0 + 0.7 * 40.0 * 6.0 + 0.3 * 50.0 * 27.9);
    let got: f64 = out
        .lines()
        .nth(1)
        .and_then(|line| line.split(',').nth(2))
        .and_then(|text| text.parse().ok())
        .expect("a number");
    assert!(code == 0 && (got / expected - 1.0).abs() < 1e-9, "{got} {expected}");
}

#[test]
fn large_chains_fall_back_and_say_so() {
    let (code, out, _) = on_model(&["--N", "8", "--thresholds", "1,1", "--max-states", "100"]);
    assert!(code == 0 && out.contains("the simulator answered"), "{out}");
    let (code, _, err) = on_model(&["--N", "8", "--thresholds", "1,1", "--max-states", "100", "--exact"]);
    assert!(code == 2 && err.contains("3453 states") && err.contains("limits are 100 states"), "{err}");
}

#[test]
fn bad_input_is_refused_with_code_2() {
    let model = |p: &'static str, more: &[&'static str]| [&["--latencies", "6.0", "27.9", "--P", p], more].concat();
    let good = "[[0.35,0.65],[1,0]]";
    let cases: Vec<(Vec<&str>, &str)> = vec![
        (model("[[0.35,0.6],[1,0]]", &["--N", "8"]), "P row 0: the probabilities sum to 0.95"),
        (model("[[-0.35,1.35],[1,0]]", &["--N", "8"]), "P[0][0]: -0.35"),
        (model("[[0.35,0.65]]", &["--N", "8"]), "P: 1 rows for 2 models"),
        (model("[[0.35,0.65],[1,0,0]]", &["--N", "8"]), "P row 1: 3 numbers"),
        (model("none", &["--N", "8"]), "`--P` is not a matrix of numbers"),
        (model("@/no/such/file", &["--N", "8"]), "`--P`: reading `/no/such/file`"),
        (model(good, &["--N", "8", "--C", "[[1,0],[1,-1]]"]), "C[1][1]: -1"),
        (model(good, &["--N", "8", "--C", "[[0,0],[0,0]]"]), "C: no token is ever committed"),
        (model(good, &["--N", "8", "--C", "[[0,0],[0,1]]"]), "C: no token is ever committed"),
        (model(good, &["--N", "0"]), "concurrency: 0 requests"),
        (model(good, &["--N", "1000000"]), "concurrency: 1000000 requests"),
        (model(good, &["--N", "8", "--delta", "7"]), "quantum 7 ms is larger than the latency 6 ms"),
        (model(good, &["--N", "8", "--delta", "0"]), "quantum: 0 ms"),
        (model(good, &["--N", "8", "--M", "3"]), "`--M` says 3 models"),
        (model(good, &["--N", "8", "--thresholds", "5,5"]), "every model idle with 4 and 4 waiting"),
        (model(good, &["--N", "8", "--thresholds", "1"]), "1 values for 2 models"),
        (model(good, &["--N", "8", "--thresholds", "0,1"]), "0 for model 0"),
        (model(good, &["--N", "8", "--max-wait-ms", "0.001"]), "no feasible threshold vector satisfies"),
        (model(good, &["--N", "8", "--tolerance", "0"]), "`--tolerance` is 0"),
        (model(good, &["--N", "8", "--max-batch", "x,2"]), "`x` is neither a whole number nor `none`"),
        (model(good, &["--N", "8", "--plot", "p.svg", "--plot-over", "4", "--top", "1"]), "`--plot-over` takes"),
        (model(good, &[]), "`--N` is missing"),
        (vec!["--N", "8", "--P", good], "`--latencies` is missing"),
        (vec!["--N", "8", "--latencies", "6.0", "27.9"], "`--P` is missing"),
        (vec!["--N", "8", "--latencies", "0", "27.9", "--P", good], "latency of model 0: 0 ms"),
        (vec!["--N", "8", "--latencies", "nan", "27.9", "--P", good], "latency of model 0: NaN ms"),
        (vec!["--N", "8", "--latencies", "six", "27.9", "--P", good], "`six` is not a number"),
        (vec!["--N", "2", "--latencies", "1", "2", "3", "--P", "[[0,0.5,0.5],[0,1,0],[0,0,1]]"], "3 recurrent classes"),
    ];
    for (arguments, expected) in cases {
        let (code, out, err) = optimize(&arguments);
        assert_eq!((code, out.as_str()), (2, ""), "{arguments:?}: {err}");
        assert!(err.contains(expected), "{arguments:?}: {err}\nexpected {expected}");
    }
}

#[test]
fn latencies_that_lock_in_phase_are_remarked_on() {
    let run = |large: &str, more: &[&str]| {
        let model = ["--latencies", "27.9", large, "--P", MODEL[4], "--N", "8", "--output", "json"];
        let (code, out, err) = optimize(&[&model[..], more].concat());
        assert_eq!(code, 0, "{err}");
        (serde_json::from_str::<Value>(&out).expect("one JSON object"), err)
    };
    let (locked, err) = run("27.9", &[]);
    let best = |found: &Value| {
        (found["best"]["thresholds"].clone(), (10.0 * number(&found["best"]["throughput_tok_s"])).round())
    };
    assert_eq!(best(&locked), (serde_json::json!([1, 1]), 2867.0));
    assert_eq!(locked["sensitivity"]["phase_locked"], Value::Bool(true));
    assert!(
        err.contains("note: the answer hangs on the exact latencies") && err.contains("263.5 tok/s at (4,1)"),
        "{err}"
    );
    let (moved, _) = run("28.0", &[]);
    assert_eq!(best(&moved), (serde_json::json!([4, 1]), 2635.0));
    // One vector by itself is looked at as well.
    let (vector, err) = run("27.9", &["--thresholds", "1,1"]);
    assert!(vector["sensitivity"]["phase_locked"] == Value::Bool(true) && err.contains("at (1,1)"), "{err}");
    // The paper's system does not lock, and what was simulated is not answered so often.
    assert_eq!(json(&["--N", "8"])["sensitivity"]["phase_locked"], Value::Bool(false));
    assert_eq!(json(&["--N", "8", "--thresholds", "1,1", "--max-states", "100"])["sensitivity"], Value::Null);
}

#[test]
fn measured_rows_of_p_are_scaled_and_others_refused() {
    let run = |p: &str| optimize(&["--latencies", "6.0", "27.9", "--N", "3", "--P", p, "--C", MODEL[6]]);
    let (code, out, _) = run("[[0.3501,0.6503],[1,0]]");
    assert!(code == 0 && out.contains("P row 0: the probabilities sum to 1.0004"), "{out}");
    let (code, _, err) = run("[[0.35,0.652],[1,0]]");
    assert!(code == 2 && err.contains("P row 0"), "{err}");
}

#[test]
fn no_number_without_convergence() {
    let (code, out, err) =
        on_model(&["--N", "8", "--thresholds", "1,1", "--method", "power", "--max-iterations", "10"]);
    assert!(code == 1 && out.is_empty() && err.contains("did not converge"), "{err}");
}

#[test]
fn remarks_accompany_odd_models() {
    let note =
        |p: &str, more: &[&str]| optimize(&[&["--latencies", "6.0", "27.9", "--N", "3", "--P", p], more].concat()).1;
    assert!(note("[[1,0],[0,1]]", &[]).contains("never reached"));
    assert!(note("[[0.5,0.5],[0,1]]", &["--thresholds", "1,1"]).contains("never return"));
    assert!(note("[[0,1],[1,0]]", &[]).contains("routing is deterministic"));
    assert!(note("[[0.35,0.65],[1,0]]", &["--delta", "5"]).contains("rounded by -16.67 %"));
    assert!(note("[[0.35,0.65],[1,0]]", &[]).contains("every step commits one token"));
}
