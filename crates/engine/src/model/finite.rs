//! Weights must be finite: one that is not makes every output NaN, or, worse, only some.

use half::{bf16, f16};
use tokenrouter_kernels::BlockKind;

/// A weight as files have it.
pub trait Number: Copy + Into<f32> {
    /// Neither infinite nor NaN.
    fn finite(self) -> bool;
}

impl Number for f32 {
    fn finite(self) -> bool {
        self.is_finite()
    }
}

impl Number for f16 {
    fn finite(self) -> bool {
        self.is_finite()
    }
}

impl Number for bf16 {
    fn finite(self) -> bool {
        self.is_finite()
    }
}

/// The message names the first value that is not finite.
pub(super) fn check<T: Number>(values: &[T]) -> Result<(), String> {
    find(values, |value| !value.finite(), "finite numbers")
}

/// The message names the first value that f16 has no finite number for.
pub(super) fn check_range_of_f16(values: &[f32]) -> Result<(), String> {
    // Half of the step above the largest number rounds up to infinity.
    find(values, |value| value.abs() >= 65_520.0, "numbers below 65520, for `dtype: f16`")
}

fn find<T: Number>(values: &[T], bad: impl Fn(T) -> bool, allowed: &str) -> Result<(), String> {
    // Whole chunks at a time: without an exit from the loop, compilers use vectors.
    const CHUNK: usize = 1024;
    for (index, chunk) in values.chunks(CHUNK).enumerate() {
        if chunk.iter().fold(false, |any, value| any | bad(*value)) {
            let at = chunk.iter().position(|value| bad(*value)).unwrap_or_default();
            let value: f32 = chunk[at].into();
            return Err(format!("{value} at index {}, allowed are {allowed}", index * CHUNK + at));
        }
    }
    Ok(())
}

/// The message names the first block whose scale, or smallest weight, is not finite.
pub(super) fn check_blocks(kind: BlockKind, blocks: &[u8]) -> Result<(), String> {
    let half = |block: &[u8], at: usize| f16::from_le_bytes([block[at], block[at + 1]]);
    for (index, block) in blocks.chunks_exact(kind.bytes()).enumerate() {
        let scale = half(block, 0);
        let (value, what) = match kind {
            BlockKind::Q8_0 => (scale, "scale"),
            BlockKind::Q4_1 if scale.is_finite() => (half(block, 2), "smallest weight"),
            BlockKind::Q4_1 => (scale, "scale"),
            // The kernels keep -8 scales, which is the smallest weight.
            BlockKind::Q4_0 if scale.is_finite() => (f16::from_f32(-8.0 * scale.to_f32()), "smallest weight"),
            BlockKind::Q4_0 => (scale, "scale"),
        };
        if !value.is_finite() {
            return Err(format!("{value} as {what} of block {index}, allowed are finite numbers"));
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
        assert_eq!(check(&[bf16::ONE, bf16::INFINITY]), Err("inf at index 1, allowed are finite numbers".into()));
        assert!(check(&[f16::NAN]).is_err() && check(&[f16::MAX]).is_ok());
        assert!(check_range_of_f16(&[65_519.0, -65_519.0]).is_ok());
        assert!(check_range_of_f16(&[-65_520.0]).is_err_and(|message| message.starts_with("-65520 at index 0")));
        assert!(f16::from_f32(65_519.0).is_finite() && f16::from_f32(65_520.0).is_infinite());
    }

    /// Candle dequantises the same blocks: what has a weight that is not finite is refused, all else is not.
    #[test]
    fn bad_scales_are_those_that_candle_dequantises_to_bad_weights() {
        let scales = [0.0, 1.0, -2.5, 6e-8, 8184.0, 65_504.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        for (kind, dtype) in
            [(BlockKind::Q4_0, GgmlDType::Q4_0), (BlockKind::Q4_1, GgmlDType::Q4_1), (BlockKind::Q8_0, GgmlDType::Q8_0)]
        {
            for scale in scales {
                for minimum in scales {
                    let mut block = f16::from_f32(scale).to_le_bytes().to_vec();
                    if kind == BlockKind::Q4_1 {
                        block.extend(f16::from_f32(minimum).to_le_bytes());
                    }
                    block.resize(kind.bytes(), 0x13);
                    let good = f16::ONE.to_le_bytes().to_vec();
                    let mut blocks = [good, vec![0; kind.bytes() - 2]].concat();
                    blocks.extend(&block);
                    let tensor: QTensor =
                        qtensor_from_ggml(dtype, &blocks, vec![2, 32], &Device::Cpu).expect("two blocks");
                    let weights = tensor.dequantize(&Device::Cpu).and_then(|t| t.flatten_all()?.to_vec1::<f32>());
                    let finite = weights.expect("floats").iter().all(|weight| weight.is_finite());
                    // The kernels' own form of Q4_0 has a smaller range: eight scales are a half, too.
                    let fits = kind != BlockKind::Q4_0 || f16::from_f32(8.0 * scale).is_finite();
                    let checked = check_blocks(kind, &blocks);
                    assert_eq!(checked.is_ok(), finite && fits, "{kind:?}, {scale}, {minimum}: {checked:?}");
                    assert!(checked.err().is_none_or(|message| message.contains("of block 1")));
                }
            }
        }
    }
}
