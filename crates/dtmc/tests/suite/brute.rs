//! A second implementation that follows single requests: states are sorted lists of `(routing state, running?)`, every
//! request is routed on its own, every subset of a capped queue is tried, and a dense LU (nalgebra) solves the chain.

use crate::support::{cases, close, glimp, small_model, three, two};
use nalgebra::{DMatrix, DVector};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};
use tokenrouter_dtmc::{Chain, Model, SolveOptions, Thresholds, solve};

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
struct Key {
    requests: Vec<(usize, bool)>,
    left: Vec<u32>,
}

pub(crate) struct Brute {
    pub(crate) states: usize,
    pub(crate) nonzeros: usize,
    pub(crate) throughput: f64,
    pub(crate) wait_ms: Vec<f64>,
    pub(crate) mean_batch: Vec<f64>,
}

/// All ways to launch from `key`, with probabilities; `None` in a deadlock.
fn launches(model: &Model, thresholds: &[u32], key: Key) -> Option<Vec<(Key, f64)>> {
    let mut current = vec![(key, 1.0)];
    for (index, &threshold) in thresholds.iter().enumerate() {
        let mut next = Vec::new();
        for (key, p) in current {
            let queue: Vec<usize> = (0..key.requests.len())
                .filter(|&k| !key.requests[k].1 && model.state_models()[key.requests[k].0] == index)
                .collect();
            if key.left[index] > 0 || (queue.len() as u32) < threshold {
                next.push((key, p));
                continue;
            }
            let size = (queue.len() as u32).min(model.largest_batch(index));
            let subsets: Vec<u32> = (0_u32..1 << queue.len()).filter(|s| s.count_ones() == size).collect();
            for subset in &subsets {
                let mut after = key.clone();
                for (bit, &k) in queue.iter().enumerate() {
                    after.requests[k].1 = subset >> bit & 1 == 1;
                }
                after.left[index] = model.quanta(index, size);
                after.requests.sort_unstable();
                next.push((after, p / subsets.len() as f64));
            }
        }
        current = next;
    }
    current.iter().all(|(key, _)| key.left.iter().any(|&left| left > 0)).then_some(current)
}

/// The chain by brute force; `None` when a deadlock is reachable.
pub(crate) fn brute(model: &Model, thresholds: &[u32], start: usize) -> Option<Brute> {
    let first = Key { requests: vec![(start, false); model.concurrency() as usize], left: vec![0; model.models()] };
    let mut number: HashMap<Key, usize> = HashMap::new();
    let mut keys = Vec::new();
    for (key, _) in launches(model, thresholds, first)? {
        number.entry(key.clone()).or_insert_with(|| {
            keys.push(key);
            keys.len() - 1
        });
    }
    let mut rows: Vec<BTreeMap<usize, f64>> = Vec::new();
    let mut facts = Vec::new();
    while rows.len() < keys.len() {
        let key = keys[rows.len()].clone();
        let step = key.left.iter().copied().filter(|&left| left > 0).min()?;
        let finished: Vec<bool> = key.left.iter().map(|&left| left == step).collect();
        let mut partial = vec![(Vec::<(usize, bool)>::new(), 1.0)];
        let mut tokens = 0.0;
        for &(state, running) in &key.requests {
            let routed = running && finished[model.state_models()[state]];
            if !routed {
                partial.iter_mut().for_each(|(list, _)| list.push((state, running)));
                continue;
            }
            tokens +=
                (0..model.routing_states()).map(|j| model.routing()[state][j] * model.commits()[state][j]).sum::<f64>();
            let mut next = Vec::new();
            for (list, p) in partial {
                for (target, &share) in model.routing()[state].iter().enumerate().filter(|&(_, &share)| share > 0.0) {
                    let mut longer = list.clone();
                    longer.push((target, false));
                    next.push((longer, p * share));
                }
            }
            partial = next;
        }
        let left: Vec<u32> = key.left.iter().map(|&left| left.saturating_sub(step)).collect();
        let mut row = BTreeMap::new();
        for (mut requests, p) in partial {
            requests.sort_unstable();
            for (after, share) in launches(model, thresholds, Key { requests, left: left.clone() })? {
                let fresh = keys.len();
                let to = *number.entry(after.clone()).or_insert(fresh);
                if to == fresh {
                    keys.push(after);
                }
                *row.entry(to).or_insert(0.0) += p * share;
            }
        }
        facts.push((step, tokens, finished));
        rows.push(row);
    }
    Some(measure(model, &keys, &rows, &facts))
}

