//! Attention of one position over the keys and values before it.
//!
//! A context is divided into chunks of positions, each with its own softmax. Chunks are combined from the first to the
//! last. Boundaries and order depend only on the position, so the result is the same to the last bit whether one or
//! several threads compute the chunks. Query heads that share keys and values are computed together.

use std::ops::Range;

use crate::isa::{Level, for_each_isa};
use crate::kv::{Bf16, Element, F16, F32, KvCache, Layers, MAX_HEAD, Shape};
use crate::ops::{exp, larger, reduce};
use crate::{Isa, LANES};

/// Positions of a chunk.
pub(crate) const CHUNK: usize = 256;
/// Largest number of query heads that are computed together.
const MAX_HEADS: usize = 4;

/// Number of chunks of a context.
pub(crate) fn chunks(length: usize) -> usize {
    length.div_ceil(CHUNK)
}

/// Query heads that share a key/value head, at one position.
#[derive(Clone, Copy)]
pub(crate) struct Query<'a> {
    pub(crate) layer: usize,
    pub(crate) kv_head: usize,
    /// `[heads, head_dim]`.
    pub(crate) q: &'a [f32],
    pub(crate) blocks: &'a [u32],
    /// Number of positions to attend to.
    pub(crate) length: usize,
}

/// Largest number of query heads that share a key/value head.
pub(crate) const MAX_GROUP: usize = 128;

/// The maximum that a head's weights are relative to, and their sum.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Norm {
    max: f32,
    /// 0: nothing has been added yet.
    total: f32,
}

impl KvCache {
    /// Adds some chunks to the weighted sums of values, `[heads, head_dim]`, with a norm for each head.
    pub(crate) fn attend(
        &self,
        isa: Isa,
        query: Query<'_>,
        chunks: Range<usize>,
        (sums, norms): (&mut [f32], &mut [Norm]),
    ) {
        let (shape, layer) = (self.shape(), query.layer);
        let to = (sums, norms);
        match &self.layers {
            Layers::F32(l) => dispatch::<F32>(isa, View { shape, query, kv: &l[layer] }, chunks, to),
            Layers::F16(l) => dispatch::<F16>(isa, View { shape, query, kv: &l[layer] }, chunks, to),
            Layers::Bf16(l) => dispatch::<Bf16>(isa, View { shape, query, kv: &l[layer] }, chunks, to),
        }
    }
}

for_each_isa! {
    /// Computes the means of some heads from the sums and norms of chunks, `[chunk, head]`. Chunks to which nothing was
    /// added are ignored.
    pub(crate) fn join(sums: &[f32], norms: &[Norm], out: &mut [f32]) = join_body
}
for_each_isa! {
    /// Divides sums of weighted values by their norms.
    pub(crate) fn finish(sums: &mut [f32], norms: &[Norm]) = finish_body
}

#[inline(always)]
fn join_body(sums: &[f32], norms: &[Norm], out: &mut [f32]) {
    let dim = sums.len() / norms.len();
    let heads = out.len() / dim;
    for (head, out) in out.chunks_exact_mut(dim).enumerate() {
        let mut joined = Norm::default();
        for (sums, norm) in sums.chunks_exact(dim).zip(norms).skip(head).step_by(heads) {
            if norm.total > 0.0 {
                join_head((out, &mut joined), (sums, *norm));
            }
        }
        out.iter_mut().for_each(|out| *out /= joined.total);
    }
}

#[inline(always)]
fn join_head((sums, norm): (&mut [f32], &mut Norm), (later, later_norm): (&[f32], Norm)) {
    if norm.total == 0.0 {
        sums.copy_from_slice(later);
        *norm = later_norm;
        return;
    }
    let max = larger(later_norm.max, norm.max);
    let (scale, later_scale) = (exp(norm.max - max), exp(later_norm.max - max));
    for (sum, later) in sums.iter_mut().zip(later) {
        *sum = later.mul_add(later_scale, *sum * scale);
    }
    *norm = Norm { max, total: later_norm.total.mul_add(later_scale, norm.total * scale) };
}

