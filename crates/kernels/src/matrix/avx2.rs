//! Products with AVX2 (integer products with and without VNNI): one tile x up to four rows in registers.
//!
//! Sums of integers are exact in any order, and floats are accumulated as in `generic`: results are equal to the last
//! bit.

use std::arch::x86_64::*;
use std::ops::Range;

use super::{Target, Tile4, Tile8, prefetch};
use crate::LANES;
use crate::quantize::{Activations, BLOCK, Block, PANEL};

/// Rows that are processed together: their sums of a tile fill half of the registers.
const ROWS: usize = 4;

/// A way to add up products of unsigned and signed bytes.
trait Dot {
    /// Whether sums have room for any bytes, not only for 4-bit weights.
    const BYTES: bool;
    /// # Safety
    /// The instruction set of this type.
    unsafe fn add(sums: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i;
    /// The sums as 32-bit integers, one for every four bytes.
    ///
    /// # Safety
    /// The instruction set of this type.
    unsafe fn finish(sums: __m256i) -> __m256i;
}

/// In 16 bits: a block gives 8 sums of two products, at most `8 * 2 * 15 * 127`.
struct Avx2;

impl Dot for Avx2 {
    const BYTES: bool = false;
    #[inline(always)]
    unsafe fn add(sums: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
        // SAFETY: promised by the caller.
        unsafe { _mm256_add_epi16(sums, _mm256_maddubs_epi16(unsigned, signed)) }
    }
    #[inline(always)]
    unsafe fn finish(sums: __m256i) -> __m256i {
        // SAFETY: promised by the caller.
        unsafe { _mm256_madd_epi16(sums, _mm256_set1_epi16(1)) }
    }
}

struct AvxVnni;

impl Dot for AvxVnni {
    const BYTES: bool = true;
    #[inline(always)]
    unsafe fn add(sums: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
        // SAFETY: promised by the caller.
        unsafe { _mm256_dpbusd_avx_epi32(sums, unsigned, signed) }
    }
    #[inline(always)]
    unsafe fn finish(sums: __m256i) -> __m256i {
        sums
    }
}

/// The same sums, in registers, before anything that follows: the compiler would otherwise compute the products of a whole block,
/// add them up as trees, and move most of them to the stack and back.
///
/// # Safety
/// AVX.
#[inline]
#[target_feature(enable = "avx")]
unsafe fn in_order([mut a, mut b]: Pair<__m256i>) -> Pair<__m256i> {
    // SAFETY: there is no instruction.
    unsafe {
        std::arch::asm!("/* {0} {1} */", inout(ymm_reg) a, inout(ymm_reg) b, options(nomem, nostack, preserves_flags))
    };
    [a, b]
}

/// A pair of vectors: the sums of 16 outputs.
type Pair<T> = [T; 2];

/// Defines the entry points `$int4` and `$int8` for an instruction set.
macro_rules! products {
    ($features:literal, $dot:ty, $int4:ident, $int8:ident) => {
        /// # Safety
        /// The instruction set; no other thread writes these tiles.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $int4(
            tiles: &[Tile4],
            k: usize,
            a: &Activations,
            range: Range<usize>,
            target: &Target<'_>,
        ) {
            // SAFETY: promised by the caller.
            unsafe { by_rows::<_, $dot>(tiles, k, a, range, target) }
        }

        /// # Safety
        /// As above.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $int8(
            tiles: &[Tile8],
            k: usize,
            a: &Activations,
            range: Range<usize>,
            target: &Target<'_>,
        ) {
            // SAFETY: promised by the caller.
            unsafe { by_rows::<_, $dot>(tiles, k, a, range, target) }
        }
    };
}
products!("avx2,fma,f16c", Avx2, int4, int8);
products!("avx2,fma,f16c,avxvnni", AvxVnni, int4_vnni, int8_vnni);

/// A block of 16 rows x 32 columns of weights.
trait Tile {
    /// Adds the products with the activations of some rows to the sums of 16 outputs per row.
    ///
    /// # Safety
    /// The instruction set of `D`, and AVX2, FMA and F16C.
    unsafe fn add<D: Dot, const M: usize>(&self, rows: [&Block; M], acc: &mut [Pair<__m256>; M]);
}

