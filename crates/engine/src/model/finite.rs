//! Weights must be finite: one that is not makes every output NaN, or, worse, only some.

use half::{bf16, f16};
use tokenrouter_kernels::Format;

/// The message names the first value that is not finite.
pub(super) fn check(values: &[f32]) -> Result<(), String> {
    find(values, |value| *value, |value| !value.is_finite(), FINITE)
}

/// The message names the first number that is not finite, or the first block with such a scale.
pub(super) fn check_stored(format: Format, bytes: &[u8]) -> Result<(), String> {
    let pairs = bytes.as_chunks::<2>().0;
    match format {
        Format::F32 => find(bytes.as_chunks::<4>().0, |b| f32::from_le_bytes(*b), |x| !x.is_finite(), FINITE),
        Format::F16 => find(pairs, |b| f16::from_le_bytes(*b), |x| !x.is_finite(), FINITE),
        Format::Bf16 => find(pairs, |b| bf16::from_le_bytes(*b), |x| !x.is_finite(), FINITE),
        _ => match format.find_bad_block(bytes) {
            Some((block, value, what)) => Err(format!("{value} as {what} of block {block}, allowed are {FINITE}")),
            None => Ok(()),
        },
    }
}

const FINITE: &str = "finite numbers";

/// The message names the first value that f16 has no finite number for.
pub(super) fn check_range_of_f16(values: &[f32]) -> Result<(), String> {
    // Half of the step above the largest number rounds up to infinity.
    find(values, |value| *value, |value| value.abs() >= 65_520.0, "numbers below 65520, for `dtype: f16`")
}

fn find<S, T: Into<f32>>(
    stored: &[S],
    value: impl Fn(&S) -> T,
    bad: impl Fn(T) -> bool,
    allowed: &str,
) -> Result<(), String> {
    // Whole chunks at a time: without an exit from the loop, compilers use vectors.
    const CHUNK: usize = 1024;
    for (index, chunk) in stored.chunks(CHUNK).enumerate() {
        if chunk.iter().fold(false, |any, stored| any | bad(value(stored))) {
            let at = chunk.iter().position(|stored| bad(value(stored))).unwrap_or_default();
            let value: f32 = value(&chunk[at]).into();
            return Err(format!("{value} at index {}, allowed are {allowed}", index * CHUNK + at));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;
    use candle_core::quantized::{GgmlDType, QTensor, ggml_file::qtensor_from_ggml};

    #[test]
    fn the_first_value_that_is_not_finite_is_named() {
        let mut values = vec![0.5f32; 3000];
        assert_eq!(check(&values), Ok(()));
        values[2500] = f32::NEG_INFINITY;
        values[2100] = f32::NAN;
        assert_eq!(check(&values), Err("NaN at index 2100, allowed are finite numbers".into()));
        let bytes = [bf16::ONE.to_le_bytes(), bf16::INFINITY.to_le_bytes()].concat();
        assert_eq!(check_stored(Format::Bf16, &bytes), Err("inf at index 1, allowed are finite numbers".into()));
        let half = |value: f16| check_stored(Format::F16, &value.to_le_bytes());
        assert!(half(f16::NAN).is_err() && half(f16::MAX).is_ok());
        let floats: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(check_stored(Format::F32, &floats), check(&values));
        assert!(check_range_of_f16(&[65_519.0, -65_519.0]).is_ok());
        assert!(check_range_of_f16(&[-65_520.0]).is_err_and(|message| message.starts_with("-65520 at index 0")));
        assert!(f16::from_f32(65_519.0).is_finite() && f16::from_f32(65_520.0).is_infinite());
    }

    /// Candle dequantises the same blocks: what has a weight that is not finite is refused, all else is not.
    #[test]
    fn bad_scales_are_those_that_candle_dequantises_to_bad_weights() {
        let scales = [0.0, 1.0, -2.5, 6e-8, 4092.0, 8184.0, 65_504.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        // Where blocks have their scale, and, if there is one, a second one.
        for (format, dtype, first, second) in [
            (Format::Q4_0, GgmlDType::Q4_0, 0, None),
            (Format::Q4_1, GgmlDType::Q4_1, 0, Some(2)),
            (Format::Q5_0, GgmlDType::Q5_0, 0, None),
            (Format::Q5_1, GgmlDType::Q5_1, 0, Some(2)),
            (Format::Q8_0, GgmlDType::Q8_0, 0, None),
            (Format::Q2K, GgmlDType::Q2K, 80, Some(82)),
            (Format::Q3K, GgmlDType::Q3K, 108, None),
            (Format::Q4K, GgmlDType::Q4K, 0, Some(2)),
            (Format::Q5K, GgmlDType::Q5K, 0, Some(2)),
            (Format::Q6K, GgmlDType::Q6K, 208, None),
        ] {
            for scale in scales {
                for other in scales {
                    let block = |scale: f32, other: f32| {
                        let mut block = vec![0x13; format.bytes()];
                        block[first..first + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
                        if let Some(at) = second {
                            block[at..at + 2].copy_from_slice(&f16::from_f32(other).to_le_bytes());
                        }
                        block
                    };
                    let blocks = [block(1.0, 0.5), block(scale, other)].concat();
                    let dims = vec![2, format.columns()];
                    let tensor: QTensor = qtensor_from_ggml(dtype, &blocks, dims, &Device::Cpu).expect("two blocks");
                    let weights = tensor.dequantize(&Device::Cpu).and_then(|t| t.flatten_all()?.to_vec1::<f32>());
                    let finite = weights.expect("floats").iter().all(|weight| weight.is_finite());
                    // The kernels' own form of Q4_0 and Q5_0 has a smaller range: 8 or 16 scales are a half, too.
                    let fits = match format {
                        Format::Q4_0 => f16::from_f32(8.0 * scale).is_finite(),
                        Format::Q5_0 => f16::from_f32(16.0 * scale).is_finite(),
                        _ => true,
                    };
                    let checked = check_stored(format, &blocks);
                    assert_eq!(checked.is_ok(), finite && fits, "{format}, {scale}, {other}: {checked:?}");
                    assert!(checked.err().is_none_or(|message| message.contains("of block 1")));
                }
            }
        }
    }
}
