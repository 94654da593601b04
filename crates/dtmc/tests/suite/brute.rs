//! A second implementation that follows single requests: states are sorted lists of `(routing state, running?)`, every
//! request is routed on its own, every subset of a capped queue is tried, and a dense LU (nalgebra) solves the chain.

use crate::support::{cases, close, glimp, small_model, three, two};
use nalgebra::{DMatrix, DVector};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};
use tokenrouter_dtmc::{Chain, ClosedSystem, Latency, SolveOptions, StateView, System, Thresholds, solve, stationary};

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
    /// Dense transition matrix, and the state behind each row.
    transitions: DMatrix<f64>,
    views: Vec<StateView>,
}

impl Key {
    /// Counts instead of single requests.
    fn view(&self, system: &ClosedSystem) -> StateView {
        let mut view = StateView {
            waiting: vec![0; system.routing_states()],
            running: vec![0; system.routing_states()],
            remaining: self.left.clone(),
        };
        for &(state, running) in &self.requests {
            if running { view.running[state] += 1 } else { view.waiting[state] += 1 }
        }
        view
    }
}

/// All ways to launch from `key`, with probabilities; `None` in a deadlock.
fn launches(system: &ClosedSystem, thresholds: &[u32], key: Key) -> Option<Vec<(Key, f64)>> {
    let mut current = vec![(key, 1.0)];
    for (index, &threshold) in thresholds.iter().enumerate() {
        let mut next = Vec::new();
        for (key, p) in current {
            let queue: Vec<usize> = (0..key.requests.len())
                .filter(|&k| !key.requests[k].1 && system.state_models()[key.requests[k].0] == index)
                .collect();
            if key.left[index] > 0 || (queue.len() as u32) < threshold {
                next.push((key, p));
                continue;
            }
            let size = (queue.len() as u32).min(system.largest_batch(index));
            let subsets: Vec<u32> = (0_u32..1 << queue.len()).filter(|s| s.count_ones() == size).collect();
            for subset in &subsets {
                let mut after = key.clone();
                for (bit, &k) in queue.iter().enumerate() {
                    after.requests[k].1 = subset >> bit & 1 == 1;
                }
                after.left[index] = system.quanta(index, size);
                after.requests.sort_unstable();
                next.push((after, p / subsets.len() as f64));
            }
        }
        current = next;
    }
    current.iter().all(|(key, _)| key.left.iter().any(|&left| left > 0)).then_some(current)
}

