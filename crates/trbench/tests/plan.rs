//! `trbench plan` from the outside: numbers against closed forms, objectives, formats, and every kind of bad input.

use assert_cmd::Command;
use serde_json::Value;

const MODEL: [&str; 7] = ["--latencies", "6.0", "27.9", "--P", "[[0.87,0.13],[1,0]]", "--C", "[[1,0],[1,0]]"];
/// One model that takes one request at a time: a queue with one server.
const SINGLE: [&str; 6] = ["--latencies", "10", "--max-active", "1", "--output-tokens", "50"];
const SHORT: [&str; 4] = ["--requests", "200", "--replications", "3"];

fn plan(arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::cargo_bin("trbench").expect("the binary is built");
    let output = command.arg("plan").args(arguments).output().expect("it starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.code().expect("an exit code"), text(output.stdout), text(output.stderr))
}

fn json(code: i32, arguments: &[&str]) -> (Value, String) {
    let (got, out, err) = plan(&[arguments, &["--output", "json"]].concat());
    assert_eq!(got, code, "{err}");
    (serde_json::from_str(&out).expect("standard output is one JSON object"), err)
}

fn at(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("a number at {path}"))
}

#[test]
fn one_server_is_pollaczek_khinchines_queue() {
    for (cv, factor) in [("1", 1.0), ("0", 0.5)] {
        let (found, _) = json(0, &[&SINGLE[..], &["--rate", "90/min", "--output-cv", cv], &SHORT].concat());
        let expected = 500.0 * 0.75 / 0.25 * factor;
        assert!((at(&found, "/wait_ms/mean") / expected - 1.0).abs() < 1e-9, "{expected}");
        assert!((at(&found, "/e2e_ms/mean") - expected - 500.0).abs() < 1e-6);
        assert!((at(&found, "/ttft_ms/mean") - expected - 10.0).abs() < 1e-6);
        assert!((at(&found, "/tpot_ms/mean") - 10.0).abs() < 1e-9 && (at(&found, "/active") - 0.75).abs() < 1e-9);
        assert!((at(&found, "/max_rate_per_s") - 2.0).abs() < 1e-9);
        assert_eq!(found["stable"], Value::Bool(true));
        assert_eq!(found["wait_ms"]["method"]["mean"], "analytic");
        assert_eq!(found["wait_ms"]["method"]["p90"], "simulated");
        for name in ["ttft_ms", "tpot_ms", "wait_ms", "e2e_ms"] {
            let values: Vec<f64> =
                ["p50", "p90", "p99"].iter().map(|part| at(&found, &format!("/{name}/{part}"))).collect();
            assert!(values.is_sorted(), "{name}: {values:?}");
        }
    }
}

#[test]
fn a_plan_has_thresholds_shares_and_systems_to_compare() {
    let arguments = [&MODEL[..], &["--max-active", "8", "--rate", "2/s", "--output-tokens", "200"], &SHORT].concat();
    let (found, err) = json(0, &[&arguments[..], &["--price-per-hour", "3.6"]].concat());
    assert_eq!(err, "");
    assert_eq!(found["thresholds"].as_array().map(Vec::len), Some(8));
    assert_eq!((found["nmax"].as_u64(), found["thresholds"][0].clone()), (Some(8), serde_json::json!([1, 1])));
    let shares: f64 = found["share_of_time"].as_array().expect("a list").iter().filter_map(Value::as_f64).sum();
    assert!((shares - 1.0).abs() < 1e-9 && found["share_of_time"].as_array().map(Vec::len) == Some(9));
    assert!((at(&found, "/max_rate_per_s") * 200.0 - at(&found, "/max_tok_s")).abs() < 1e-6);
    // 3.6 an hour is 0.001 a second, for 400 tokens a second.
    assert!((at(&found, "/cost_per_million_tokens") - 2.5).abs() < 1e-9);
    // The large model alone: 8 requests in 27.9 ms on each of two copies.
    let limit = 2.0 * 8.0 * 1000.0 / 27.9 / 200.0;
    assert!((at(&found, "/single_large/max_rate_per_s") / limit - 1.0).abs() < 1e-6);
    // Whole requests: 13 % of them fill the large model, or 87 % the small one.
    let limit = (8000.0 / 27.9 / 200.0 / 0.13_f64).min(8000.0 / 6.0 / 200.0 / 0.87);
    assert!((at(&found, "/whole_request/max_rate_per_s") / limit - 1.0).abs() < 1e-6);
    assert_eq!(found["agreement"].as_array().map(Vec::len), Some(5));
}

