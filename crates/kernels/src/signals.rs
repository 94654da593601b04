//! The signals that routing reads from a row of logits: the largest ones, and two numbers that describe the softmax.
//!
//! A row is processed in chunks that stay in the first-level cache, so memory is read once. Sums of a chunk are
//! relative to its own maximum, and chunks are combined from the first to the last. Because this order is fixed, the
//! results do not depend on which threads compute which chunks. The largest logits are exact in any order.

use std::cmp::Ordering;

use crate::isa::for_each_isa;
use crate::ops::{exp, larger, reduce};
use crate::pool::{Pool, Shared};
use crate::{Isa, LANES};

/// Logits per chunk.
const CHUNK: usize = 4096;

/// Scalar signals of one row of logits.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct LogitSignals {
    /// Index of the largest logit. The lowest index wins ties; NaN never wins. 0 if all logits are NaN.
    pub argmax: u32,
    /// The largest logit, or `-inf` if there is none.
    pub max: f32,
    /// `ln(sum(exp(logits)))`; `max` if that is not finite, 0 if not requested.
    pub log_sum_exp: f32,
    /// Entropy of `softmax(logits)` in nats, over the whole row; 0 if `max` is not finite or if not requested.
    pub entropy: f32,
}

/// The requested signals, in addition to the largest logit.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SignalSet {
    /// `log_sum_exp` and `entropy`. NaN and `-inf` count as probability 0.
    pub softmax: bool,
    /// Number of largest logits.
    pub top_k: usize,
}

/// Computes the signals of one row. `top` is replaced by the `min(top_k, len)` largest `(logit, id)` in descending
/// order, ties by ascending id; NaN counts as `-inf` there. If the processor lacks `isa`, the baseline computes them.
pub fn logit_signals(isa: Isa, logits: &[f32], set: SignalSet, top: &mut Vec<(f32, u32)>) -> LogitSignals {
    let isa = if isa.is_available() { isa } else { Isa::Baseline };
    let mut filter = Filter::new(set.top_k, top);
    let mut sums = Sums::NONE;
    for (index, chunk) in logits.chunks(CHUNK).enumerate() {
        sums = sums.join(Sums::of(isa, index, chunk, set.softmax));
        filter.offer(isa, chunk, (index * CHUNK) as u32);
    }
    filter.finish();
    sums.signals(logits, set.softmax)
}

/// Entropy in nats of `softmax(logits)`, as in [`LogitSignals`].
pub fn entropy(isa: Isa, logits: &[f32]) -> f32 {
    logit_signals(isa, logits, SignalSet { softmax: true, top_k: 0 }, &mut Vec::new()).entropy
}

/// Buffers of [`batch_signals`].
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// `[row, chunk]`.
    sums: Vec<Sums>,
    /// Largest logits of each part of each row.
    tops: Vec<Vec<(f32, u32)>>,
}

/// Computes the signals of all rows of `logits`, `[rows, vocab]`, equal to those of [`logit_signals`]. `top` is
/// replaced by `[rows, min(top_k, vocab)]`.
pub(crate) fn batch_signals(
    (isa, pool): (Isa, &Pool),
    (logits, vocab): (&[f32], usize),
    set: SignalSet,
    scratch: &mut Scratch,
    (signals, top): (&mut Vec<LogitSignals>, &mut Vec<(f32, u32)>),
) {
    signals.clear();
    top.clear();
    let rows = logits.len() / vocab.max(1);
    if rows == 0 {
        return;
    }
    let chunks = vocab.div_ceil(CHUNK);
    // If there are few rows, they are divided into parts, so that every thread gets work.
    let parts = if pool.threads() > 1 { (2 * pool.threads()).div_ceil(rows).min(chunks) } else { 1 };
    scratch.sums.resize((rows * chunks).max(scratch.sums.len()), Sums::NONE);
    scratch.tops.resize_with((rows * parts).max(scratch.tops.len()), Vec::new);
    let (sums, tops) = (Shared::new(&mut scratch.sums), Shared::new(&mut scratch.tops));
    pool.split(rows * parts, |tasks| {
        for task in tasks {
            let (row, part) = (task / parts, task % parts);
            // SAFETY: ranges of `split` are disjoint, and so are the tasks.
            let mut filter = Filter::new(set.top_k, unsafe { &mut tops.part(task..task + 1)[0] });
            for index in chunks * part / parts..chunks * (part + 1) / parts {
                let start = index * CHUNK;
                let chunk = &logits[row * vocab..(row + 1) * vocab][start..vocab.min(start + CHUNK)];
                let at = row * chunks + index;
                // SAFETY: every chunk of every row belongs to one task.
                unsafe { sums.part(at..at + 1)[0] = Sums::of(isa, index, chunk, set.softmax) };
                filter.offer(isa, chunk, start as u32);
            }
            filter.finish();
        }
    });
    for (row, logits) in logits.chunks_exact(vocab).enumerate() {
        let sums = scratch.sums[row * chunks..][..chunks].iter().fold(Sums::NONE, |sum, chunk| sum.join(*chunk));
        signals.push(sums.signals(logits, set.softmax));
        if let [first, others @ ..] = &mut scratch.tops[row * parts..][..parts] {
            others.iter().for_each(|other| first.extend_from_slice(other));
            Filter { k: set.top_k, above: None, kept: first }.finish();
            top.extend_from_slice(first);
        }
    }
}

