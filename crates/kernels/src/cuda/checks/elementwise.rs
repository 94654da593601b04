//! Embeddings, norms, rotations, gates, copies.

use super::super::inputs::{BatchInputs, Limits};
use super::super::matrix::{ActivationType, DeviceMatrix, HostMatrix, MatrixKind};
use super::super::memory::Device;
use super::super::ops::{Activations, Heads, LayerCache, RopeWeights};
use super::{Check, KV_DTYPES, Numbers, decode, kv_rounding, rounding};
use crate::{Error, Format, KvDtype, RowInput};

pub(super) fn checks(device: &Device) -> Result<Vec<Check>, Error> {
    Ok(vec![
        embed(device)?,
        rms_norm(device)?,
        add(device)?,
        silu_mul(device)?,
        rope_append(device)?,
        copy_blocks(device)?,
    ])
}

/// Matrices of every kind.
pub(super) fn matrices(numbers: &mut Numbers, n: usize, k: usize) -> Result<Vec<HostMatrix>, Error> {
    let mut matrices = Vec::new();
    for kind in [MatrixKind::F32, MatrixKind::F16, MatrixKind::Bf16] {
        matrices.push(HostMatrix::from_f32(kind, n, k, &numbers.floats(n * k))?);
    }
    if k.is_multiple_of(32) {
        for kind in [Format::Q4_0, Format::Q4_1, Format::Q8_0] {
            matrices.push(HostMatrix::from_blocks(kind, n, k, &blocks(numbers, kind, n * k / 32))?);
        }
    }
    Ok(matrices)
}

/// Random blocks with scales below 1/16.
pub(super) fn blocks(numbers: &mut Numbers, kind: Format, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..count {
        let mut block: Vec<u8> = (0..kind.bytes()).map(|_| numbers.below(256) as u8).collect();
        let factors = if kind == Format::Q4_1 { 2 } else { 1 };
        for factor in 0..factors {
            let value = half::f16::from_f32(numbers.float() / 16.0).to_le_bytes();
            block[2 * factor..2 * factor + 2].copy_from_slice(&value);
        }
        bytes.extend(block);
    }
    bytes
}

fn embed(device: &Device) -> Result<Check, Error> {
    let (mut check, mut numbers) = (Check::new("embed"), Numbers(1));
    for (vocab, width) in [(3, 8), (50, 320)] {
        for host in matrices(&mut numbers, vocab, width)? {
            let table = DeviceMatrix::upload(device, &host)?;
            let tokens: Vec<i32> = (0..7).map(|_| numbers.below(vocab) as i32).collect();
            let x = device.buffer::<f32>(tokens.len() * width)?;
            device.embed((device.upload(&tokens)?.all(), 1, tokens.len()), &table, (x.all(), width))?;
            let all = host.to_f32();
            let rows = tokens.iter().flat_map(|token| &all[*token as usize * width..(*token as usize + 1) * width]);
            let want: Vec<f32> = rows.copied().collect();
            check.same(&format!("{:?} {vocab} x {width}", host.kind()), &x.to_vec()?, &want);
        }
    }
    Ok(check)
}

pub(super) fn kv_dtype(kind: ActivationType) -> KvDtype {
    match kind {
        ActivationType::F32 => KvDtype::F32,
        ActivationType::F16 => KvDtype::F16,
        ActivationType::Bf16 => KvDtype::Bf16,
    }
}

const KINDS: [ActivationType; 3] = [ActivationType::F32, ActivationType::F16, ActivationType::Bf16];

/// The first `count` numbers of activations.
pub(super) fn read(a: &Activations, count: usize) -> Result<Vec<f32>, Error> {
    let mut bytes = vec![0; count * a.kind.bytes()];
    a.bytes.read(0, &mut bytes)?;
    Ok(decode(&bytes, kv_dtype(a.kind)))
}

