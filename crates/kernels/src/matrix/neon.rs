//! Integer products with the dot product instructions of ARM: one tile x up to four rows in registers.
//!
//! Sums of integers are exact in any order, and floats are accumulated as in `generic`: results are equal to the last
//! bit.

use std::arch::aarch64::*;
use std::arch::asm;
use std::ops::Range;

use super::{Target, Tile4, Tile8};
use crate::LANES;
use crate::quantize::{Activations, BLOCK, Block, PANEL};

/// Rows that are processed together: their sums of a tile fill half of the registers.
const ROWS: usize = 4;
/// Vectors of a tile's 16 outputs.
const PARTS: usize = 4;

/// Adds the products of four signed bytes to each sum.
///
/// # Safety
/// The dot product instructions.
#[inline(always)]
unsafe fn dot(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // The intrinsic is not stable yet.
    // SAFETY: promised by the caller; registers only.
    unsafe {
        asm!(".arch_extension dotprod", "sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b", sums = inout(vreg) sums,
            a = in(vreg) a, b = in(vreg) b, options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// A block of 16 rows x 32 columns of weights.
pub(super) trait Tile {
    /// Adds the products with the activations of some rows to the sums of 16 outputs per row.
    ///
    /// # Safety
    /// The dot product instructions.
    unsafe fn add<const M: usize>(&self, rows: [&Block; M], acc: &mut [[f32; LANES]; M]);
}

/// # Safety
/// The dot product instructions; no other thread writes these tiles.
pub(super) unsafe fn multiply<T: Tile>(
    tiles: &[T],
    k: usize,
    a: &Activations,
    range: Range<usize>,
    target: &Target<'_>,
) {
    let blocks = k / BLOCK;
    for tile in range {
        let weights = &tiles[tile * blocks..(tile + 1) * blocks];
        for row in (0..target.rows).step_by(ROWS) {
            // SAFETY: promised by the caller.
            unsafe {
                match (target.rows - row).min(ROWS) {
                    1 => rows_of_tile::<T, 1>(weights, a, (tile, row), target),
                    2 => rows_of_tile::<T, 2>(weights, a, (tile, row), target),
                    3 => rows_of_tile::<T, 3>(weights, a, (tile, row), target),
                    _ => rows_of_tile::<T, ROWS>(weights, a, (tile, row), target),
                }
            }
        }
    }
}

/// # Safety
/// As `multiply`.
#[inline(always)]
unsafe fn rows_of_tile<T: Tile, const M: usize>(
    weights: &[T],
    a: &Activations,
    (tile, row): (usize, usize),
    target: &Target<'_>,
) {
    const { assert!(PANEL.is_multiple_of(ROWS)) };
    let mut acc = [[0f32; LANES]; M];
    for (weights, panel) in weights.iter().zip(a.panel(row)) {
        let rows = std::array::from_fn(|m| &panel[row % PANEL + m]);
        // SAFETY: promised by the caller.
        unsafe { weights.add(rows, &mut acc) };
    }
    for (m, acc) in acc.iter().enumerate() {
        // SAFETY: the caller owns the tile.
        unsafe { target.store(row + m, tile, acc) };
    }
}

/// Four activations, repeated four times.
#[inline(always)]
fn repeat(four: i32) -> int8x16_t {
    // SAFETY: NEON is part of the architecture.
    unsafe { vreinterpretq_s8_s32(vdupq_n_s32(four)) }
}

/// The sums of 16 outputs.
#[inline(always)]
fn lanes(sums: [int32x4_t; PARTS]) -> [i32; LANES] {
    // SAFETY: plain numbers of the same size.
    unsafe { std::mem::transmute::<[int32x4_t; PARTS], [i32; LANES]>(sums) }
}

impl Tile for Tile4 {
    #[inline(always)]
    unsafe fn add<const M: usize>(&self, rows: [&Block; M], acc: &mut [[f32; LANES]; M]) {
        // SAFETY: NEON is part of the architecture, the dot product is promised by the caller; loads are of the tile's
        // 256 bytes.
        let dots = unsafe {
            let mut dots = [[vdupq_n_s32(0); PARTS]; M];
            for group in 0..4 {
                for part in 0..PARTS {
                    let bytes = vld1q_u8(self.values.as_ptr().add(group * 64 + part * 16));
                    let low = vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15)));
                    let high = vreinterpretq_s8_u8(vshrq_n_u8::<4>(bytes));
                    for m in 0..M {
                        dots[m][part] = dot(dots[m][part], low, repeat(rows[m].values[2 * group]));
                        dots[m][part] = dot(dots[m][part], high, repeat(rows[m].values[2 * group + 1]));
                    }
                }
            }
            dots
        };
        let (scales, minima) = (self.scales.map(half::f16::to_f32), self.minima.map(half::f16::to_f32));
        for m in 0..M {
            let dot = lanes(dots[m]);
            for lane in 0..LANES {
                acc[m][lane] = (dot[lane] as f32).mul_add(scales[lane] * rows[m].scale, acc[m][lane]);
                acc[m][lane] = minima[lane].mul_add(rows[m].scaled_sum, acc[m][lane]);
            }
        }
    }
}

impl Tile for Tile8 {
    #[inline(always)]
    unsafe fn add<const M: usize>(&self, rows: [&Block; M], acc: &mut [[f32; LANES]; M]) {
        // SAFETY: as above, of the tile's 512 bytes.
        let dots = unsafe {
            let mut dots = [[vdupq_n_s32(0); PARTS]; M];
            for group in 0..8 {
                for part in 0..PARTS {
                    let bytes = vld1q_u8(self.values.as_ptr().add(group * 64 + part * 16));
                    // Weights are stored plus 128.
                    let signed = vreinterpretq_s8_u8(veorq_u8(bytes, vdupq_n_u8(128)));
                    for m in 0..M {
                        dots[m][part] = dot(dots[m][part], signed, repeat(rows[m].values[group]));
                    }
                }
            }
            dots
        };
        let scales = self.scales.map(half::f16::to_f32);
        for m in 0..M {
            let dot = lanes(dots[m]);
            for lane in 0..LANES {
                acc[m][lane] = (dot[lane] as f32).mul_add(scales[lane] * rows[m].scale, acc[m][lane]);
            }
        }
    }
}
