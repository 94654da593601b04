//! Cases with an answer on paper.

use crate::support::{cases, close, glimp, row, small_model, throughput};
use proptest::prelude::*;
use tokenrouter_dtmc::{Model, SolveOptions, Thresholds, solve};

/// Stationary distribution of a small dense chain by repeated averaging.
fn visits(routing: &[Vec<f64>]) -> Vec<f64> {
    let size = routing.len();
    let mut v = vec![1.0 / size as f64; size];
    for _ in 0..100_000 {
        let mut next: Vec<f64> = v.iter().map(|x| 0.5 * x).collect();
        for (mass, row) in v.iter().zip(routing) {
            row.iter().zip(&mut next).for_each(|(p, slot)| *slot += 0.5 * mass * p);
        }
        v = next;
    }
    v
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn one_model_gives_n_c_over_l(n in 1_u32..200, quanta in 1_u32..500, tokens in 0.1_f64..4.0, b in 1_u32..200) {
        let model = Model::builder()
            .latencies_ms([f64::from(quanta) * 0.1])
            .routing(vec![vec![1.0]])
            .commits(vec![vec![tokens]])
            .concurrency(n)
            .build()
            .expect("valid");
        let expected = f64::from(n) * tokens / (f64::from(quanta) * 0.1) * 1000.0;
        prop_assert!(close(throughput(&model, &[b.min(n)]), expected, 1e-12));
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
        let model = Model::builder()
            .latencies_ms(latencies.iter().map(|&l| f64::from(l) * 0.1))
            .routing(routing.clone())
            .commits(commits.clone())
            .concurrency(1)
            .build()
            .expect("valid");
        let v = visits(&routing);
        let tokens: f64 =
            (0..models).map(|i| v[i] * (0..models).map(|j| routing[i][j] * commits[i][j]).sum::<f64>()).sum();
        let time: f64 = (0..models).map(|i| v[i] * f64::from(latencies[i]) * 0.1).sum();
        prop_assert!(close(throughput(&model, &vec![1; models]), 1000.0 * tokens / time, 1e-9));
    }

    #[test]
    fn steps_follow_the_visit_ratios_and_little_holds((model, thresholds) in small_model()) {
        let solution = solve(&model, &Thresholds::new(thresholds), &SolveOptions::default()).expect("solvable");
        let v = visits(model.routing());
        let total: f64 = solution.measures.models.iter().map(|m| m.steps_per_s).sum();
        let mut in_system = 0.0;
        for (index, measures) in solution.measures.models.iter().enumerate() {
            prop_assert!((measures.steps_per_s / total - v[index]).abs() < 1e-8);
            // Requests in the buffer and in the batch: by Little's law all of them add up to N.
            let busy_ms = f64::from(model.quanta(index, 1)) * model.quantum_ms();
            in_system += measures.mean_queue + measures.steps_per_s * busy_ms / 1000.0;
        }
        prop_assert!((in_system - f64::from(model.concurrency())).abs() < 1e-8);
    }

    #[test]
    fn permuting_models_permutes_the_answer((model, thresholds) in small_model(), shift in 0_usize..3) {
        let size = model.models();
        let to: Vec<usize> = (0..size).map(|i| (i + shift) % size).collect();
        let move_matrix = |m: &[Vec<f64>]| {
            let mut moved = vec![vec![0.0; size]; size];
            for (&i, row) in to.iter().zip(m) { for (&j, &value) in to.iter().zip(row) { moved[i][j] = value; } }
            moved
        };
        let mut latencies = model.latencies_ms().to_vec();
        let mut permuted = thresholds.clone();
        for (i, &target) in to.iter().enumerate() {
            latencies[target] = model.latencies_ms()[i].clone();
            permuted[target] = thresholds[i];
        }
        let other = model.to_builder().latencies_ms(latencies).routing(move_matrix(model.routing()))
            .commits(move_matrix(model.commits())).build().expect("valid");
        let (a, b) = (
            solve(&model, &Thresholds::new(thresholds), &SolveOptions::default()).expect("solvable"),
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
    let model = glimp(1, q, small, large, 0.1);
    let solution = solve(&model, &Thresholds::eager(2), &SolveOptions::default()).expect("solvable");
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
    let collapsed = Model::builder()
        .latencies_ms([6.0, 27.9])
        .routing(vec![vec![1.0 - 1.0 / run, 1.0 / run], vec![1.0 / large, 1.0 - 1.0 / large]])
        .commits(vec![vec![((1.0 - q) * small / q) / run; 2], vec![1.0; 2]])
        .quantum_ms(0.3)
        .concurrency(4)
        .build()
        .expect("valid");
    let one = |model: &Model| throughput(&model.with_concurrency(1).expect("valid"), &[1, 1]);
    assert!(close(one(&exact), one(&collapsed), 1e-9), "alone, only the means matter");
    let (a, b) = (throughput(&exact, &[1, 2]), throughput(&collapsed, &[1, 2]));
    assert!(!close(a, b, 1e-3), "in a batch the shape of the runs matters: {a} {b}");
}
