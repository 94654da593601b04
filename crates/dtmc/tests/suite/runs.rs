//! Laws of visit lengths against closed forms, a likelihood on a grid, and the laws that samples were drawn from.

use crate::support::{cases, close};
use proptest::prelude::*;
use rand_distr::{Distribution, StandardUniform};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use tokenrouter_dtmc::runs::{LawFit, ModelVisits, RunLaw, RunOptions, Shape, fit_runs, geometric_test};
use tokenrouter_dtmc::{SolveOptions, System, Thresholds, solve};

fn parallel(short: f64, leave: [f64; 2]) -> RunLaw {
    RunLaw {
        start: vec![short, 1.0 - short],
        stay: vec![vec![1.0 - leave[0], 0.0], vec![0.0, 1.0 - leave[1]]],
        leave: leave.to_vec(),
    }
}

fn series(leave: &[f64]) -> RunLaw {
    let m = leave.len();
    let arc = |i: usize, j: usize| match () {
        () if i == j => 1.0 - leave[i],
        () if j == i + 1 => leave[i],
        () => 0.0,
    };
    RunLaw {
        start: (0..m).map(|i| f64::from(u8::from(i == 0))).collect(),
        stay: (0..m).map(|i| (0..m).map(|j| arc(i, j)).collect()).collect(),
        leave: (0..m).map(|i| if i + 1 == m { leave[i] } else { 0.0 }).collect(),
    }
}

/// A boundary that leaves with probability `q` and a sentence of mean `1 / back` after it: GlimpRouter's small model.
fn boundary(q: f64, back: f64) -> RunLaw {
    RunLaw { start: vec![1.0, 0.0], stay: vec![vec![0.0, 1.0 - q], vec![back, 1.0 - back]], leave: vec![q, 0.0] }
}

/// Visits drawn from a law.
fn drawn(law: &RunLaw, visits: u32, seed: u64) -> ModelVisits {
    let mut stream = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut lengths = vec![0; 2001];
    for _ in 0..visits {
        lengths[law.sample(|| StandardUniform.sample(&mut stream), 2000) as usize] += 1;
    }
    lengths.truncate(lengths.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1));
    ModelVisits { lengths, ..ModelVisits::default() }
}

/// Visits in exact proportion to a law, as nearly as whole numbers allow.
fn exact(law: &RunLaw, visits: f64) -> ModelVisits {
    let counts = law.probabilities(400).into_iter().map(|share| (share * visits).round() as u64);
    ModelVisits { lengths: std::iter::once(0).chain(counts).collect(), ..ModelVisits::default() }
}

fn fit(visits: &ModelVisits) -> LawFit {
    let other = ModelVisits { lengths: vec![0, 1], ..ModelVisits::default() };
    let found = fit_runs(&[visits.clone(), other], &RunOptions::default()).expect("valid");
    found.models.into_iter().next().flatten().expect("visits")
}

fn log_likelihood(law: &RunLaw, visits: &ModelVisits) -> f64 {
    let shares = law.probabilities(visits.lengths.len());
    let pairs = visits.lengths[1..].iter().zip(&shares).filter(|&(&count, _)| count > 0);
    pairs.map(|(&count, share)| count as f64 * share.ln()).sum()
}

#[test]
fn one_state_has_the_closed_form() {
    let visits = ModelVisits { lengths: vec![0, 3, 0, 5, 1], ..ModelVisits::default() };
    let law = fit(&visits);
    assert_eq!(law.chosen.shape, Shape::Geometric);
    assert!(close(law.law.leave[0], 9.0 / 22.0, 1e-14), "{law:?}");
    assert!(close(law.chosen.log_likelihood, 9.0 * (9.0_f64 / 22.0).ln() + 13.0 * (13.0_f64 / 22.0).ln(), 1e-12));
    // Visits of which only a least length is known were seen to stay that often.
    let cut = ModelVisits { lengths: vec![0, 3, 0, 5, 1], longer: 2, ..ModelVisits::default() };
    assert!(close(fit(&cut).law.leave[0], 9.0 / 30.0, 1e-14));
}

