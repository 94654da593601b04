//! Products of weights in planes with AVX2: one tile x up to four rows in registers.
//!
//! Sums of integers are exact in any order, and floats are accumulated as in `planes::product`: results are equal to
//! the last bit.

use std::arch::x86_64::*;

use super::planes::{Factors, GROUPS, Layout, factors, group_place, minima, scales, sum};
use super::{Target, prefetch_bytes};
use crate::quantize::{Activations, Block, PANEL};
use crate::{LANES, isa};

/// Rows that are processed together.
const ROWS: usize = 4;

/// Groups whose products have room in 16 bits: two products of an activation of at most 127 each.
const fn groups<L: Layout>() -> usize {
    let most = match L::BOOK {
        Some(_) => 127,
        None => (1 << (L::LOW + L::HIGH)) - 1,
    };
    let fit = 32_767 / (2 * 127 * most);
    let all = GROUPS / L::PARTS;
    // A power of two, to divide the groups of a part.
    if fit >= all { all } else { 1 << (usize::BITS - 1 - fit.leading_zeros()) }
}

/// The products of 16 rows of weights, `tiles`, with all rows of activations.
///
/// # Safety
/// AVX2, FMA and F16C; no other thread writes this tile.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn multiply<L: Layout>(tiles: &[u8], a: &Activations, tile: usize, target: &Target<'_>) {
    for row in (0..target.rows).step_by(ROWS) {
        // SAFETY: promised by the caller.
        unsafe {
            match (target.rows - row).min(ROWS) {
                1 => rows_of_tile::<L, 1>(tiles, a, (tile, row), target),
                2 => rows_of_tile::<L, 2>(tiles, a, (tile, row), target),
                3 => rows_of_tile::<L, 3>(tiles, a, (tile, row), target),
                _ => rows_of_tile::<L, ROWS>(tiles, a, (tile, row), target),
            }
        }
    }
}

/// # Safety
/// As `multiply`; rows `row..row + M` exist.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows_of_tile<L: Layout, const M: usize>(
    tiles: &[u8],
    a: &Activations,
    (tile, row): (usize, usize),
    target: &Target<'_>,
) {
    const { assert!(PANEL.is_multiple_of(ROWS)) };
    let mut acc = [[_mm256_setzero_ps(); 2]; M];
    let panels = a.panel(row);
    for (weights, panels) in tiles.chunks_exact(L::BYTES).zip(panels.chunks_exact(L::BLOCKS)) {
        let factors = factors::<L, isa::Avx2>(weights);
        for (block, panel) in panels.iter().enumerate() {
            if row == 0 {
                // Prefetches the same part of the next tile.
                let part = L::BYTES / L::BLOCKS;
                prefetch_bytes(weights.as_ptr().wrapping_add(tiles.len() + block * part), part);
            }
            let rows = std::array::from_fn(|m| &panel[row % PANEL + m]);
            // SAFETY: promised by the caller; the tile has this block.
            unsafe { add::<L, M>(weights, &factors, block, rows, &mut acc) };
        }
    }
    for (m, acc) in acc.into_iter().enumerate() {
        // SAFETY: plain numbers of the same size; the caller owns the tile.
        unsafe { target.store(row + m, tile, &std::mem::transmute::<[__m256; 2], [f32; LANES]>(acc)) };
    }
}

