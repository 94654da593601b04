//! The fixture values, to 1e-8 relative with exact state and transition counts.

use crate::support::close;
use serde_json::Value;
use tokenrouter_dtmc::{ClosedSystem, Method, SearchOptions, SolveOptions, System, Thresholds, optimize, solve};

pub(crate) fn fixture() -> Value {
    serde_json::from_str(include_str!("../../fixtures/reference.json")).expect("valid JSON")
}

pub(crate) fn vector(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("a vector")
}

fn closed(fixture: &Value, entry: &Value) -> ClosedSystem {
    let system: System = serde_json::from_value(fixture["systems"][entry["system"].as_str().expect("a name")].clone())
        .expect("a system");
    let quantum_ms = entry["quantum_ms"].as_f64().expect("a number");
    System { quantum_ms, ..system }.closed(entry["n"].as_u64().expect("a number") as u32).expect("valid")
}

#[test]
fn every_reference_value_is_reproduced() {
    let fixture = fixture();
    for entry in fixture["values"].as_array().expect("a list") {
        let system = closed(&fixture, entry);
        let thresholds = Thresholds::new(vector(&entry["thresholds"]));
        let solution = solve(&system, &thresholds, &SolveOptions::default()).expect("solvable");
        let expected = entry["throughput"].as_f64().expect("a number");
        assert!(close(solution.throughput_tok_s(), expected, 1e-10), "{entry}: {}", solution.throughput_tok_s());
        assert_eq!(solution.states as u64, entry["states"].as_u64().expect("a number"), "{entry}");
        assert_eq!(solution.nonzeros as u64, entry["nonzeros"].as_u64().expect("a number"), "{entry}");
        assert!(solution.residual <= 1e-12, "{entry}: {}", solution.residual);
        if entry["best"].as_bool() == Some(true) {
            let found = optimize(&system, &SearchOptions::default()).expect("solvable");
            assert_eq!(found.best.thresholds(), &thresholds, "{entry}");
        }
    }
}

#[test]
fn every_method_agrees_on_the_reference_chains() {
    let fixture = fixture();
    for entry in fixture["values"].as_array().expect("a list") {
        let states = entry["states"].as_u64().expect("a number");
        let system = closed(&fixture, entry);
        let thresholds = Thresholds::new(vector(&entry["thresholds"]));
        let expected = entry["throughput"].as_f64().expect("a number");
        for (name, method) in Method::NAMES {
            let too_slow = match method {
                Method::Gth => states > 1000,
                Method::SparseLu | Method::Power => states > 4000,
                _ => states > 40_000,
            };
            if !too_slow {
                let options = SolveOptions { method, ..SolveOptions::default() };
                let got = solve(&system, &thresholds, &options).expect("solvable").throughput_tok_s();
                assert!(close(got, expected, 1e-9), "{name} on {entry}: {got}");
            }
        }
    }
}