/// Two states in parallel against a grid over all three numbers: nothing on it is more likely, and a fine grid comes near.
#[test]
fn a_mixture_is_as_likely_as_any_on_a_grid() {
    let visits = drawn(&parallel(0.6, [0.7, 0.08]), 3000, 5);
    let found = fit(&visits);
    let of = found.candidates.iter().find(|c| c.shape == Shape::Parallel && c.states == 2).expect("fitted");
    let grid = |from: f64, to: f64| (0..=40).map(move |k| from + (to - from) * f64::from(k) / 40.0);
    let mut best = f64::NEG_INFINITY;
    for share in grid(0.5, 0.7) {
        for short in grid(0.55, 0.85) {
            for long in grid(0.06, 0.10) {
                best = best.max(log_likelihood(&parallel(share, [short, long]), &visits));
            }
        }
    }
    assert!(of.log_likelihood >= best - 1e-6 && of.log_likelihood < best + 0.2, "{} {best}", of.log_likelihood);
    assert!(close(log_likelihood(&found.law, &visits), found.chosen.log_likelihood, 1e-9));
}

#[test]
fn the_form_behind_many_visits_is_found_with_its_numbers() {
    let checks: [(RunLaw, Shape, usize); 6] = [
        (RunLaw::geometric(0.2), Shape::Geometric, 1),
        (series(&[1.0, 0.3]), Shape::Delayed, 2),
        (series(&[1.0, 1.0, 0.25]), Shape::Delayed, 3),
        (series(&[0.3, 0.2]), Shape::Series, 2),
        (parallel(0.5, [0.8, 0.05]), Shape::Parallel, 2),
        (boundary(0.3, 0.1), Shape::Free, 2),
    ];
    for (seed, (law, shape, states)) in checks.into_iter().enumerate() {
        let found = fit(&drawn(&law, 40_000, seed as u64));
        assert_eq!((found.chosen.shape, found.chosen.states), (shape, states), "seed {seed}: {found:?}");
        let (got, want) = (found.law.probabilities(30), law.probabilities(30));
        // Five standard deviations of a share of 40,000 visits, at most.
        assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 0.0125), "seed {seed}: {got:?} {want:?}");
        assert!(close(found.law.mean(), law.mean(), 0.05), "seed {seed}");
        assert!(found.test.expect("enough visits").p_value > 1e-3, "seed {seed}: {found:?}");
        let plain = geometric_test(&drawn(&law, 40_000, seed as u64)).expect("valid").expect("enough visits");
        assert_eq!(plain.p_value > 1e-3, shape == Shape::Geometric, "seed {seed}: {plain:?}");
    }
}

/// With the chosen form the true one, one p-value in ten is below a tenth.
#[test]
fn p_values_are_spread_evenly_under_the_true_law() {
    for (law, form) in [(RunLaw::geometric(0.3), Shape::Geometric), (series(&[0.5, 0.3]), Shape::Series)] {
        let mut values: Vec<f64> = (0..120)
            .map(|seed| fit(&drawn(&law, 2000, seed)))
            .filter(|found| found.chosen.shape == form)
            .map(|found| found.test.expect("enough visits").p_value)
            .collect();
        assert!(values.len() > 108, "{form:?}: chosen {} times of 120", values.len());
        values.sort_by(f64::total_cmp);
        let n = values.len() as f64;
        let distance = values.iter().zip(1..).map(|(value, k)| (value - f64::from(k) / n).abs()).fold(0.0, f64::max);
        // Kolmogorov's distance at one in a thousand is 1.95 / sqrt(n). The cells' test is nearly, not quite, uniform.
        assert!(distance < 1.95 / n.sqrt() + 0.03, "{form:?}: {distance}");
    }
}

#[test]
fn lengths_that_never_change_are_exact() {
    for length in 1..=3 {
        let mut lengths = vec![0; length + 1];
        lengths[length] = 500;
        let found = fit(&ModelVisits { lengths, ..ModelVisits::default() });
        assert!(close(found.law.probabilities(4)[length - 1], 1.0, 1e-9) && found.chosen.states == length, "{found:?}");
    }
}

