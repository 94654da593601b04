//! Row operations: norms, rotary embedding, gated activation.

use crate::LANES;
use crate::isa::for_each_isa;

/// Sum over lanes in a fixed order.
#[inline(always)]
pub(crate) fn reduce(lanes: [f32; LANES]) -> f32 {
    let mut v = lanes;
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            v[i] += v[i + width];
        }
        width /= 2;
    }
    v[0]
}

/// The larger number. A NaN as first argument is ignored. This is one instruction, unlike `f32::max`.
#[inline(always)]
pub(crate) fn larger(x: f32, than: f32) -> f32 {
    if x > than { x } else { than }
}

/// `exp(x)` for `x <= 0`, to about 1e-7 relative; 0 far below. A polynomial after reduction by `ln 2`, as in Cephes.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    let x = x.max(-87.0);
    let shifted = x.mul_add(std::f32::consts::LOG2_E, MAGIC);
    let n = shifted - MAGIC;
    let r = n.mul_add(-0.693_359_4, x);
    let r = n.mul_add(2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4f32;
    for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p.mul_add(r, c);
    }
    let y = p.mul_add(r * r, r + 1.0);
    let scale = f32::from_bits(((shifted.to_bits() as i32) << 23).wrapping_add(0x3f80_0000) as u32);
    y * scale
}

for_each_isa! {
    /// `out = x / rms(x) * weight`, for every row of `weight.len()` elements.
    pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) = rms_norm_body
}

#[inline(always)]
fn rms_norm_body(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let width = weight.len();
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let mut sums = [0f32; LANES];
        let chunks = x.chunks_exact(LANES);
        let tail: f32 = chunks.remainder().iter().map(|x| x * x).sum();
        for chunk in chunks {
            for lane in 0..LANES {
                sums[lane] = chunk[lane].mul_add(chunk[lane], sums[lane]);
            }
        }
        let scale = 1.0 / ((reduce(sums) + tail) / width as f32 + eps).sqrt();
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = x * scale * weight;
        }
    }
}

for_each_isa! {
    /// `out = silu(gate) * up`, for rows `[gate | up]` of `2 * width` elements.
    pub(crate) fn silu_mul(gate_up: &[f32], width: usize, out: &mut [f32]) = silu_mul_body
}

#[inline(always)]
fn silu_mul_body(gate_up: &[f32], width: usize, out: &mut [f32]) {
    for (row, out) in gate_up.chunks_exact(2 * width).zip(out.chunks_exact_mut(width)) {
        let (gate, up) = row.split_at(width);
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            // On both sides of zero, takes exp of a number that is not positive.
            let e = exp(-gate.abs());
            let sigmoid = if *gate >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) };
            *out = gate * sigmoid * up;
        }
    }
}

/// Replaces `out` by `exp((logits - max) / temperature)`, the weights of a softmax with temperature. Weights are 0 for
/// NaN, and where they would be below `exp(-87)`. If the processor lacks `isa`, the baseline computes them.
pub fn softmax_weights(isa: crate::Isa, logits: &[f32], temperature: f32, out: &mut Vec<f32>) {
    let isa = if isa.is_available() { isa } else { crate::Isa::Baseline };
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    out.resize(logits.len(), 0.0);
    softmax_weights_isa(isa, logits, max, temperature.recip(), out);
}

for_each_isa! {
    fn softmax_weights_isa(logits: &[f32], max: f32, scale: f32, out: &mut [f32]) = softmax_weights_body
}

#[inline(always)]
fn softmax_weights_body(logits: &[f32], max: f32, scale: f32, out: &mut [f32]) {
    for (out, logit) in out.iter_mut().zip(logits) {
        let x = (logit - max) * scale;
        let weight = exp(x);
        *out = if x >= -87.0 { weight } else { 0.0 };
    }
}

/// Rotates a head in place. `cos` and `sin` have half the length of the head.
pub(crate) fn rope(head: &mut [f32], cos: &[f32], sin: &[f32], interleaved: bool) {
    let half = cos.len();
    for i in 0..half {
        let (a, b) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + half) };
        let (x, y) = (head[a], head[b]);
        head[a] = x * cos[i] - y * sin[i];
        head[b] = x * sin[i] + y * cos[i];
    }
}

/// Index of the largest value. The lowest index wins ties; NaN never wins.
pub fn argmax(values: &[f32]) -> u32 {
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    values.iter().position(|value| *value == max).unwrap_or(0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn softmax_weights_are_those_of_f64_on_every_instruction_set(
            logits in prop::collection::vec(-60f32..60.0, 1..200), temperature in 0.1f32..3.0
        ) {
            let mut first = Vec::new();
            softmax_weights(Isa::Baseline, &logits, temperature, &mut first);
            let max = logits.iter().copied().fold(f32::MIN, f32::max);
            for (got, logit) in first.iter().zip(&logits) {
                let x = (f64::from(*logit) - f64::from(max)) / f64::from(temperature);
                // Rounding of the exponent dominates: two roundings, relative to a number of up to 87.
                prop_assert!((f64::from(*got) - x.exp()).abs() <= x.exp() * 2e-5 + 2e-38, "{logit}: {got}");
            }
            for isa in [Isa::Avx2, Isa::Avx512Vnni] {
                let mut other = Vec::new();
                softmax_weights(isa, &logits, temperature, &mut other);
                prop_assert_eq!(&first, &other);
            }
        }
    }

    #[test]
    fn impossible_logits_have_no_weight() {
        let mut weights = Vec::new();
        softmax_weights(Isa::Baseline, &[f32::NAN, 1.0, f32::NEG_INFINITY, -200.0], 1.0, &mut weights);
        assert_eq!(weights, [0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn exp_is_accurate_where_it_is_used() {
        for i in 0..=8700 {
            let x = -(i as f32) / 100.0;
            let want = f64::from(x).exp();
            assert!(((f64::from(exp(x)) - want) / want).abs() < 3e-7, "exp({x})");
        }
        assert!(exp(-1000.0) < 2e-38);
    }

    proptest! {
        #[test]
        fn versions_agree_and_match_f64(x in prop::collection::vec(-8f32..8.0, 1..200), scale in 0.1f32..3.0) {
            let weight: Vec<f32> = (0..x.len()).map(|i| scale + i as f32 * 0.01).collect();
            let ms = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / x.len() as f64;
            let mut first: Option<Vec<f32>> = None;
            for isa in Isa::available() {
                let mut out = vec![0.0; x.len()];
                rms_norm(isa, &x, &weight, 1e-5, &mut out);
                for (i, out) in out.iter().enumerate() {
                    let want = f64::from(x[i]) / (ms + 1e-5).sqrt() * f64::from(weight[i]);
                    prop_assert!((f64::from(*out) - want).abs() < 1e-5 * want.abs().max(1.0));
                }
                if let Some(first) = &first {
                    prop_assert_eq!(&out, first);
                }
                first = Some(out);
            }
        }

        #[test]
        fn silu_matches_f64(row in prop::collection::vec(-30f32..30.0, 2..80)) {
            let width = row.len() / 2;
            let mut out = vec![0.0; width];
            for isa in Isa::available() {
                silu_mul(isa, &row[..2 * width], width, &mut out);
                for i in 0..width {
                    let gate = f64::from(row[i]);
                    let want = gate / (1.0 + (-gate).exp()) * f64::from(row[width + i]);
                    prop_assert!((f64::from(out[i]) - want).abs() <= 2e-6 * want.abs().max(1e-3));
                }
            }
        }
    }
}
