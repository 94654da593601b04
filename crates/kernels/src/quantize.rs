//! Activations as 8-bit integers in blocks of 32. Each block has a scale and the sum of its integers.

use crate::isa::for_each_isa;
use crate::pool::{Pool, Shared};
use crate::{Error, Isa, check};

/// Length of a quantisation block.
pub(crate) const BLOCK: usize = 32;

/// Rows whose blocks are interleaved: as many as products process together.
pub(crate) const PANEL: usize = 8;

/// 32 quantised activations.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
#[repr(C)]
pub(crate) struct Block {
    /// Words of four 8-bit integers, the first in the lowest bits.
    pub(crate) values: [i32; BLOCK / 4],
    pub(crate) scale: f32,
    /// `scale` times the sum of the integers.
    pub(crate) scaled_sum: f32,
    /// `-128` times the sum of the integers: the correction for weights that are stored plus 128.
    pub(crate) offset: i32,
    /// The sums of the first and of the last 16 integers.
    pub(crate) sums: [i16; 2],
}

impl Block {
    /// The integers, one by one.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> [i8; BLOCK] {
        std::array::from_fn(|i| (self.values[i / 4] >> (8 * (i % 4))) as i8)
    }

    /// Fills in what follows from the sums of the first and of the last 16 integers.
    #[inline(always)]
    fn add_sums(&mut self, [first, last]: [i32; 2]) {
        let total = first.wrapping_add(last);
        self.sums = [first as i16, last as i16];
        self.offset = total.wrapping_mul(-128);
        self.scaled_sum = self.scale * total as f32;
    }

    /// The sum of the integers.
    #[inline(always)]
    pub(crate) fn total(&self) -> i32 {
        i32::from(self.sums[0]) + i32::from(self.sums[1])
    }
}

/// Quantised rows of one width. Memory is reused between calls.
#[derive(Debug, Default)]
pub struct Activations {
    pub(crate) width: usize,
    pub(crate) rows: usize,
    /// `[row / PANEL][column / BLOCK][row % PANEL]`.
    blocks: Vec<[Block; PANEL]>,
}

impl Activations {
    /// Quantises `x`, `[rows, width]`, to nearest with scale `max|x| / 127` per block of 32.
    pub fn quantize(&mut self, isa: Isa, pool: &Pool, x: &[f32], width: usize) -> Result<(), Error> {
        check(
            "length of activations",
            x.len(),
            x.len().is_multiple_of(width.max(1)),
            format_args!("a multiple of {width}"),
        )?;
        let rows = Rows::new(self, x.len() / width.max(1), width)?;
        pool.split(x.len() / width, |range| {
            for row in range {
                // SAFETY: the ranges of `split` are disjoint.
                unsafe { rows.quantize(isa, row, &x[row * width..(row + 1) * width]) };
            }
        });
        Ok(())
    }

    /// The panel that begins with `row`, a multiple of `PANEL`.
    pub(crate) fn panel(&self, row: usize) -> &[[Block; PANEL]] {
        let per_row = self.width / BLOCK;
        &self.blocks[row / PANEL * per_row..(row / PANEL + 1) * per_row]
    }

    /// Block `block` of `row`.
    pub(crate) fn block(&self, row: usize, block: usize) -> &Block {
        &self.blocks[row / PANEL * (self.width / BLOCK) + block][row % PANEL]
    }
}

/// Rows of activations that several threads fill.
pub(crate) struct Rows<'a> {
    width: usize,
    blocks: Shared<'a, Block>,
}

impl<'a> Rows<'a> {
    /// Makes room in `to` for `rows` rows.
    pub(crate) fn new(to: &'a mut Activations, rows: usize, width: usize) -> Result<Self, Error> {
        check("width of quantised activations", width, width > 0 && width.is_multiple_of(BLOCK), "a multiple of 32")?;
        (to.width, to.rows) = (width, rows);
        // Only grows, so batches of constant size allocate nothing.
        let size = rows.div_ceil(PANEL) * (width / BLOCK);
        to.blocks.resize(size.max(to.blocks.len()), Default::default());
        Ok(Self { width, blocks: Shared::new(to.blocks.as_flattened_mut()) })
    }