/// Sums over some chunks, relative to their maximum.
#[derive(Debug, Clone, Copy)]
struct Sums {
    max: f32,
    /// The first chunk that has the maximum.
    chunk: usize,
    /// Sum of `exp(x - max)`.
    z: f32,
    /// Sum of `exp(x - max) * (x - max)`.
    weighted: f32,
}

impl Sums {
    const NONE: Self = Self { max: f32::NEG_INFINITY, chunk: 0, z: 0.0, weighted: 0.0 };

    fn of(isa: Isa, chunk: usize, x: &[f32], softmax: bool) -> Self {
        let (mut max, mut sums) = (f32::NEG_INFINITY, [0.0; 2]);
        maximum(isa, x, &mut max);
        if softmax && max.is_finite() {
            exponentials(isa, x, max, &mut sums);
        }
        Self { max, chunk, z: sums[0], weighted: sums[1] }
    }

    /// Combines with a later chunk.
    fn join(self, later: Self) -> Self {
        let (mut high, low) = if later.max > self.max { (later, self) } else { (self, later) };
        if low.z > 0.0 {
            let shift = low.max - high.max;
            let scale = exp(shift);
            high.z += low.z * scale;
            high.weighted += low.z.mul_add(shift, low.weighted) * scale;
        }
        high
    }

    fn signals(self, logits: &[f32], softmax: bool) -> LogitSignals {
        let start = self.chunk * CHUNK;
        let end = logits.len().min(start + CHUNK);
        let place = logits[start..end].iter().position(|logit| *logit == self.max).unwrap_or(0);
        let (log_sum_exp, entropy) = match (softmax, self.max.is_finite()) {
            (false, _) => (0.0, 0.0),
            (true, false) => (self.max, 0.0),
            (true, true) => {
                let log = self.z.ln();
                (self.max + log, (log - self.weighted / self.z).max(0.0))
            }
        };
        LogitSignals { argmax: (start + place) as u32, max: self.max, log_sum_exp, entropy }
    }
}

for_each_isa! { fn maximum(x: &[f32], max: &mut f32) = maximum_body }
for_each_isa! { fn exponentials(x: &[f32], max: f32, sums: &mut [f32; 2]) = exponentials_body }
for_each_isa! { fn any_above(x: &[f32], bound: f32, any: &mut bool) = any_above_body }

#[inline(always)]
fn maximum_body(x: &[f32], max: &mut f32) {
    // Two sets of maxima, so comparisons need not wait for each other.
    let mut maxima = [[f32::NEG_INFINITY; LANES]; 2];
    let (chunks, tail) = x.as_chunks::<{ 2 * LANES }>();
    for chunk in chunks {
        for lane in 0..LANES {
            maxima[0][lane] = larger(chunk[lane], maxima[0][lane]);
            maxima[1][lane] = larger(chunk[LANES + lane], maxima[1][lane]);
        }
    }
    *max = maxima.as_flattened().iter().chain(tail).fold(*max, |max, x| larger(*x, max));
}

