//! Sparse LU of `I - P^T` without one state, whose weight is fixed to one. That state has to be a frequent one: without a
//! state that is hardly ever visited, what is left is singular to working precision.
//!
//! Left-looking elimination by columns (Gilbert and Peierls, 1988) in a minimum-degree order. Every column of `I - P^T` is
//! diagonally dominant, so the diagonal is a safe pivot and the symmetric order can be chosen for sparsity alone.

use super::{Tolerance, power};
use crate::TransitionMatrix;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// Lazy power steps after which the heaviest state is taken as the reference.
const SCOUTING: usize = 200;

/// Stationary weights (not normalised) of an irreducible chain.
pub(super) fn solve(matrix: &TransitionMatrix) -> Vec<f64> {
    let reference = frequent_state(matrix);
    let order = minimum_degree(matrix, reference);
    let mut position = vec![usize::MAX; matrix.len()];
    for (new, &old) in order.iter().enumerate() {
        position[old] = new;
    }
    let factors = Factors::new(matrix, &order, &position);
    // Equation of state i: x_i - sum_j x_j P_ji = P_reference,i with x_reference = 1.
    let mut x = vec![0.0; order.len()];
    let (columns, probs) = matrix.row(reference);
    for (&column, &p) in columns.iter().zip(probs).filter(|&(&column, _)| column as usize != reference) {
        x[position[column as usize]] += p;
    }
    factors.solve(&mut x);
    position.iter().map(|&at| if at == usize::MAX { 1.0 } else { x[at] }).collect()
}

fn frequent_state(matrix: &TransitionMatrix) -> usize {
    let scouting = Tolerance { residual: 0.0, iterations: SCOUTING };
    let (mass, _) = power::iterate(matrix, scouting);
    mass.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(state, _)| state)
}

/// Elimination order that greedily takes the state with the fewest neighbours in the graph of what is left.
fn minimum_degree(matrix: &TransitionMatrix, reference: usize) -> Vec<usize> {
    let mut neighbours = vec![BTreeSet::new(); matrix.len()];
    for state in (0..matrix.len()).filter(|&state| state != reference) {
        for other in matrix.row(state).0.iter().map(|&column| column as usize) {
            if other != reference && other != state {
                neighbours[state].insert(other);
                neighbours[other].insert(state);
            }
        }
    }
    let states = (0..matrix.len()).filter(|&state| state != reference);
    let mut queue: BinaryHeap<_> = states.map(|state| Reverse((neighbours[state].len(), state))).collect();
    let mut done = vec![false; matrix.len()];
    let mut order = Vec::with_capacity(matrix.len());
    while let Some(Reverse((degree, state))) = queue.pop() {
        if done[state] || degree != neighbours[state].len() {
            continue;
        }
        done[state] = true;
        order.push(state);
        let clique: Vec<usize> = std::mem::take(&mut neighbours[state]).into_iter().collect();
        for &member in &clique {
            let set = &mut neighbours[member];
            set.remove(&state);
            set.extend(clique.iter().copied().filter(|&other| other != member));
            queue.push(Reverse((set.len(), member)));
        }
    }
    order
}

/// `A = L U` in the chosen order: unit lower `L` and upper `U` by columns, the diagonal apart.
struct Factors {
    lower: Vec<Vec<(usize, f64)>>,
    upper: Vec<Vec<(usize, f64)>>,
    diagonal: Vec<f64>,
}

impl Factors {
    fn new(matrix: &TransitionMatrix, order: &[usize], position: &[usize]) -> Self {
        let size = order.len();
        let mut factors = Self {
            lower: Vec::with_capacity(size),
            upper: Vec::with_capacity(size),
            diagonal: Vec::with_capacity(size),
        };
        let mut values = vec![0.0; size];
        let mut mark = vec![usize::MAX; size];
        for (pivot, &state) in order.iter().enumerate() {
            // Column of A: the row of I - P that leaves `state`.
            let (columns, probs) = matrix.row(state);
            let mut pattern = Vec::new();
            let mut escape = 0.0;
            for (&column, &p) in columns.iter().zip(probs) {
                let at = position[column as usize];
                if at == pivot {
                    continue;
                }
                escape += p;
                if at != usize::MAX {
                    values[at] -= p;
                    factors.reach(at, pivot, &mut mark, &mut pattern);
                }
            }
            values[pivot] += escape;
            factors.reach(pivot, pivot, &mut mark, &mut pattern);
            factors.eliminate(pivot, pattern, &mut values);
        }
        factors
    }

    /// Adds to `pattern`, in post-order, every row that `from` fills through the finished columns of `L`.
    fn reach(&self, from: usize, pivot: usize, mark: &mut [usize], pattern: &mut Vec<usize>) {
        if mark[from] == pivot {
            return;
        }
        mark[from] = pivot;
        let mut calls = vec![(from, 0)];
        while let Some((row, next)) = calls.last_mut() {
            let children: &[(usize, f64)] = if *row < pivot { &self.lower[*row] } else { &[] };
            if let Some(&(child, _)) = children.get(*next) {
                *next += 1;
                if mark[child] != pivot {
                    mark[child] = pivot;
                    calls.push((child, 0));
                }
            } else {
                pattern.push(*row);
                calls.pop();
            }
        }
    }

    /// Sparse triangular solve over the pattern (reverse post-order), then split into `U` and `L`.
    fn eliminate(&mut self, pivot: usize, pattern: Vec<usize>, values: &mut [f64]) {
        let (mut upper, mut lower) = (Vec::new(), Vec::new());
        for &row in pattern.iter().rev().filter(|&&row| row < pivot) {
            let value = std::mem::take(&mut values[row]);
            upper.push((row, value));
            for &(below, factor) in &self.lower[row] {
                values[below] -= factor * value;
            }
        }
        let diagonal = std::mem::take(&mut values[pivot]);
        for &row in pattern.iter().filter(|&&row| row > pivot) {
            lower.push((row, std::mem::take(&mut values[row]) / diagonal));
        }
        self.upper.push(upper);
        self.lower.push(lower);
        self.diagonal.push(diagonal);
    }

    fn solve(&self, x: &mut [f64]) {
        for column in 0..x.len() {
            let value = x[column];
            for &(row, factor) in &self.lower[column] {
                x[row] -= factor * value;
            }
        }
        for column in (0..x.len()).rev() {
            x[column] /= self.diagonal[column];
            let value = x[column];
            for &(row, factor) in &self.upper[column] {
                x[row] -= factor * value;
            }
        }
    }
}
