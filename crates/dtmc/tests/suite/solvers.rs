//! The stationary methods against each other, against nalgebra, and on awkward chains.

use crate::brute::by_nalgebra;
use crate::support::{cases, row};
use nalgebra::DMatrix;
use proptest::prelude::*;
use tokenrouter_dtmc::{Error, Method, Tolerance, TransitionMatrix, classes, period};

/// Random irreducible chains: a cycle through all states plus random edges.
fn chain() -> impl Strategy<Value = Vec<Vec<(u32, f64)>>> {
    (2_usize..60).prop_flat_map(|size| {
        let edges = prop::collection::vec(prop::collection::vec((0..size as u32, 0.001_f64..1.0), 0..5), size);
        (Just(size), edges).prop_map(|(size, edges)| {
            edges
                .into_iter()
                .enumerate()
                .map(|(state, mut row)| {
                    row.push((((state + 7) % size) as u32, 0.3));
                    row.push((((state + 1) % size) as u32, 0.3));
                    row.sort_by_key(|&(column, _)| column);
                    row.dedup_by(|next, kept| {
                        let same = next.0 == kept.0;
                        if same {
                            kept.1 += next.1;
                        }
                        same
                    });
                    let total: f64 = row.iter().map(|&(_, p)| p).sum();
                    row.iter_mut().for_each(|(_, p)| *p /= total);
                    row
                })
                .collect()
        })
    })
}

fn dense(rows: &[Vec<(u32, f64)>]) -> DMatrix<f64> {
    let mut transitions = DMatrix::zeros(rows.len(), rows.len());
    for (from, row) in rows.iter().enumerate() {
        row.iter().for_each(|&(to, p)| transitions[(from, to as usize)] += p);
    }
    transitions
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn all_methods_agree(rows in chain()) {
        let matrix = TransitionMatrix::from_rows(&rows).expect("stochastic");
        prop_assert_eq!(classes(&matrix).recurrent.len(), 1);
        let expected = by_nalgebra(&dense(&rows));
        for (name, method) in Method::NAMES {
            let answer = method.solver(matrix.len()).solve(&matrix, Tolerance::default()).expect("solvable");
            prop_assert!(answer.residual <= 1e-12, "{} residual {}", name, answer.residual);
            prop_assert!((answer.pi.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            for (got, want) in answer.pi.iter().zip(&expected) {
                prop_assert!((got - want).abs() < 1e-9, "{}: {} against {}", name, got, want);
            }
        }
    }

    #[test]
    fn periodic_chains_are_solved(length in 2_usize..40, first in row(3)) {
        // A ring in which the first state skips ahead by multiples of `length`: period `length` at least.
        let size = 3 * length;
        let rows: Vec<Vec<(u32, f64)>> = (0..size)
            .map(|state| {
                if state == 0 {
                    (0..3).map(|k| (((1 + k * length) % size) as u32, first[k])).collect()
                } else {
                    vec![(((state + 1) % size) as u32, 1.0)]
                }
            })
            .collect();
        let matrix = TransitionMatrix::from_rows(&rows).expect("stochastic");
        prop_assert_eq!(period(&matrix), length as u64);
        let expected = by_nalgebra(&dense(&rows));
        for method in [Method::Gth, Method::SparseLu, Method::CutSet, Method::Sweeps] {
            let answer = method.solver(matrix.len()).solve(&matrix, Tolerance::default()).expect("solvable");
            for (got, want) in answer.pi.iter().zip(&expected) {
                prop_assert!((got - want).abs() < 1e-9, "{:?}: {} against {}", method, got, want);
            }
        }
    }

    #[test]
    fn classes_match_reachability(edges in prop::collection::vec(prop::collection::vec(0_u32..12, 1..3), 12)) {
        let rows: Vec<Vec<(u32, f64)>> = edges
            .iter()
            .map(|targets| targets.iter().map(|&to| (to, 1.0 / targets.len() as f64)).collect())
            .collect();
        let matrix = TransitionMatrix::from_rows(&rows).expect("stochastic");
        // Transitive closure (Warshall).
        let mut reach = [[false; 12]; 12];
        for (from, targets) in edges.iter().enumerate() {
            reach[from][from] = true;
            targets.iter().for_each(|&to| reach[from][to as usize] = true);
        }
        for k in 0..12 { for i in 0..12 { for j in 0..12 { reach[i][j] |= reach[i][k] && reach[k][j]; } } }
        let recurrent: Vec<u32> = (0..12).filter(|&i| (0..12).all(|j| !reach[i][j] || reach[j][i])).map(|i| i as u32).collect();
        let found = classes(&matrix);
        let mut listed: Vec<u32> = found.recurrent.concat();
        listed.sort_unstable();
        prop_assert_eq!(&listed, &recurrent);
        prop_assert_eq!(found.transient, 12 - recurrent.len());
        for class in &found.recurrent {
            for &a in class { for &b in class { prop_assert!(reach[a as usize][b as usize]); } }
        }
        let representatives = (0..12).filter(|&i| (0..i).all(|j| !(reach[i][j] && reach[j][i]))).count();
        prop_assert_eq!(found.communicating, representatives);
    }
}

#[test]
fn gth_is_accurate_where_subtraction_fails() {
    // Two halves joined by an event of probability 1e-14: both halves weigh one half.
    let leak = 1e-14;
    let rows = vec![
        vec![(0, 0.5), (1, 0.5)],
        vec![(0, 0.5), (1, 0.5 - leak), (2, leak)],
        vec![(1, leak), (2, 0.5 - leak), (3, 0.5)],
        vec![(2, 0.5), (3, 0.5)],
    ];
    let matrix = TransitionMatrix::from_rows(&rows).expect("stochastic");
    let answer = Method::Gth.solver(4).solve(&matrix, Tolerance::default()).expect("solvable");
    answer.pi.iter().for_each(|mass| assert!((mass - 0.25).abs() < 1e-12, "{:?}", answer.pi));
}

#[test]
fn no_convergence_is_an_error() {
    let rows: Vec<Vec<(u32, f64)>> = (0..50_u32).map(|s| vec![((s + 1) % 50, 0.999), ((s + 2) % 50, 0.001)]).collect();
    let matrix = TransitionMatrix::from_rows(&rows).expect("stochastic");
    let skewed = Tolerance { residual: 1e-13, iterations: 3 };
    // A uniform start happens to be the answer of a ring; spoil it.
    let mut spoiled = rows;
    spoiled[0] = vec![(1, 0.5), (25, 0.5)];
    let spoiled = TransitionMatrix::from_rows(&spoiled).expect("stochastic");
    let error = Method::Power.solver(50).solve(&spoiled, skewed).expect_err("too few iterations");
    assert!(matches!(error, Error::NotConverged { .. }), "{error}");
    assert!(Method::CutSet.solver(50).solve(&matrix, Tolerance::default()).is_ok());
}