fn rms_norm(device: &Device) -> Result<Check, Error> {
    let (mut check, mut numbers) = (Check::new("rms_norm"), Numbers(2));
    for (rows, width, picks) in [(1, 8, None), (3, 33, None), (5, 256, Some(vec![4, 0])), (2, 1000, Some(vec![1]))] {
        for kind in KINDS {
            for with_delta in [false, true] {
                let (x, delta) = (numbers.floats(rows * width), numbers.floats(rows * width));
                let (weight, eps) = (numbers.floats(width), 1e-5f32);
                let on_device = (device.upload(&x)?, device.upload(&delta)?, device.upload(&weight)?);
                let count = picks.as_ref().map_or(rows, Vec::len);
                let ids = picks.as_ref().map(|ids| device.upload(ids)).transpose()?;
                let out = Activations::new(device, kind, count, width)?;
                let plain = device.buffer::<f32>(count * width)?;
                device.rms_norm(
                    (on_device.0.all(), with_delta.then(|| on_device.1.all())),
                    (ids.as_ref().map(|ids| ids.all()), count),
                    (on_device.2.all(), eps),
                    &out,
                    Some(plain.all()),
                )?;
                let mut want = Vec::new();
                for row in 0..count {
                    let from = picks.as_ref().map_or(row, |ids| ids[row] as usize) * width;
                    let sum =
                        |k: usize| f64::from(x[from + k]) + if with_delta { f64::from(delta[from + k]) } else { 0.0 };
                    let mean = (0..width).map(|k| sum(k).powi(2)).sum::<f64>() / width as f64;
                    want.extend((0..width).map(|k| sum(k) / (mean + f64::from(eps)).sqrt() * f64::from(weight[k])));
                }
                let case = format!("{rows} x {width}, {kind:?}, delta {with_delta}");
                let allowed = rounding(kind.bytes(), kind == ActivationType::Bf16);
                check.close(&case, &read(&out, count * width)?, &want, allowed);
                check.close(&case, &plain.to_vec()?, &want, 1e-5);
                if with_delta && picks.is_none() {
                    let sums: Vec<f32> = x.iter().zip(&delta).map(|(x, delta)| x + delta).collect();
                    check.same(&case, &on_device.0.to_vec()?, &sums);
                }
            }
        }
    }
    Ok(check)
}

fn add(device: &Device) -> Result<Check, Error> {
    let (mut check, mut numbers) = (Check::new("add"), Numbers(3));
    for (rows, width) in [(1, 1), (3, 300)] {
        for (with_delta, with_bias) in [(true, false), (false, true), (true, true)] {
            let (x, delta, bias) = (numbers.floats(rows * width), numbers.floats(rows * width), numbers.floats(width));
            let (to, a, b) = (device.upload(&x)?, device.upload(&delta)?, device.upload(&bias)?);
            device.add(to.all(), with_delta.then(|| a.all()), with_bias.then(|| b.all()), width)?;
            let want = (0..rows * width).map(|i| {
                let sum = if with_delta { x[i] + delta[i] } else { x[i] };
                if with_bias { sum + bias[i % width] } else { sum }
            });
            check.same(&format!("{rows} x {width}"), &to.to_vec()?, &want.collect::<Vec<_>>());
        }
    }
    Ok(check)
}

fn silu_mul(device: &Device) -> Result<Check, Error> {
    let (mut check, mut numbers) = (Check::new("silu_mul"), Numbers(4));
    for (rows, width) in [(1, 8), (4, 520)] {
        for kind in KINDS {
            let gates: Vec<f32> = numbers.floats(rows * 2 * width).iter().map(|x| 20.0 * x).collect();
            let out = Activations::new(device, kind, rows, width)?;
            device.silu_mul(device.upload(&gates)?.all(), width, &out)?;
            let want = (0..rows * width).map(|i| {
                let at = i / width * 2 * width + i % width;
                let (gate, up) = (f64::from(gates[at]), f64::from(gates[at + width]));
                gate / (1.0 + (-gate).exp()) * up
            });
            let allowed = rounding(kind.bytes(), kind == ActivationType::Bf16);
            check.close(
                &format!("{rows} x {width}, {kind:?}"),
                &read(&out, rows * width)?,
                &want.collect::<Vec<_>>(),
                allowed,
            );
        }
    }
    Ok(check)
}

/// Biases, norm, rotation of one vector, by the definition.
fn rotate(x: &[f32], biases: Option<&[f32]>, norm: Option<&[f32]>, angles: &[f64], interleaved: bool) -> Vec<f64> {
    let half = x.len() / 2;
    let mut x: Vec<f64> =
        x.iter().enumerate().map(|(i, x)| f64::from(*x) + biases.map_or(0.0, |b| f64::from(b[i]))).collect();
    if let Some(norm) = norm {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        x.iter_mut().zip(norm).for_each(|(x, weight)| *x *= f64::from(*weight) / (mean + 1e-6).sqrt());
    }
    let mut out = x.clone();
    for pair in 0..half {
        let (i, j) = if interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + half) };
        let (sin, cos) = angles[pair].sin_cos();
        (out[i], out[j]) = (x[i] * cos - x[j] * sin, x[i] * sin + x[j] * cos);
    }
    out
}

