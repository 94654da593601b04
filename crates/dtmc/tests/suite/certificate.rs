//! The optimality certificate.

use crate::reference::{fixture, vector};
use crate::support::{cases, small_model, throughput, two};
use proptest::prelude::*;
use tokenrouter_dtmc::{SearchOptions, SolveOptions, System, Thresholds, certify, enumerate_feasible, optimize};

#[test]
fn the_policy_table_is_reproduced() {
    for entry in fixture()["policies"].as_array().expect("a list") {
        let number = |name: &str| entry[name].as_f64().expect("a number");
        let system = two(number("n") as u32, number("p"), 0.3);
        let found = optimize(&system, &SearchOptions::default()).expect("solvable");
        let certificate = certify(&system, found.best.thresholds(), &SolveOptions::default()).expect("solvable");
        assert_eq!(found.best.thresholds().as_slice(), vector(&entry["thresholds"]), "{entry}");
        // The fixture prints two decimals.
        assert!((throughput(&system, &[1, 1]) - number("eager")).abs() < 0.00501, "{entry}");
        assert!((found.best.throughput_tok_s() - number("best")).abs() < 0.00501, "{entry}");
        assert!((certificate.policy_tok_s - number("optimal")).abs() < 0.00501, "{entry} {certificate:?}");
        assert!(certificate.upper_bound_tok_s - certificate.policy_tok_s < 1e-7 * certificate.policy_tok_s);
    }
    let eight = certify(&two(8, 0.65, 0.3), &Thresholds::new([1, 7]), &SolveOptions::default()).expect("solvable");
    assert_eq!((eight.states, eight.actions), (3453, 6354));
}

#[test]
fn three_models_are_reproduced() {
    let latencies = [6.0, 11.3, 27.9];
    let mixture = System { quantum_ms: 1.0, ..System::new(latencies, vec![vec![0.6, 0.25, 0.15]; 3]) };
    let routing = vec![vec![0.7, 0.3, 0.0], vec![0.6, 0.0, 0.4], vec![1.0, 0.0, 0.0]];
    let commits = Some(vec![vec![1.0, 0.0, 0.0]; 3]);
    let cascade = System { quantum_ms: 1.0, commits, ..System::new(latencies, routing) };
    for (system, best, optimal, states) in [(mixture, 313.96, 321.76, 6273), (cascade, 270.81, 279.08, 2474)] {
        let system = system.closed(4).expect("valid");
        let found = optimize(&system, &SearchOptions::default()).expect("solvable");
        assert_eq!(found.best.thresholds().as_slice(), [1, 1, 1]);
        assert!((found.best.throughput_tok_s() - best).abs() < 0.00501);
        let certificate = certify(&system, found.best.thresholds(), &SolveOptions::default()).expect("solvable");
        assert!((certificate.policy_tok_s - optimal).abs() < 0.00501, "{certificate:?}");
        assert_eq!(certificate.states, states);
        assert!(certificate.gap(found.best.throughput_tok_s()) > 0.02);
        assert!(!certificate.departures.is_empty());
    }
}

proptest! {
    #![proptest_config(cases(30))]

    #[test]
    fn no_threshold_vector_beats_the_bound((system, _) in small_model()) {
        let certificate = certify(&system, &Thresholds::eager(system.models()), &SolveOptions::default()).expect("solvable");
        prop_assert!(certificate.upper_bound_tok_s >= certificate.policy_tok_s * (1.0 - 1e-12));
        prop_assert!(certificate.upper_bound_tok_s <= certificate.policy_tok_s * (1.0 + 1e-7) + 1e-12);
        for thresholds in enumerate_feasible(&system) {
            let got = throughput(&system, thresholds.as_slice());
            prop_assert!(got <= certificate.upper_bound_tok_s * (1.0 + 1e-9) + 1e-12, "{} {}", thresholds, got);
        }
    }
}
