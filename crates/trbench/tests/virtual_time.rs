//! `trbench run --virtual-time`: results like those of any run, marked, the same to the last byte, in no time.

mod common;

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value, json};

use common::{EMULATED, text, trbench};

/// A run in virtual time into a fresh folder.
fn run(args: &[&str]) -> (tempfile::TempDir, Output) {
    let dir = tempfile::tempdir().expect("a folder");
    let mut all = vec!["run", "--virtual-time", "-c", EMULATED, "--overwrite", "--out", path(dir.path())];
    all.extend(args);
    let output = trbench(&all);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    (dir, output)
}

fn path(path: &Path) -> &str {
    path.to_str().expect("utf-8")
}

fn read(path: PathBuf) -> String {
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn summary(dir: &Path) -> Value {
    serde_json::from_str(&read(dir.join("summary.json"))).expect("JSON")
}

fn column(dir: &Path, name: &str) -> Vec<f64> {
    let rows = read(dir.join("result.csv"));
    let mut rows = rows.lines();
    let at = rows.next().expect("a head").split(',').position(|heading| heading == name).expect("a column");
    rows.map(|row| row.split(',').nth(at).expect("a cell").parse().expect("a number")).collect()
}

#[test]
fn rows_are_exact_and_marked_everywhere() {
    let load = ["--workload", "random", "--input-len", "4", "--system", "single:large", "--concurrency", "2"];
    let (dir, output) = run(&[&load[..], &["--num-prompts", "8", "--max-tokens", "100"]].concat());
    assert!(text(&output.stdout).contains("emulated, virtual time"), "{}", text(&output.stdout));
    let summary = summary(dir.path());
    assert_eq!((&summary["emulated"], &summary["virtual_time"]), (&json!(true), &json!(true)));
    assert_eq!((&summary["server_info"]["virtual_time"], &summary["completed"]), (&json!(true), &json!(8)));
    // Both prompts fit into a step and cost nothing.
    for (name, expected) in [("ttft_ms", 27.9), ("tpot_ms", 27.9), ("e2el_ms", 2790.0), ("client_lag_ms", 0.0)] {
        for value in column(dir.path(), name) {
            assert!((value - expected).abs() < 0.001, "{name}: {value}");
        }
    }
    assert!((summary["duration"].as_f64().expect("a number") - 4.0 * 2.79).abs() < 1e-9);
    assert!((summary["output_throughput"].as_f64().expect("a number") - 2.0 / 0.0279).abs() < 1e-6);
    assert_eq!((&summary["models"][0]["steps"], &summary["models"][0]["mean_batch"]), (&json!(400), &json!(2.0)));
    assert_eq!(summary["client_busy"], json!(0.0));
    let manifest: Value = serde_json::from_str(&read(dir.path().join("manifest.json"))).expect("JSON");
    assert_eq!(manifest["spec"]["virtual-time"], json!(true));
    for format in ["table", "md", "csv", "json"] {
        let report = trbench(&["report", path(dir.path()), "--output", format]);
        let says = text(&report.stdout);
        assert!(says.contains("virtual time") || says.contains("virtual_time"), "{format}: {says}");
    }
    // Real and virtual time are not the same measurement.
    let real = tempfile::tempdir().expect("a folder");
    let mut real_args = vec!["run", "-c", EMULATED, "--overwrite", "--out", path(real.path())];
    real_args.extend(load);
    real_args.extend(["--num-prompts", "8", "--max-tokens", "100"]);
    assert!(trbench(&real_args).status.success());
    let compared = trbench(&["compare", path(dir.path()), path(real.path())]);
    let says = format!("{}{}", text(&compared.stderr), text(&compared.stdout));
    assert!(says.contains("virtual-time"), "{says}");
}

#[test]
fn all_systems_at_all_concurrencies_are_equal_to_the_last_byte() {
    let systems = "single:large,lockstep,standard,async-no-resume,async,delayed";
    let loads: [&[&str]; 3] =
        [&[], &["--request-rate", "5", "--burstiness", "0.25"], &["--workload", "random", "--input-len", "300-600"]];
    for load in loads {
        let mut args = vec!["--system", systems, "--concurrency", "1,4,16", "--num-prompts", "24", "--ignore-eos"];
        args.extend([
            "--max-tokens",
            "48",
            "--warmup",
            "3",
            "--seed",
            "5",
            "--percentile-metrics",
            "ttft,tpot,itl,e2el",
        ]);
        args.extend(load);
        let ((first, _), (second, _)) = (run(&args), run(&args));
        let cells = |dir: &Path| -> Vec<PathBuf> {
            let folders = std::fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path());
            let mut cells: Vec<_> = folders.filter(|path| path.is_dir()).collect();
            cells.sort();
            cells
        };
        let (first, second) = (cells(first.path()), cells(second.path()));
        assert_eq!((first.len(), second.len()), (18, 18));
        for (a, b) in first.iter().zip(&second) {
            for file in ["result.csv", "summary.json"] {
                assert_eq!(read(a.join(file)), read(b.join(file)), "{}, {file}", a.display());
            }
            let summary = summary(a);
            assert_eq!((&summary["completed"], &summary["total_output_tokens"]), (&json!(24), &json!(24 * 48)));
        }
        // Whoever steps the models, the requests are the same ones.
        let handoffs = |system: &str| {
            let cell = first.iter().find(|path| path.ends_with(system) || path.to_string_lossy().contains(system));
            column(cell.unwrap_or_else(|| panic!("no cell {system}")), "handoffs").iter().sum::<f64>()
        };
        let routed = handoffs("async-c4");
        assert!(routed > 0.0);
        for system in ["lockstep-c4", "standard-c16", "async-no-resume-c1", "delayed-c16"] {
            assert_eq!(handoffs(system), routed, "{system}");
        }
    }
}