/// Adds the products of a block.
///
/// # Safety
/// AVX2, FMA and F16C; `tile` is a tile, which has this block.
#[inline(always)]
unsafe fn add<L: Layout, const M: usize>(
    tile: &[u8],
    all: &Factors,
    block: usize,
    rows: [&Block; M],
    acc: &mut [[__m256; 2]; M],
) {
    // SAFETY: promised by the caller; loads of planes are within the tile.
    unsafe {
        for part in 0..L::PARTS {
            let scales = scales::<L>(tile, all, block, part);
            for half in 0..2 {
                let dots = dots::<L, M>(tile, (block, part, half), rows);
                let scales = _mm256_loadu_ps(scales.as_ptr().add(8 * half));
                for m in 0..M {
                    let scaled = _mm256_mul_ps(scales, _mm256_set1_ps(rows[m].scale));
                    acc[m][half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[m]), scaled, acc[m][half]);
                }
            }
        }
        if L::MINIMA {
            for part in 0..L::PARTS {
                let minima = minima::<L>(tile, all, block, part);
                for half in 0..2 {
                    let minima = _mm256_loadu_ps(minima.as_ptr().add(8 * half));
                    for m in 0..M {
                        let sum = _mm256_set1_ps(sum::<L>(rows[m], part));
                        acc[m][half] = _mm256_fmadd_ps(minima, sum, acc[m][half]);
                    }
                }
            }
        }
    }
}

/// The sums of products of integers of a part of a block, for 8 of the 16 rows of weights.
///
/// # Safety
/// As `add`.
#[inline(always)]
unsafe fn dots<L: Layout, const M: usize>(
    tile: &[u8],
    (block, part, half): (usize, usize, usize),
    rows: [&Block; M],
) -> [__m256i; M] {
    // SAFETY: promised by the caller.
    unsafe {
        let mut dots = [_mm256_setzero_si256(); M];
        let first = part * GROUPS / L::PARTS;
        for start in (0..GROUPS / L::PARTS).step_by(const { groups::<L>() }) {
            let mut sums = [_mm256_setzero_si256(); M];
            for group in first + start..first + start + const { groups::<L>() } {
                let weights = integers::<L>(tile, block, group, half);
                for m in 0..M {
                    let inputs = _mm256_set1_epi32(rows[m].values[group]);
                    let products = match L::BOOK {
                        // Values of tables have signs, which move to the activations.
                        Some(_) => _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(inputs, weights)),
                        None => _mm256_maddubs_epi16(weights, inputs),
                    };
                    sums[m] = _mm256_add_epi16(sums[m], products);
                }
            }
            for m in 0..M {
                dots[m] = _mm256_add_epi32(dots[m], _mm256_madd_epi16(sums[m], _mm256_set1_epi16(1)));
            }
        }
        if L::ZERO != 0 {
            for m in 0..M {
                let sum = if L::PARTS == 1 { rows[m].total() } else { i32::from(rows[m].sums[part]) };
                dots[m] = _mm256_sub_epi32(dots[m], _mm256_set1_epi32(L::ZERO * sum));
            }
        }
        dots
    }
}

/// The integers of four columns of 8 rows, or their values in the table.
///
/// # Safety
/// As `add`.
#[inline(always)]
unsafe fn integers<L: Layout>(tile: &[u8], block: usize, group: usize, half: usize) -> __m256i {
    debug_assert!(tile.len() == L::BYTES && block < L::BLOCKS && group < GROUPS && half < 2);
    // SAFETY: promised by the caller.
    unsafe {
        let bits = |start: usize, bits: usize, to: usize| {
            let (first, shift) = group_place(bits, group);
            let at = start + block * bits * 64 + first + half * 32;
            let bytes = _mm256_loadu_si256(tile.as_ptr().add(at).cast());
            // Bits of neighbours that come along are masked.
            let moved = if shift >= to {
                _mm256_srl_epi16(bytes, _mm_cvtsi32_si128((shift - to) as i32))
            } else {
                _mm256_sll_epi16(bytes, _mm_cvtsi32_si128((to - shift) as i32))
            };
            _mm256_and_si256(moved, _mm256_set1_epi8((((1 << bits) - 1) << to) as i8))
        };
        let mut value = bits(0, L::LOW, 0);
        if L::HIGH > 0 {
            value = _mm256_or_si256(value, bits(L::HIGH_AT, L::HIGH, L::LOW));
        }
        match L::BOOK {
            Some(book) => {
                let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(book.as_ptr().cast()));
                _mm256_shuffle_epi8(table, value)
            }
            None => value,
        }
    }
}