    /// Quantises `x` into `row`.
    ///
    /// # Safety
    /// The processor has `isa`; no other thread fills this row.
    pub(crate) unsafe fn quantize(&self, isa: Isa, row: usize, x: &[f32]) {
        let per_row = self.width / BLOCK;
        assert!(x.len() == self.width, "{} activations instead of {}", x.len(), self.width);
        for (block, x) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
            let at = (row / PANEL * per_row + block) * PANEL + row % PANEL;
            // SAFETY: only the caller accesses this row.
            let out = unsafe { self.blocks.part(at..at + 1) };
            #[cfg(target_arch = "x86_64")]
            if isa == Isa::Avx512Vnni {
                // SAFETY: `Isa::check` detected the features.
                out[0] = unsafe { avx512(x) };
                continue;
            }
            quantize_block(isa, x, &mut out[0]);
        }
    }
}

/// Adding this number rounds to nearest, ties to even, and leaves the integer in the low bits.
const MAGIC: f32 = 12_582_912.0;

/// Like `quantize_body`, which compilers turn into slow code.
///
/// # Safety
/// The features of `Isa::Avx512Vnni`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn avx512(x: &[f32; BLOCK]) -> Block {
    use std::arch::x86_64::*;
    // SAFETY: a block is 32 floats.
    let (low, high) = unsafe { (_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16))) };
    // The second operand wins where the first is NaN: NaN counts as 0.
    let larger = _mm512_max_ps(_mm512_abs_ps(high), _mm512_max_ps(_mm512_abs_ps(low), _mm512_setzero_ps()));
    let max = _mm512_reduce_max_ps(larger);
    let inverse = _mm512_set1_ps(if max > 0.0 { 127.0 / max } else { 0.0 });
    let magic = _mm512_set1_ps(MAGIC);
    let round = |x| {
        let shifted = _mm512_add_ps(_mm512_mul_ps(x, inverse), magic);
        _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_castps_si512(magic))
    };
    let (low, high) = (round(low), round(high));
    let mut block = Block { scale: max / 127.0, ..Block::default() };
    // SAFETY: a block has 32 bytes.
    unsafe {
        let values = block.values.as_mut_ptr().cast::<__m128i>();
        _mm_storeu_si128(values, _mm512_cvtepi32_epi8(low));
        _mm_storeu_si128(values.add(1), _mm512_cvtepi32_epi8(high));
    }
    block.add_sums([_mm512_reduce_add_epi32(low), _mm512_reduce_add_epi32(high)]);
    block
}

for_each_isa! { fn quantize_block(x: &[f32; BLOCK], out: &mut Block) = quantize_body }

#[inline(always)]
fn quantize_body(x: &[f32; BLOCK], out: &mut Block) {
    // NaN counts as 0.
    let max = x.iter().fold(0f32, |max, x| if x.abs() > max { x.abs() } else { max });
    let inverse = if max > 0.0 { 127.0 / max } else { 0.0 };
    let rounded = x.map(|x| ((x * inverse + MAGIC).to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32));
    for (value, four) in out.values.iter_mut().zip(rounded.as_chunks::<4>().0) {
        *value = i32::from_le_bytes(four.map(|v| v as u8));
    }
    let sum = |half: &[i32]| half.iter().fold(0i32, |sum, v| sum.wrapping_add(*v));
    let (first, last) = rounded.split_at(BLOCK / 2);
    out.scale = max / 127.0;
    out.add_sums([sum(first), sum(last)]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn error_is_at_most_half_a_step_and_versions_agree(x in prop::collection::vec(-50f32..50.0, 96..=96)) {
            let pool = Pool::new(1, None).expect("starts");
            let mut first: Option<Activations> = None;
            for isa in Isa::available() {
                let mut a = Activations::default();
                a.quantize(isa, &pool, &x, 96).expect("fits");
                for (b, x) in x.chunks(BLOCK).enumerate() {
                    let block = a.block(0, b);
                    let values: Vec<i8> = block.values.iter().flat_map(|v| v.to_le_bytes()).map(|v| v as i8).collect();
                    for (x, value) in x.iter().zip(&values) {
                        prop_assert!((x - f32::from(*value) * block.scale).abs() <= block.scale * 0.500_01);
                    }
                    let sum: i32 = values.iter().map(|v| i32::from(*v)).sum();
                    prop_assert_eq!((block.offset, block.scaled_sum), (-128 * sum, block.scale * sum as f32));
                    prop_assert_eq!((block.bytes().to_vec(), block.total()), (values.clone(), sum));
                    let halves = values.chunks(16).map(|half| half.iter().map(|v| i16::from(*v)).sum::<i16>());
                    prop_assert_eq!(halves.collect::<Vec<_>>(), block.sums);
                }
                if let Some(first) = &first {
                    prop_assert_eq!(&a.blocks, &first.blocks);
                }
                first = Some(a);
            }
        }
    }
}
