//! Sizes, bad input, awkward models.

use crate::support::{close, three, throughput, two};
use tokenrouter_dtmc::{
    Answer, Error, Evaluation, Model, SearchOptions, SimulationOptions, SolveOptions, Strategy, Thresholds, certify,
    estimate_size, evaluate, optimize, quantum_study, solve,
};

#[test]
fn estimates_are_within_a_factor_of_two() {
    for (model, thresholds, states, nonzeros) in [
        (two(16, 0.65, 0.1), vec![1, 1], 14257.0, 76865.0),
        (three(4, 0.1), vec![1, 1, 1], 658_298.0, 2_496_059.0),
        (three(6, 0.1), vec![1, 1, 1], 3_544_213.0, 19_343_843.0),
        (two(64, 0.65, 0.1), vec![1, 1], 228_265.0, 4_248_817.0),
    ] {
        let estimate = estimate_size(&model, &Thresholds::new(thresholds)).expect("feasible");
        assert!((0.5..2.0).contains(&(estimate.states / states)), "{estimate:?} for {states}");
        assert!((0.5..2.0).contains(&(estimate.nonzeros / nonzeros)), "{estimate:?} for {nonzeros}");
    }
}

#[test]
fn too_large_is_refused_with_what_would_fit() {
    let options = SolveOptions { max_states: 100_000, ..SolveOptions::default() };
    let error = solve(&three(4, 0.1), &Thresholds::eager(3), &options).expect_err("too large");
    assert!(matches!(error, Error::TooLarge { .. }) && error.is_bad_input());
    let text = error.to_string();
    assert!(text.contains("thousand states") && text.contains("a quantum of about 0.2"), "{text}");
    let options = SolveOptions { memory_limit: Some(20 << 20), ..SolveOptions::default() };
    let error = solve(&three(4, 0.1), &Thresholds::eager(3), &options).expect_err("too large");
    assert!(error.to_string().contains("21 MB"), "{error}");
    // Certificates and listings have limits of their own.
    let error = certify(&three(16, 0.1), &Thresholds::eager(3), &SolveOptions::default()).expect_err("too large");
    assert!(error.to_string().contains("decision process"), "{error}");
    let listing = SearchOptions { strategy: Strategy::Exhaustive, ..SearchOptions::default() };
    assert!(matches!(optimize(&three(4000, 1.0), &listing), Err(Error::InvalidOption { .. })));
    // Astronomically large: refused without trying.
    let error = solve(&three(4096, 0.1), &Thresholds::eager(3), &SolveOptions::default()).expect_err("too large");
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
}

#[test]
fn evaluation_falls_back_and_says_so() {
    let model = three(4, 0.1);
    let exact = throughput(&model, &[1, 1, 1]);
    let small = SolveOptions { max_states: 100_000, ..SolveOptions::default() };
    let simulation = SimulationOptions { confidence: 0.999, ..SimulationOptions::default() };
    let thresholds = Thresholds::eager(3);
    match evaluate(&model, &thresholds, 0.0, &small, &simulation).expect("simulated") {
        Evaluation::Direct(Answer::Simulated(run)) => {
            assert!((run.throughput.mean - exact).abs() <= run.throughput.half_width, "{:?} {exact}", run.throughput);
        }
        other => panic!("{other:?}"),
    }
    match evaluate(&model, &thresholds, 0.05, &small, &simulation).expect("coarse") {
        Evaluation::Coarse(coarse) => {
            assert!(coarse.quantum_ms > 0.1 && coarse.solution.states <= 100_000);
            assert!(
                (coarse.solution.throughput_tok_s() / exact - 1.0).abs() <= coarse.relative_error,
                "{coarse:?} {exact}"
            );
        }
        other => panic!("{other:?}"),
    }
    let fits = evaluate(&model, &thresholds, 0.0, &SolveOptions::default(), &simulation).expect("exact");
    assert!(matches!(fits, Evaluation::Direct(Answer::Exact(_))));
}

#[test]
fn halving_the_quantum_settles() {
    let exact = quantum_study(&two(4, 0.65, 0.3), &Thresholds::new([1, 4]), 1e-9, 5, &SolveOptions::default())
        .expect("solvable");
    assert!(exact.converged && exact.rows.len() == 2, "both latencies are multiples of the quantum");
    let study =
        quantum_study(&three(2, 2.0), &Thresholds::eager(3), 1e-3, 8, &SolveOptions::default()).expect("solvable");
    assert!(study.converged && study.rows.len() > 2);
    let last = study.rows.last().expect("rows").solution.throughput_tok_s();
    assert!(close(last, throughput(&three(2, 0.05), &[1, 1, 1]), 5e-3));
    let stopped =
        quantum_study(&three(2, 2.0), &Thresholds::eager(3), 1e-15, 2, &SolveOptions::default()).expect("solvable");
    assert!(!stopped.converged && stopped.stopped.is_some());
}

