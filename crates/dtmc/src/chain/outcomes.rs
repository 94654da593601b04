//! Where finished requests go: multinomial distributions over arrival counts, shared between states.
//!
//! All batches that end at the same instant are routed together. The distribution depends only on how many requests
//! finished per routing state, so it is computed once per such vector and shared by all states (and all threshold
//! vectors) in which that vector finishes.

use super::key::{Key, Layout};
use crate::ClosedSystem;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Part of the shared pools that holds one distribution.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolRange {
    pub(crate) start: u32,
    pub(crate) len: u32,
}

/// Distributions over arrivals, keyed by the packed running counts of what finished.
pub(crate) struct Outcomes<K> {
    routing: Vec<Vec<f64>>,
    spans: HashMap<K, PoolRange, BuildHasherDefault<MixHasher>>,
    /// Packed arrivals to add to the waiting fields.
    pub(crate) deltas: Vec<K>,
    /// Probability of each.
    pub(crate) probs: Vec<f64>,
}

impl<K: Key> Outcomes<K> {
    pub(crate) fn new(system: &ClosedSystem) -> Self {
        Self { routing: system.routing().to_vec(), spans: HashMap::default(), deltas: Vec::new(), probs: Vec::new() }
    }

    /// Bytes held by the pools.
    pub(crate) const fn bytes(&self) -> usize {
        self.deltas.len() * (size_of::<K>() + 8)
    }

    /// Distribution of arrivals when the requests packed in `finished` (running fields) complete; `None` when it alone
    /// would take more than `bytes`.
    #[inline]
    pub(crate) fn span(&mut self, layout: &Layout, finished: K, bytes: usize) -> Option<PoolRange> {
        if let Some(&span) = self.spans.get(&finished) {
            return Some(span);
        }
        self.build(layout, finished, bytes)
    }

    #[cold]
    fn build(&mut self, layout: &Layout, finished: K, bytes: usize) -> Option<PoolRange> {
        let mut ways = 1.0;
        for (field, row) in layout.running.iter().zip(&self.routing) {
            ways *= compositions(field.get(finished), row.iter().filter(|&&p| p > 0.0).count());
        }
        if ways * (size_of::<K>() as f64 + 8.0) > bytes as f64 {
            return None;
        }
        let mut joint: Vec<(K, f64)> = vec![(K::default(), 1.0)];
        for (state, field) in layout.running.iter().enumerate() {
            let count = field.get(finished);
            if count == 0 {
                continue;
            }
            let single = multinomial(count, &self.routing[state], layout);
            joint = if joint.len() == 1 { single } else { convolve(&joint, &single) };
        }
        let total: f64 = joint.iter().map(|&(_, p)| p).sum();
        let span = PoolRange { start: self.deltas.len() as u32, len: joint.len() as u32 };
        self.deltas.extend(joint.iter().map(|&(delta, _)| delta));
        self.probs.extend(joint.iter().map(|&(_, p)| p / total));
        self.spans.insert(finished, span);
        Some(span)
    }
}

/// Number of ways to spread `count` requests over `targets`, as a float that can't overflow.
pub(crate) fn compositions(count: u32, targets: usize) -> f64 {
    (1..targets).map(|k| (f64::from(count) + k as f64) / k as f64).product()
}

/// All ways to send `count` requests along `row`, with packed arrivals. Probabilities that underflow are dropped.
fn multinomial<K: Key>(count: u32, row: &[f64], layout: &Layout) -> Vec<(K, f64)> {
    let support: Vec<usize> = (0..row.len()).filter(|&target| row[target] > 0.0).collect();
    // (packed arrivals so far, requests left, probability so far)
    let mut partial: Vec<(K, u32, f64)> = vec![(K::default(), count, 1.0)];
    for (position, &target) in support.iter().enumerate() {
        let field = layout.waiting[target];
        let later: f64 = support[position + 1..].iter().map(|&other| row[other]).sum();
        if later == 0.0 {
            return partial.iter().map(|&(packed, left, p)| (packed + field.place(left), p)).collect();
        }
        let mut tables: Vec<Option<Vec<f64>>> = vec![None; count as usize + 1];
        let mut next = Vec::new();
        for &(packed, left, p) in &partial {
            let table = tables[left as usize].get_or_insert_with(|| binomial(left, row[target], later));
            for (taken, &share) in table.iter().enumerate() {
                if p * share > 0.0 {
                    next.push((packed + field.place(taken as u32), left - taken as u32, p * share));
                }
            }
        }
        partial = next;
    }
    Vec::new()
}

/// Probabilities of `0..=n` successes when success weighs `p` against `q`, without subtraction.
///
/// Built from the mode outwards by ratios and normalised, so that no factorial over- or underflows and relative errors
/// stay near `n` units in the last place.
pub(crate) fn binomial(n: u32, p: f64, q: f64) -> Vec<f64> {
    let share = p / (p + q);
    let mode = ((f64::from(n) + 1.0) * share).floor().min(f64::from(n)) as usize;
    let mut weights = vec![0.0; n as usize + 1];
    weights[mode] = 1.0;
    for k in mode..n as usize {
        weights[k + 1] = weights[k] * (n as usize - k) as f64 * p / ((k + 1) as f64 * q);
    }
    for k in (0..mode).rev() {
        weights[k] = weights[k + 1] * (k + 1) as f64 * q / ((n as usize - k) as f64 * p);
    }
    let total: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= total);
    weights
}

/// Distribution of the sum of two independent arrival vectors, duplicates merged.
fn convolve<K: Key>(left: &[(K, f64)], right: &[(K, f64)]) -> Vec<(K, f64)> {
    let mut all: Vec<(K, f64)> = left
        .iter()
        .flat_map(|&(a, p)| right.iter().map(move |&(b, q)| (a + b, p * q)))
        .filter(|&(_, p)| p > 0.0)
        .collect();
    all.sort_unstable_by_key(|&(delta, _)| delta);
    all.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        if same {
            kept.1 += next.1;
        }
        same
    });
    all
}

/// Hashes packed keys by one multiplication.
#[derive(Default)]
pub(crate) struct MixHasher(u64);

impl Hasher for MixHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).mix();
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).mix();
    }
    fn write_u128(&mut self, value: u128) {
        self.0 = value.mix() ^ self.0.rotate_left(7);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binomial_matches_exact_fractions() {
        // 4 draws at 1/4: 81, 108, 54, 12, 1 over 256.
        let expected = [81.0, 108.0, 54.0, 12.0, 1.0].map(|weight| weight / 256.0);
        for (got, want) in binomial(4, 0.25, 0.75).iter().zip(expected) {
            assert!((got - want).abs() < 1e-15, "{got} {want}");
        }
        let wide = binomial(4096, 0.3, 0.7);
        let mean: f64 = wide.iter().enumerate().map(|(k, p)| k as f64 * p).sum();
        assert!((mean - 1228.8).abs() < 1e-8, "{mean}");
    }
}
