//! The whole decoder, bit for bit: what a row yields depends on nothing but its own tokens.

use std::sync::Arc;

use tokenrouter_kernels::{
    BlockKind, Decoder, DecoderConfig, Isa, KvCache, LayerWeights, PackedMatrix, Pool, RowInput,
};

const VOCAB: usize = 50;
const POSITIONS: usize = 64;
const BLOCK: usize = 16;

#[derive(Debug, Clone, Copy)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    quantized: bool,
    qk_norm: bool,
}

const SHAPES: [Shape; 4] = [
    Shape { heads: 3, kv_heads: 1, dim: 64, quantized: true, qk_norm: false },
    Shape { heads: 10, kv_heads: 2, dim: 32, quantized: true, qk_norm: true },
    Shape { heads: 4, kv_heads: 4, dim: 48, quantized: false, qk_norm: false },
    Shape { heads: 8, kv_heads: 1, dim: 128, quantized: false, qk_norm: true },
];

/// Deterministic numbers in -0.5..0.5.
fn noise(seed: usize, count: usize) -> Vec<f32> {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..count).map(|_| next()).collect()
}

fn matrix(quantized: bool, seed: usize, n: usize, k: usize) -> PackedMatrix {
    let values: Vec<f32> = noise(seed, n * k).iter().map(|x| x / 4.0).collect();
    if !quantized {
        return PackedMatrix::bf16_from_f32(n, k, &values).expect("fits");
    }
    let mut bytes = Vec::new();
    for block in values.chunks(32) {
        bytes.extend(half::f16::from_f32(0.001).to_le_bytes());
        bytes.extend(block.iter().map(|x| (x * 1000.0) as i8 as u8));
    }
    PackedMatrix::from_blocks(BlockKind::Q8_0, n, k, &bytes).expect("fits")
}

fn decoder(shape: Shape, isa: Isa, threads: usize) -> Decoder {
    let (d, ffn) = (64, 96);
    let (q, kv) = (shape.heads * shape.dim, shape.kv_heads * shape.dim);
    let m = |seed, n, k| matrix(shape.quantized, seed, n, k);
    let layer = |i: usize| LayerWeights {
        attn_norm: vec![1.0; d],
        q: m(10 * i, q, d),
        k: m(10 * i + 1, kv, d),
        v: m(10 * i + 2, kv, d),
        qkv_bias: shape.qk_norm.then(|| noise(10 * i + 3, q + 2 * kv)),
        qk_norm: shape.qk_norm.then(|| [vec![1.5; shape.dim], vec![0.5; shape.dim]]),
        output: m(10 * i + 4, d, q),
        ffn_norm: vec![1.0; d],
        gate: m(10 * i + 5, ffn, d),
        up: m(10 * i + 6, ffn, d),
        down: m(10 * i + 7, d, ffn),
    };
    let angles: Vec<f32> = (0..POSITIONS * shape.dim / 2).map(|i| i as f32 * 0.37).collect();
    let config = DecoderConfig {
        d_model: d,
        heads: shape.heads,
        kv_heads: shape.kv_heads,
        head_dim: shape.dim,
        ffn,
        vocab: VOCAB,
        eps: 1e-5,
        cos: angles.iter().map(|x| x.cos()).collect(),
        sin: angles.iter().map(|x| x.sin()).collect(),
        rope_interleaved: shape.quantized,
    };
    let head = Arc::new(m(99, VOCAB, d));
    let pool = Pool::new(threads, None).expect("threads");
    let layers = (0..2).map(layer).collect();
    Decoder::new(config, (isa, pool), Arc::clone(&head), layers, vec![1.0; d], head).expect("a valid model")
}

/// Logits after the last token of each prompt. Prompts advance together, `chunk` tokens a step (their own, when less).
fn logits(shape: Shape, isa: Isa, threads: usize, prompts: &[Vec<u32>], chunk: usize) -> Vec<Vec<u32>> {
    let mut decoder = decoder(shape, isa, threads);
    let per_prompt = POSITIONS / BLOCK;
    let mut kv = KvCache::new(2, shape.kv_heads, shape.dim, prompts.len() * per_prompt, BLOCK).expect("a cache");
    // Block tables in falling order, interleaved over the prompts.
    let table = |i: usize| (0..per_prompt).map(|b| ((per_prompt - 1 - b) * prompts.len() + i) as u32).collect();
    let tables: Vec<Vec<u32>> = (0..prompts.len()).map(table).collect();
    let mut results = vec![Vec::new(); prompts.len()];
    let mut out = Vec::new();
    // The last steps have no rows at all: that is not an error.
    for start in (0..POSITIONS).step_by(chunk) {
        let live: Vec<usize> = (0..prompts.len()).filter(|i| prompts[*i].len() > start).collect();
        let inputs: Vec<RowInput<'_>> = live
            .iter()
            .map(|&i| {
                let end = prompts[i].len().min(start + chunk);
                let sample = end == prompts[i].len();
                RowInput { tokens: &prompts[i][start..end], start, blocks: &tables[i], sample }
            })
            .collect();
        decoder.forward(&inputs, &mut kv, &mut out).expect("a step");
        let sampled = live.iter().filter(|i| prompts[**i].len() <= start + chunk);
        for (i, row) in sampled.zip(out.chunks(VOCAB)) {
            results[*i] = row.iter().map(|x| x.to_bits()).collect();
        }
    }
    results
}

#[test]
fn logits_do_not_depend_on_batch_chunks_threads_or_instruction_set() {
    let prompts: Vec<Vec<u32>> = [1usize, 17, 33, 5, 40]
        .iter()
        .enumerate()
        .map(|(i, length)| (0..*length).map(|t| ((t * 7 + i * 13) % VOCAB) as u32).collect())
        .collect();
    for shape in SHAPES {
        let alone =
            |prompt: &Vec<u32>| logits(shape, Isa::Baseline, 1, std::slice::from_ref(prompt), POSITIONS).remove(0);
        let reference: Vec<Vec<u32>> = prompts.iter().map(alone).collect();
        assert!(reference.iter().flatten().all(|bits| f32::from_bits(*bits).is_finite()));
        assert_ne!(reference[0], reference[3]);
        for isa in Isa::available() {
            for (threads, chunk) in [(1, 1), (1, POSITIONS), (2, 3), (3, 16)] {
                let got = logits(shape, isa, threads, &prompts, chunk);
                assert_eq!(got, reference, "{shape:?}, {isa:?}, {threads} threads, chunks of {chunk}");
            }
        }
    }
}
