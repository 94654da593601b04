//! Discrete phase-type laws, and the shapes among which a fit chooses.

use serde::{Deserialize, Serialize};

/// Most states of a fitted law.
pub(crate) const MOST_STATES: usize = 3;

/// The law of a visit's length in steps: a visit begins in a state drawn from `start`, and every step in state `i` is
/// followed by one in state `j` with probability `stay[i][j]`, or ends the visit with probability `leave[i]`.
///
/// For every state `leave[i] + sum_j stay[i][j] = 1`; `start` sums to 1. The length is the number of steps, at least 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunLaw {
    /// Where a visit begins, length `m`.
    pub start: Vec<f64>,
    /// Moves within a visit, `m x m`.
    pub stay: Vec<Vec<f64>>,
    /// Probability that a step in this state is the visit's last, length `m`.
    pub leave: Vec<f64>,
}

impl RunLaw {
    /// One state: every step is the last with probability `leave`.
    #[must_use]
    pub fn geometric(leave: f64) -> Self {
        Self { start: vec![1.0], stay: vec![vec![1.0 - leave]], leave: vec![leave] }
    }

    /// Number of states `m`.
    #[must_use]
    pub const fn states(&self) -> usize {
        self.start.len()
    }

    /// Probabilities of lengths `1..=longest`.
    #[must_use]
    pub fn probabilities(&self, longest: usize) -> Vec<f64> {
        let mut at = self.start.clone();
        (0..longest)
            .map(|_| {
                let ends = at.iter().zip(&self.leave).map(|(mass, leave)| mass * leave).sum();
                at = self.next(&at);
                ends
            })
            .collect()
    }

    /// Mean length in steps; infinite when a visit may never end. The first step counts, then those that follow: the
    /// expected visits `v` of the states solve `v = start + v stay`.
    #[must_use]
    pub fn mean(&self) -> f64 {
        // Gaussian elimination on (I - stay)^T v = start, at most three unknowns.
        let m = self.states();
        let mut rows: Vec<Vec<f64>> = (0..m)
            .map(|j| {
                let mut row: Vec<f64> = (0..m).map(|i| f64::from(u8::from(i == j)) - self.stay[i][j]).collect();
                row.push(self.start[j]);
                row
            })
            .collect();
        for column in 0..m {
            let pivot = (column..m).max_by(|&a, &b| rows[a][column].abs().total_cmp(&rows[b][column].abs()));
            rows.swap(column, pivot.unwrap_or(column));
            if rows[column][column].abs() < 1e-300 {
                return f64::INFINITY;
            }
            let top = rows[column].clone();
            for (_, row) in rows.iter_mut().enumerate().filter(|&(index, _)| index != column) {
                let factor = row[column] / top[column];
                row.iter_mut().zip(&top).for_each(|(value, above)| *value -= factor * above);
            }
        }
        (0..m).map(|k| rows[k][m] / rows[k][k]).sum()
    }

    /// The mass after one more step that did not end the visit.
    pub(super) fn next(&self, at: &[f64]) -> Vec<f64> {
        (0..self.states()).map(|j| at.iter().zip(&self.stay).map(|(mass, row)| mass * row[j]).sum()).collect()
    }

    /// The length of one visit; `draw` gives numbers in `[0, 1)`. At most `longest`.
    pub fn sample(&self, mut draw: impl FnMut() -> f64, longest: u32) -> u32 {
        let mut pick = |weights: &[f64]| {
            let mut rest = draw();
            weights.iter().position(|weight| {
                rest -= weight;
                rest < 0.0
            })
        };
        let mut state = pick(&self.start).unwrap_or(0);
        for length in 1..longest {
            match pick(&self.stay[state]) {
                Some(next) => state = next,
                None => return length,
            }
        }
        longest
    }
}

/// Which arcs a law may have. Every shape with fewer arcs is a special case of one with more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// One state.
    Geometric,
    /// States that are passed in one step each, and then a geometric one: a least length.
    Delayed,
    /// Geometric states one after the other: lengths around a mean.
    Series,
    /// One of several geometric states: short runs and long ones.
    Parallel,
    /// Any moves between the states, with a visit that ends in any of them.
    Free,
}

/// A shape with its number of states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) shape: Shape,
    pub(super) states: usize,
}

impl Form {
    /// All forms with up to `most` states, the simplest first.
    pub(super) fn all(most: usize) -> Vec<Self> {
        let mut forms = vec![Self { shape: Shape::Geometric, states: 1 }];
        for states in 2..=most.min(MOST_STATES) {
            let shapes = [Shape::Delayed, Shape::Series, Shape::Parallel, Shape::Free];
            forms.extend(shapes.map(|shape| Self { shape, states }));
        }
        forms
    }

    /// Numbers that the data determine. A law with `m` states has `2 m - 1` at most, whatever its arcs: its generating
    /// function is a ratio of polynomials of degree `m` with no constant above and a value of 1 at 1.
    pub(super) const fn parameters(self) -> usize {
        match self.shape {
            Shape::Geometric | Shape::Delayed => 1,
            Shape::Series => self.states,
            Shape::Parallel | Shape::Free => 2 * self.states - 1,
        }
    }

    pub(super) fn may_start(self, state: usize) -> bool {
        state == 0 || matches!(self.shape, Shape::Parallel | Shape::Free)
    }

    pub(super) const fn may_stay(self, from: usize, to: usize) -> bool {
        match self.shape {
            Shape::Geometric | Shape::Parallel => from == to,
            Shape::Delayed => to == from + 1 || (from == to && to + 1 == self.states),
            Shape::Series => to == from || to == from + 1,
            Shape::Free => true,
        }
    }

    pub(super) const fn may_leave(self, state: usize) -> bool {
        match self.shape {
            Shape::Geometric | Shape::Parallel | Shape::Free => true,
            Shape::Delayed | Shape::Series => state + 1 == self.states,
        }
    }

    /// The shortest length that is possible.
    pub(super) const fn shortest(self) -> usize {
        match self.shape {
            Shape::Delayed | Shape::Series => self.states,
            Shape::Geometric | Shape::Parallel | Shape::Free => 1,
        }
    }
}