#[inline(always)]
fn finish_body(sums: &mut [f32], norms: &[Norm]) {
    let dim = sums.len() / norms.len();
    for (sums, norm) in sums.chunks_exact_mut(dim).zip(norms) {
        sums.iter_mut().for_each(|sum| *sum /= norm.total);
    }
}

/// The keys and values that a query attends to.
struct View<'a, E: Element> {
    shape: Shape,
    query: Query<'a>,
    /// Keys and values of the layer.
    kv: &'a [Vec<E::Bits>; 2],
}

impl<'a, E: Element> View<'a, E> {
    /// Keys (0) or values (1) of the 16 positions from `position` on.
    #[inline(always)]
    fn lanes(&self, which: usize, position: usize) -> &'a [E::Bits] {
        let Shape { head_dim, block_size, .. } = self.shape;
        let block = self.query.blocks[position / block_size] as usize;
        let start = self.shape.base(block, self.query.kv_head) + position % block_size * head_dim;
        &self.kv[which][start..start + LANES * head_dim]
    }
}

fn dispatch<E: Element>(isa: Isa, view: View<'_, E>, chunks: Range<usize>, to: (&mut [f32], &mut [Norm])) {
    #[cfg(target_arch = "x86_64")]
    {
        use crate::isa::{Avx2, Avx512};
        #[target_feature(enable = "avx2,fma,f16c")]
        fn avx2<E: Element>(view: View<'_, E>, chunks: Range<usize>, to: (&mut [f32], &mut [Norm])) {
            attend::<Avx2, E>(&view, chunks, to);
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        fn avx512<E: Element>(view: View<'_, E>, chunks: Range<usize>, to: (&mut [f32], &mut [Norm])) {
            attend::<Avx512, E>(&view, chunks, to);
        }
        match isa {
            // SAFETY: public functions check `isa` with `Isa::check`, which detects the features.
            Isa::Avx512Vnni => return unsafe { avx512(view, chunks, to) },
            // SAFETY: as above.
            Isa::Avx2 | Isa::AvxVnni => return unsafe { avx2(view, chunks, to) },
            Isa::Baseline | Isa::NeonDotprod => {}
        }
    }
    let _ = isa;
    attend::<crate::isa::Portable, E>(&view, chunks, to);
}

#[inline(always)]
fn attend<L: Level, E: Element>(view: &View<'_, E>, chunks: Range<usize>, (sums, norms): (&mut [f32], &mut [Norm])) {
    let dim = view.shape.head_dim;
    let mut scores = [[0f32; CHUNK]; MAX_HEADS];
    for chunk in chunks {
        let positions = chunk * CHUNK..view.query.length.min((chunk + 1) * CHUNK);
        for first in (0..norms.len()).step_by(L::HEADS) {
            let heads = first..norms.len().min(first + L::HEADS);
            let range = heads.start * dim..heads.end * dim;
            let q = &view.query.q[range.clone()];
            let to = (&mut sums[range], &mut norms[heads.clone()]);
            match heads.len() {
                1 => heads_of_chunk::<L, E, 1>(view, &positions, q, &mut scores, to),
                2 => heads_of_chunk::<L, E, 2>(view, &positions, q, &mut scores, to),
                3 => heads_of_chunk::<L, E, 3>(view, &positions, q, &mut scores, to),
                _ => heads_of_chunk::<L, E, MAX_HEADS>(view, &positions, q, &mut scores, to),
            }
        }
    }
}

/// Adds `H` query heads of a chunk.
#[inline(always)]
fn heads_of_chunk<L: Level, E: Element, const H: usize>(
    view: &View<'_, E>,
    positions: &Range<usize>,
    q: &[f32],
    scores: &mut [[f32; CHUNK]; MAX_HEADS],
    (sums, norms): (&mut [f32], &mut [Norm]),
) {
    let dim = view.shape.head_dim;
    let heads: [&[f32]; H] = std::array::from_fn(|head| &q[head * dim..(head + 1) * dim]);
    let groups = positions.len().div_ceil(LANES);
    for position in positions.clone().step_by(LANES) {
        // Blocks are scattered, so hardware cannot predict them. Values are needed after the chunk is scored.
        let scored = score::<L, E, H>(view.lanes(0, position), &heads, view.lanes(1, position));
        let group = (position - positions.start) / LANES;
        for (scores, scored) in scores.iter_mut().zip(&scored) {
            scores[group * LANES..(group + 1) * LANES].copy_from_slice(scored);
        }
    }
    let mut later = [Norm::default(); H];
    for (scores, norm) in scores.iter_mut().zip(&mut later) {
        *norm = softmax(&mut scores[..groups * LANES], positions.len());
    }
    let mut weighted = [[0f32; MAX_HEAD]; H];
    let scores = &*scores;
    if L::WIDE && dim.is_multiple_of(64) {
        weigh::<L, E, H, 4>(view, positions, scores, &mut weighted);
    } else if dim.is_multiple_of(32) {
        weigh::<L, E, H, 2>(view, positions, scores, &mut weighted);
    } else {
        weigh_one_by_one(view, positions, scores, &mut weighted);
    }
    for (head, (sums, norm)) in sums.chunks_exact_mut(dim).zip(norms).enumerate() {
        join_head((sums, norm), (&weighted[head][..dim], later[head]));
    }
}

/// Prefetches the cache lines of some elements, a few at a time, because a processor stalls after many prefetches.
#[inline(always)]
fn prefetch<T>(slice: &[T], first: usize, count: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..count * size_of::<T>()).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch has no effect but to load a cache line, if it exists.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(slice.as_ptr().wrapping_add(first).cast::<i8>().wrapping_add(line)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slice, first, count);
}

