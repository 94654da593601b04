//! Products with AVX-512 (and VNNI for integers): several tiles x several rows in registers.
//!
//! Each output is accumulated over columns in ascending order, independent of the number of tiles and rows in flight,
//! with the same operations as in `generic`, so results are equal to the last bit.

use std::arch::x86_64::*;
use std::ops::Range;

use super::{Target, Tile4, Tile8, prefetch};
use crate::LANES;
use crate::quantize::{Activations, BLOCK, Block, PANEL};

/// Calls `$run!(rows, tile, row)` for every tile and every panel of rows.
macro_rules! by_panels {
    ($range:expr, $rows:expr, $run:ident, [$($m:literal),*]) => {{
        for tile in $range {
            for row in (0..$rows).step_by(PANEL) {
                match ($rows - row).min(PANEL) {
                    $($m => $run!($m, tile, row),)*
                    _ => unreachable!("a panel has at most {PANEL} rows"),
                }
            }
        }
    }};
}

/// Calls `$run!(rows, tiles, tile, row)` for every group of tiles and every group of rows.
macro_rules! blocked {
    ($range:expr, $rows:expr, $run:ident, [$($tiles:literal: [$($m:literal),*]),*]) => {{
        let mut tile = $range.start;
        while tile < $range.end {
            let left = $range.end - tile;
            let rows = $rows;
            $(if left >= $tiles && [$($m),*].iter().any(|m| *m <= rows) {
                let mut row = 0;
                $(while rows - row >= $m {
                    $run!($m, $tiles, tile, row);
                    row += $m;
                })*
                if row == rows {
                    tile += $tiles;
                    continue;
                }
            })*
            unreachable!("the last list ends with 1: [1]");
        }
    }};
}

/// Stores accumulators of `T` tiles x `M` rows.
///
/// # Safety
/// AVX-512F; no other thread writes these tiles.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store<const M: usize, const T: usize>(acc: &[[__m512; M]; T], tile: usize, row: usize, target: &Target<'_>) {
    for (t, acc) in acc.iter().enumerate() {
        for (m, acc) in acc.iter().enumerate() {
            // SAFETY: the caller owns the tile; 16 outputs are written only where there are 16.
            unsafe {
                let out = target.place(row + m, tile + t);
                if out.len() == LANES {
                    let sum =
                        if target.columns.add { _mm512_add_ps(_mm512_loadu_ps(out.as_ptr()), *acc) } else { *acc };
                    _mm512_storeu_ps(out.as_mut_ptr(), sum);
                } else {
                    let mut lanes = [0f32; LANES];
                    _mm512_storeu_ps(lanes.as_mut_ptr(), *acc);
                    target.store(row + m, tile + t, &lanes);
                }
            }
        }
    }
}

/// # Safety
/// The features of `Isa::Avx512Vnni`; no other thread writes tiles of `range`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(super) unsafe fn int4(tiles: &[Tile4], k: usize, a: &Activations, range: Range<usize>, target: &Target<'_>) {
    let blocks = k / BLOCK;
    assert!(tiles.len() >= range.end * blocks && a.width == k && a.rows >= target.rows);
    macro_rules! run {
        ($m:literal, $tile:expr, $row:expr) => {
            // SAFETY: the assertion above bounds every tile and row of the loops.
            unsafe { int4_block::<$m>(&tiles[$tile * blocks..], a.panel($row), ($tile, $row), target) }
        };
    }
    // One tile at a time, because reading two streams at once is slower than reading one.
    by_panels!(range, target.rows, run, [1, 2, 3, 4, 5, 6, 7, 8]);
}

/// # Safety
/// As `int4`, of which `tile` is one: `tiles` begin with it. Rows `row..row + M` exist; `panel` begins with `row`.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
unsafe fn int4_block<const M: usize>(
    tiles: &[Tile4],
    panel: &[[Block; PANEL]],
    (tile, row): (usize, usize),
    target: &Target<'_>,
) {
    let mut acc = [_mm512_setzero_ps(); M];
    let mask = _mm512_set1_epi8(15);
    let ahead = if row == 0 { panel.len() } else { 0 };
    for (weights, rows) in tiles.iter().zip(panel) {
        prefetch(std::ptr::from_ref(weights).wrapping_add(ahead));
        let mut dot = [_mm512_setzero_si512(); M];
        for group in 0..4 {
            // SAFETY: a group is 64 of the tile's 256 bytes.
            let bytes = unsafe { _mm512_loadu_si512(weights.values.as_ptr().add(group * 64).cast()) };
            let low = _mm512_and_si512(bytes, mask);
            let high = _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), mask);
            for m in 0..M {
                let [first, second] = [rows[m].values[2 * group], rows[m].values[2 * group + 1]];
                dot[m] = _mm512_dpbusd_epi32(dot[m], low, _mm512_set1_epi32(first));
                dot[m] = _mm512_dpbusd_epi32(dot[m], high, _mm512_set1_epi32(second));
            }
        }
        // SAFETY: a tile has 16 scales and 16 minima.
        let (scales, minima) = unsafe { (load_half(weights.scales.as_ptr()), load_half(weights.minima.as_ptr())) };
        for m in 0..M {
            let scaled = _mm512_mul_ps(scales, _mm512_set1_ps(rows[m].scale));
            acc[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[m]), scaled, acc[m]);
            acc[m] = _mm512_fmadd_ps(minima, _mm512_set1_ps(rows[m].scaled_sum), acc[m]);
        }
    }
    // SAFETY: promised by the caller.
    unsafe { store(&[acc], tile, row, target) };
}

