//! Cases with an answer on paper.

use crate::brute::by_nalgebra;
use crate::support::{cases, close, glimp, row, small_model, throughput};
use nalgebra::DMatrix;
use proptest::prelude::*;
use tokenrouter_dtmc::{ClosedSystem, SolveOptions, System, Thresholds, solve};

/// Visit ratios of the models: the stationary distribution of the routing matrix.
fn visits(routing: &[Vec<f64>]) -> Vec<f64> {
    by_nalgebra(&DMatrix::from_fn(routing.len(), routing.len(), |i, j| routing[i][j])).as_slice().to_vec()
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn one_model_gives_n_c_over_l(n in 1_u32..200, quanta in 1_u32..500, tokens in 0.1_f64..4.0, b in 1_u32..200) {
        let system = System { commits: Some(vec![vec![tokens]]), ..System::new([f64::from(quanta) * 0.1], vec![vec![1.0]]) }.closed(n)
            .expect("valid");
        let expected = f64::from(n) * tokens / (f64::from(quanta) * 0.1) * 1000.0;
        prop_assert!(close(throughput(&system, &[b.min(n)]), expected, 1e-12));
    }

    #[test]
    fn one_request_visits_in_turn(
        (latencies, routing, commits) in (2_usize..=8).prop_flat_map(|models| (
            prop::collection::vec(1_u32..400, models),
            prop::collection::vec(row(models), models),
            prop::collection::vec(prop::collection::vec(0.0_f64..2.0, models), models),
        )),
    ) {
        let models = latencies.len();
        let system = System { commits: Some(commits.clone()), ..System::new(latencies.iter().map(|&l| f64::from(l) * 0.1), routing.clone()) }.closed(1)
            .expect("valid");
        let v = visits(&routing);
        let tokens: f64 =
            (0..models).map(|i| v[i] * (0..models).map(|j| routing[i][j] * commits[i][j]).sum::<f64>()).sum();
        let time: f64 = (0..models).map(|i| v[i] * f64::from(latencies[i]) * 0.1).sum();
        prop_assert!(close(throughput(&system, &vec![1; models]), 1000.0 * tokens / time, 1e-9));
    }

    #[test]
    fn steps_follow_the_visit_ratios_and_little_holds((system, thresholds) in small_model()) {
        let solution = solve(&system, &Thresholds::new(thresholds), &SolveOptions::default()).expect("solvable");
        let v = visits(system.routing());
        let total: f64 = solution.measures.models.iter().map(|m| m.steps_per_s).sum();
        let mut in_system = 0.0;
        for (index, measures) in solution.measures.models.iter().enumerate() {
            prop_assert!((measures.steps_per_s / total - v[index]).abs() < 1e-8);
            // Requests in the buffer and in the batch: by Little's law all of them add up to N.
            let busy_ms = f64::from(system.quanta(index, 1)) * system.quantum_ms();
            in_system += measures.mean_queue + measures.steps_per_s * busy_ms / 1000.0;
        }
        prop_assert!((in_system - f64::from(system.concurrency())).abs() < 1e-8);
    }

    #[test]
    fn permuting_models_permutes_the_answer((system, thresholds) in small_model(), shift in 0_usize..3) {
        let size = system.models();
        let to: Vec<usize> = (0..size).map(|i| (i + shift) % size).collect();
        let move_matrix = |m: &[Vec<f64>]| {
            let mut moved = vec![vec![0.0; size]; size];
            for (&i, row) in to.iter().zip(m) { for (&j, &value) in to.iter().zip(row) { moved[i][j] = value; } }
            moved
        };
        let mut latencies = system.latencies_ms().to_vec();
        let mut permuted = thresholds.clone();
        for (i, &target) in to.iter().enumerate() {
            latencies[target] = system.latencies_ms()[i].clone();
            permuted[target] = thresholds[i];
        }
        let other = System { routing: move_matrix(system.routing()), latencies_ms: latencies, commits: Some(move_matrix(system.commits())), ..system.to_system() }.closed(system.concurrency()).expect("valid");
        let (a, b) = (
            solve(&system, &Thresholds::new(thresholds), &SolveOptions::default()).expect("solvable"),
            solve(&other, &Thresholds::new(permuted), &SolveOptions::default()).expect("solvable"),
        );
        prop_assert!(close(a.throughput_tok_s(), b.throughput_tok_s(), 1e-9));
        for (measures, &target) in a.measures.models.iter().zip(&to) {
            prop_assert!((measures.utilisation - b.measures.models[target].utilisation).abs() < 1e-9);
        }
    }
}

/// GlimpRouter's three states (boundary probe, small inside, large): shares and rate of one request on paper.
#[test]
fn glimprouter_single_stream() {
    let (q, small, large) = (0.3, 40.0, 55.0);
    let system = glimp(1, q, small, large, 0.1);
    let solution = solve(&system, &Thresholds::eager(2), &SolveOptions::default()).expect("solvable");
    // A round: one probe, then a small step of mean `small` tokens or a large one of mean `large`.
    let tokens = (1.0 - q) * small + q * large;
    let time_ms = 6.0 + (1.0 - q) * small * 6.0 + q * large * 27.9;
    assert!(close(solution.throughput_tok_s(), 1000.0 * tokens / time_ms, 1e-10));
    assert!(close(solution.measures.models[1].token_share, q * large / tokens, 1e-10));
}

/// Collapsing GlimpRouter to two models with geometric runs of the same means is not the same system.
#[test]
fn collapsing_routing_states_changes_the_answer() {
    let (q, small, large) = (0.6, 3.0, 4.0);
    let exact = glimp(4, q, small, large, 0.3);
    // Mean run at the small model per send, in forward passes; mean run at the large one.
    let run = (1.0 + (1.0 - q) * (1.0 + small) / q - (1.0 - q) / q) + (1.0 - q) / q;
    let collapsed = System {
        commits: Some(vec![vec![((1.0 - q) * small / q) / run; 2], vec![1.0; 2]]),
        quantum_ms: 0.3,
        ..System::new([6.0, 27.9], vec![vec![1.0 - 1.0 / run, 1.0 / run], vec![1.0 / large, 1.0 - 1.0 / large]])
    }
    .closed(4)
    .expect("valid");
    let one = |system: &ClosedSystem| throughput(&system.with_concurrency(1).expect("valid"), &[1, 1]);
    assert!(close(one(&exact), one(&collapsed), 1e-9), "alone, only the means matter");
    let (a, b) = (throughput(&exact, &[1, 2]), throughput(&collapsed, &[1, 2]));
    assert!(!close(a, b, 1e-3), "in a batch the shape of the runs matters: {a} {b}");
}
