//! `trbench run` as an instrument: replayed decisions, open loops, trials, interrupted runs, comparisons.

mod common;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use common::{EMULATED, text, trbench};

/// A run on the emulated pair into a fresh folder.
fn run(args: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("run");
    let mut all = vec!["run", "-c", EMULATED, "--out", out.to_str().expect("utf-8")];
    all.extend(args);
    let output = trbench(&all);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    (dir, out)
}

fn summary(dir: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(dir.join("summary.json")).expect("summary.json")).expect("JSON")
}

fn lines(dir: &Path, name: &str) -> Vec<String> {
    std::fs::read_to_string(dir.join(name)).expect(name).lines().map(str::to_owned).collect()
}

fn column(dir: &Path, name: &str) -> Vec<String> {
    let rows = lines(dir, "result.csv");
    let at = rows[0].split(',').position(|heading| heading == name).unwrap_or_else(|| panic!("no column {name}"));
    rows[1..].iter().map(|row| row.split(',').nth(at).expect("a cell").to_owned()).collect()
}

#[test]
fn replayed_decisions_are_those_of_the_record_in_every_system() {
    let base = ["--num-prompts", "5", "--max-tokens", "12", "--concurrency", "4", "--trace"];
    let with = |more: &[&str]| run(&[&base[..], more].concat());
    // Scores are what a method computed; a replay computes none.
    let steps = |dir: &Path| -> Vec<Value> {
        let mut traces: Vec<Value> =
            lines(dir, "trace.jsonl").iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        for step in traces.iter_mut().flat_map(|trace| trace["steps"].as_array_mut().expect("steps")) {
            step["score"] = Value::Null;
        }
        traces
    };
    let (_keep, recorded) = with(&["--system", "async"]);
    let wanted = steps(&recorded);
    let (_other, other) = with(&["--system", "async", "--seed", "5"]);
    assert_ne!(steps(&other), wanted, "another seed gives other decisions");
    let replay = recorded.to_str().expect("utf-8");
    for system in ["async", "async-no-resume", "delayed", "lockstep", "standard"] {
        let (_dir, out) = with(&["--system", system, "--seed", "5", "--warmup", "3", "--replay", replay]);
        assert_eq!(steps(&out), wanted, "{system}");
    }
    for (args, wanted) in [
        (vec!["--num-prompts", "6", "--replay", replay], "request 5 of 6 was not recorded"),
        (vec!["--system", "single:large", "--replay", replay], "recorded with the models small, large"),
        (vec!["--replay", "no/such/run"], "no/such/run"),
    ] {
        let args = [&["run", "-c", EMULATED, "--num-prompts", "1", "--concurrency", "4"][..], &args[..]].concat();
        // The last of two equal flags would be refused.
        let args: Vec<_> = if args.iter().filter(|arg| **arg == "--num-prompts").count() > 1 {
            [&args[..3], &args[5..]].concat()
        } else {
            args
        };
        let output = trbench(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(wanted), "{args:?}: {}", text(&output.stderr));
    }
}