/// Sums of `exp(x - max)` and of `exp(x - max) * (x - max)`.
#[inline(always)]
fn exponentials_body(x: &[f32], max: f32, sums: &mut [f32; 2]) {
    // Clamps to a number whose `exp` is (almost) 0, so that `0 * -inf` does not occur. NaN is clamped, too.
    let shift = |x: f32| larger(x - max, -87.0);
    let (mut z, mut weighted) = ([0f32; LANES], [0f32; LANES]);
    let (chunks, tail) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let shifted = shift(chunk[lane]);
            let e = exp(shifted);
            z[lane] += e;
            weighted[lane] = e.mul_add(shifted, weighted[lane]);
        }
    }
    *sums = [reduce(z), reduce(weighted)];
    for x in tail {
        let shifted = shift(*x);
        let e = exp(shifted);
        sums[0] += e;
        sums[1] = e.mul_add(shifted, sums[1]);
    }
}

#[inline(always)]
fn any_above_body(x: &[f32], bound: f32, any: &mut bool) {
    *any = x.iter().fold(false, |any, x| any | (*x > bound));
}

/// Keeps the `k` largest logits of those that are offered by ascending id. It collects logits that exceed the `k`-th
/// largest so far, and from time to time selects the best `k` of the collection.
struct Filter<'a> {
    k: usize,
    /// The `k`-th largest at the last selection. An equal logit with a later id ranks after it.
    above: Option<f32>,
    kept: &'a mut Vec<(f32, u32)>,
}

/// Orders by descending logits, then ascending ids. There is no NaN among them.
fn order(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal).then(a.1.cmp(&b.1))
}

impl<'a> Filter<'a> {
    fn new(k: usize, kept: &'a mut Vec<(f32, u32)>) -> Self {
        kept.clear();
        Self { k, above: None, kept }
    }

    fn offer(&mut self, isa: Isa, x: &[f32], first: u32) {
        if self.k == 0 {
            return;
        }
        let most = (4 * self.k).max(64);
        for (x, first) in x.chunks(64).zip((first..).step_by(64)) {
            let mut any = true;
            if let Some(above) = self.above {
                any_above(isa, x, above, &mut any);
            }
            if !any {
                continue;
            }
            for (x, id) in x.iter().zip(first..) {
                if self.above.is_none_or(|above| *x > above) {
                    self.kept.push((larger(*x, f32::NEG_INFINITY), id));
                    if self.kept.len() == most {
                        self.select();
                    }
                }
            }
        }
    }

    /// Drops all but the `k` largest.
    fn select(&mut self) {
        self.kept.select_nth_unstable_by(self.k - 1, order);
        self.kept.truncate(self.k);
        self.above = Some(self.kept[self.k - 1].0);
    }

