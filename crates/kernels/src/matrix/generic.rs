//! Products in plain Rust: the reference for every other version, and the version for processors without their own.

use std::ops::Range;

use half::{bf16, f16};

use super::{PackedMatrix, Target, Tile4, Tile8, Tiles};
use crate::isa::{for_each_isa, widen_f16};
use crate::quantize::{Activations, BLOCK, Block};
use crate::{Isa, LANES};

pub(super) fn multiply(
    isa: Isa,
    matrix: &PackedMatrix,
    (x, quantized): (&[f32], &Activations),
    tiles: Range<usize>,
    target: &Target<'_>,
) {
    let k = matrix.k;
    for tile in tiles {
        for row in 0..target.rows {
            let mut lanes = [0f32; LANES];
            match &matrix.tiles {
                Tiles::Int4(t) => int4(isa, &t[tile * (k / BLOCK)..][..k / BLOCK], quantized, row, &mut lanes),
                Tiles::Int8(t) => int8(isa, &t[tile * (k / BLOCK)..][..k / BLOCK], quantized, row, &mut lanes),
                Tiles::F32(t) => f32(isa, t[tile * k..][..k].as_flattened(), &x[row * k..][..k], &mut lanes),
                Tiles::Bf16(t) => bf16_(isa, t[tile * k..][..k].as_flattened(), &x[row * k..][..k], &mut lanes),
                Tiles::F16(t) => f16_(isa, t[tile * k..][..k].as_flattened(), &x[row * k..][..k], &mut lanes),
                Tiles::Planes(_) => unreachable!("planes have products of their own"),
            }
            // SAFETY: the caller gave the tile to this thread.
            unsafe { target.store(row, tile, &lanes) };
        }
    }
}

for_each_isa! { fn int4(tiles: &[Tile4], a: &Activations, row: usize, lanes: &mut [f32; LANES]) = int4_body }
for_each_isa! { fn int8(tiles: &[Tile8], a: &Activations, row: usize, lanes: &mut [f32; LANES]) = int8_body }
for_each_isa! { fn f32(tile: &[f32], x: &[f32], lanes: &mut [f32; LANES]) = f32_body }
for_each_isa! { fn bf16_(tile: &[u16], x: &[f32], lanes: &mut [f32; LANES]) = bf16_body }
for_each_isa! { fn f16_(tile: &[f16], x: &[f32], lanes: &mut [f32; LANES]) = f16_body }

#[inline(always)]
fn int4_body(tiles: &[Tile4], a: &Activations, row: usize, lanes: &mut [f32; LANES]) {
    for (b, tile) in tiles.iter().enumerate() {
        let input @ Block { scale, scaled_sum, .. } = a.block(row, b);
        let values = input.bytes();
        let mut dot = [0i32; LANES];
        for group in 0..4 {
            for (lane, dot) in dot.iter_mut().enumerate() {
                for j in 0..4 {
                    let byte = tile.values[group * 64 + lane * 4 + j];
                    *dot += i32::from(byte & 15) * i32::from(values[8 * group + j]);
                    *dot += i32::from(byte >> 4) * i32::from(values[8 * group + 4 + j]);
                }
            }
        }
        for lane in 0..LANES {
            lanes[lane] = (dot[lane] as f32).mul_add(tile.scales[lane].to_f32() * scale, lanes[lane]);
            lanes[lane] = tile.minima[lane].to_f32().mul_add(*scaled_sum, lanes[lane]);
        }
    }
}

#[inline(always)]
fn int8_body(tiles: &[Tile8], a: &Activations, row: usize, lanes: &mut [f32; LANES]) {
    for (b, tile) in tiles.iter().enumerate() {
        let input = a.block(row, b);
        let values = input.bytes();
        let mut dot = [0i32; LANES];
        for group in 0..8 {
            for (lane, dot) in dot.iter_mut().enumerate() {
                for j in 0..4 {
                    *dot +=
                        (i32::from(tile.values[group * 64 + lane * 4 + j]) - 128) * i32::from(values[4 * group + j]);
                }
            }
        }
        for lane in 0..LANES {
            lanes[lane] = (dot[lane] as f32).mul_add(tile.scales[lane].to_f32() * input.scale, lanes[lane]);
        }
    }
}

#[inline(always)]
fn f32_body(tile: &[f32], x: &[f32], lanes: &mut [f32; LANES]) {
    for (weights, x) in tile.chunks_exact(LANES).zip(x) {
        for lane in 0..LANES {
            lanes[lane] = x.mul_add(weights[lane], lanes[lane]);
        }
    }
}

#[inline(always)]
fn bf16_body(tile: &[u16], x: &[f32], lanes: &mut [f32; LANES]) {
    for (weights, x) in tile.chunks_exact(LANES).zip(x) {
        for lane in 0..LANES {
            lanes[lane] = x.mul_add(bf16::from_bits(weights[lane]).to_f32(), lanes[lane]);
        }
    }
}

#[inline(always)]
fn f16_body(tile: &[f16], x: &[f32], lanes: &mut [f32; LANES]) {
    for (weights, x) in tile.chunks_exact(LANES).zip(x) {
        for lane in 0..LANES {
            lanes[lane] = x.mul_add(widen_f16(weights[lane].to_bits()), lanes[lane]);
        }
    }
}