proptest! {
    #![proptest_config(cases(60))]

    /// Whatever the visits, the matrices are over at most three states a model, and the stationary shares of the models'
    /// steps are those that the visits had.
    #[test]
    fn states_keep_the_shares_of_steps(
        lengths in prop::collection::vec(prop::collection::vec(0_u64..40, 1..30), 2..4),
        moves in prop::collection::vec(1_u64..20, 9),
    ) {
        let models = lengths.len();
        let visits: Vec<ModelVisits> = lengths.iter().enumerate().map(|(model, lengths)| {
            let lengths = [0, 1].into_iter().chain(lengths.iter().copied()).collect();
            let moves = (0..models).map(|to| if to == model { 0 } else { moves[3 * model + to] }).collect();
            ModelVisits { lengths, moves, ..ModelVisits::default() }
        }).collect();
        let found = fit_runs(&visits, &RunOptions::default()).expect("valid");
        let states = &found.states;
        prop_assert!(states.state_models.len() <= 3 * models);
        for (model, fit) in found.models.iter().enumerate() {
            let fit = fit.as_ref().expect("visits");
            let (steps, count) = visits[model].lengths.iter().zip(0_u64..)
                .fold((0, 0), |(steps, all), (count, n)| (steps + count * n, all + count));
            prop_assert!(close(fit.law.mean(), steps as f64 / count as f64, 1e-3), "{fit:?}");
        }
        // A single request: tokens per second are steps over their time, by the visits' own means and moves.
        let mut share = vec![1.0 / models as f64; models];
        for _ in 0..4000 {
            let next: Vec<f64> = (0..models).map(|to| {
                let came = |from: usize| visits[from].moves[to] as f64 / visits[from].moves.iter().sum::<u64>() as f64;
                0.5 * share[to] + 0.5 * (0..models).map(|from| share[from] * came(from)).sum::<f64>()
            }).collect();
            share = next;
        }
        let steps = |model: usize| share[model] * found.models[model].as_ref().expect("visits").law.mean();
        let time: f64 = (0..models).map(|model| steps(model) * (model + 1) as f64).sum();
        let want = 1000.0 * (0..models).map(steps).sum::<f64>() / time;
        let latencies: Vec<f64> = (1..=models).map(|ms| ms as f64).collect();
        let system = states.of(System { quantum_ms: 1.0, ..System::new(latencies, vec![]) });
        let closed = system.closed(1).expect("valid");
        let got = solve(&closed, &Thresholds::new(vec![1; models]), &SolveOptions::default()).expect("solvable");
        prop_assert!(close(got.throughput_tok_s(), want, 1e-6), "{} {want}", got.throughput_tok_s());
    }
}

/// Visits of three models with known laws: the matrices are the ones written by hand.
#[test]
fn the_matrices_are_those_written_by_hand() {
    let visits = [
        ModelVisits { moves: vec![0, 3, 1], tokens: vec![1.0, 0.0, 0.5], ..exact(&RunLaw::geometric(0.25), 1e6) },
        ModelVisits { moves: vec![8, 0, 0], ..exact(&series(&[1.0, 0.5]), 1e6) },
        ModelVisits { lengths: vec![0, 7], moves: vec![0, 7, 0], ..ModelVisits::default() },
    ];
    let states = fit_runs(&visits, &RunOptions::default()).expect("valid").states;
    assert_eq!(states.state_models, [0, 1, 1, 2]);
    let want = [[0.75, 0.1875, 0.0, 0.0625], [0.0, 0.0, 1.0, 0.0], [0.5, 0.0, 0.5, 0.0], [0.0, 1.0, 0.0, 0.0]];
    for (got, want) in states.routing.iter().zip(want) {
        assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-3), "{:?}", states.routing);
    }
    assert_eq!(states.commits[0], [1.0, 0.0, 0.0, 0.5]);
}

#[test]
fn bad_visits_are_refused_by_place() {
    let good = ModelVisits { lengths: vec![0, 4], ..ModelVisits::default() };
    let cases: [(ModelVisits, &str); 3] = [
        (ModelVisits { lengths: vec![2, 4], ..ModelVisits::default() }, "visits of model 0: visits of 0 steps"),
        (ModelVisits { moves: vec![1], ..good.clone() }, "moves of model 0: 1 entries"),
        (ModelVisits { tokens: vec![1.0, f64::NAN], ..good.clone() }, "tokens of model 0: NaN"),
    ];
    for (bad, want) in cases {
        let why = fit_runs(&[bad, good.clone()], &RunOptions::default()).expect_err("refused").to_string();
        assert!(why.starts_with(want), "{why}");
    }
    let why = fit_runs(&[good], &RunOptions { most_states: 4, ..RunOptions::default() }).expect_err("refused");
    assert!(why.to_string().contains("1 to 3"), "{why}");
}
