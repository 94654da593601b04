//! Matrix products: against plain arithmetic in f64, and bit for bit across instruction sets, batch sizes and threads.

use half::f16;
use proptest::prelude::*;
use tokenrouter_kernels::{Activations, BlockKind, Isa, PackedMatrix, Pool};

/// Deterministic numbers in -1..1.
fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

/// GGUF blocks of random weights, and their values.
fn blocks(kind: BlockKind, seed: u64, n: usize, k: usize) -> (Vec<u8>, Vec<f32>) {
    let random = noise(seed, n * k + 2 * n * k / 32);
    let mut bytes = Vec::new();
    let mut values = Vec::new();
    for b in 0..n * k / 32 {
        let (scale, minimum) =
            (f16::from_f32(0.02 + random[n * k + 2 * b].abs()), f16::from_f32(random[n * k + 2 * b + 1]));
        let q = |i: usize, levels: f32| ((random[b * 32 + i] + 1.0) / 2.0 * levels).min(levels) as i32;
        bytes.extend(scale.to_le_bytes());
        let (levels, offset) = match kind {
            BlockKind::Q4_0 => (15.0, -8.0 * scale.to_f32()),
            BlockKind::Q4_1 => {
                bytes.extend(minimum.to_le_bytes());
                (15.0, minimum.to_f32())
            }
            BlockKind::Q8_0 => (255.0, 0.0),
        };
        if kind == BlockKind::Q8_0 {
            let quants: Vec<i8> = (0..32).map(|i| (q(i, levels) - 128) as i8).collect();
            bytes.extend(quants.iter().map(|v| *v as u8));
            values.extend(quants.iter().map(|v| scale.to_f32() * f32::from(*v)));
        } else {
            bytes.extend((0..16).map(|i| (q(i, levels) | q(i + 16, levels) << 4) as u8));
            values.extend((0..32).map(|i| scale.to_f32() * q(i, levels) as f32 + offset));
        }
    }
    (bytes, values)
}

fn multiply(matrix: &PackedMatrix, isa: Isa, threads: usize, x: &[f32]) -> Vec<f32> {
    let pool = Pool::new(threads, None).expect("threads");
    let mut quantized = Activations::default();
    if matrix.is_quantized() {
        quantized.quantize(isa, &pool, x, matrix.k()).expect("fits");
    }
    let rows = x.len() / matrix.k();
    let stride = matrix.n() + 3;
    let mut out = vec![7.0; rows * stride];
    matrix.multiply(isa, &pool, (x, &quantized), &mut out, (stride, 2)).expect("fits");
    // Neighbouring columns are not changed.
    assert!(out.chunks(stride).all(|row| row[..2] == [7.0, 7.0] && row[stride - 1] == 7.0));
    out.chunks(stride).flat_map(|row| row[2..stride - 1].to_vec()).collect()
}

fn matrices(n: usize, k: usize, seed: u64) -> Vec<(PackedMatrix, Vec<f32>, f64)> {
    let mut all = Vec::new();
    for kind in [BlockKind::Q4_0, BlockKind::Q4_1, BlockKind::Q8_0] {
        let (bytes, values) = blocks(kind, seed, n, k);
        // Quantised activations: half a step of 1/127 of the block's maximum per value.
        all.push((PackedMatrix::from_blocks(kind, n, k, &bytes).expect("fits"), values, 0.5 / 127.0));
    }
    let values = noise(seed + 1, n * k);
    all.push((PackedMatrix::from_f32(n, k, &values).expect("fits"), values.clone(), 1e-6));
    all.push((PackedMatrix::bf16_from_f32(n, k, &values).expect("fits"), values, 1.0 / 256.0));
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn products_are_right_and_depend_on_nothing_but_their_row(
        n in 1usize..150, blocks in 1usize..6, rows in 1usize..20, seed in 0u64..1000,
    ) {
        let k = blocks * 32;
        let x = noise(seed + 2, rows * k);
        for (matrix, values, step) in matrices(n, k, seed) {
            let reference = multiply(&matrix, Isa::Baseline, 1, &x);
            for row in 0..rows {
                let x = &x[row * k..][..k];
                for column in 0..n {
                    let w = &values[column * k..][..k];
                    let want: f64 = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                    let bound: f64 = w.iter().map(|w| f64::from(w.abs())).sum::<f64>() * step + 1e-4;
                    let got = f64::from(reference[row * n + column]);
                    prop_assert!((got - want).abs() <= bound, "{} instead of {}, bound {}", got, want, bound);
                }
            }
            for isa in Isa::available() {
                for threads in [1, 3] {
                    prop_assert_eq!(&multiply(&matrix, isa, threads, &x), &reference, "{:?}, {} threads", isa, threads);
                }
                let single: Vec<f32> = x.chunks(k).flat_map(|x| multiply(&matrix, isa, 1, x)).collect();
                prop_assert_eq!(&single, &reference, "row by row, {:?}", isa);
            }
        }
    }

    #[test]
    fn rows_can_be_read_back(n in 1usize..40, blocks in 1usize..4, seed in 0u64..1000) {
        let k = blocks * 32;
        for (matrix, values, step) in matrices(n, k, seed) {
            let mut row = vec![0.0; k];
            for (index, want) in values.chunks(k).enumerate() {
                matrix.row(index, &mut row);
                for (got, want) in row.iter().zip(want) {
                    let tolerance = if matrix.is_quantized() { 1e-5 } else { step as f32 };
                    prop_assert!((got - want).abs() <= tolerance, "{} instead of {}", got, want);
                }
            }
        }
    }
}

#[test]
fn bad_shapes_are_errors() {
    assert!(PackedMatrix::from_blocks(BlockKind::Q4_1, 4, 48, &[]).is_err());
    let short = PackedMatrix::from_blocks(BlockKind::Q8_0, 4, 64, &[0; 100]).expect_err("too short").to_string();
    assert!(short.contains("100") && short.contains("272"), "{short}");
    assert!(PackedMatrix::from_f32(2, 3, &[0.0; 5]).is_err());
    let matrix = PackedMatrix::from_f32(2, 3, &[0.0; 6]).expect("fits");
    let pool = Pool::new(1, None).expect("threads");
    let empty = Activations::default();
    assert!(matrix.multiply(Isa::Baseline, &pool, (&[0.0; 4], &empty), &mut [0.0; 2], (2, 0)).is_err());
    assert!(matrix.multiply(Isa::Baseline, &pool, (&[0.0; 3], &empty), &mut [0.0; 2], (2, 1)).is_err());
}
