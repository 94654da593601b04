//! Candidates and signals of rows of logits.

use super::super::memory::Device;
use super::super::ops::SIGNAL_WORDS;
use super::{Check, Numbers};
use crate::Error;

pub(super) fn checks(device: &Device) -> Result<Vec<Check>, Error> {
    let (mut exact, mut softmax, mut numbers) =
        (Check::new("logit_signals: candidate and largest"), Check::new("logit_signals: softmax"), Numbers(9));
    for (rows, vocab, top) in [(1usize, 1usize, 1usize), (2, 7, 3), (3, 513, 0), (3, 513, 128), (2, 5000, 100)] {
        for kind in ["smooth", "ties", "holes"] {
            let logits: Vec<f32> = (0..rows * vocab)
                .map(|_| match kind {
                    "smooth" => 12.0 * numbers.float(),
                    "ties" => numbers.below(5) as f32 - 2.0,
                    _ => [f32::NAN, f32::NEG_INFINITY, -0.0, 0.0, numbers.float()][numbers.below(5)],
                })
                .collect();
            for (bound, extra) in [(vocab, None), (vocab.div_ceil(2), Some(vocab as u32 / 2))] {
                let top = top.min(vocab);
                let (out, largest) =
                    (device.buffer::<u32>(rows * SIGNAL_WORDS)?, device.buffer::<u32>(rows * 2 * top)?);
                let on_device = device.upload(&logits)?;
                device.logit_signals(
                    (on_device.all(), vocab),
                    (bound, extra),
                    (top, true),
                    (out.all(), largest.all()),
                )?;
                let (out, largest) = (out.to_vec()?, largest.to_vec()?);
                for (row, (got, logits)) in out.chunks_exact(SIGNAL_WORDS).zip(logits.chunks_exact(vocab)).enumerate() {
                    let case = format!("{kind}, row {row} of {rows} x {vocab}, top {top}, extra {extra:?}");
                    let want = reference(logits, bound, extra);
                    let (values, ids) = largest[row * 2 * top..(row + 1) * 2 * top].split_at(top);
                    let values: Vec<f32> = values.iter().map(|bits| f32::from_bits(*bits) + 0.0).collect();
                    let (want_values, want_ids): (Vec<f32>, Vec<u32>) = want.order[..top].iter().copied().unzip();
                    exact.same(&case, ids, &want_ids);
                    exact.same(&case, &values, &want_values);
                    exact.same(&case, &got[..1], &[want.candidate]);
                    if let Some(extra) = extra {
                        exact.same(&case, &got[1..2], &[logits[extra as usize].to_bits()]);
                    }
                    if want.order[0].0.is_finite() {
                        let got = [f32::from_bits(got[2]), f32::from_bits(got[3])];
                        softmax.close(&case, &got, &[want.entropy, want.log_sum_exp], 1e-4);
                    }
                }
            }
        }
    }
    Ok(vec![exact, softmax])
}

struct Signals {
    candidate: u32,
    entropy: f64,
    log_sum_exp: f64,
    /// All logits, falling, ties by rising id; NaN and the extra row as -inf.
    order: Vec<(f32, u32)>,
}

fn reference(logits: &[f32], bound: usize, extra: Option<u32>) -> Signals {
    let clean = |(id, logit): (usize, &f32)| {
        let void = logit.is_nan() || extra == Some(id as u32);
        (if void { f32::NEG_INFINITY } else { *logit + 0.0 }, id as u32)
    };
    let mut order: Vec<(f32, u32)> = logits.iter().enumerate().map(clean).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let candidate = order.iter().find(|(_, id)| (*id as usize) < bound).map_or(0, |(_, id)| *id);
    let top = f64::from(order[0].0);
    let terms: Vec<f64> = order.iter().map(|(logit, _)| (f64::from(*logit) - top).exp()).collect();
    let total: f64 = terms.iter().sum();
    let entropy = terms.iter().map(|term| term / total).filter(|p| *p > 0.0).map(|p| -p * p.ln()).sum();
    Signals { candidate, entropy, log_sum_exp: top + total.ln(), order }
}