fn measure(model: &Model, keys: &[Key], rows: &[BTreeMap<usize, f64>], facts: &[(u32, f64, Vec<bool>)]) -> Brute {
    let size = rows.len();
    let mut system = DMatrix::<f64>::zeros(size, size);
    for (from, row) in rows.iter().enumerate() {
        for (&to, &p) in row {
            system[(to, from)] += p;
        }
        system[(from, from)] -= 1.0;
    }
    system.row_mut(0).fill(1.0);
    let mut right = DVector::zeros(size);
    right[0] = 1.0;
    let pi = system.lu().solve(&right).expect("one class");
    let (mut time, mut tokens) = (0.0, 0.0);
    let (mut queue, mut steps, mut batches) =
        (vec![0.0; model.models()], vec![0.0; model.models()], vec![0.0; model.models()]);
    for (state, (step, committed, finished)) in facts.iter().enumerate() {
        time += pi[state] * f64::from(*step);
        tokens += pi[state] * committed;
        for index in 0..model.models() {
            let count = |running: bool| {
                keys[state].requests.iter().filter(|r| r.1 == running && model.state_models()[r.0] == index).count()
                    as f64
            };
            queue[index] += pi[state] * f64::from(*step) * count(false);
            if finished[index] {
                steps[index] += pi[state] * count(true);
                batches[index] += pi[state];
            }
        }
    }
    let ratio = |a: f64, b: f64| if b > 1e-12 { a / b } else { 0.0 };
    Brute {
        states: size,
        nonzeros: rows.iter().map(BTreeMap::len).sum(),
        throughput: tokens / (time * model.quantum_ms()) * 1000.0,
        wait_ms: (0..model.models()).map(|i| ratio(queue[i] * model.quantum_ms(), steps[i])).collect(),
        mean_batch: (0..model.models()).map(|i| ratio(steps[i], batches[i])).collect(),
    }
}

fn compare(model: &Model, thresholds: &[u32]) {
    let solution = solve(model, &Thresholds::new(thresholds), &SolveOptions::default()).expect("solvable");
    let brute = brute(model, thresholds, 0).expect("no deadlock");
    assert_eq!((solution.states, solution.nonzeros), (brute.states, brute.nonzeros), "{thresholds:?} {model:?}");
    assert!(close(solution.throughput_tok_s(), brute.throughput, 1e-9), "{thresholds:?} {model:?}");
    for (index, measures) in solution.measures.models.iter().enumerate() {
        assert!((measures.mean_wait_ms - brute.wait_ms[index]).abs() < 1e-7 * (1.0 + brute.wait_ms[index]));
        assert!((measures.mean_batch - brute.mean_batch[index]).abs() < 1e-7 * (1.0 + brute.mean_batch[index]));
    }
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn random_models_match_brute_force((model, thresholds) in small_model()) {
        compare(&model, &thresholds);
    }

    #[test]
    fn infeasible_means_a_reachable_deadlock((model, _) in small_model(), raw in prop::collection::vec(1_u32..5, 3)) {
        let thresholds = &raw[..model.models()];
        let feasible = tokenrouter_dtmc::is_feasible(thresholds, model.concurrency());
        prop_assert_eq!(brute(&model, thresholds, 0).is_some(), feasible, "{:?} {:?}", thresholds, model);
        let checked = Thresholds::new(thresholds).check(&model);
        prop_assert_eq!(checked.is_ok(), feasible);
    }

    #[test]
    fn the_start_does_not_matter((model, thresholds) in small_model()) {
        let thresholds = Thresholds::new(thresholds);
        let from = |start| solve(&model, &thresholds, &SolveOptions { start, ..SolveOptions::default() }).expect("solvable");
        let reference = from(0).throughput_tok_s();
        for start in 1..model.routing_states() {
            prop_assert!(close(from(start).throughput_tok_s(), reference, 1e-9));
        }
    }
}

#[test]
fn latencies_by_batch_size_and_caps_match_brute_force() {
    let table = |base: f64, slope: f64| (1..=4).map(|b| (b, base + slope * f64::from(b))).collect::<Vec<_>>();
    let model = two(4, 0.5, 1.0).to_builder().latencies_ms([table(3.0, 1.0), table(9.0, 2.0)]).build().expect("valid");
    compare(&model, &[1, 1]);
    compare(&model, &[1, 3]);
    let capped = model.to_builder().max_batch(vec![Some(2), Some(3)]).build().expect("valid");
    compare(&capped, &[1, 1]);
    compare(&capped, &[2, 2]);
    let capped = three(4, 3.0).to_builder().max_batch(vec![Some(1), None, Some(2)]).build().expect("valid");
    compare(&capped, &[1, 2, 1]);
}

/// Wide enough for states of more than 64 bits.
#[test]
fn many_routing_states_match_brute_force() {
    let states = 16;
    let ring = |s: usize| {
        let mut row = vec![0.0; states];
        row[(s + 1) % states] = 0.75;
        row[(s + 5) % states] = 0.25;
        row
    };
    let model = Model::builder()
        .latencies_ms([200.0, 300.0])
        .routing_state_models((0..states).map(|s| s % 3 / 2).collect())
        .routing((0..states).map(ring).collect())
        .quantum_ms(1.0)
        .concurrency(2)
        .build()
        .expect("valid");
    assert!(Chain::build(&model, &Thresholds::eager(2), &SolveOptions::default()).expect("small").state_bits() > 64);
    compare(&model, &[1, 1]);
    compare(&model, &[1, 2]);
}

#[test]
fn routing_states_match_brute_force() {
    compare(&glimp(3, 0.3, 4.0, 5.0, 1.0), &[1, 1]);
    compare(&glimp(4, 0.4, 3.0, 2.0, 3.0), &[1, 2]);
    // A capped batch over two routing states of one model: a uniform choice among those waiting.
    let capped = glimp(4, 0.4, 3.0, 2.0, 3.0).to_builder().max_batch(vec![Some(2), Some(1)]).build().expect("valid");
    compare(&capped, &[1, 1]);
    compare(&capped, &[2, 1]);
}
