//! Routing heads.

use super::super::head::{CudaHead, HeadInputs, HeadLinear, HeadNorm, HostHead};
use super::super::matrix::{DeviceMatrix, HostMatrix, MatrixKind};
use super::super::memory::Device;
use super::super::ops::SIGNAL_WORDS;
use super::{Check, Numbers};
use crate::Error;

const HIDDEN: usize = 24;
const VOCAB: usize = 11;
const ROWS: usize = 3;

pub(super) fn checks(device: &Device) -> Result<Vec<Check>, Error> {
    let (mut check, mut numbers) = (Check::new("routing heads"), Numbers(10));
    for (case, parts) in [("deferral", 0), ("citer", 1), ("r2r, 1 output", 2), ("r2r, 3 classes, norms", 3)] {
        let top = if parts < 2 { 0 } else { 5 };
        let head = match parts {
            0 => HostHead::Mlp { features: None, output: linear(&mut numbers, 1, HIDDEN, false)? },
            1 => HostHead::Mlp {
                features: Some(linear(&mut numbers, 40, HIDDEN, true)?),
                output: linear(&mut numbers, 1, 40, false)?,
            },
            _ => r2r(&mut numbers, parts == 3)?,
        };
        let hidden = numbers.floats(ROWS * HIDDEN);
        let embedding = HostMatrix::from_f32(MatrixKind::F32, VOCAB, HIDDEN, &numbers.floats(VOCAB * HIDDEN))?;
        let ids: Vec<i32> = (0..ROWS).map(|_| numbers.below(VOCAB) as i32).collect();
        let largest: Vec<u32> = numbers.floats(ROWS * 2 * top).iter().map(|x| (4.0 * x).to_bits()).collect();
        let on_device = CudaHead::upload(device, &head, ROWS)?;
        on_device.check(HIDDEN, top, ROWS)?;
        let table = DeviceMatrix::upload(device, &embedding)?;
        let (state, candidates) = (device.upload(&hidden)?, device.upload(&ids)?);
        let (top_words, signals) = (device.upload(&largest)?, device.buffer::<u32>(ROWS * SIGNAL_WORDS)?);
        let inputs = HeadInputs {
            rows: ROWS,
            hidden: state.all(),
            ids: (candidates.all(), 1),
            embedding: &table,
            largest: top_words.all(),
            top,
        };
        on_device.score(device, &inputs, signals.all())?;
        let words = signals.to_vec()?;
        let got: Vec<f32> = words.chunks_exact(SIGNAL_WORDS).map(|row| f32::from_bits(row[SIGNAL_WORDS - 1])).collect();
        let table = embedding.to_f32();
        let want: Vec<f64> = (0..ROWS)
            .map(|row| {
                let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
                let state = wide(&hidden[row * HIDDEN..(row + 1) * HIDDEN]);
                let token = wide(&table[ids[row] as usize * HIDDEN..][..HIDDEN]);
                let logits =
                    largest[row * 2 * top..][..top].iter().map(|bits| f64::from(f32::from_bits(*bits))).collect();
                reference(&head, state, token, logits)
            })
            .collect();
        check.close(case, &got, &want, 2e-5);
    }
    Ok(vec![check])
}

fn linear(numbers: &mut Numbers, n: usize, k: usize, scaled: bool) -> Result<HeadLinear, Error> {
    let weights: Vec<f32> = numbers.floats(n * k).iter().map(|x| x / (k as f32).sqrt() * 2.0).collect();
    let weight = HostMatrix::from_f32(MatrixKind::F32, n, k, &weights)?;
    Ok(HeadLinear { weight, scale: scaled.then(|| numbers.floats(n)), shift: numbers.floats(n) })
}

fn norm(numbers: &mut Numbers, width: usize) -> HeadNorm {
    HeadNorm { weight: numbers.floats(width), bias: numbers.floats(width) }
}

