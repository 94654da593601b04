//! Keys and values in blocks, and attention of one position over them.

use crate::isa::for_each_isa;
use crate::ops::{exp, reduce};
use crate::{Error, LANES, check};

/// Keys and values of one model in blocks of positions.
///
/// Keys lie as `[layer][block][kv head][position / 16][head_dim][16]`, so that 16 positions are scored side by side;
/// values as `[layer][block][kv head][position][head_dim]`.
#[derive(Debug)]
pub struct KvCache {
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) block_size: usize,
    blocks: usize,
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

impl KvCache {
    /// A cache of `blocks` blocks of `block_size` positions (a multiple of 16). Memory is touched only when used.
    pub fn new(
        layers: usize,
        kv_heads: usize,
        head_dim: usize,
        blocks: usize,
        block_size: usize,
    ) -> Result<Self, Error> {
        check("KV block size", block_size, block_size > 0 && block_size.is_multiple_of(LANES), "a multiple of 16")?;
        let fits = head_dim > 0 && head_dim.is_multiple_of(2) && head_dim <= MAX_HEAD;
        check("head dimension", head_dim, fits, format!("even, at most {MAX_HEAD}"))?;
        let size = blocks * block_size * kv_heads * head_dim;
        let zeros = || (0..layers).map(|_| vec![0f32; size]).collect();
        Ok(Self { kv_heads, head_dim, block_size, blocks, keys: zeros(), values: zeros() })
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    fn base(&self, block: usize, head: usize) -> usize {
        (block * self.kv_heads + head) * self.block_size * self.head_dim
    }

    /// Stores keys and values, `[kv_heads, head_dim]` each, of one position.
    pub(crate) fn append(&mut self, layer: usize, blocks: &[u32], position: usize, k: &[f32], v: &[f32]) {
        let (block, at) = (blocks[position / self.block_size] as usize, position % self.block_size);
        let dim = self.head_dim;
        for head in 0..self.kv_heads {
            let base = self.base(block, head);
            let keys = &mut self.keys[layer][base + at / LANES * LANES * dim..][..LANES * dim];
            for (d, key) in k[head * dim..(head + 1) * dim].iter().enumerate() {
                keys[d * LANES + at % LANES] = *key;
            }
            self.values[layer][base + at * dim..][..dim].copy_from_slice(&v[head * dim..(head + 1) * dim]);
        }
    }

    /// Attention of the query heads `q` (`[group, head_dim]`) that share kv head `head`, over positions `0..length`.
    #[allow(clippy::too_many_arguments, reason = "kernels take their operands one by one")]
    pub(crate) fn attend(
        &self,
        isa: crate::Isa,
        (layer, head): (usize, usize),
        blocks: &[u32],
        length: usize,
        (q, out): (&[f32], &mut [f32]),
        scores: &mut Vec<f32>,
    ) {
        let (dim, stride) = (self.head_dim, length.next_multiple_of(LANES));
        let heads = if isa == crate::Isa::Avx512Vnni { MAX_HEADS } else { 1 };
        scores.resize((stride * heads).max(scores.len()), 0.0);
        let size = self.block_size * dim;
        let used = &blocks[..length.div_ceil(self.block_size)];
        for (q, out) in q.chunks(heads * dim).zip(out.chunks_mut(heads * dim)) {
            let scores = &mut scores[..stride * (q.len() / dim)];
            for (index, block) in used.iter().enumerate() {
                let base = self.base(*block as usize, head);
                score(isa, &self.keys[layer][base..base + size], q, scores, (stride, index * self.block_size));
            }
            let mut totals = [0f32; MAX_HEADS];
            for (scores, total) in scores.chunks_exact_mut(stride).zip(&mut totals) {
                softmax(isa, scores, length, total);
            }
            out.fill(0.0);
            for (index, block) in used.iter().enumerate() {
                let base = self.base(*block as usize, head);
                let start = index * self.block_size;
                let count = self.block_size.min(length - start);
                weigh(isa, &self.values[layer][base..base + count * dim], scores, (stride, start), out, dim);
            }
            for (out, total) in out.chunks_exact_mut(dim).zip(totals) {
                out.iter_mut().for_each(|out| *out /= total);
            }
        }
    }
}

/// Query heads that share a pass over keys and values.
const MAX_HEADS: usize = 4;
/// Widest head.
const MAX_HEAD: usize = 256;

for_each_isa! { fn score(keys: &[f32], q: &[f32], out: &mut [f32], place: (usize, usize)) = score_body }
for_each_isa! { fn softmax(scores: &mut [f32], length: usize, total: &mut f32) = softmax_body }
for_each_isa! {
    fn weigh(values: &[f32], weights: &[f32], place: (usize, usize), sums: &mut [f32], dim: usize) = weigh_body
}

/// Scores of groups of 16 positions from `at` on, scaled by `1 / sqrt(head_dim)`; those of the heads are `stride` apart.
#[inline(always)]
fn score_body(keys: &[f32], q: &[f32], out: &mut [f32], place: (usize, usize)) {
    match out.len() / place.0 {
        1 => score_heads::<1>(keys, q, out, place),
        2 => score_heads::<2>(keys, q, out, place),
        3 => score_heads::<3>(keys, q, out, place),
        _ => score_heads::<MAX_HEADS>(keys, q, out, place),
    }
}

#[inline(always)]
fn score_heads<const H: usize>(keys: &[f32], q: &[f32], out: &mut [f32], (stride, at): (usize, usize)) {
    let dim = q.len() / H;
    let scale = 1.0 / (dim as f32).sqrt();
    let heads: [&[f32]; H] = std::array::from_fn(|head| &q[head * dim..][..dim]);
    let groups = keys.chunks_exact(LANES * dim).zip((at..stride).step_by(LANES));
    for (keys, at) in groups {
        // Two sums, of even and odd dimensions, so that additions do not wait for each other.
        let (mut even, mut odd) = ([[0f32; LANES]; H], [[0f32; LANES]; H]);
        for (i, keys) in keys.chunks_exact(2 * LANES).enumerate() {
            for h in 0..H {
                let (first, second) = (heads[h][2 * i], heads[h][2 * i + 1]);
                for lane in 0..LANES {
                    even[h][lane] = keys[lane].mul_add(first, even[h][lane]);
                    odd[h][lane] = keys[LANES + lane].mul_add(second, odd[h][lane]);
                }
            }
        }
        for h in 0..H {
            let out = &mut out[h * stride + at..][..LANES];
            for lane in 0..LANES {
                out[lane] = (even[h][lane] + odd[h][lane]) * scale;
            }
        }
    }
}

/// Replaces scores by `exp(score - max)` (0 beyond `length`) and gives their sum, added up by position modulo 16.
#[inline(always)]
fn softmax_body(scores: &mut [f32], length: usize, total: &mut f32) {
    scores[length..].fill(f32::NEG_INFINITY);
    let mut maxima = [f32::NEG_INFINITY; LANES];
    for chunk in scores.chunks_exact(LANES) {
        for lane in 0..LANES {
            maxima[lane] = maxima[lane].max(chunk[lane]);
        }
    }
    let max = maxima.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0f32; LANES];
    for chunk in scores.chunks_exact_mut(LANES) {
        for lane in 0..LANES {
            chunk[lane] = exp(chunk[lane] - max);
        }
    }
    scores[length..].fill(0.0);
    for chunk in scores.chunks_exact(LANES) {
        for lane in 0..LANES {
            sums[lane] += chunk[lane];
        }
    }
    *total = reduce(sums);
}