#[test]
fn absorbing_and_unreached_models() {
    // Model 1 is never reached: model 0 alone.
    let alone = two(4, 0.0, 0.1);
    assert!(alone.notes().iter().any(|note| note.contains("never reached")));
    assert!(close(throughput(&alone, &[1, 1]), 4.0 / 6.0 * 1000.0, 1e-12));
    // Model 1 is never left: the long run is model 1 alone.
    let absorbing = two(4, 0.5, 0.1)
        .to_builder()
        .routing(vec![vec![0.5, 0.5], vec![0.0, 1.0]])
        .commits(vec![vec![1.0; 2]; 2])
        .build()
        .expect("valid");
    assert!(absorbing.notes().iter().any(|note| note.contains("never return")));
    let solution = solve(&absorbing, &Thresholds::eager(2), &SolveOptions::default()).expect("one class");
    assert!(solution.transient > 0);
    assert!(close(solution.throughput_tok_s(), 4.0 / 27.9 * 1000.0, 1e-9));
    // With a threshold, requests can get stuck waiting at model 0: several classes.
    let error = solve(&absorbing, &Thresholds::new([3, 1]), &SolveOptions::default()).expect_err("several classes");
    assert!(matches!(error, Error::SeveralClasses { classes: 3, .. }), "{error}");
    // Two absorbing models.
    let split = Model::builder()
        .latencies_ms([1.0, 2.0, 3.0])
        .routing(vec![vec![0.0, 0.5, 0.5], vec![0.0, 1.0, 0.0], vec![0.0, 0.0, 1.0]])
        .concurrency(2)
        .build()
        .expect("valid");
    let error = solve(&split, &Thresholds::eager(3), &SolveOptions::default()).expect_err("several classes");
    assert!(matches!(error, Error::SeveralClasses { classes: 3, .. }), "{error}");
}

#[test]
fn bad_models_name_the_place() {
    let base =
        || Model::builder().latencies_ms([6.0, 27.9]).routing(vec![vec![0.35, 0.65], vec![1.0, 0.0]]).concurrency(8);
    let message = |builder: tokenrouter_dtmc::ModelBuilder| builder.build().expect_err("bad").to_string();
    for (builder, expected) in [
        (base().routing(vec![vec![0.35, 0.6], vec![1.0, 0.0]]), "P row 0: the probabilities sum to 0.95"),
        (base().routing(vec![vec![-0.35, 1.35], vec![1.0, 0.0]]), "P[0][0]: -0.35"),
        (base().routing(vec![vec![f64::NAN, 1.0], vec![1.0, 0.0]]), "P[0][0]: NaN"),
        (base().routing(vec![vec![0.35, 0.65]]), "P: 1 rows for 2 models"),
        (base().commits(vec![vec![1.0, 0.0], vec![1.0]]), "C row 1: 1 numbers"),
        (base().concurrency(0), "concurrency: 0 requests"),
        (base().concurrency(1_000_000), "concurrency: 1000000 requests"),
        (base().latencies_ms([0.0, 27.9]), "latency of model 0: 0 ms"),
        (base().latencies_ms([6.0, f64::INFINITY]), "latency of model 1: inf ms"),
        (base().quantum_ms(7.0), "quantum 7 ms is larger than the latency 6 ms"),
        (base().quantum_ms(1e-9), "quanta of 0.000000001 ms"),
        (base().max_batch(vec![Some(0), None]), "max batch of model 0: 0"),
        (base().routing_state_models(vec![0, 2]), "routing state 1: model 2"),
        (base().latencies_ms([vec![(1, 5.0)], vec![(1, 5.0)]]), "the table ends below batch size 2"),
        (base().latencies_ms([vec![(2, 5.0), (2, 6.0)], vec![(1, 5.0)]]), "batch size 2 after 2"),
    ] {
        let text = message(builder);
        assert!(text.contains(expected), "{text}\nexpected {expected}");
        assert!(text.contains("allowed: "), "{text}");
    }
    assert!(base().quantum_ms(5.0).build().expect("valid").notes().iter().any(|note| note.contains("-16.67 %")));
}
