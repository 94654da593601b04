//! Threshold vectors: validity, feasibility, enumeration.

use crate::{ClosedSystem, Error};
use serde::Serialize;
use std::fmt;

/// One launch threshold `B_i >= 1` per model.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Thresholds(Vec<u32>);

impl Thresholds {
    /// Wraps a vector; [`Thresholds::check`] decides whether it suits a system.
    #[must_use]
    pub fn new(values: impl Into<Vec<u32>>) -> Self {
        Self(values.into())
    }

    /// Launch as soon as anything waits: all ones.
    #[must_use]
    pub fn eager(models: usize) -> Self {
        Self(vec![1; models])
    }

    /// The thresholds, one per model.
    #[must_use]
    pub fn as_slice(&self) -> &[u32] {
        &self.0
    }

    /// The thresholds, owned.
    #[must_use]
    pub fn into_vec(self) -> Vec<u32> {
        self.0
    }

    /// Checks length, range and feasibility for `system`.
    ///
    /// # Errors
    /// [`Error::InvalidThresholds`] for a wrong shape or a zero; [`Error::Infeasible`], with a state that no event can
    /// leave, when `sum(B_i - 1) >= N`.
    pub fn check(&self, system: &ClosedSystem) -> Result<(), Error> {
        let invalid = |problem: String, allowed: String| {
            Err(Error::InvalidThresholds { thresholds: self.to_string(), problem, allowed })
        };
        if self.0.len() != system.models() {
            let problem = format!("{} values for {} models", self.0.len(), system.models());
            return invalid(problem, format!("{} values", system.models()));
        }
        if let Some(index) = self.0.iter().position(|&b| b == 0) {
            return invalid(format!("0 for model {index}"), "1 or more".to_owned());
        }
        if is_feasible(&self.0, system.concurrency()) {
            return Ok(());
        }
        Err(Error::Infeasible {
            thresholds: self.to_string(),
            concurrency: system.concurrency(),
            deadlock: deadlock_counts(&self.0, system.concurrency()),
        })
    }
}

impl fmt::Display for Thresholds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({})", join(&self.0, ","))
    }
}

impl From<Vec<u32>> for Thresholds {
    fn from(values: Vec<u32>) -> Self {
        Self(values)
    }
}

fn join(values: &[u32], separator: &str) -> String {
    values.iter().map(u32::to_string).collect::<Vec<_>>().join(separator)
}

/// True when no state has every model idle below its threshold: all `B_i >= 1` and `sum(B_i - 1) < n`.
#[must_use]
pub fn is_feasible(thresholds: &[u32], n: u32) -> bool {
    thresholds.iter().all(|&b| b >= 1)
        && thresholds.iter().map(|&b| u64::from(b) - 1).sum::<u64>() < u64::from(n)
        && !thresholds.is_empty()
}

/// A distribution of `n` waiting requests with each model below its threshold, as `4 and 4`.
fn deadlock_counts(thresholds: &[u32], n: u32) -> String {
    let mut left = n;
    let counts: Vec<u32> = thresholds
        .iter()
        .map(|&b| {
            let waiting = left.min(b.saturating_sub(1));
            left -= waiting;
            waiting
        })
        .collect();
    join(&counts, " and ")
}

/// Largest threshold worth trying for each model: its largest batch.
fn largest(system: &ClosedSystem) -> Vec<u32> {
    (0..system.models()).map(|index| system.largest_batch(index)).collect()
}

/// Number of feasible vectors with `B_i <= max_batch_i`, saturating.
#[must_use]
pub fn count_feasible(system: &ClosedSystem) -> u64 {
    // ways[k]: vectors over the models so far with sum(B_i - 1) = k.
    let n = system.concurrency() as usize;
    let mut ways = vec![0_u64; n];
    ways[0] = 1;
    for cap in largest(system) {
        let mut next = vec![0_u64; n];
        for (used, &count) in ways.iter().enumerate().filter(|&(_, &count)| count > 0) {
            for slot in next.iter_mut().skip(used).take(cap as usize) {
                *slot = slot.saturating_add(count);
            }
        }
        ways = next;
    }
    ways.into_iter().fold(0, u64::saturating_add)
}

/// All feasible vectors with `B_i <= max_batch_i`, in lexicographic order. Check [`count_feasible`] first.
#[must_use]
pub fn enumerate_feasible(system: &ClosedSystem) -> Vec<Thresholds> {
    let caps = largest(system);
    let slack = system.concurrency() - 1;
    let mut found = Vec::new();
    let mut current = vec![1_u32; caps.len()];
    loop {
        found.push(Thresholds(current.clone()));
        // Odometer: raise the last position that still has room, reset those after it.
        let mut position = caps.len();
        loop {
            if position == 0 {
                return found;
            }
            position -= 1;
            let before: u32 = current[..position].iter().map(|&b| b - 1).sum();
            if current[position] < caps[position] && before + current[position] <= slack {
                current[position] += 1;
                break;
            }
            current[position] = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::System;

    fn system(n: u32, models: usize) -> ClosedSystem {
        System::new(vec![1.0; models], vec![vec![1.0 / models as f64; models]; models]).closed(n).expect("valid")
    }

    #[test]
    fn enumeration_matches_the_binomial_count() {
        for (n, models, expected) in [(16, 2, 136), (64, 2, 2080), (16, 3, 816), (1, 3, 1), (5, 1, 5)] {
            let system = system(n, models);
            assert_eq!(count_feasible(&system), expected);
            let all = enumerate_feasible(&system);
            assert_eq!(all.len() as u64, expected);
            assert!(all.iter().all(|b| is_feasible(b.as_slice(), n)));
            assert!(all.is_sorted());
        }
    }

    #[test]
    fn caps_bound_the_enumeration() {
        let capped = System { max_batch: Some(vec![Some(2), None]), ..system(6, 2).to_system() };
        let capped = capped.closed(6).expect("valid");
        let all = enumerate_feasible(&capped);
        assert_eq!(all.len() as u64, count_feasible(&capped));
        assert!(all.iter().all(|b| b.as_slice()[0] <= 2));
    }

    #[test]
    fn infeasible_vector_names_the_deadlock() {
        let error = Thresholds::new([5, 5]).check(&system(8, 2)).expect_err("infeasible");
        assert!(error.to_string().contains("idle with 4 and 4 waiting"), "{error}");
    }
}
