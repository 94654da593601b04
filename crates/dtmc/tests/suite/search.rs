//! Searches against full enumeration.

use crate::support::{close, three, throughput, two};
use tokenrouter_dtmc::{
    Error, Prediction, SearchOptions, Strategy, Thresholds, best_within_time_per_token, enumerate_feasible,
    is_feasible, optimize, threshold_table, threshold_table_rows,
};

#[test]
fn exhaustive_reports_near_ties_in_order() {
    let system = two(16, 0.65, 0.1);
    let options = SearchOptions { near_tie: 0.002, ..SearchOptions::default() };
    let found = optimize(&system, &options).expect("solvable");
    assert_eq!((found.evaluated, found.feasible, found.strategy), (136, 136, Strategy::Exhaustive));
    let first_two: Vec<&[u32]> = found.candidates[..2].iter().map(|c| c.thresholds().as_slice()).collect();
    assert_eq!(first_two, [[1, 13], [1, 12]]);
    assert_eq!(found.near_ties, 2);
    assert!(found.candidates.is_sorted_by(|a, b| a.throughput_tok_s() >= b.throughput_tok_s() * (1.0 - 1e-9)));
}

#[test]
fn equal_vectors_are_ordered_by_size() {
    // Model 1 is never reached: its threshold has no effect, so all vectors (1, b) tie.
    let system = two(3, 0.0, 0.1);
    let found = optimize(&system, &SearchOptions::default()).expect("solvable");
    assert_eq!(found.best.thresholds().as_slice(), [1, 1]);
    assert!(found.near_ties >= 3);
}

#[test]
fn other_strategies_find_the_same_best() {
    for system in [two(12, 0.4, 0.3), three(5, 1.0)] {
        let with = |strategy| {
            let options = SearchOptions { strategy, ..SearchOptions::default() };
            optimize(&system, &options).expect("solvable")
        };
        let exhaustive = with(Strategy::Exhaustive);
        for strategy in [Strategy::Screening, Strategy::Local] {
            let found = with(strategy);
            assert_eq!(found.best.thresholds(), exhaustive.best.thresholds(), "{strategy:?}");
            assert!(matches!(found.best, Prediction::Exact(_)));
            assert!(close(found.best.throughput_tok_s(), exhaustive.best.throughput_tok_s(), 1e-9));
        }
        assert!(!with(Strategy::Local).exhaustive);
        assert_eq!(with(Strategy::Screening).evaluated as u64, exhaustive.feasible);
    }
}

#[test]
fn the_table_has_the_best_vector_for_every_count() {
    let system = two(8, 0.65, 0.3);
    let table = threshold_table(&system, &SearchOptions::default()).expect("solvable");
    assert_eq!(table.len(), 8);
    for (index, thresholds) in table.iter().enumerate() {
        let n = index as u32 + 1;
        assert!(is_feasible(thresholds.as_slice(), n));
        let smaller = system.with_concurrency(n).expect("valid");
        let best = enumerate_feasible(&smaller).iter().map(|b| throughput(&smaller, b.as_slice())).fold(0.0, f64::max);
        assert!(close(throughput(&smaller, thresholds.as_slice()), best, 1e-9), "n = {n}");
    }
    assert_eq!(table[7], Thresholds::new([1, 7]));
}

#[test]
fn large_tables_climb_from_row_to_row() {
    let system = two(40, 0.65, 1.5);
    let rows = threshold_table_rows(&system, &SearchOptions::default(), &|_, _| ()).expect("solvable");
    assert!(rows[10].exhaustive && !rows[39].exhaustive);
    let exhaustive = optimize(&system, &SearchOptions { strategy: Strategy::Exhaustive, ..SearchOptions::default() })
        .expect("solvable");
    let last = rows[39].best.throughput_tok_s();
    assert!(last >= exhaustive.best.throughput_tok_s() * 0.999, "{last} {}", exhaustive.best.throughput_tok_s());
}

#[test]
fn latency_bounds_are_kept() {
    let system = two(8, 0.65, 0.1);
    let bounded = SearchOptions { max_wait_ms: Some(5.0), ..SearchOptions::default() };
    let found = optimize(&system, &bounded).expect("some vector");
    assert!(found.candidates.iter().all(|c| c.longest_wait_ms() <= 5.0));
    let free = optimize(&system, &SearchOptions::default()).expect("solvable");
    let by_hand = free.candidates.iter().find(|c| c.longest_wait_ms() <= 5.0).expect("some vector");
    assert_eq!(found.best.thresholds(), by_hand.thresholds());
    let none = SearchOptions { max_wait_ms: Some(1e-6), ..SearchOptions::default() };
    assert!(matches!(optimize(&system, &none), Err(Error::NoneWithinBound { .. })));

    let rows = threshold_table_rows(&system, &SearchOptions::default(), &|_, _| ()).expect("solvable");
    let row = best_within_time_per_token(&rows, 27.0).expect("some row");
    assert_eq!((row.active, row.best.thresholds().as_slice()), (3, [1, 3].as_slice()));
    assert!(best_within_time_per_token(&rows, 1.0).is_err());
}
