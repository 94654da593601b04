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
        scores.resize(length.next_multiple_of(LANES).max(scores.len()), 0.0);
        let size = self.block_size * self.head_dim;
        for (q, out) in q.chunks_exact(self.head_dim).zip(out.chunks_exact_mut(self.head_dim)) {
            let mut done = 0;
            for block in &blocks[..length.div_ceil(self.block_size)] {
                let base = self.base(*block as usize, head);
                let end = (done + self.block_size).min(length.next_multiple_of(LANES));
                score(isa, &self.keys[layer][base..base + size], q, &mut scores[done..end]);
                done = end;
            }
            let mut total = 0.0;
            softmax(isa, &mut scores[..length.next_multiple_of(LANES)], length, &mut total);
            let mut sum = [0f32; MAX_HEAD];
            for (index, block) in blocks[..length.div_ceil(self.block_size)].iter().enumerate() {
                let base = self.base(*block as usize, head);
                let start = index * self.block_size;
                let weights = &scores[start..(start + self.block_size).min(length)];
                weigh(isa, &self.values[layer][base..base + size], weights, &mut sum[..self.head_dim]);
            }
            out.iter_mut().zip(&sum).for_each(|(out, sum)| *out = sum / total);
        }
    }
}

/// Widest head.
const MAX_HEAD: usize = 256;

for_each_isa! { fn score(keys: &[f32], q: &[f32], out: &mut [f32]) = score_body }
for_each_isa! { fn softmax(scores: &mut [f32], length: usize, total: &mut f32) = softmax_body }
for_each_isa! { fn weigh(values: &[f32], weights: &[f32], sum: &mut [f32]) = weigh_body }

/// Scores of groups of 16 positions, scaled by `1 / sqrt(head_dim)`.
#[inline(always)]
fn score_body(keys: &[f32], q: &[f32], out: &mut [f32]) {
    let scale = 1.0 / (q.len() as f32).sqrt();
    for (keys, out) in keys.chunks_exact(LANES * q.len()).zip(out.chunks_exact_mut(LANES)) {
        // Two sums, of even and odd dimensions, so that additions do not wait for each other.
        let (mut even, mut odd) = ([0f32; LANES], [0f32; LANES]);
        for (keys, q) in keys.chunks_exact(2 * LANES).zip(q.chunks_exact(2)) {
            for lane in 0..LANES {
                even[lane] = keys[lane].mul_add(q[0], even[lane]);
                odd[lane] = keys[LANES + lane].mul_add(q[1], odd[lane]);
            }
        }
        for lane in 0..LANES {
            out[lane] = (even[lane] + odd[lane]) * scale;
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

#[inline(always)]
fn weigh_body(values: &[f32], weights: &[f32], sum: &mut [f32]) {
    // Wide enough for several independent chains of additions, and narrow enough for registers.
    if sum.len().is_multiple_of(64) {
        weigh_chunks::<64>(values, weights, sum);
    } else {
        weigh_chunks::<2>(values, weights, sum);
    }
}

#[inline(always)]
fn weigh_chunks<const W: usize>(values: &[f32], weights: &[f32], sum: &mut [f32]) {
    let dim = sum.len();
    for (at, sum) in sum.chunks_exact_mut(W).enumerate() {
        let mut lanes = [0f32; W];
        lanes.copy_from_slice(sum);
        for (values, weight) in values.chunks_exact(dim).zip(weights) {
            let values = &values[at * W..(at + 1) * W];
            for lane in 0..W {
                lanes[lane] = weight.mul_add(values[lane], lanes[lane]);
            }
        }
        sum.copy_from_slice(&lanes);
    }
}
