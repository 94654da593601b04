//! Thresholds of delayed batching, by number of active requests.

/// For every number of active requests `n = 1..=N`, one threshold per model; always feasible:
/// `sum(B_i - 1) < n`, so that with `n` requests somewhere some model can launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThresholdTable {
    models: usize,
    /// Row `n - 1` is for `n` active requests.
    rows: Vec<Vec<u32>>,
}

/// Checks a vector for `models` models and `active` concurrent requests; the message names the problem.
pub fn check_thresholds(vector: &[u32], models: usize, active: usize) -> Result<(), String> {
    if vector.len() != models {
        return Err(format!("`thresholds` has {} entries, the configuration has {models} models", vector.len()));
    }
    if vector.contains(&0) {
        return Err(format!("`thresholds` is {vector:?}, the smallest threshold is 1"));
    }
    let waiting: u64 = vector.iter().map(|b| u64::from(*b) - 1).sum();
    if waiting >= active as u64 {
        return Err(format!(
            "`thresholds` {vector:?} can deadlock: {waiting} waiting requests may launch nothing (each model idle, one \
             below its threshold), and only {active} are active at a time (`max_active`, concurrency); feasible \
             vectors have sum(B_i - 1) < {active}"
        ));
    }
    Ok(())
}

/// Shrinks `vector` until it is feasible for `active` requests: the largest threshold first, the last one among equals.
fn clamp(vector: &[u32], active: usize) -> Vec<u32> {
    let mut clamped = vector.to_vec();
    let mut excess = clamped.iter().map(|b| *b as usize - 1).sum::<usize>();
    while excess >= active.max(1) {
        let largest = (0..clamped.len()).max_by_key(|i| (clamped[*i], *i)).expect("at least one model");
        clamped[largest] -= 1;
        excess -= 1;
    }
    clamped
}

impl ThresholdTable {
    /// All thresholds 1.
    pub fn eager(models: usize) -> Self {
        Self { models, rows: Vec::new() }
    }

    /// `vector` at `max_active` requests, shrunk to stay feasible below.
    pub fn from_vector(vector: &[u32], max_active: usize) -> Self {
        let rows = (1..=max_active).map(|n| clamp(vector, n)).collect();
        Self { models: vector.len(), rows }
    }

    /// One vector per number of active requests, `rows[n - 1]`; each is shrunk where it is not feasible.
    pub fn from_rows(models: usize, rows: &[Vec<u32>]) -> Self {
        Self { models, rows: rows.iter().zip(1..).map(|(row, n)| clamp(row, n)).collect() }
    }

    /// `vector` whatever the number of requests, for mutations of the simulation: it can deadlock.
    #[cfg(any(test, feature = "mutations"))]
    pub(crate) fn unclamped(vector: &[u32]) -> Self {
        Self { models: vector.len(), rows: vec![vector.to_vec()] }
    }

    /// The vector for `active` requests; counts above the table use its last row.
    pub fn row(&self, active: usize) -> Vec<u32> {
        match self.rows.len() {
            0 => vec![1; self.models],
            len => self.rows[active.clamp(1, len) - 1].clone(),
        }
    }

    /// Threshold of one model.
    pub fn get(&self, model: usize, active: usize) -> usize {
        match self.rows.len() {
            0 => 1,
            len => self.rows[active.clamp(1, len) - 1][model] as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn infeasible_vectors_are_refused_with_the_numbers() {
        assert!(check_thresholds(&[1, 4], 2, 4).is_ok());
        let message = check_thresholds(&[2, 4], 2, 4).expect_err("deadlocks");
        assert!(message.contains("[2, 4]") && message.contains("sum(B_i - 1) < 4"), "{message}");
        assert!(check_thresholds(&[1], 2, 4).is_err());
        assert!(check_thresholds(&[0, 1], 2, 4).is_err());
    }

    proptest! {
        #[test]
        fn every_row_is_feasible_and_no_larger_than_asked(vector in prop::collection::vec(1u32..9, 1..4), n in 1usize..12) {
            let table = ThresholdTable::from_vector(&vector, 12);
            let row = table.row(n);
            prop_assert!(check_thresholds(&row, vector.len(), n).is_ok());
            prop_assert!(row.iter().zip(&vector).all(|(a, b)| a <= b));
            if check_thresholds(&vector, vector.len(), n).is_ok() {
                prop_assert_eq!(row, vector);
            }
        }
    }
}
