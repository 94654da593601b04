//! Propagated uncertainty against closed forms.

use crate::support::two;
use tokenrouter_dtmc::{Error, SolveOptions, Thresholds, Uncertainty, propagate};

fn uncertainty(latency: [f64; 2], samples: Option<f64>) -> Uncertainty {
    Uncertainty {
        latency_relative_error: latency.to_vec(),
        routing_samples: vec![samples, None],
        draws: 2000,
        seed: 11,
        confidence: 0.95,
    }
}

/// One request: throughput is `1000 / (6 + 27.9 p)`, so the delta method gives the standard deviation.
#[test]
fn single_request_matches_the_delta_method() {
    let system = two(1, 0.65, 0.01);
    let vectors = [Thresholds::eager(2)];
    let rate = 1000.0 / (6.0 + 27.9 * 0.65);
    let check = |uncertainty: Uncertainty, sd: f64| {
        let spread = &propagate(&system, &vectors, &uncertainty, &SolveOptions::default()).expect("solvable")[0];
        assert!((spread.nominal_tok_s - rate).abs() < 1e-9 * rate);
        let half = 0.5 * (spread.high_tok_s - spread.low_tok_s);
        assert!((half / (1.96 * sd) - 1.0).abs() < 0.08, "{half} against {}", 1.96 * sd);
    };
    // Latency of the large model known to 3 %.
    check(uncertainty([0.0, 0.03], None), rate * rate / 1000.0 * 27.9 * 0.65 * 0.03);
    // Routing seen through 400 steps.
    check(uncertainty([0.0, 0.0], Some(400.0)), rate * rate / 1000.0 * 27.9 * (0.65_f64 * 0.35 / 401.0).sqrt());
}

#[test]
fn near_ties_cannot_be_told_apart_but_others_can() {
    let system = two(8, 0.65, 0.1);
    let vectors = [[1, 7], [1, 6], [1, 1]].map(Thresholds::new);
    let uncertainty = Uncertainty { draws: 200, ..uncertainty([0.02, 0.03], Some(2000.0)) };
    let spreads = propagate(&system, &vectors, &uncertainty, &SolveOptions::default()).expect("solvable");
    assert!(!spreads[1].distinguishable && spreads[2].distinguishable, "{spreads:?}");
    assert!((spreads.iter().map(|s| s.best_share).sum::<f64>() - 1.0).abs() < 0.02);
}

#[test]
fn shapes_are_checked() {
    let system = two(2, 0.5, 0.3);
    let vectors = [Thresholds::eager(2)];
    for bad in [
        Uncertainty { latency_relative_error: vec![0.1], ..uncertainty([0.0; 2], None) },
        Uncertainty { latency_relative_error: vec![0.1, f64::NAN], ..uncertainty([0.0; 2], None) },
        Uncertainty { routing_samples: vec![Some(0.0), None], ..uncertainty([0.0; 2], None) },
        Uncertainty { draws: 3, ..uncertainty([0.0; 2], None) },
        Uncertainty { confidence: 1.0, ..uncertainty([0.0; 2], None) },
    ] {
        assert!(matches!(
            propagate(&system, &vectors, &bad, &SolveOptions::default()),
            Err(Error::InvalidOption { .. })
        ));
    }
}
