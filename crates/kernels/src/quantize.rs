//! Activations as 8-bit integers in blocks of 32, each with a scale and the sum of its integers.

use std::ops::Range;

use crate::isa::for_each_isa;
use crate::pool::{Pool, Shared};
use crate::{Error, Isa, check};

/// Length of a quantisation block.
pub(crate) const BLOCK: usize = 32;

/// Quantised rows of one width; memory is reused from call to call.
#[derive(Debug, Default)]
pub struct Activations {
    pub(crate) width: usize,
    pub(crate) rows: usize,
    pub(crate) values: Vec<i8>,
    pub(crate) scales: Vec<f32>,
    pub(crate) sums: Vec<i32>,
    /// `scale * sum`.
    pub(crate) scaled_sums: Vec<f32>,
}

impl Activations {
    /// Quantises `x`, `[rows, width]`, to nearest with scale `max|x| / 127` per block of 32.
    pub fn quantize(&mut self, isa: Isa, pool: &Pool, x: &[f32], width: usize) -> Result<(), Error> {
        isa.check()?;
        check("width of quantised activations", width, width > 0 && width.is_multiple_of(BLOCK), "a multiple of 32")?;
        check("length of activations", x.len(), x.len().is_multiple_of(width), format!("a multiple of {width}"))?;
        let rows = x.len() / width;
        (self.width, self.rows) = (width, rows);
        // Only grows, so that a steady batch allocates nothing.
        let blocks = x.len() / BLOCK;
        self.values.resize(x.len().max(self.values.len()), 0);
        self.scales.resize(blocks.max(self.scales.len()), 0.0);
        self.sums.resize(blocks.max(self.sums.len()), 0);
        self.scaled_sums.resize(blocks.max(self.scaled_sums.len()), 0.0);
        let (values, scales) = (Shared::new(&mut self.values), Shared::new(&mut self.scales));
        let (sums, scaled_sums) = (Shared::new(&mut self.sums), Shared::new(&mut self.scaled_sums));
        let per_row = width / BLOCK;
        pool.split(rows, |range: Range<usize>| {
            let blocks = range.start * per_row..range.end * per_row;
            let elements = range.start * width..range.end * width;
            // SAFETY: the ranges of `split` are disjoint, and so are the parts derived from them.
            let (values, scales, sums, scaled_sums) = unsafe {
                let sums = (sums.part(blocks.clone()), scaled_sums.part(blocks.clone()));
                (values.part(elements.clone()), scales.part(blocks), sums.0, sums.1)
            };
            quantize_blocks(isa, &x[elements], values, scales, sums);
            for ((scaled, scale), sum) in scaled_sums.iter_mut().zip(scales).zip(sums) {
                *scaled = *scale * *sum as f32;
            }
        });
        Ok(())
    }
}

for_each_isa! {
    fn quantize_blocks(x: &[f32], values: &mut [i8], scales: &mut [f32], sums: &mut [i32]) = quantize_body
}

#[inline(always)]
fn quantize_body(x: &[f32], values: &mut [i8], scales: &mut [f32], sums: &mut [i32]) {
    let blocks = x.chunks_exact(BLOCK).zip(values.chunks_exact_mut(BLOCK));
    for ((x, values), (scale, sum)) in blocks.zip(scales.iter_mut().zip(sums)) {
        let max = x.iter().fold(0f32, |max, x| max.max(x.abs()));
        let inverse = if max > 0.0 { 127.0 / max } else { 0.0 };
        *scale = max / 127.0;
        let mut total = 0i32;
        for (x, value) in x.iter().zip(values) {
            // Magic-number rounding to nearest, ties to even: one addition, and it vectorises everywhere.
            const MAGIC: f32 = 12_582_912.0;
            let rounded = ((x * inverse + MAGIC).to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32);
            *value = rounded as i8;
            total += rounded;
        }
        *sum = total;
    }
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
                for (i, x) in x.iter().enumerate() {
                    let scale = a.scales[i / BLOCK];
                    prop_assert!((x - f32::from(a.values[i]) * scale).abs() <= scale * 0.500_01);
                }
                for (block, sum) in a.values.chunks(BLOCK).zip(&a.sums) {
                    prop_assert_eq!(block.iter().map(|v| i32::from(*v)).sum::<i32>(), *sum);
                }
                if let Some(first) = &first {
                    prop_assert_eq!(&a.values, &first.values);
                    prop_assert_eq!(&a.scales, &first.scales);
                }
                first = Some(a);
            }
        }
    }
}
