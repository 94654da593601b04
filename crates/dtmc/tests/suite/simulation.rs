//! The simulator against the exact chain.

use crate::support::{glimp, three, throughput, two};
use tokenrouter_dtmc::{
    ClosedSystem, Latency, SimulationOptions, SolveOptions, System, Thresholds, paired_difference, simulate, solve,
};

fn options(seed: u64, max_steps: u64) -> SimulationOptions {
    SimulationOptions { seed, max_steps, relative_half_width: 0.0, ..SimulationOptions::default() }
}

/// Of 200 intervals at 90 %, between 80 % and 97 % must cover: more than five standard deviations on either side.
fn coverage(system: &ClosedSystem, thresholds: &[u32]) {
    let exact = throughput(system, thresholds);
    let covered = (0..200)
        .filter(|&seed| {
            let options = SimulationOptions { confidence: 0.9, ..options(1000 + seed, 150_000) };
            let run = simulate(system, &Thresholds::new(thresholds), &options).expect("feasible");
            (run.throughput.mean - exact).abs() <= run.throughput.half_width
        })
        .count();
    assert!((160..=194).contains(&covered), "{covered} of 200 intervals cover {exact} for {thresholds:?}");
}

#[test]
fn intervals_cover_at_their_rate() {
    coverage(&two(8, 0.65, 0.1), &[1, 7]);
    coverage(&three(4, 1.0), &[1, 2, 2]);
}

#[test]
fn extensions_agree_with_the_exact_chain() {
    let table = |base: f64, slope: f64| Latency::by_batch((1..=4).map(|b| base + slope * f64::from(b)));
    let by_batch = System { latencies_ms: vec![table(3.0, 1.0), table(9.0, 2.0)], ..two(4, 0.5, 1.0).to_system() }
        .closed(4)
        .expect("valid");
    let capped = System { max_batch: Some(vec![Some(2), Some(1)]), ..glimp(4, 0.4, 3.0, 2.0, 1.0).to_system() }
        .closed(4)
        .expect("valid");
    for (system, thresholds) in [(by_batch, [1, 2]), (glimp(4, 0.3, 5.0, 4.0, 1.0), [1, 2]), (capped, [1, 1])] {
        let thresholds = Thresholds::new(thresholds);
        let exact = solve(&system, &thresholds, &SolveOptions::default()).expect("solvable");
        let run = simulate(&system, &thresholds, &SimulationOptions { confidence: 0.9999, ..options(5, 4_000_000) })
            .expect("feasible");
        let error = (run.throughput.mean - exact.throughput_tok_s()).abs();
        assert!(error <= run.throughput.half_width, "{error} > {}", run.throughput.half_width);
        for (simulated, exact) in run.measures.models.iter().zip(&exact.measures.models) {
            assert!((simulated.utilisation - exact.utilisation).abs() < 0.01);
            assert!((simulated.mean_wait_ms - exact.mean_wait_ms).abs() < 0.02 * exact.mean_wait_ms + 0.02);
            assert!((simulated.mean_batch - exact.mean_batch).abs() < 0.02 * exact.mean_batch);
        }
    }
}

#[test]
fn a_seed_fixes_the_run_and_pairs_with_others() {
    let system = two(8, 0.65, 0.1);
    let run = |seed, thresholds: [u32; 2]| {
        simulate(&system, &Thresholds::new(thresholds), &options(seed, 300_000)).expect("feasible")
    };
    assert_eq!(run(3, [1, 7]), run(3, [1, 7]));
    assert_ne!(run(3, [1, 7]).throughput, run(4, [1, 7]).throughput);
    let (a, b) = (run(3, [1, 7]), run(3, [1, 6]));
    if let Some(difference) = paired_difference(&a, &b) {
        let exact = throughput(&system, &[1, 7]) - throughput(&system, &[1, 6]);
        assert!((difference.mean - exact).abs() < 4.0 * difference.half_width);
    }
    assert!(paired_difference(&a, &run(4, [1, 6])).is_none());
}

#[test]
fn a_deterministic_system_has_a_point_interval() {
    let system = System::new([5.0], vec![vec![1.0]]).closed(3).expect("valid");
    let run = simulate(&system, &Thresholds::new([1]), &SimulationOptions::default()).expect("feasible");
    assert!((run.throughput.mean - 600.0).abs() < 1e-9 && run.throughput.half_width < 1e-9);
}
