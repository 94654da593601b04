//! Matrix products: against plain arithmetic in f64, and bit for bit across instruction sets, batch sizes and threads.

mod ggml;

use half::{bf16, f16};
use proptest::prelude::*;
use tokenrouter_kernels::{Activations, Format, Isa, PackedMatrix, Pool};

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

/// Blocks of random weights, with scales of at most 1.
fn blocks(format: Format, seed: u64, n: usize, k: usize) -> (Vec<u8>, Vec<f32>) {
    let bytes = ggml::random_blocks(format, n * k / format.columns(), seed, |x| f16::from_f32(x).to_bits());
    let values = ggml::dequantize(format, &bytes);
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

/// Every format with these shapes, and the weights. Formats of large blocks are left out where they do not fit.
fn matrices(n: usize, k: usize, seed: u64) -> Vec<(PackedMatrix, Vec<f32>)> {
    let fitting = Format::ALL.into_iter().filter(|format| k.is_multiple_of(format.columns()));
    let mut all: Vec<_> = fitting
        .map(|format| {
            let (bytes, values) = blocks(format, seed, n, k);
            (PackedMatrix::from_blocks(format, n, k, &bytes).expect("fits"), values)
        })
        .collect();
    let values = noise(seed + 1, n * k);
    let rounded = |round: fn(f32) -> f32| values.iter().map(|x| round(*x)).collect();
    all.push((PackedMatrix::from_f32(n, k, &values).expect("fits"), values.clone()));
    all.push((PackedMatrix::bf16_from_f32(n, k, &values).expect("fits"), rounded(|x| bf16::from_f32(x).to_f32())));
    all.push((PackedMatrix::f16_from_f32(n, k, &values).expect("fits"), rounded(|x| f16::from_f32(x).to_f32())));
    all
}

/// Activations that are quantised without error: every block of 32 has integers of at most 127, among them 127, times a
/// power of two.
fn exact(seed: u64, count: usize) -> Vec<f32> {
    let mut values: Vec<f32> = noise(seed, count).iter().map(|x| (x * 127.0).round()).collect();
    for (index, block) in values.chunks_mut(32).enumerate() {
        block[(index * 7 + seed as usize) % 32] = if index % 2 == 0 { 127.0 } else { -127.0 };
        block.iter_mut().for_each(|x| *x *= 2f32.powi((index % 5) as i32 - 2));
    }
    values
}

fn check_products(n: usize, k: usize, rows: usize, seed: u64) -> Result<(), TestCaseError> {
    let x = exact(seed + 2, rows * k);
    for (matrix, values) in matrices(n, k, seed) {
        let format = matrix.format();
        let reference = multiply(&matrix, Isa::Baseline, 1, &x);
        let largest = values.iter().fold(0f64, |max, w| max.max(f64::from(w.abs())));
        for row in 0..rows {
            let x = &x[row * k..][..k];
            let bound = largest * x.iter().map(|x| f64::from(x.abs())).sum::<f64>() * 2e-6;
            for column in 0..n {
                let w = &values[column * k..][..k];
                let want: f64 = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                let got = f64::from(reference[row * n + column]);
                prop_assert!((got - want).abs() <= bound, "{}: {} instead of {}, bound {}", format, got, want, bound);
            }
        }
        // With rounded activations, too, only their row counts.
        let x = noise(seed + 3, rows * k);
        let reference = multiply(&matrix, Isa::Baseline, 1, &x);
        for isa in Isa::available() {
            prop_assert!(isa.path(format).is_available());
            for threads in [1, 3] {
                let got = multiply(&matrix, isa, threads, &x);
                prop_assert_eq!(&got, &reference, "{}, {:?}, {} threads", format, isa, threads);
            }
            let single: Vec<f32> = x.chunks(k).flat_map(|x| multiply(&matrix, isa, 1, x)).collect();
            prop_assert_eq!(&single, &reference, "{} row by row, {:?}", format, isa);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn products_are_right_and_depend_on_nothing_but_their_row(
        n in 1usize..150, blocks in 1usize..6, rows in 1usize..20, seed in 0u64..1000,
    ) {
        check_products(n, blocks * 32, rows, seed)?;
    }

    #[test]
    fn so_are_those_of_large_blocks(n in 1usize..50, blocks in 1usize..4, rows in 1usize..11, seed in 0u64..1000) {
        check_products(n, blocks * 256, rows, seed)?;
    }

    /// Any finite scales, subnormal and huge ones included: the same bits as ggml's loops.
    #[test]
    fn rows_are_dequantised_as_ggml_does(n in 1usize..40, blocks in 1usize..3, seed in 0u64..1000) {
        let k = blocks * 256;
        for format in Format::ALL {
            let finite = |x: f32| match format {
                // The kernels keep the smallest weight as f16.
                Format::Q4_0 => f16::from_f32(x * 8188.0).to_bits(),
                Format::Q5_0 => f16::from_f32(x * 4094.0).to_bits(),
                _ => f16::from_f32(x.powi(7) * 65504.0).to_bits(),
            };
            let bytes = ggml::random_blocks(format, n * k / format.columns(), seed, finite);
            prop_assert_eq!(format.find_bad_block(&bytes), None);
            let matrix = PackedMatrix::from_blocks(format, n, k, &bytes).expect("fits");
            let mut row = vec![0.0; k];
            for (index, want) in ggml::dequantize(format, &bytes).chunks(k).enumerate() {
                matrix.row(index, &mut row);
                for (got, want) in row.iter().zip(want) {
                    // Q4_0 and Q5_0 add a smallest weight instead of subtracting from the integer.
                    let same = got == want || matches!(format, Format::Q4_0 | Format::Q5_0) && (got - want).abs() <= want.abs() * 2e-6;
                    prop_assert!(same, "{}: {} instead of {}", format, got, want);
                }
            }
        }
    }
}

#[test]
fn matrices_are_about_as_large_as_in_the_file() {
    for format in Format::ALL {
        let (n, k) = (48, 512);
        let bytes = vec![0; n * k / format.columns() * format.bytes()];
        let matrix = PackedMatrix::from_blocks(format, n, k, &bytes).expect("fits");
        assert!(matrix.bytes() * 100 <= bytes.len() * 115, "{format}: {} bytes for {}", matrix.bytes(), bytes.len());
    }
}

#[test]
fn bad_scales_are_found() {
    for format in Format::ALL.into_iter().filter(|format| format.is_quantized()) {
        let good = ggml::random_blocks(format, 3, 5, |x| f16::from_f32(x).to_bits());
        assert_eq!(format.find_bad_block(&good), None, "{format}");
        // For every scale that is not finite, a block is found, and so it is where a weight is not.
        let bad = ggml::random_blocks(format, 1, 5, |_| f16::INFINITY.to_bits());
        let bad = if format == Format::Mxfp4 { [&[255], &bad[1..]].concat() } else { bad };
        let (block, value, what) = format.find_bad_block(&[good, bad].concat()).expect("a bad scale");
        assert!(block == 3 && !value.is_finite() && !what.is_empty(), "{format}: {block}, {value}, {what}");
    }
}

#[test]
fn formats_have_the_numbers_of_gguf() {
    for format in Format::ALL {
        assert_eq!(Format::from_ggml(format.ggml()), Some(format));
    }
    assert_eq!(Format::from_ggml(4), None);
    assert_eq!((Format::from_ggml(12), Format::Q4K.name()), (Some(Format::Q4K), "Q4_K"));
}

#[test]
fn bad_shapes_are_errors() {
    assert!(PackedMatrix::from_blocks(Format::Q4_1, 4, 48, &[]).is_err());
    let short = PackedMatrix::from_blocks(Format::Q8_0, 4, 64, &[0; 100]).expect_err("too short").to_string();
    assert!(short.contains("100") && short.contains("272"), "{short}");
    let odd = PackedMatrix::from_blocks(Format::Q4K, 1, 320, &[0; 288]).expect_err("no whole block").to_string();
    assert!(odd.contains("320") && odd.contains("256") && odd.contains("Q4_K"), "{odd}");
    assert!(PackedMatrix::from_f32(2, 3, &[0.0; 5]).is_err());
    let matrix = PackedMatrix::from_f32(2, 3, &[0.0; 6]).expect("fits");
    let pool = Pool::new(1, None).expect("threads");
    let empty = Activations::default();
    assert!(matrix.multiply(Isa::Baseline, &pool, (&[0.0; 4], &empty), &mut [0.0; 2], (2, 0)).is_err());
    assert!(matrix.multiply(Isa::Baseline, &pool, (&[0.0; 3], &empty), &mut [0.0; 2], (2, 1)).is_err());
}