fn rope_append(device: &Device) -> Result<Check, Error> {
    let (mut check, mut numbers) = (Check::new("rope_append"), Numbers(5));
    let shapes = [(4, 2, 64), (9, 3, 64), (8, 1, 128), (3, 3, 8)];
    for (case, (query, kv, dim)) in shapes.into_iter().enumerate() {
        for dtype in KV_DTYPES {
            let heads = Heads { query, kv, dim };
            let limits = Limits { tokens: 8, rows: 3, vocab: 10, positions: 40, blocks: 6, block_size: 16 };
            let mut inputs = BatchInputs::new(device, limits)?;
            let rows = [
                RowInput { tokens: &[1, 2, 3], start: 15, blocks: &[5, 0], sample: true },
                RowInput { tokens: &[4], start: 0, blocks: &[2], sample: true },
            ];
            inputs.set(&rows, (5, 2))?;
            let (interleaved, with_bias, with_norm) = (case % 2 == 0, case % 3 != 0, case % 4 > 1);
            let qkv = numbers.floats(5 * heads.width());
            let (biases, norms) = (numbers.floats(heads.width()), [numbers.floats(dim), numbers.floats(dim)]);
            let angle = |position: usize, pair: usize| position as f64 / 7f64.powf(pair as f64 / dim as f64);
            let table = |f: fn(f64) -> f64| -> Vec<f32> {
                (0..40 * dim / 2).map(|i| f(angle(i / (dim / 2), i % (dim / 2))) as f32).collect()
            };
            let (cos, sin) = (device.upload(&table(f64::cos))?, device.upload(&table(f64::sin))?);
            let on_device = (device.upload(&qkv)?, device.upload(&biases)?);
            let norms_on_device = [device.upload(&norms[0])?, device.upload(&norms[1])?];
            let bytes = 6 * 16 * heads.kv_width() * dtype.bytes();
            let (keys, values) = (device.buffer::<u8>(bytes)?, device.buffer::<u8>(bytes)?);
            let weights = RopeWeights {
                biases: with_bias.then(|| on_device.1.all()),
                norms: with_norm.then(|| [norms_on_device[0].all(), norms_on_device[1].all()]),
                eps: 1e-6,
                cos: cos.all(),
                sin: sin.all(),
                interleaved,
            };
            let cache = LayerCache { keys: keys.all(), values: values.all(), dtype };
            device.rope_append(on_device.0.all(), &inputs, &weights, cache, heads)?;
            let [mut want_keys, mut want_values] =
                [vec![0f64; bytes / dtype.bytes()], vec![0f64; bytes / dtype.bytes()]];
            // Queries change, keys and values stay what they were.
            let mut want: Vec<f64> = qkv.iter().map(|x| f64::from(*x)).collect();
            // Blocks 5 and 0 from position 15 on, block 2 from 0 on.
            for (token, (position, slot)) in [(15, 5 * 16 + 15), (16, 0), (17, 1), (0, 32)].into_iter().enumerate() {
                for head in 0..query + 2 * kv {
                    let at = (token * (query + 2 * kv) + head) * dim;
                    let bias = with_bias.then(|| &biases[head * dim..(head + 1) * dim]);
                    let norm = (with_norm && head < query + kv).then(|| &norms[usize::from(head >= query)][..]);
                    let turned = head < query + kv;
                    let angles: Vec<f64> =
                        (0..dim / 2).map(|pair| if turned { angle(position, pair) } else { 0.0 }).collect();
                    let result = rotate(&qkv[at..at + dim], bias, norm, &angles, interleaved);
                    if head < query {
                        want[at..at + dim].copy_from_slice(&result);
                    } else {
                        let (to, head) =
                            if turned { (&mut want_keys, head - query) } else { (&mut want_values, head - query - kv) };
                        to[(slot * kv + head) * dim..(slot * kv + head + 1) * dim].copy_from_slice(&result);
                    }
                }
            }
            let case = format!("{query}/{kv} heads of {dim}, {dtype:?}, neighbours {interleaved}");
            check.close(&case, &on_device.0.to_vec()?, &want, 1e-5);
            check.close(&case, &decode(&keys.to_vec()?, dtype), &want_keys, kv_rounding(dtype));
            check.close(&case, &decode(&values.to_vec()?, dtype), &want_values, kv_rounding(dtype));
        }
    }
    Ok(check)
}

fn copy_blocks(device: &Device) -> Result<Check, Error> {
    let (mut check, mut numbers) = (Check::new("copy_blocks"), Numbers(6));
    for (caches, blocks, size) in [(1, 2, 16), (4, 5, 4112)] {
        let bytes: Vec<u8> = (0..caches * blocks * size).map(|_| numbers.below(256) as u8).collect();
        let on_device = device.upload(&bytes)?;
        let pairs = [1, 0];
        device.copy_blocks((on_device.all(), caches), blocks, device.upload(&pairs)?.all())?;
        let mut want = bytes;
        for cache in 0..caches {
            let start = cache * blocks * size;
            want.copy_within(start + size..start + 2 * size, start);
        }
        check.same(&format!("{caches} caches of {blocks} x {size}"), &on_device.to_vec()?, &want);
    }
    Ok(check)
}