#[test]
fn an_open_loop_arrives_when_it_should_and_does_not_wait() {
    let args = ["--system", "single:large", "--num-prompts", "20", "--max-tokens", "10", "--rate", "1000"];
    let (dir, _) = run(&[&args[..], &["--concurrency", "20", "--workload", "random", "--input-len", "4"]].concat());
    let (starts, lags) = (column(dir.path(), "start_ms"), column(dir.path(), "client_lag_ms"));
    assert!(starts.windows(2).all(|pair| pair[0] < pair[1]) && starts[0] > 0.0, "{starts:?}");
    assert!(lags.iter().all(|lag| *lag == 0.0), "{lags:?}");
    // One is stepped at once and alone; the others wait for the end of that step or of a later one, never longer.
    let first = column(dir.path(), "ttft_ms");
    assert!((first[0] - 27.9).abs() < 0.001, "{first:?}");
    assert!(first.iter().all(|ms| *ms < 2.0 * 27.9 + 0.001), "{first:?}");
}

#[test]
fn steps_and_timelines_are_written_in_virtual_time() {
    let (dir, _) = run(&["--num-prompts", "3", "--max-tokens", "10", "--trace", "--timeline"]);
    let steps: Vec<Value> =
        read(dir.path().join("trace.jsonl")).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(steps.len(), 3);
    let timeline: Value = serde_json::from_str(&read(dir.path().join("timeline.json"))).expect("JSON");
    let events = timeline["traceEvents"].as_array().expect("events");
    let forward: Vec<&Value> = events.iter().filter(|event| event["name"] == "forward").collect();
    let steps: u64 = (summary(dir.path())["models"].as_array().expect("models").iter())
        .map(|model| model["steps"].as_u64().expect("a number"))
        .sum();
    assert_eq!(forward.len() as u64, steps);
    assert!(forward.iter().all(|event| [6000.0, 27_900.0].contains(&event["dur"].as_f64().expect("a number"))));
    // A replay of the decisions gives the same result.
    let replay = dir.path().to_str().expect("utf-8");
    let (again, _) = run(&["--num-prompts", "3", "--max-tokens", "10", "--seed", "3", "--replay", replay]);
    assert_eq!(read(again.path().join("result.csv")), read(dir.path().join("result.csv")));
}

#[test]
fn what_computes_is_refused_and_so_are_servers() {
    let refused = trbench(&["run", "--virtual-time", "--num-prompts", "1"]);
    let says = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{says}");
    assert!(says.contains("--virtual-time needs emulated models") && says.contains("model `"), "{says}");
    let refused = trbench(&["run", "--virtual-time", "--endpoint", "http://127.0.0.1:1"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
}

/// The cell's interval of throughput over trials holds what the chain predicts.
#[test]
fn throughput_is_what_the_throughput_model_predicts() {
    let set = ["--set", "routing.probability=0.3", "--system", "async", "--concurrency", "4"];
    let load = ["--num-prompts", "16", "--repeats", "4", "--max-tokens", "1024", "--ignore-eos", "--trials", "4"];
    let (dir, _) = run(&[&set[..], &load].concat());
    let interval = summary(dir.path())["intervals"]["output_throughput"].clone();
    let measured = ["low", "high"].map(|end| interval[end].as_f64().expect("an interval"));
    let system = tokenrouter_dtmc::System {
        commits: Some(vec![vec![1.0, 0.0], vec![1.0, 0.0]]),
        ..tokenrouter_dtmc::System::new([6.0, 27.9], vec![vec![0.7, 0.3], vec![1.0, 0.0]])
    };
    let predicted = trbench::predict::prediction(&system, 4, &[1, 1]).expect("small").throughput_tok_s();
    // The ends of a finite run have fewer requests in flight: half a request's time of sixteen.
    let mean = f64::midpoint(measured[0], measured[1]);
    assert!((mean / predicted - 1.0).abs() < 0.02, "measured {measured:?}, predicted {predicted}");
}