/// # Safety
/// As `Tile::add`; no other thread writes these tiles.
#[inline(always)]
unsafe fn by_rows<T: Tile, D: Dot>(tiles: &[T], k: usize, a: &Activations, range: Range<usize>, target: &Target<'_>) {
    let blocks = k / BLOCK;
    for tile in range {
        let weights = &tiles[tile * blocks..(tile + 1) * blocks];
        for row in (0..target.rows).step_by(ROWS) {
            // SAFETY: promised by the caller.
            unsafe {
                match (target.rows - row).min(ROWS) {
                    1 => rows_of_tile::<T, D, 1>(weights, a, (tile, row), target),
                    2 => rows_of_tile::<T, D, 2>(weights, a, (tile, row), target),
                    3 => rows_of_tile::<T, D, 3>(weights, a, (tile, row), target),
                    _ => rows_of_tile::<T, D, ROWS>(weights, a, (tile, row), target),
                }
            }
        }
    }
}

/// # Safety
/// As `by_rows`.
#[inline(always)]
unsafe fn rows_of_tile<T: Tile, D: Dot, const M: usize>(
    weights: &[T],
    a: &Activations,
    (tile, row): (usize, usize),
    target: &Target<'_>,
) {
    const { assert!(PANEL.is_multiple_of(ROWS)) };
    // SAFETY: promised by the caller.
    let mut acc = [[unsafe { _mm256_setzero_ps() }; 2]; M];
    for (tile_block, panel) in weights.iter().zip(a.panel(row)) {
        if row == 0 {
            // Prefetches the next tile.
            prefetch(std::ptr::from_ref(tile_block).wrapping_add(weights.len()));
        }
        let rows = std::array::from_fn(|m| &panel[row % PANEL + m]);
        // SAFETY: promised by the caller.
        unsafe { tile_block.add::<D, M>(rows, &mut acc) };
    }
    for (m, acc) in acc.into_iter().enumerate() {
        // SAFETY: plain numbers of the same size; the caller owns the tile.
        unsafe { target.store(row + m, tile, &std::mem::transmute::<Pair<__m256>, [f32; LANES]>(acc)) };
    }
}

impl Tile for Tile4 {
    #[inline(always)]
    unsafe fn add<D: Dot, const M: usize>(&self, rows: [&Block; M], acc: &mut [Pair<__m256>; M]) {
        // SAFETY: the instruction sets are promised by the caller; loads are of the tile's 256 bytes, 16 scales and
        // 16 minima.
        unsafe {
            let mask = _mm256_set1_epi8(15);
            let mut dot = [[_mm256_setzero_si256(); 2]; M];
            for group in 0..4 {
                let mut nibbles = [[mask; 2]; 2];
                for half in 0..2 {
                    let bytes = _mm256_loadu_si256(self.values.as_ptr().add(group * 64 + half * 32).cast());
                    nibbles[0][half] = _mm256_and_si256(bytes, mask);
                    nibbles[1][half] = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask);
                }
                for m in 0..M {
                    for (which, nibbles) in nibbles.iter().enumerate() {
                        let value = _mm256_set1_epi32(rows[m].values[2 * group + which]);
                        for half in 0..2 {
                            dot[m][half] = D::add(dot[m][half], nibbles[half], value);
                        }
                    }
                    dot[m] = in_order(dot[m]);
                }
            }
            for half in 0..2 {
                let (scales, minima) = (load_half(&self.scales, half), load_half(&self.minima, half));
                for m in 0..M {
                    let scaled = _mm256_mul_ps(scales, _mm256_set1_ps(rows[m].scale));
                    let dot = _mm256_cvtepi32_ps(D::finish(dot[m][half]));
                    acc[m][half] = _mm256_fmadd_ps(dot, scaled, acc[m][half]);
                    acc[m][half] = _mm256_fmadd_ps(minima, _mm256_set1_ps(rows[m].scaled_sum), acc[m][half]);
                }
            }
        }
    }
}

impl Tile for Tile8 {
    #[inline(always)]
    unsafe fn add<D: Dot, const M: usize>(&self, rows: [&Block; M], acc: &mut [Pair<__m256>; M]) {
        // SAFETY: the instruction sets are promised by the caller; loads are of the tile's 512 bytes and 16 scales.
        unsafe {
            let mask = _mm256_set1_epi8(15);
            for half in 0..2 {
                // If bytes are too large for the sums, lower and upper four bits are added up separately.
                let mut dots = [[_mm256_setzero_si256(); M]; 2];
                for group in 0..8 {
                    let bytes = _mm256_loadu_si256(self.values.as_ptr().add(group * 64 + half * 32).cast());
                    let (low, high) = if D::BYTES {
                        (bytes, bytes)
                    } else {
                        (_mm256_and_si256(bytes, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask))
                    };
                    for m in 0..M {
                        let value = _mm256_set1_epi32(rows[m].values[group]);
                        dots[0][m] = D::add(dots[0][m], low, value);
                        if !D::BYTES {
                            dots[1][m] = D::add(dots[1][m], high, value);
                        }
                        [dots[0][m], dots[1][m]] = in_order([dots[0][m], dots[1][m]]);
                    }
                }
                let scales = load_half(&self.scales, half);
                for m in 0..M {
                    let mut dot = _mm256_add_epi32(D::finish(dots[0][m]), _mm256_set1_epi32(rows[m].offset));
                    if !D::BYTES {
                        dot = _mm256_add_epi32(dot, _mm256_slli_epi32::<4>(D::finish(dots[1][m])));
                    }
                    let scaled = _mm256_mul_ps(scales, _mm256_set1_ps(rows[m].scale));
                    acc[m][half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scaled, acc[m][half]);
                }
            }
        }
    }
}