#[test]
fn a_load_that_is_not_stable_says_what_is_held() {
    let (found, err) = json(0, &[&SINGLE[..], &["--rate", "2.5", "--no-simulation"]].concat());
    assert_eq!((found["stable"].clone(), found["e2e_ms"].clone()), (Value::Bool(false), Value::Null));
    assert!((at(&found, "/max_rate_per_s") - 2.0).abs() < 1e-9);
    assert!(err.contains("warning: not stable") && err.contains("hold up to 2.000000"), "{err}");
    let (found, _) = json(0, &[&SINGLE[..], &["--rate", "2.5", "--replicas", "2", "--no-simulation"]].concat());
    assert_eq!(found["stable"], Value::Bool(true));
}

#[test]
fn objectives_are_met_or_say_what_would_meet_them() {
    let slo = |more: &[&str], code| json(code, &[&SINGLE[..], more, &SHORT].concat());
    let (found, _) = slo(&["--rate", "0.4", "--slo-tpot-ms", "11", "--slo-ttft-ms", "3000"], 0);
    assert_eq!(found["slo"]["met"], Value::Bool(true));
    // Ten milliseconds a token, whatever the load.
    let (found, err) = slo(&["--rate", "0.4", "--slo-tpot-ms", "9"], 1);
    assert_eq!(found["slo"]["met"], Value::Bool(false));
    assert!(err.contains("`--slo-tpot-ms` 9 can be met from 10.0000 on"), "{err}");
    // More replicas would do, and do.
    let arguments = ["--rate", "4", "--slo-ttft-ms", "2000", "--balancer", "least-loaded"];
    let (found, err) = slo(&arguments, 1);
    let needed = found["replicas_needed"][2]["replicas"].as_u64().expect("a number").to_string();
    assert!(err.contains(&format!("`--replicas {needed}` would do")), "{err}");
    let random = found["replicas_needed"][0]["replicas"].as_u64().expect("a number");
    assert!(needed.parse::<u64>().is_ok_and(|least| (3..=random).contains(&least)), "{needed} {random}");
    let (found, _) = slo(&[&arguments[..], &["--replicas", &needed]].concat(), 0);
    assert_eq!(found["slo"]["met"], Value::Bool(true));
}

#[test]
fn users_margins_prompts_and_bursts() {
    let (found, _) = json(
        0,
        &[&MODEL[..], &["--max-active", "4", "--users", "20", "--think", "5s", "--output-tokens", "30"], &SHORT]
            .concat(),
    );
    let cycle = 5.0 + at(&found, "/e2e_ms/mean") / 1e3;
    assert!((at(&found, "/rate_per_s") * cycle / 20.0 - 1.0).abs() < 0.02);
    let more =
        ["--max-active", "4", "--rate", "4", "--output-tokens", "30", "--latency-error", "0.05,0.05", "--draws", "40"];
    let (plain, _) = json(0, &[&MODEL[..], &more, &SHORT].concat());
    let (low, high) = (at(&plain, "/margin/max_rate_low_per_s"), at(&plain, "/margin/max_rate_high_per_s"));
    assert!(low < at(&plain, "/max_rate_per_s") && at(&plain, "/max_rate_per_s") < high);
    let prompts = [&MODEL[..], &more, &SHORT, &["--prompt-tokens", "512", "--prefill-latencies", "0.01,0.05"]].concat();
    let (found, _) = json(0, &prompts);
    assert!(at(&found, "/max_rate_per_s") < at(&plain, "/max_rate_per_s"));
    assert!(at(&found, "/ttft_ms/mean") > at(&plain, "/ttft_ms/mean"));
    assert_eq!(found["ttft_ms"]["method"]["mean"], "simulated");
    let (found, _) = json(0, &[&MODEL[..], &more, &SHORT, &["--arrival-cv", "3"]].concat());
    assert!(at(&found, "/wait_ms/mean") > at(&plain, "/wait_ms/mean"));
    assert_eq!(found["wait_ms"]["method"]["mean"], "simulated");
}