    fn finish(mut self) {
        if self.kept.len() > self.k {
            self.select();
        }
        self.kept.sort_unstable_by(order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The expected signals of a row, computed in f64 and by sorting.
    fn oracle(logits: &[f32], k: usize) -> (LogitSignals, Vec<(f32, u32)>) {
        let mut sorted: Vec<(f32, u32)> =
            logits.iter().zip(0..).map(|(x, id)| (if x.is_nan() { f32::NEG_INFINITY } else { *x }, id)).collect();
        sorted.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let (max, argmax) = sorted.first().copied().unwrap_or((f32::NEG_INFINITY, 0));
        let terms = || sorted.iter().map(|(x, _)| f64::from(*x) - f64::from(max));
        let z: f64 = terms().map(f64::exp).sum();
        let entropy = terms().map(|x| x.exp() / z).filter(|p| *p > 0.0).map(|p| -p * p.ln()).sum::<f64>();
        sorted.truncate(k);
        let log_sum_exp = f64::from(max) + z.ln();
        (LogitSignals { argmax, max, log_sum_exp: log_sum_exp as f32, entropy: entropy as f32 }, sorted)
    }

    fn bits(signals: LogitSignals) -> [u32; 4] {
        [signals.argmax, signals.max.to_bits(), signals.log_sum_exp.to_bits(), signals.entropy.to_bits()]
    }

    /// Logits with many ties, some NaN and some `-inf`, of several chunks.
    fn logits() -> impl Strategy<Value = Vec<f32>> {
        let logit = prop_oneof![
            20 => -30f32..30.0,
            5 => (-8i32..8).prop_map(|x| x as f32),
            1 => Just(f32::NEG_INFINITY),
            1 => Just(f32::NAN),
        ];
        let length = prop_oneof![1usize..200, CHUNK - 3..CHUNK + 70, Just(3 * CHUNK), 2 * CHUNK..3 * CHUNK];
        (prop::collection::vec(logit, 97), length, any::<u32>()).prop_map(|(values, length, seed)| {
            let pick = |i: usize| (i as u32 ^ seed).wrapping_mul(2_654_435_761) as usize >> 7;
            (0..length).map(|i| values[pick(i) % values.len()]).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]
        #[test]
        fn rows_match_sorting_and_f64(logits in logits(), top_k in 0usize..130) {
            let (want, want_top) = oracle(&logits, top_k);
            let finite = want.max.is_finite();
            let mut first: Option<[u32; 4]> = None;
            for isa in Isa::available() {
                let mut top = vec![(7.0, 7)];
                let got = logit_signals(isa, &logits, SignalSet { softmax: true, top_k }, &mut top);
                prop_assert_eq!(&top, &want_top);
                prop_assert_eq!(got.max, want.max);
                prop_assert!(!finite || got.argmax == want.argmax, "{:?} instead of {:?}", got, want);
                let close = |a: f32, b: f32| (a - b).abs() < 2e-5 * b.abs().max(1.0);
                prop_assert!(!finite || close(got.log_sum_exp, want.log_sum_exp), "{:?} instead of {:?}", got, want);
                prop_assert!(!finite || close(got.entropy, want.entropy), "{:?} instead of {:?}", got, want);
                let least = logit_signals(isa, &logits, SignalSet::default(), &mut top);
                prop_assert_eq!((least.argmax, least.max), (got.argmax, got.max));
                prop_assert!(top.is_empty());
                prop_assert_eq!(*first.get_or_insert(bits(got)), bits(got));
            }
        }

        #[test]
        fn batches_give_the_signals_of_their_rows(row in logits(), rows in 1usize..6, top_k in 0usize..40) {
            let vocab = row.len();
            let logits: Vec<f32> = (0..rows).flat_map(|r| row.iter().map(move |x| x + r as f32)).collect();
            let set = SignalSet { softmax: true, top_k };
            let isa = Isa::detect();
            let (mut signals, mut top, mut scratch) = (Vec::new(), Vec::new(), Scratch::default());
            for threads in 1..4 {
                let pool = Pool::new(threads, None).expect("starts");
                batch_signals((isa, &pool), (&logits, vocab), set, &mut scratch, (&mut signals, &mut top));
                prop_assert_eq!(signals.len(), rows);
                let k = top_k.min(vocab);
                prop_assert_eq!(top.len(), rows * k);
                for (r, logits) in logits.chunks(vocab).enumerate() {
                    let mut alone = Vec::new();
                    prop_assert_eq!(bits(logit_signals(isa, logits, set, &mut alone)), bits(signals[r]));
                    prop_assert_eq!(&alone[..], &top[r * k..(r + 1) * k]);
                }
            }
        }
    }

    #[test]
    fn rows_without_a_number_are_defined() {
        let set = SignalSet { softmax: true, top_k: 2 };
        let (low, high) = (f32::NEG_INFINITY, f32::INFINITY);
        for (logits, max, argmax, top) in [
            (vec![], low, 0, vec![]),
            (vec![f32::NAN; 3], low, 0, vec![(low, 0), (low, 1)]),
            (vec![f32::NAN, low, low], low, 1, vec![(low, 0), (low, 1)]),
            (vec![1.0, high, f32::NAN, high], high, 1, vec![(high, 1), (high, 3)]),
        ] {
            let mut got = Vec::new();
            let signals = logit_signals(Isa::detect(), &logits, set, &mut got);
            assert_eq!(signals, LogitSignals { argmax, max, log_sum_exp: max, entropy: 0.0 });
            assert_eq!(got, top);
        }
    }
}