/// Scores of 16 positions, scaled by `1 / sqrt(head_dim)`.
#[inline(always)]
fn score<L: Level, E: Element, const H: usize>(
    keys: &[E::Bits],
    heads: &[&[f32]; H],
    next: &[E::Bits],
) -> [[f32; LANES]; H] {
    // Two sums, of even and odd dimensions, so additions need not wait for each other.
    let (mut even, mut odd) = ([[0f32; LANES]; H], [[0f32; LANES]; H]);
    let (keys, _) = keys.as_chunks::<LANES>();
    for (i, keys) in keys.chunks_exact(2).enumerate() {
        prefetch(next, 2 * LANES * i, 2 * LANES);
        let (first, second) = (E::widen::<L>(&keys[0]), E::widen::<L>(&keys[1]));
        for h in 0..H {
            let (q_first, q_second) = (heads[h][2 * i], heads[h][2 * i + 1]);
            for lane in 0..LANES {
                even[h][lane] = first[lane].mul_add(q_first, even[h][lane]);
                odd[h][lane] = second[lane].mul_add(q_second, odd[h][lane]);
            }
        }
    }
    let scale = 1.0 / (heads[0].len() as f32).sqrt();
    for h in 0..H {
        for lane in 0..LANES {
            even[h][lane] = (even[h][lane] + odd[h][lane]) * scale;
        }
    }
    even
}

/// Replaces scores by `exp(score - max)` (0 from `length` on). Their sum is accumulated by position modulo 16.
#[inline(always)]
fn softmax(scores: &mut [f32], length: usize) -> Norm {
    scores[length..].fill(f32::NEG_INFINITY);
    let (scores, _) = scores.as_chunks_mut::<LANES>();
    let mut maxima = [f32::NEG_INFINITY; LANES];
    for scores in scores.iter() {
        for lane in 0..LANES {
            maxima[lane] = larger(scores[lane], maxima[lane]);
        }
    }
    let max = maxima.into_iter().fold(f32::NEG_INFINITY, |max, x| larger(x, max));
    for scores in scores.iter_mut() {
        for lane in 0..LANES {
            scores[lane] = exp(scores[lane] - max);
        }
    }
    scores.as_flattened_mut()[length..].fill(0.0);
    let mut sums = [0f32; LANES];
    for scores in scores.iter() {
        for lane in 0..LANES {
            sums[lane] += scores[lane];
        }
    }
    Norm { max, total: reduce(sums) }
}