#[test]
fn trials_have_intervals_and_comparisons_respect_them() {
    let base = ["--num-prompts", "4", "--max-tokens", "8", "--concurrency", "4", "--trials", "2", "--warmup", "2"];
    let (_a, a) = run(&[&base[..], &["--system", "single:large", "--slo-ttft-ms", "60000"]].concat());
    let (_b, b) = run(&[&base[..], &["--system", "single:small"]].concat());
    let measured = summary(&a);
    assert_eq!((&measured["completed"], &measured["total_output_tokens"]), (&json!(8), &json!(64)));
    assert_eq!(measured["trials"].as_array().map(Vec::len), Some(2));
    assert_eq!((&measured["warmup"], &measured["load"]), (&json!(2), &json!("closed loop")));
    let mean = &measured["intervals"]["output_throughput"];
    let number = |key: &str| mean[key].as_f64().expect("a number");
    assert!(number("low") < number("mean") && number("mean") < number("high"));
    assert!(measured["request_goodput"].as_f64().is_some_and(|rate| rate > 0.0));
    assert_eq!(column(&a, "trial"), ["0", "0", "0", "0", "1", "1", "1", "1"]);
    // Warm-up steps are not counted: 8 requests of 8 tokens, one row for each.
    let tokens: u64 = 64;
    let steps = measured["models"][0]["transitions"].as_u64().expect("transitions");
    assert_eq!(steps, tokens - 8, "the last step of a request goes nowhere");

    let path = |dir: &Path| dir.to_str().expect("utf-8").to_owned();
    let compare = |a: &Path, b: &Path, format: &str| {
        let output = trbench(&["compare", &path(a), &path(b), "--output", format]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let lines: Vec<Value> = serde_json::from_str(&compare(&a, &b, "json")).expect("JSON");
    assert_eq!(
        lines.iter().map(|line| line["metric"].as_str().expect("a name")).collect::<Vec<_>>(),
        ["output_throughput", "mean_tpot_ms", "mean_ttft_ms"]
    );
    // Step times of 6.0 against 27.9 ms.
    assert!(lines[0]["percent"].as_f64().is_some_and(|percent| percent > 0.0), "{}", lines[0]);
    assert!(compare(&a, &a, "md").contains("no difference shown"));
}

#[test]
fn an_open_loop_keeps_its_times_of_arrival() {
    let args =
        ["--num-prompts", "6", "--max-tokens", "4", "--concurrency", "4", "--rate", "40", "--arrivals", "gamma:2"];
    let ((_a, a), (_b, b)) = (run(&args), run(&args));
    let times = column(&a, "start_ms");
    assert_eq!(times, column(&b, "start_ms"), "a function of the seed");
    let times: Vec<f64> = times.iter().map(|time| time.parse().expect("a number")).collect();
    assert!(times.windows(2).all(|pair| pair[0] <= pair[1]) && times[0] > 0.0, "{times:?}");
    let measured = summary(&a);
    assert_eq!((&measured["load"], &measured["label"]), (&json!("open loop, 40/s, gamma:2"), &json!("config-c4-r40")));
    assert!(measured["max_client_lag_ms"].is_number() && measured["client_busy"].is_number());
}

#[test]
fn a_run_is_continued_where_it_was_interrupted() {
    let args = ["--num-prompts", "6", "--max-tokens", "6", "--concurrency", "4"];
    let (_dir, out) = run(&args);
    let csv = out.join("result.csv");
    let whole = lines(&out, "result.csv");
    // As an interruption leaves it: two rows are missing.
    std::fs::write(&csv, whole[..5].join("\n") + "\n").expect("writable");
    let resume = |more: &[&str]| {
        let folder = out.to_str().expect("utf-8");
        trbench(&[&["run", "-c", EMULATED, "--resume", folder][..], &args, more].concat())
    };
    let output = resume(&[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("before an interruption"), "{}", text(&output.stdout));
    let rows = lines(&out, "result.csv");
    assert_eq!(rows[..5], whole[..5], "complete rows are kept");
    assert_eq!(rows.len(), 7);
    assert_eq!(summary(&out)["completed"], json!(6));
    // Nothing is left to do, and another trial can be added.
    assert!(resume(&[]).status.success());
    assert_eq!(lines(&out, "result.csv"), rows);
    assert!(resume(&["--trials", "2"]).status.success());
    assert_eq!(column(&out, "trial"), ["0", "0", "0", "0", "0", "0", "1", "1", "1", "1", "1", "1"]);
    let output = resume(&["--seed", "9"]);
    assert_eq!(output.status.code(), Some(2));
    let message = text(&output.stderr);
    assert!(message.contains("`seed` is 0, this run has 9") && !message.contains("`repeats`"), "{message}");
    // All differences are named, and none that does not change what is measured.
    let output = resume(&["--repeats", "2", "--temperature", "0.7", "--slo-ttft-ms", "5", "--trials", "3"]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    let wanted = "`repeats` is 1, this run has 2; `temperature` is 0.0, this run has 0.7\n";
    assert!(message.ends_with(wanted), "{message}");
    let output = resume(&["--set", "routing.probability=0.5"]);
    assert!(text(&output.stderr).contains("`set` is [], this run has [\"routing.probability=0.5\"]"), "{output:?}");
}

#[test]
fn results_from_before_specs_can_be_continued() {
    let args = ["--num-prompts", "4", "--max-tokens", "4", "--concurrency", "4"];
    let (_dir, out) = run(&args);
    let path = out.join("manifest.json");
    let mut manifest: Value = serde_json::from_str(&std::fs::read_to_string(&path).expect("a manifest")).expect("JSON");
    assert!(manifest.as_object_mut().expect("a map").shift_remove("spec").is_some());
    std::fs::write(&path, manifest.to_string()).expect("writable");
    let csv = out.join("result.csv");
    let rows = std::fs::read_to_string(&csv).expect("rows");
    assert!(rows.contains(",buffer_wait_ms,"));
    std::fs::write(&csv, rows.replace(",buffer_wait_ms,", ",admission_wait_ms,")).expect("writable");
    let resume = |more: &[&str]| {
        let folder = out.to_str().expect("utf-8");
        trbench(&[&["run", "-c", EMULATED, "--resume", folder][..], &args, more].concat())
    };
    let output = resume(&["--seed", "9"]);
    assert!(text(&output.stderr).contains("`seed` is 0, this run has 9"), "{}", text(&output.stderr));
    let before = column(&out, "admission_wait_ms");
    let output = resume(&["--trials", "2"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(column(&out, "buffer_wait_ms")[..4], before, "old rows are kept");
}

#[test]
fn a_run_can_be_given_as_a_file() {
    let dir = tempfile::tempdir().expect("a folder");
    let (file, out) = (dir.path().join("run.json"), dir.path().join("out"));
    let spec =
        json!({"version": 1, "config": EMULATED, "num-prompts": 3, "max-tokens": 5, "system": "async", "seed": 4});
    std::fs::write(&file, spec.to_string()).expect("writable");
    let (file, out) = (file.to_str().expect("utf-8"), out.to_str().expect("utf-8"));
    let output = trbench(&["run", "--spec", file, "--out", out]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let manifest = std::fs::read_to_string(Path::new(out).join("manifest.json")).expect("a manifest");
    let manifest: Value = serde_json::from_str(&manifest).expect("JSON");
    assert_eq!((&manifest["spec"]["system"], &manifest["spec"]["max-tokens"]), (&json!(["async"]), &json!(5)));
    // What the manifest records is a spec for the same run.
    std::fs::write(file, manifest["spec"].to_string()).expect("writable");
    let output = trbench(&["run", "--spec", file, "--resume", out]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = trbench(&["run", "--spec", file, "--seed", "3"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("cannot be used with"), "{}", text(&output.stderr));
}

#[test]
fn bad_flags_are_named_and_exit_with_2() {
    for (args, wanted) in [
        (vec!["--rate", "0"], "0 is not allowed, allowed is above 0"),
        (vec!["--arrivals", "poisson"], "--rate"),
        (vec!["--rate", "1", "--arrivals", "uniform"], "`gamma:CV`"),
        (vec!["--trials", "0"], "0 is not in 1..=1000"),
        (vec!["--trials", "2", "--trace"], "--trace"),
        (vec!["--slo-tpot-ms", "-1"], "--slo-tpot-ms"),
        (vec!["--resume", "no/such/folder"], "no/such/folder"),
        (vec!["--resume", "config"], "`config` holds no run"),
        (vec!["--system", "sync"], "`lockstep`, `standard`"),
    ] {
        let output = trbench(&[&["run", "-c", EMULATED, "--concurrency", "4"][..], &args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(wanted), "{args:?}: {}", text(&output.stderr));
    }
    let output = trbench(&["compare", "no/such/a", "no/such/b"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("no/such/a"));
}