fn r2r(numbers: &mut Numbers, full: bool) -> Result<HostHead, Error> {
    let norms = [norm(numbers, HIDDEN), norm(numbers, HIDDEN)];
    let mut logits = linear(numbers, HIDDEN, 8, false)?;
    // Five logits: the other columns are padding, and must not matter.
    logits.weight = HostMatrix::from_f32(MatrixKind::F32, HIDDEN, 8, &numbers.floats(HIDDEN * 8))?;
    let blocks = vec![
        (norm(numbers, 16), linear(numbers, 32, 16, false)?, linear(numbers, 16, 32, false)?, None),
        (
            norm(numbers, 16),
            linear(numbers, 64, 16, false)?,
            linear(numbers, 8, 64, false)?,
            Some(linear(numbers, 8, 16, false)?),
        ),
    ];
    Ok(HostHead::R2r {
        input_norms: full.then_some(norms),
        logits,
        combined: linear(numbers, 16, 3 * HIDDEN, false)?,
        input: linear(numbers, 16, 16, false)?,
        blocks,
        output_norm: norm(numbers, 8),
        output: linear(numbers, if full { 3 } else { 1 }, 8, false)?,
    })
}

fn multiply(linear: &HeadLinear, x: &[f64]) -> Vec<f64> {
    let weights = linear.weight.to_f32();
    let rows = weights.chunks_exact(linear.weight.k()).enumerate();
    rows.map(|(n, row)| {
        let dot: f64 = row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
        dot * linear.scale.as_ref().map_or(1.0, |scale| f64::from(scale[n])) + f64::from(linear.shift[n])
    })
    .collect()
}

fn normalise(norm: &HeadNorm, x: &[f64]) -> Vec<f64> {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
    let scaled = x.iter().map(|x| (x - mean) / (variance + 1e-5).sqrt());
    scaled.zip(norm.weight.iter().zip(&norm.bias)).map(|(x, (w, b))| x * f64::from(*w) + f64::from(*b)).collect()
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let total: f64 = x.iter().map(|x| x.exp()).sum();
    x.iter().map(|x| x.exp() / total).collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x Phi(x)`, with the series of the error function.
fn gelu(x: f64) -> f64 {
    let z = x / std::f64::consts::SQRT_2;
    let (mut term, mut sum) = (z, z);
    for n in 1..80 {
        term *= -z * z / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    0.5 * x * (1.0 + sum * 2.0 / std::f64::consts::PI.sqrt())
}

fn reference(head: &HostHead, state: Vec<f64>, token: Vec<f64>, logits: Vec<f64>) -> f64 {
    match head {
        HostHead::Mlp { features: None, output } => sigmoid(multiply(output, &state)[0]),
        HostHead::Mlp { features: Some(features), output } => {
            let wide: Vec<f64> = multiply(features, &state).iter().map(|x| x.max(0.0)).collect();
            sigmoid(multiply(output, &wide)[0])
        }
        HostHead::R2r { input_norms, logits: projection, combined, input, blocks, output_norm, output } => {
            let (state, token, mut logits) = match input_norms {
                Some([a, b]) => (normalise(a, &state), normalise(b, &token), softmax(&logits)),
                None => (state, token, logits),
            };
            logits.resize(projection.weight.k(), 0.0);
            let all = [state, token, multiply(projection, &logits)].concat();
            let mut x = multiply(input, &multiply(combined, &all));
            for (norm, widen, narrow, change) in blocks {
                let wide: Vec<f64> = multiply(widen, &normalise(norm, &x)).into_iter().map(gelu).collect();
                let carried = change.as_ref().map_or(x.clone(), |change| multiply(change, &x));
                x = multiply(narrow, &wide).iter().zip(&carried).map(|(a, b)| a + b).collect();
            }
            let out = multiply(output, &normalise(output_norm, &x));
            if out.len() == 1 { sigmoid(out[0]) } else { softmax(&out)[2] }
        }
    }
}