/// Weighted sums of values of `H` heads, `W * 16` dimensions at a time, which is what registers hold.
#[inline(always)]
fn weigh<L: Level, E: Element, const H: usize, const W: usize>(
    view: &View<'_, E>,
    positions: &Range<usize>,
    weights: &[[f32; CHUNK]; MAX_HEADS],
    out: &mut [[f32; MAX_HEAD]; H],
) {
    let dim = view.shape.head_dim;
    for column in (0..dim).step_by(W * LANES) {
        let mut lanes = [[[0f32; LANES]; W]; H];
        for group in positions.clone().step_by(LANES) {
            let at = group - positions.start;
            // The keys of the next chunk.
            let next =
                if column == 0 && group + CHUNK < view.query.length { view.lanes(0, group + CHUNK) } else { &[] };
            let values = view.lanes(1, group).chunks_exact(dim).take(positions.end - group);
            for (position, values) in values.enumerate() {
                if !next.is_empty() {
                    prefetch(next, position * dim, dim);
                }
                let (values, _) = values[column..column + W * LANES].as_chunks::<LANES>();
                let values: [[f32; LANES]; W] = std::array::from_fn(|w| E::widen::<L>(&values[w]));
                for h in 0..H {
                    let weight = weights[h][at + position];
                    for w in 0..W {
                        for lane in 0..LANES {
                            lanes[h][w][lane] = weight.mul_add(values[w][lane], lanes[h][w][lane]);
                        }
                    }
                }
            }
        }
        for h in 0..H {
            out[h][column..column + W * LANES].copy_from_slice(lanes[h].as_flattened());
        }
    }
}

