//! Systems used by several tests.

use proptest::prelude::*;
use tokenrouter_dtmc::{ClosedSystem, SolveOptions, System, Thresholds, solve};

pub(crate) fn two(n: u32, p: f64, quantum_ms: f64) -> ClosedSystem {
    System {
        commits: Some(vec![vec![1.0, 0.0]; 2]),
        quantum_ms,
        ..System::new([6.0, 27.9], vec![vec![1.0 - p, p], vec![1.0, 0.0]])
    }
    .closed(n)
    .expect("valid")
}

pub(crate) fn three(n: u32, quantum_ms: f64) -> ClosedSystem {
    System {
        quantum_ms,
        ..System::new([6.0, 11.3, 27.9], vec![vec![0.6, 0.25, 0.15], vec![0.5, 0.3, 0.2], vec![0.5, 0.3, 0.2]])
    }
    .closed(n)
    .expect("valid")
}

/// GlimpRouter's chain per forward pass: boundary probe and inside at the small model, a whole step at the large one.
/// `q`: share of steps sent to the large model; `small`, `large`: mean tokens of a step.
pub(crate) fn glimp(n: u32, q: f64, small: f64, large: f64, quantum_ms: f64) -> ClosedSystem {
    System {
        commits: Some(vec![vec![0.0; 3], vec![1.0; 3], vec![1.0; 3]]),
        state_models: Some(vec![0, 0, 1]),
        quantum_ms,
        ..System::new(
            [6.0, 27.9],
            vec![
                vec![0.0, 1.0 - q, q],
                vec![1.0 / small, 1.0 - 1.0 / small, 0.0],
                vec![1.0 / large, 0.0, 1.0 - 1.0 / large],
            ],
        )
    }
    .closed(n)
    .expect("valid")
}

pub(crate) fn throughput(system: &ClosedSystem, thresholds: &[u32]) -> f64 {
    solve(system, &Thresholds::new(thresholds), &SolveOptions::default()).expect("solvable").throughput_tok_s()
}

pub(crate) fn close(a: f64, b: f64, relative: f64) -> bool {
    (a - b).abs() <= relative * a.abs().max(b.abs()).max(1e-300)
}

/// A row of positive probabilities.
pub(crate) fn row(size: usize) -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(0.05_f64..1.0, size).prop_map(|weights| {
        let total: f64 = weights.iter().sum();
        let mut row: Vec<f64> = weights.iter().map(|weight| weight / total).collect();
        let rest: f64 = row[1..].iter().sum();
        row[0] = 1.0 - rest;
        row
    })
}

/// Small random models with positive routing, and feasible thresholds.
pub(crate) fn small_model() -> impl Strategy<Value = (ClosedSystem, Vec<u32>)> {
    (1_usize..=3, 1_u32..=4).prop_flat_map(|(models, n)| {
        let latencies = prop::collection::vec(1_u32..9, models);
        let routing = prop::collection::vec(row(models), models);
        let commits = prop::collection::vec(prop::collection::vec(0.0_f64..2.0, models), models);
        let split = prop::collection::vec(0_u32..4, models);
        (Just(n), latencies, routing, commits, split).prop_map(|(n, latencies, routing, commits, split)| {
            let mut open = n - 1;
            let thresholds = split
                .iter()
                .map(|&wanted| {
                    let taken = wanted.min(open);
                    open -= taken;
                    1 + taken
                })
                .collect();
            let system = System {
                commits: Some(commits),
                quantum_ms: 1.0,
                ..System::new(latencies.into_iter().map(f64::from), routing)
            }
            .closed(n)
            .expect("valid");
            (system, thresholds)
        })
    })
}

/// Fixed cases per run, printed on failure by proptest itself.
pub(crate) fn cases(count: u32) -> ProptestConfig {
    ProptestConfig {
        cases: count,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(20_260),
        ..ProptestConfig::default()
    }
}