/// The chain by brute force; `None` when a deadlock is reachable.
pub(crate) fn brute(system: &ClosedSystem, thresholds: &[u32], start: usize) -> Option<Brute> {
    let first = Key { requests: vec![(start, false); system.concurrency() as usize], left: vec![0; system.models()] };
    let mut number: HashMap<Key, usize> = HashMap::new();
    let mut keys = Vec::new();
    for (key, _) in launches(system, thresholds, first)? {
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
            let routed = running && finished[system.state_models()[state]];
            if !routed {
                partial.iter_mut().for_each(|(list, _)| list.push((state, running)));
                continue;
            }
            tokens += (0..system.routing_states())
                .map(|j| system.routing()[state][j] * system.commits()[state][j])
                .sum::<f64>();
            let mut next = Vec::new();
            for (list, p) in partial {
                for (target, &share) in system.routing()[state].iter().enumerate().filter(|&(_, &share)| share > 0.0) {
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
            for (after, share) in launches(system, thresholds, Key { requests, left: left.clone() })? {
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
    Some(measure(system, &keys, &rows, &facts))
}

fn measure(
    system: &ClosedSystem,
    keys: &[Key],
    rows: &[BTreeMap<usize, f64>],
    facts: &[(u32, f64, Vec<bool>)],
) -> Brute {
    let size = rows.len();
    let mut transitions = DMatrix::<f64>::zeros(size, size);
    for (from, row) in rows.iter().enumerate() {
        for (&to, &p) in row {
            transitions[(from, to)] += p;
        }
    }
    let pi = by_nalgebra(&transitions);
    let (mut time, mut tokens) = (0.0, 0.0);
    let (mut queue, mut steps, mut batches) =
        (vec![0.0; system.models()], vec![0.0; system.models()], vec![0.0; system.models()]);
    for (state, (step, committed, finished)) in facts.iter().enumerate() {
        time += pi[state] * f64::from(*step);
        tokens += pi[state] * committed;
        for index in 0..system.models() {
            let count = |running: bool| {
                keys[state].requests.iter().filter(|r| r.1 == running && system.state_models()[r.0] == index).count()
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
        throughput: tokens / (time * system.quantum_ms()) * 1000.0,
        wait_ms: (0..system.models()).map(|i| ratio(queue[i] * system.quantum_ms(), steps[i])).collect(),
        mean_batch: (0..system.models()).map(|i| ratio(steps[i], batches[i])).collect(),
        transitions,
        views: keys.iter().map(|key| key.view(system)).collect(),
    }
}

/// Stationary distribution of a dense chain with one recurrent class.
pub(crate) fn by_nalgebra(transitions: &DMatrix<f64>) -> DVector<f64> {
    let size = transitions.nrows();
    let mut balance = transitions.transpose() - DMatrix::identity(size, size);
    balance.row_mut(0).fill(1.0);
    let mut right = DVector::zeros(size);
    right[0] = 1.0;
    balance.lu().solve(&right).expect("one class")
}

/// The matrix that users get, entry by entry.
fn compare_matrix(system: &ClosedSystem, thresholds: &[u32]) {
    let options = SolveOptions::default();
    let chain = Chain::build(system, &Thresholds::new(thresholds), &options).expect("small");
    let brute = brute(system, thresholds, 0).expect("no deadlock");
    let matrix = chain.transition_matrix();
    assert!(matrix.is_csr() && matrix.shape() == (chain.len(), chain.len()));
    assert_eq!(matrix.nnz(), brute.nonzeros);
    let row_of =
        |view: &StateView| (0..chain.len()).find(|&state| chain.state(state) == *view).expect("the same states");
    let rows: Vec<usize> = brute.views.iter().map(row_of).collect();
    for (from, row) in matrix.outer_iterator().enumerate() {
        assert!((row.iter().map(|(_, p)| p).sum::<f64>() - 1.0).abs() < 1e-12, "row {from}");
    }
    for (from, &row) in rows.iter().enumerate() {
        for (to, &column) in rows.iter().enumerate() {
            let (got, want) = (matrix.get(row, column).copied().unwrap_or(0.0), brute.transitions[(from, to)]);
            assert!((got - want).abs() < 1e-12, "{from} to {to}: {got} against {want}");
        }
    }
    let (solved, _) = stationary(&chain, &options).expect("one class");
    let mut product = vec![0.0; chain.len()];
    for (&p, (from, to)) in &matrix {
        product[to] += solved.pi[from] * p;
    }
    let pi = by_nalgebra(&brute.transitions);
    for (from, &row) in rows.iter().enumerate() {
        assert!((product[row] - solved.pi[row]).abs() < 1e-12 && (pi[from] - solved.pi[row]).abs() < 1e-9);
    }
}

fn compare(system: &ClosedSystem, thresholds: &[u32]) {
    let solution = solve(system, &Thresholds::new(thresholds), &SolveOptions::default()).expect("solvable");
    let brute = brute(system, thresholds, 0).expect("no deadlock");
    assert_eq!((solution.states, solution.nonzeros), (brute.states, brute.nonzeros), "{thresholds:?} {system:?}");
    assert!(close(solution.throughput_tok_s(), brute.throughput, 1e-9), "{thresholds:?} {system:?}");
    for (index, measures) in solution.measures.models.iter().enumerate() {
        assert!((measures.mean_wait_ms - brute.wait_ms[index]).abs() < 1e-7 * (1.0 + brute.wait_ms[index]));
        assert!((measures.mean_batch - brute.mean_batch[index]).abs() < 1e-7 * (1.0 + brute.mean_batch[index]));
    }
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn random_models_match_brute_force((system, thresholds) in small_model()) {
        compare(&system, &thresholds);
    }

    #[test]
    fn transition_matrices_match_brute_force((system, thresholds) in small_model()) {
        compare_matrix(&system, &thresholds);
    }

    #[test]
    fn infeasible_means_a_reachable_deadlock((system, _) in small_model(), raw in prop::collection::vec(1_u32..5, 3)) {
        let thresholds = &raw[..system.models()];
        let feasible = tokenrouter_dtmc::is_feasible(thresholds, system.concurrency());
        prop_assert_eq!(brute(&system, thresholds, 0).is_some(), feasible, "{:?} {:?}", thresholds, system);
        let checked = Thresholds::new(thresholds).check(&system);
        prop_assert_eq!(checked.is_ok(), feasible);
    }

    #[test]
    fn the_start_does_not_matter((system, thresholds) in small_model()) {
        let thresholds = Thresholds::new(thresholds);
        let from = |start| solve(&system, &thresholds, &SolveOptions { start, ..SolveOptions::default() }).expect("solvable");
        let reference = from(0).throughput_tok_s();
        for start in 1..system.routing_states() {
            prop_assert!(close(from(start).throughput_tok_s(), reference, 1e-9));
        }
    }
}

#[test]
fn latencies_by_batch_size_and_caps_match_brute_force() {
    let table = |base: f64, slope: f64| Latency::by_batch((1..=4).map(|b| base + slope * f64::from(b)));
    let system = System { latencies_ms: vec![table(3.0, 1.0), table(9.0, 2.0)], ..two(4, 0.5, 1.0).to_system() }
        .closed(4)
        .expect("valid");
    compare(&system, &[1, 1]);
    compare(&system, &[1, 3]);
    let capped = System { max_batch: Some(vec![Some(2), Some(3)]), ..system.to_system() }
        .closed(system.concurrency())
        .expect("valid");
    compare(&capped, &[1, 1]);
    compare(&capped, &[2, 2]);
    let capped =
        System { max_batch: Some(vec![Some(1), None, Some(2)]), ..three(4, 3.0).to_system() }.closed(4).expect("valid");
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
    let system = System {
        state_models: Some((0..states).map(|s| s % 3 / 2).collect()),
        quantum_ms: 1.0,
        ..System::new([200.0, 300.0], (0..states).map(ring).collect())
    }
    .closed(2)
    .expect("valid");
    assert!(Chain::build(&system, &Thresholds::eager(2), &SolveOptions::default()).expect("small").state_bits() > 64);
    compare(&system, &[1, 1]);
    compare(&system, &[1, 2]);
}

#[test]
fn routing_states_match_brute_force() {
    compare(&glimp(3, 0.3, 4.0, 5.0, 1.0), &[1, 1]);
    compare(&glimp(4, 0.4, 3.0, 2.0, 3.0), &[1, 2]);
    // A capped batch over two routing states of one model: a uniform choice among those waiting.
    let capped = System { max_batch: Some(vec![Some(2), Some(1)]), ..glimp(4, 0.4, 3.0, 2.0, 3.0).to_system() }
        .closed(4)
        .expect("valid");
    compare(&capped, &[1, 1]);
    compare(&capped, &[2, 1]);
    compare_matrix(&capped, &[2, 1]);
}