/// Like `weigh`, for any dimension.
#[inline(always)]
fn weigh_one_by_one<E: Element, const H: usize>(
    view: &View<'_, E>,
    positions: &Range<usize>,
    weights: &[[f32; CHUNK]; MAX_HEADS],
    out: &mut [[f32; MAX_HEAD]; H],
) {
    let dim = view.shape.head_dim;
    for position in positions.clone() {
        let values = &view.lanes(1, position / LANES * LANES)[position % LANES * dim..][..dim];
        for h in 0..H {
            let weight = weights[h][position - positions.start];
            for (out, value) in out[h].iter_mut().zip(values) {
                *out = weight.mul_add(E::widen_one(*value), *out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KvDtype;
    use proptest::prelude::*;

    /// Deterministic numbers in -2..2 that all formats of keys and values store exactly.
    fn noise(seed: usize, count: usize) -> Vec<f32> {
        let mut state = (seed as u32 + 1).wrapping_mul(0x9e37_79b9) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 26) as f32 / 16.0 - 2.0
        };
        (0..count).map(|_| next()).collect()
    }

    struct Case {
        kv_heads: usize,
        group: usize,
        dim: usize,
        block_size: usize,
        length: usize,
    }

    impl Case {
        /// A cache with `length` positions in blocks of descending order, their keys and values, and queries.
        fn make(&self, dtype: KvDtype, isa: Isa) -> (KvCache, Vec<u32>, [Vec<f32>; 2], Vec<f32>) {
            let width = self.kv_heads * self.dim;
            let blocks: Vec<u32> = (0..self.length.div_ceil(self.block_size) as u32).rev().collect();
            let mut kv =
                KvCache::new(2, self.kv_heads, self.dim, (blocks.len(), self.block_size), dtype).expect("fits");
            let [k, v] = [1, 2].map(|seed| noise(seed, self.length * width));
            for (position, (k, v)) in k.chunks(width).zip(v.chunks(width)).enumerate() {
                // SAFETY: there is one thread.
                unsafe { kv.writer(1).append(isa, &blocks, position, k, v) };
            }
            (kv, blocks, [k, v], noise(3, self.kv_heads * self.group * self.dim))
        }

        fn oracle(&self, [k, v]: &[Vec<f32>; 2], q: &[f32], head: usize) -> Vec<f64> {
            let (dim, width) = (self.dim, self.kv_heads * self.dim);
            let at = |position: usize| position * width + head / self.group * dim;
            let dot = |position: usize| -> f64 {
                let pairs = k[at(position)..].iter().zip(&q[head * dim..(head + 1) * dim]);
                pairs.map(|(k, q)| f64::from(*k) * f64::from(*q)).sum::<f64>() / (dim as f64).sqrt()
            };
            let scores: Vec<f64> = (0..self.length).map(dot).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
            let total: f64 = weights.iter().sum();
            (0..dim)
                .map(|d| weights.iter().enumerate().map(|(p, w)| w / total * f64::from(v[at(p) + d])).sum())
                .collect()
        }
    }

    /// Attention of all heads in one go, and chunk by chunk.
    fn both_ways(case: &Case, isa: Isa, (kv, blocks): (&KvCache, &[u32]), q: &[f32]) -> [Vec<f32>; 2] {
        let (width, chunks) = (case.group * case.dim, chunks(case.length));
        let mut results = [Vec::new(), Vec::new()];
        for (kv_head, q) in q.chunks(width).enumerate() {
            let query = Query { layer: 1, kv_head, q, blocks, length: case.length };
            let (mut out, mut norms) = (vec![0.0; width], vec![Norm::default(); case.group]);
            kv.attend(isa, query, 0..chunks, (&mut out, &mut norms));
            finish(isa, &mut out, &norms);
            results[0].extend_from_slice(&out);
            // One more chunk, to which nothing is added.
            let (mut sums, mut norms) =
                (vec![9.0; (chunks + 1) * width], vec![Norm::default(); (chunks + 1) * case.group]);
            for chunk in (0..chunks).rev() {
                let sums = &mut sums[chunk * width..(chunk + 1) * width];
                kv.attend(isa, query, chunk..chunk + 1, (sums, &mut norms[chunk * case.group..][..case.group]));
            }
            join(isa, &sums, &norms, &mut out);
            results[1].extend_from_slice(&out);
        }
        results
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn attention_matches_f64_and_depends_on_nothing_else(
            kv_heads in 1usize..3,
            group in 1usize..8,
            dim in prop::sample::select(vec![2usize, 18, 32, 64, 80, 96, 128]),
            block_size in prop::sample::select(vec![16usize, 48, 512]),
            length in prop_oneof![1usize..70, CHUNK - 2..CHUNK + 3, 2 * CHUNK..2 * CHUNK + 40],
        ) {
            let case = Case { kv_heads, group, dim, block_size, length };
            let mut first = None;
            for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
                for isa in Isa::available() {
                    let (kv, blocks, numbers, q) = case.make(dtype, isa);
                    let [whole, by_chunks] = both_ways(&case, isa, (&kv, &blocks), &q);
                    prop_assert_eq!(&whole, &by_chunks);
                    if first.is_none() {
                        for (head, got) in whole.chunks(dim).enumerate() {
                            for (got, want) in got.iter().zip(case.oracle(&numbers, &q, head)) {
                                prop_assert!((f64::from(*got) - want).abs() < 3e-5, "{} instead of {}", got, want);
                            }
                        }
                    }
                    prop_assert_eq!(&whole, first.get_or_insert(whole.clone()), "{:?} {:?}", dtype, isa);
                }
            }
        }
    }

    #[test]
    fn copied_blocks_are_equal_and_bad_ones_refused() {
        let case = Case { kv_heads: 2, group: 3, dim: 32, block_size: 16, length: 48 };
        for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
            let (mut kv, blocks, _, q) = case.make(dtype, Isa::detect());
            assert_eq!(kv.block_bytes(), 2 * 2 * 2 * 16 * 32 * dtype.bytes());
            let before = both_ways(&case, Isa::detect(), (&kv, &blocks), &q);
            // The middle block is the second. Copy the first over the third, then use the third as the first.
            let alone = Case { length: 16, ..case };
            let first = both_ways(&alone, Isa::detect(), (&kv, &blocks), &q);
            kv.copy_block(blocks[0], blocks[2]).expect("blocks exist");
            assert_eq!(both_ways(&alone, Isa::detect(), (&kv, &blocks[2..]), &q), first);
            assert_ne!(both_ways(&case, Isa::detect(), (&kv, &blocks), &q), before);
            assert!(kv.copy_block(0, 3).is_err() && kv.copy_block(3, 0).is_err());
        }
    }
}