#[test]
fn every_format_and_picture() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("p.svg");
    let path = file.to_str().expect("text");
    let base = [&MODEL[..], &["--max-active", "4", "--rate", "4", "--output-tokens", "30"], &SHORT].concat();
    let (code, out, _) = plan(&[&base[..], &["--output", "csv"]].concat());
    assert!(code == 0 && out.starts_with("system,stable,rate_per_s,") && out.lines().count() == 4, "{out}");
    let (code, out, _) = plan(&[&base[..], &["--output", "csv", "--curve", "--plot", path]].concat());
    assert!(code == 0 && out.lines().count() == 101, "{out}");
    assert!(std::fs::read_to_string(&file).is_ok_and(|svg| svg.starts_with("<svg") && svg.contains("end to end")));
    for format in ["table", "md"] {
        let (code, out, _) = plan(&[&base[..], &["--output", format]].concat());
        for expected in ["ttft_ms", "thresholds by active requests", "single_large", "formula and simulation"] {
            assert!(code == 0 && out.contains(expected), "{expected}: {out}");
        }
    }
    let map = [
        "--map",
        "--map-active",
        "1,2",
        "--map-shares",
        "0.1,0.5",
        "--map-step-ratios",
        "5",
        "--map-prefill-ratios",
        "20",
    ];
    let (code, out, err) = plan(&[&map[..], &["--output", "csv", "--plot", path]].concat());
    assert!(code == 0 && out.lines().count() == 5 && out.starts_with("active,prefill_ratio,"), "{out}{err}");
    assert!(std::fs::read_to_string(&file).is_ok_and(|svg| svg.contains("step ratio")));
}

#[test]
fn bad_input_names_flag_value_and_what_is_allowed() {
    let base = [&MODEL[..], &["--no-simulation"]].concat();
    for (more, expected) in [
        (&["--rate", "-4/s"][..], "'-4/s' for '--rate"),
        (&["--rate", "0"], "allowed: a number above 0"),
        (&["--rate", "nan"], "'nan' for '--rate"),
        (&["--rate", "4/day"], "`day` is not a unit of time"),
        (&["--rate", "4 s"], "`4 s` is not a number"),
        (&["--users", "5", "--think", "-1s"], "'-1s' for '--think"),
        (&["--users", "5"], "--think"),
        (&["--rate", "4", "--output-tokens", "0"], "allowed: 1 to 1000000 tokens"),
        (&["--rate", "4", "--output-tokens", "200ms"], "`200ms` is not a number"),
        (&["--rate", "4", "--output-cv", "-1"], "allowed: 0 to 20"),
        (&["--rate", "4", "--prompt-tokens", "-5"], "'-5' for '--prompt-tokens"),
        (&["--rate", "4", "--max-active", "0"], "1..=1024"),
        (&["--rate", "4", "--percentile", "100"], "allowed: 1 to 99.9"),
        (&["--rate", "4", "--prefill-latencies", "1"], "`--prefill-latencies` has 1 values"),
        (&["--rate", "4", "--prefill-latencies", "1,-1"], "`--prefill-latencies` has -1"),
        (&["--rate", "4", "--output-histogram", "[[0,1]]"], "0 tokens with weight 1"),
        (&["--rate", "4", "--confidence", "2"], "`--confidence` is 2"),
        (&["--rate", "4", "--latency-error", "0.1"], "latency relative error"),
        (&[], "no load: give the requests that arrive"),
    ] {
        let (code, out, err) = plan(&[&base[..], more].concat());
        assert_eq!((code, out.as_str()), (2, ""), "{more:?}: {err}");
        assert!(err.contains(expected), "{more:?}: {err}\nexpected {expected}");
    }
    for (more, expected) in [
        (&["--rate", "4", "--slo-ttft-ms", "-3"][..], "'-3' for '--slo-ttft-ms"),
        (&["--rate", "4", "--slo-tpot-ms", "inf"], "allowed: above 0"),
        (&["--rate", "4", "--users", "3", "--think", "1s"], "cannot be used with"),
    ] {
        let (code, _, err) = plan(&[&MODEL[..], more].concat());
        assert!(code == 2 && err.contains(expected), "{more:?}: {err}");
    }
    let (code, _, err) = plan(&["--latencies", "6", "27.9", "--P", "[[0.5,0.6],[1,0]]", "--rate", "1"]);
    assert!(code == 2 && err.contains("P row 0"), "{err}");
    let (code, _, err) = plan(&["--rate", "1"]);
    assert!(code == 2 && err.contains("`--latencies` is missing"), "{err}");
}