/// Adds values (`[positions, dim]`, from position `at` on) to the sums of the heads, weighted.
#[inline(always)]
fn weigh_body(values: &[f32], weights: &[f32], (stride, at): (usize, usize), sums: &mut [f32], dim: usize) {
    let place = (stride, at, dim);
    // Wide enough for several independent chains of additions, and narrow enough for registers.
    match (sums.len() / dim, dim.is_multiple_of(64)) {
        (1, true) => weigh_heads::<64, 1>(values, weights, place, sums),
        (2, true) => weigh_heads::<64, 2>(values, weights, place, sums),
        (3, true) => weigh_heads::<64, 3>(values, weights, place, sums),
        (4, true) => weigh_heads::<64, 4>(values, weights, place, sums),
        _ => {
            for (head, sums) in sums.chunks_exact_mut(dim).enumerate() {
                weigh_heads::<2, 1>(values, &weights[head * stride..], place, sums);
            }
        }
    }
}

#[inline(always)]
fn weigh_heads<const W: usize, const H: usize>(
    values: &[f32],
    weights: &[f32],
    (stride, at, dim): (usize, usize, usize),
    sums: &mut [f32],
) {
    let positions = values.len() / dim;
    let weights: [&[f32]; H] = std::array::from_fn(|head| &weights[head * stride + at..][..positions]);
    for column in (0..dim).step_by(W) {
        let mut lanes = [[0f32; W]; H];
        for h in 0..H {
            lanes[h].copy_from_slice(&sums[h * dim + column..][..W]);
        }
        for (position, values) in values.chunks_exact(dim).enumerate() {
            let values = &values[column..column + W];
            for h in 0..H {
                let weight = weights[h][position];
                for lane in 0..W {
                    lanes[h][lane] = weight.mul_add(values[lane], lanes[h][lane]);
                }
            }
        }
        for h in 0..H {
            sums[h * dim + column..][..W].copy_from_slice(&lanes[h]);
        }
    }
}
