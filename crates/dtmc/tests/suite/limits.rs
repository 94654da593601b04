//! Sizes, bad input, awkward models.

use crate::support::{close, three, throughput, two};
use tokenrouter_dtmc::{
    Error, Latency, Limits, Prediction, SearchOptions, SimulationOptions, SolveOptions, Strategy, System, Thresholds,
    certify, estimate_size, optimize, predict, quantum_study, solve,
};

#[test]
fn estimates_are_within_a_factor_of_two() {
    for (system, thresholds, states, nonzeros) in [
        (two(16, 0.65, 0.1), vec![1, 1], 14257.0, 76865.0),
        (three(4, 0.1), vec![1, 1, 1], 658_298.0, 2_496_059.0),
        (three(6, 0.1), vec![1, 1, 1], 3_544_213.0, 19_343_843.0),
        (two(64, 0.65, 0.1), vec![1, 1], 228_265.0, 4_248_817.0),
    ] {
        let estimate = estimate_size(&system, &Thresholds::new(thresholds)).expect("feasible");
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
fn predictions_fall_back_and_say_so() {
    let system = three(4, 0.1);
    let exact = throughput(&system, &[1, 1, 1]);
    let small = SolveOptions { max_states: 100_000, ..SolveOptions::default() };
    let simulation = SimulationOptions { confidence: 0.999, ..SimulationOptions::default() };
    let predict = |solve: SolveOptions, coarse_tolerance: f64| {
        let limits = Limits { solve, simulation: simulation.clone(), coarse_tolerance };
        predict(&system.to_system(), 4, &Thresholds::eager(3), &limits).expect("some answer")
    };
    // With a small limit on memory as well, exploration alone finds out; without, an estimate does.
    for limited in [small.clone(), SolveOptions { memory_limit: Some(100 << 20), ..small.clone() }] {
        let prediction = predict(limited, 0.0);
        let Prediction::Simulated(run) = &prediction else { panic!("{prediction:?}") };
        assert!((run.throughput.mean - exact).abs() <= run.throughput.half_width, "{:?} {exact}", run.throughput);
        let standard_error = prediction.standard_error().expect("simulated");
        assert!(standard_error > 0.0 && standard_error < prediction.half_width());
    }
    let prediction = predict(small, 0.05);
    let Prediction::Coarse(coarse) = &prediction else { panic!("{prediction:?}") };
    assert!(coarse.quantum_ms > 0.1 && coarse.solution.states <= 100_000);
    assert!((coarse.solution.throughput_tok_s() / exact - 1.0).abs() <= coarse.relative_error, "{coarse:?} {exact}");
    let prediction = predict(SolveOptions::default(), 0.0);
    let Prediction::Exact(solution) = &prediction else { panic!("{prediction:?}") };
    assert!(solution.residual <= 1e-12 && prediction.standard_error().is_none() && prediction.half_width() == 0.0);
}

/// The two ways to find that a chain is over the limits give the same answer where it is not.
#[test]
fn limits_do_not_change_an_exact_answer() {
    let (system, thresholds) = (two(8, 0.65, 0.1), Thresholds::new([1, 7]));
    let small = SolveOptions { max_states: 18, memory_limit: Some(64 << 20), ..SolveOptions::default() };
    let limits = Limits { solve: small, ..Limits::default() };
    let prediction = system.predict(&thresholds, &limits).expect("fits");
    assert_eq!(prediction, system.predict(&thresholds, &Limits::default()).expect("fits"));
    assert!(matches!(prediction, Prediction::Exact(_)));
    assert!(matches!(system.predict(&Thresholds::new([5, 5]), &limits), Err(Error::Infeasible { .. })));
}

#[test]
fn unknown_keys_of_a_system_are_refused() {
    let text = r#"{"latencies_ms": [6.0], "routing": [[1]], "comits": [[1]]}"#;
    let error = serde_json::from_str::<System>(text).expect_err("a slip").to_string();
    assert!(error.contains("comits") && error.contains("commits"), "{error}");
    let system = two(3, 0.5, 0.3).to_system();
    let written = serde_json::to_string(&system).expect("writes");
    assert_eq!(serde_json::from_str::<System>(&written).expect("reads back"), system);
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
    let absorbing = System {
        routing: vec![vec![0.5, 0.5], vec![0.0, 1.0]],
        commits: Some(vec![vec![1.0; 2]; 2]),
        ..two(4, 0.5, 0.1).to_system()
    }
    .closed(4)
    .expect("valid");
    assert!(absorbing.notes().iter().any(|note| note.contains("never return")));
    let solution = solve(&absorbing, &Thresholds::eager(2), &SolveOptions::default()).expect("one class");
    assert!(solution.transient > 0);
    assert!(close(solution.throughput_tok_s(), 4.0 / 27.9 * 1000.0, 1e-9));
    // With a threshold, requests can get stuck waiting at model 0: several classes.
    let error = solve(&absorbing, &Thresholds::new([3, 1]), &SolveOptions::default()).expect_err("several classes");
    assert!(matches!(error, Error::SeveralClasses { classes: 3, .. }), "{error}");
    // Two absorbing models.
    let split = System::new([1.0, 2.0, 3.0], vec![vec![0.0, 0.5, 0.5], vec![0.0, 1.0, 0.0], vec![0.0, 0.0, 1.0]])
        .closed(2)
        .expect("valid");
    let error = solve(&split, &Thresholds::eager(3), &SolveOptions::default()).expect_err("several classes");
    assert!(matches!(error, Error::SeveralClasses { classes: 3, .. }), "{error}");
}

#[test]
fn bad_systems_name_the_place() {
    let base = || System::new([6.0, 27.9], vec![vec![0.35, 0.65], vec![1.0, 0.0]]);
    let routing = |routing: Vec<Vec<f64>>| System { routing, ..base() };
    let latencies = |latencies_ms: Vec<Latency>| System { latencies_ms, ..base() };
    let constant = |ms: [f64; 2]| latencies(ms.map(Latency::Constant).to_vec());
    for (system, n, expected) in [
        (routing(vec![vec![0.35, 0.6], vec![1.0, 0.0]]), 8, "P row 0: the probabilities sum to 0.95"),
        (routing(vec![vec![-0.35, 1.35], vec![1.0, 0.0]]), 8, "P[0][0]: -0.35"),
        (routing(vec![vec![f64::NAN, 1.0], vec![1.0, 0.0]]), 8, "P[0][0]: NaN"),
        (routing(vec![vec![0.35, 0.65]]), 8, "P: 1 rows for 2 models"),
        (System { commits: Some(vec![vec![1.0, 0.0], vec![1.0]]), ..base() }, 8, "C row 1: 1 numbers"),
        (base(), 0, "concurrency: 0 requests"),
        (base(), 1_000_000, "concurrency: 1000000 requests"),
        (constant([0.0, 27.9]), 8, "latency of model 0: 0 ms"),
        (constant([6.0, f64::INFINITY]), 8, "latency of model 1: inf ms"),
        (System { quantum_ms: 7.0, ..base() }, 8, "quantum 7 ms is larger than the latency 6 ms"),
        (System { quantum_ms: 1e-9, ..base() }, 8, "quanta of 0.000000001 ms"),
        (System { max_batch: Some(vec![Some(0), None]), ..base() }, 8, "max batch of model 0: 0"),
        (System { state_models: Some(vec![0, 2]), ..base() }, 8, "routing state 1: model 2"),
        (latencies(vec![Latency::by_batch([5.0]), Latency::by_batch([5.0])]), 8, "the table ends below batch size 2"),
        (latencies(vec![vec![(2, 5.0), (2, 6.0)].into(), 5.0.into()]), 8, "batch size 2 after 2"),
    ] {
        let text = system.closed(n).expect_err("bad").to_string();
        assert!(text.contains(expected), "{text}\nexpected {expected}");
        assert!(text.contains("allowed: "), "{text}");
    }
    let rounded = System { quantum_ms: 5.0, ..base() }.closed(8).expect("valid");
    assert!(rounded.notes().iter().any(|note| note.contains("-16.67 %")));
}

#[test]
fn a_system_that_commits_nothing_is_refused() {
    let routing = vec![vec![0.35, 0.65], vec![1.0, 0.0]];
    for commits in [vec![vec![0.0; 2]; 2], vec![vec![0.0, 0.0], vec![0.0, 1.0]]] {
        let system = System { commits: Some(commits), ..System::new([6.0, 27.9], routing.clone()) };
        let error = system.closed(8).expect_err("no token");
        assert!(error.is_bad_input() && error.to_string().starts_with("C: no token is ever committed"), "{error}");
    }
}

#[test]
fn rows_are_scaled_only_near_a_sum_of_one() {
    let scaled = |first: f64| System::new([6.0, 27.9], vec![vec![first, 0.65], vec![1.0, 0.0]]).normalised();
    let (system, notes) = scaled(0.3509);
    assert!(notes.len() == 1 && notes[0].contains("P row 0") && system.closed(2).is_ok(), "{notes:?}");
    for untouched in [0.35, 0.352, f64::NAN] {
        let (system, notes) = scaled(untouched);
        assert!(notes.is_empty() && system.routing[0][0].to_bits() == untouched.to_bits(), "{notes:?}");
    }
}

#[test]
fn equal_latencies_lock_in_phase() {
    let best = |large: f64| {
        let system = System::new([27.9, large], vec![vec![0.35, 0.65], vec![1.0, 0.0]]);
        let found = optimize(&system.closed(8).expect("valid"), &SearchOptions::default()).expect("a best");
        let best = &found.candidates[0];
        (best.thresholds().as_slice().to_vec(), (10.0 * best.throughput_tok_s()).round() / 10.0)
    };
    assert_eq!(best(27.9), (vec![1, 1], 286.7));
    assert_eq!(best(28.0), (vec![4, 1], 263.5));
}