/// Converts eight of 16 half-precision numbers.
///
/// # Safety
/// F16C.
#[inline(always)]
unsafe fn load_half(numbers: &[half::f16; LANES], half: usize) -> __m256 {
    // SAFETY: promised by the caller; 8 of 16 numbers are read.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(numbers.as_ptr().add(8 * half).cast())) }
}

/// A dense weight type. Eight weights can be widened to floats together.
pub(super) trait Weight: Copy {
    /// # Safety
    /// `pointer` is readable for 8 weights; AVX2 and F16C.
    unsafe fn load(pointer: *const Self) -> __m256;
}

impl Weight for f32 {
    #[inline(always)]
    unsafe fn load(pointer: *const Self) -> __m256 {
        // SAFETY: promised by the caller.
        unsafe { _mm256_loadu_ps(pointer) }
    }
}

impl Weight for u16 {
    #[inline(always)]
    unsafe fn load(pointer: *const Self) -> __m256 {
        // SAFETY: promised by the caller. A bfloat16 is the upper half of a float.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(pointer.cast())))) }
    }
}

impl Weight for half::f16 {
    #[inline(always)]
    unsafe fn load(pointer: *const Self) -> __m256 {
        // SAFETY: promised by the caller.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(pointer.cast())) }
    }
}

/// # Safety
/// AVX2 and FMA; no other thread writes these tiles.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn dense<W: Weight>(tiles: &[W], k: usize, x: &[f32], range: Range<usize>, target: &Target<'_>) {
    // Memory is read fastest as one stream, one tile after the other.
    for tile in range {
        let weights = &tiles[tile * k * LANES..(tile + 1) * k * LANES];
        for row in (0..target.rows).step_by(ROWS) {
            let rows = ROWS.min(target.rows - row);
            let x = &x[row * k..(row + rows) * k];
            // SAFETY: promised by the caller; the slices have the required sizes.
            unsafe {
                match rows {
                    1 => dense_rows::<W, 1>(weights, x, (tile, row), target),
                    2 => dense_rows::<W, 2>(weights, x, (tile, row), target),
                    3 => dense_rows::<W, 3>(weights, x, (tile, row), target),
                    _ => dense_rows::<W, ROWS>(weights, x, (tile, row), target),
                }
            }
        }
    }
}

/// Prefetch distance in bytes.
const AHEAD: usize = 8 << 10;

/// # Safety
/// As `dense`; `weights` are a tile and `x` are `M` rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dense_rows<W: Weight, const M: usize>(
    weights: &[W],
    x: &[f32],
    (tile, row): (usize, usize),
    target: &Target<'_>,
) {
    let k = x.len() / M;
    let mut acc = [[_mm256_setzero_ps(); 2]; M];
    for column in 0..k {
        // SAFETY: a tile has `k` columns of 16 weights.
        let place = unsafe { weights.as_ptr().add(column * LANES) };
        if row == 0 && (column * LANES * size_of::<W>()).is_multiple_of(64) {
            prefetch(place.wrapping_byte_add(AHEAD).cast::<[u8; 64]>());
        }
        for half in 0..2 {
            // SAFETY: as above.
            let weights = unsafe { W::load(place.add(8 * half)) };
            for m in 0..M {
                // SAFETY: a row has `k` values.
                let input = _mm256_set1_ps(unsafe { *x.as_ptr().add(m * k + column) });
                acc[m][half] = _mm256_fmadd_ps(input, weights, acc[m][half]);
            }
        }
    }
    for (m, acc) in acc.into_iter().enumerate() {
        // SAFETY: plain numbers of the same size; the caller owns the tile.
        unsafe { target.store(row + m, tile, &std::mem::transmute::<Pair<__m256>, [f32; LANES]>(acc)) };
    }
}