/// # Safety
/// `pointer` is readable for 16 halves; AVX-512F.
#[inline]
#[target_feature(enable = "avx512f,f16c")]
unsafe fn load_half(pointer: *const half::f16) -> __m512 {
    // SAFETY: promised by the caller.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(pointer.cast()) })
}

/// # Safety
/// As `int4`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(super) unsafe fn int8(tiles: &[Tile8], k: usize, a: &Activations, range: Range<usize>, target: &Target<'_>) {
    let blocks = k / BLOCK;
    assert!(tiles.len() >= range.end * blocks && a.width == k && a.rows >= target.rows);
    macro_rules! run {
        ($m:literal, $tile:expr, $row:expr) => {
            // SAFETY: the assertion above bounds every tile and row of the loops.
            unsafe { int8_block::<$m>(&tiles[$tile * blocks..], a.panel($row), ($tile, $row), target) }
        };
    }
    by_panels!(range, target.rows, run, [1, 2, 3, 4, 5, 6, 7, 8]);
}

/// # Safety
/// As `int4_block`.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
unsafe fn int8_block<const M: usize>(
    tiles: &[Tile8],
    panel: &[[Block; PANEL]],
    (tile, row): (usize, usize),
    target: &Target<'_>,
) {
    let mut acc = [_mm512_setzero_ps(); M];
    let ahead = if row == 0 { panel.len() } else { 0 };
    for (weights, rows) in tiles.iter().zip(panel) {
        prefetch(std::ptr::from_ref(weights).wrapping_add(ahead));
        // Weights are stored plus 128, so the sums start at the negated excess. Exact in integers.
        let mut dot: [__m512i; M] = std::array::from_fn(|m| _mm512_set1_epi32(rows[m].offset));
        for group in 0..8 {
            // SAFETY: a group is 64 of the tile's 512 bytes.
            let bytes = unsafe { _mm512_loadu_si512(weights.values.as_ptr().add(group * 64).cast()) };
            for m in 0..M {
                dot[m] = _mm512_dpbusd_epi32(dot[m], bytes, _mm512_set1_epi32(rows[m].values[group]));
            }
        }
        // SAFETY: a tile has 16 scales.
        let scales = unsafe { load_half(weights.scales.as_ptr()) };
        for m in 0..M {
            let scaled = _mm512_mul_ps(scales, _mm512_set1_ps(rows[m].scale));
            acc[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[m]), scaled, acc[m]);
        }
    }
    // SAFETY: promised by the caller.
    unsafe { store(&[acc], tile, row, target) };
}

/// A dense weight type. 16 weights can be widened to floats together.
pub(super) trait Weight: Copy {
    /// # Safety
    /// `pointer` is readable for 16 weights; AVX-512F.
    unsafe fn load(pointer: *const Self) -> __m512;
}

impl Weight for f32 {
    #[inline(always)]
    unsafe fn load(pointer: *const Self) -> __m512 {
        // SAFETY: promised by the caller.
        unsafe { _mm512_loadu_ps(pointer) }
    }
}

impl Weight for u16 {
    #[inline(always)]
    unsafe fn load(pointer: *const Self) -> __m512 {
        // SAFETY: promised by the caller. A bfloat16 is the upper half of a float.
        unsafe {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(pointer.cast()))))
        }
    }
}

/// # Safety
/// As `int4`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(super) unsafe fn dense<W: Weight>(tiles: &[W], k: usize, x: &[f32], range: Range<usize>, target: &Target<'_>) {
    assert!(tiles.len() >= range.end * k * LANES && x.len() >= target.rows * k);
    macro_rules! run {
        ($m:literal, $t:literal, $tile:expr, $row:expr) => {
            // SAFETY: the assertion above bounds every tile and row of the loops.
            unsafe { store(&dense_block::<W, $m, $t>(tiles, k, x, $tile, $row), $tile, $row, target) }
        };
    }
    // Memory is read fastest as one stream, and few rows are bound by memory. Many rows gain more from reusing loaded
    // data.
    if target.rows <= 4 {
        blocked!(range, target.rows, run, [1: [4, 3, 2, 1]]);
    } else {
        blocked!(range, target.rows, run, [4: [6, 4, 3, 2, 1], 1: [6, 4, 2, 1]]);
    }
}

/// # Safety
/// AVX-512; tiles `tile..tile + T` and rows `row..row + M` exist.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn dense_block<W: Weight, const M: usize, const T: usize>(
    tiles: &[W],
    k: usize,
    x: &[f32],
    tile: usize,
    row: usize,
) -> [[__m512; M]; T] {
    let mut acc = [[_mm512_setzero_ps(); M]; T];
    // Prefetch distance in bytes. It is larger for a single stream, which is consumed faster.
    let ahead = if T == 1 { 8 << 10 } else { 2 << 10 };
    for column in 0..k {
        let mut inputs = [_mm512_setzero_ps(); M];
        for (m, input) in inputs.iter_mut().enumerate() {
            // SAFETY: row `row + m` has `k` values.
            *input = _mm512_set1_ps(unsafe { *x.as_ptr().add((row + m) * k + column) });
        }
        for (t, acc) in acc.iter_mut().enumerate() {
            // SAFETY: column `column` of tile `tile + t` exists.
            let place = unsafe { tiles.as_ptr().add(((tile + t) * k + column) * LANES) };
            // The first rows prefetch the weights for all.
            if row == 0 && (column * LANES * size_of::<W>()).is_multiple_of(64) {
                prefetch(place.wrapping_byte_add(ahead).cast::<[u8; 64]>());
            }
            // SAFETY: as above.
            let weights = unsafe { W::load(place) };
            for (acc, input) in acc.iter_mut().zip(&inputs) {
                *acc = _mm512_fmadd_ps(*input, weights, *acc);
            }
        }
    }
    acc
}
