//! Blocks of files as integers with scales, by the definitions of ggml (`ggml-common.h`, `dequantize_row_*` in
//! `ggml-quants.c`).

use half::f16;

use super::Format;

/// The integers of a block in the order of its columns, and its scales.
#[derive(Debug, Clone)]
pub(super) struct Block {
    /// The first are used if a block has fewer columns.
    pub(super) values: [u8; 256],
    /// Of 16 or 32 columns each. For Q2_K, a scale in the low four bits and a minimum in the high ones.
    pub(super) scales: [u8; 16],
    /// Of 32 columns each.
    pub(super) minima: [u8; 8],
    /// What scales and minima are multiplied with, as f16: the scale of the block, and, if the format has minima, the
    /// scale of minima or the minimum itself, which is added. (For MXFP4, the scale as bfloat16.)
    pub(super) factors: [u16; 2],
}

/// Values of IQ4_NL and IQ4_XS.
pub(super) const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Values of MXFP4, doubled.
pub(super) const FP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of the power of two that an exponent of MXFP4 means, because the values are doubled. Exact, also as bfloat16.
pub(super) fn exponent(bits: u8) -> f32 {
    let bits = u32::from(bits);
    f32::from_bits(if bits < 2 { 0x0020_0000 << bits } else { (bits - 1) << 23 })
}

/// A half float times -1.
fn negative(half: u16) -> u16 {
    half ^ 0x8000
}

impl Block {
    /// Unpacks a block; `bytes` are those of `format`. Formats without planes give zeros.
    pub(super) fn new(format: Format, bytes: &[u8]) -> Self {
        let mut block = Self { values: [0; 256], scales: [0; 16], minima: [0; 8], factors: [0; 2] };
        match format {
            Format::Q5_0 | Format::Q5_1 => block.q5(format, bytes),
            Format::Q2K => block.q2k(bytes),
            Format::Q3K => block.q3k(bytes),
            Format::Q4K => block.q45k(bytes, None),
            Format::Q5K => block.q45k(bytes, Some(&bytes[16..48])),
            Format::Q6K => block.q6k(bytes),
            Format::Iq4Nl => {
                block.factors[0] = half(bytes, 0);
                block.nibbles(0, &bytes[2..]);
            }
            Format::Iq4Xs => block.iq4xs(bytes),
            Format::Mxfp4 => {
                block.factors[0] = half::bf16::from_f32(exponent(bytes[0])).to_bits();
                block.nibbles(0, &bytes[1..]);
            }
            _ => {}
        }
        block
    }

    /// 32 values from column `at` on: 16 in the low four bits of `from`, then 16 in the high ones.
    fn nibbles(&mut self, at: usize, from: &[u8]) {
        for (i, byte) in from[..16].iter().enumerate() {
            self.values[at + i] = byte & 15;
            self.values[at + 16 + i] = byte >> 4;
        }
    }

    fn q5(&mut self, format: Format, bytes: &[u8]) {
        let scale = half(bytes, 0);
        let (second, rest) = if format == Format::Q5_1 {
            (half(bytes, 2), &bytes[4..])
        } else {
            // q - 16 is q with a minimum of -16 scales. Multiplying by a power of two loses nothing.
            (f16::from_f32(-16.0 * f16::from_bits(scale).to_f32()).to_bits(), &bytes[2..])
        };
        self.factors = [scale, second];
        self.nibbles(0, &rest[4..]);
        let high = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
        for (i, value) in self.values[..32].iter_mut().enumerate() {
            *value |= ((high >> i & 1) as u8) << 4;
        }
    }

    fn q2k(&mut self, bytes: &[u8]) {
        self.scales.copy_from_slice(&bytes[..16]);
        self.two_bits(&bytes[16..80]);
        self.factors = [half(bytes, 80), negative(half(bytes, 82))];
    }

    /// Two bits per value: a byte has columns `l`, `l + 32`, `l + 64` and `l + 96` of 128.
    fn two_bits(&mut self, from: &[u8]) {
        for (to, from) in self.values.as_chunks_mut::<128>().0.iter_mut().zip(from.as_chunks::<32>().0) {
            for (part, to) in to.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                *to = from.map(|byte| byte >> (2 * part) & 3);
            }
        }
    }

    /// Adds one more bit to values, above the lowest `bits`: byte `l` has columns `l`, `l + 32` and so on.
    fn one_bit(&mut self, from: &[u8], bits: usize) {
        let from = &from.as_chunks::<32>().0[0];
        for (part, to) in self.values.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (value, byte) in to.iter_mut().zip(from) {
                *value |= (byte >> part & 1) << bits;
            }
        }
    }

    fn q3k(&mut self, bytes: &[u8]) {
        self.two_bits(&bytes[32..96]);
        self.one_bit(&bytes[..32], 2);
        // 16 scales of 6 bits minus 32: four bits each in the first eight bytes, and two bits each in the last four.
        let packed = &bytes[96..108];
        for (i, scale) in self.scales.iter_mut().enumerate() {
            let low = packed[i % 8] >> (i / 8 * 4) & 15;
            let high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
            *scale = (low | high << 4).wrapping_sub(32);
        }
        self.factors[0] = half(bytes, 108);
    }

    /// Q4_K, and Q5_K with a fifth bit per value.
    fn q45k(&mut self, bytes: &[u8], fifth: Option<&[u8]>) {
        self.factors = [half(bytes, 0), negative(half(bytes, 2))];
        // Eight scales and eight minima of 6 bits: the upper two bits of the last four of each are in the bytes of the
        // first four.
        let packed = &bytes[4..16];
        for i in 0..4 {
            self.scales[i] = packed[i] & 63;
            self.minima[i] = packed[4 + i] & 63;
            self.scales[4 + i] = packed[8 + i] & 15 | packed[i] >> 6 << 4;
            self.minima[4 + i] = packed[8 + i] >> 4 | packed[4 + i] >> 6 << 4;
        }
        let values = if fifth.is_some() { &bytes[48..] } else { &bytes[16..] };
        for (to, from) in self.values.as_chunks_mut::<64>().0.iter_mut().zip(values.as_chunks::<32>().0) {
            let (low, high) = to.split_at_mut(32);
            low.copy_from_slice(&from.map(|byte| byte & 15));
            high.copy_from_slice(&from.map(|byte| byte >> 4));
        }
        if let Some(fifth) = fifth {
            self.one_bit(fifth, 4);
        }
    }

    fn q6k(&mut self, bytes: &[u8]) {
        let (low, high) = (bytes[..128].as_chunks::<64>().0, bytes[128..192].as_chunks::<32>().0);
        for ((to, low), high) in self.values.as_chunks_mut::<128>().0.iter_mut().zip(low).zip(high) {
            for (part, to) in to.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                let four = &low[part % 2 * 32..][..32];
                for ((to, four), two) in to.iter_mut().zip(four).zip(high) {
                    *to = four >> (part / 2 * 4) & 15 | (two >> (2 * part) & 3) << 4;
                }
            }
        }
        self.scales.copy_from_slice(&bytes[192..208]);
        self.factors[0] = half(bytes, 208);
    }

    fn iq4xs(&mut self, bytes: &[u8]) {
        self.factors[0] = half(bytes, 0);
        let high = half(bytes, 2);
        for i in 0..8 {
            let low = bytes[4 + i / 2] >> (i % 2 * 4) & 15;
            self.scales[i] = (low | ((high >> (2 * i) & 3) as u8) << 4).wrapping_sub(32);
            self.nibbles(32 * i, &bytes[8 + 16 * i..]);
        }
    }
}

/// The bits of a 16-bit number.
fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}
