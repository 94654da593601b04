//! Decode and prefill speed of a random model of the shape of SmolLM2-135M, beside what the machine could do.
//!
//! `cargo run --release -p tokenrouter-kernels --example bench_decoder [threads...]`

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use tokenrouter_kernels::{
    BlockKind, Decoder, DecoderConfig, Isa, KvCache, LayerWeights, PackedMatrix, Pool, RowInput,
};

const LAYERS: usize = 30;
const D: usize = 576;
const FFN: usize = 1536;
const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const DIM: usize = 64;
const VOCAB: usize = 49152;
const BLOCK: usize = 16;
const MAX: usize = 1024;

#[derive(Clone, Copy)]
enum Weights {
    Q4,
    Bf16,
    F32,
}

fn matrix(weights: Weights, kind: BlockKind, n: usize, k: usize) -> PackedMatrix {
    let values = || (0..n * k).map(|i| ((i * 2_654_435_761) % 1000) as f32 / 1e4 - 0.05).collect::<Vec<_>>();
    match weights {
        // Small scales: exponents of the half floats stay low whatever the bytes are.
        Weights::Q4 => PackedMatrix::from_blocks(kind, n, k, &vec![0x11; n * k / 32 * kind.bytes()]),
        Weights::Bf16 => PackedMatrix::bf16_from_f32(n, k, &values()),
        Weights::F32 => PackedMatrix::from_f32(n, k, &values()),
    }
    .expect("fitting shapes")
}

fn decoder(weights: Weights, threads: usize) -> Decoder {
    let m = |n, k| matrix(weights, BlockKind::Q4_1, n, k);
    let layer = |_| LayerWeights {
        attn_norm: vec![1.0; D],
        q: m(HEADS * DIM, D),
        k: m(KV_HEADS * DIM, D),
        v: m(KV_HEADS * DIM, D),
        qkv_bias: None,
        qk_norm: None,
        output: m(D, HEADS * DIM),
        ffn_norm: vec![1.0; D],
        gate: m(FFN, D),
        up: m(FFN, D),
        down: m(D, FFN),
    };
    let head = Arc::new(matrix(weights, BlockKind::Q8_0, VOCAB, D));
    let config = DecoderConfig {
        d_model: D,
        heads: HEADS,
        kv_heads: KV_HEADS,
        head_dim: DIM,
        ffn: FFN,
        vocab: VOCAB,
        eps: 1e-5,
        cos: vec![1.0; MAX * DIM / 2],
        sin: vec![0.0; MAX * DIM / 2],
        rope_interleaved: true,
    };
    let pool = Pool::new(threads, Some((0..threads).collect())).expect("threads");
    let layers = (0..LAYERS).map(layer).collect();
    Decoder::new(config, (Isa::detect(), pool), Arc::clone(&head), layers, vec![1.0; D], head).expect("a valid model")
}

/// Median milliseconds of a step; with `BENCH_MIN` in the environment the least, for machines that others use too.
fn median_ms(runs: usize, mut step: impl FnMut()) -> f64 {
    step();
    let mut times: Vec<f64> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            step();
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_unstable_by(f64::total_cmp);
    times[if std::env::var_os("BENCH_MIN").is_some() { 0 } else { runs / 2 }]
}

/// Bytes per second of reading a large array on `threads` threads: the best of several passes.
fn read_bandwidth(threads: usize) -> f64 {
    let data = vec![1u64; 32 << 20];
    let pass = || {
        std::thread::scope(|scope| {
            for part in data.chunks(data.len() / threads) {
                scope.spawn(move || {
                    let mut sums = [0u64; 64];
                    for chunk in part.chunks_exact(64) {
                        for (sum, value) in sums.iter_mut().zip(chunk) {
                            *sum ^= value;
                        }
                    }
                    black_box(sums);
                });
            }
        });
    };
    std::mem::size_of_val(&data[..]) as f64 / (median_ms(9, pass) / 1e3)
}

#[allow(clippy::print_stdout, reason = "the output of this program")]
fn main() {
    let threads: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let threads = if threads.is_empty() { vec![1, 2] } else { threads };
    println!("{:?}; medians; bound: weights once per step at the measured read bandwidth", Isa::detect());
    println!("| weights | threads | phase | rows | context | ms | tok/s | of read bound |");
    println!("|---|---|---|---|---|---|---|---|");
    // Before any decoder pins this thread: threads that it starts would inherit that.
    let bandwidths: Vec<f64> = threads.iter().map(|threads| read_bandwidth(*threads)).collect();
    for (threads, bandwidth) in threads.into_iter().zip(bandwidths) {
        println!("| read | {threads} | {:.1} GB/s | | | | | |", bandwidth / 1e9);
        for (name, weights) in [("q4_1+q8_0", Weights::Q4), ("bf16", Weights::Bf16), ("f32", Weights::F32)] {
            let mut decoder = decoder(weights, threads);
            let blocks = 16 * MAX / BLOCK;
            let mut kv = KvCache::new(LAYERS, KV_HEADS, DIM, blocks, BLOCK).expect("a valid cache");
            let mut logits = Vec::new();
            let tables: Vec<Vec<u32>> =
                (0..16).map(|row| (0..MAX / BLOCK).map(|b| (row * MAX / BLOCK + b) as u32).collect()).collect();
            let bound_ms = decoder.weight_bytes() as f64 / bandwidth * 1e3;
            let mut line = |phase: &str, rows: usize, new: usize, context: usize, runs: usize| {
                let tokens = vec![5u32; new];
                let inputs: Vec<RowInput<'_>> = tables[..rows]
                    .iter()
                    .map(|blocks| RowInput { tokens: &tokens, start: context, blocks, sample: true })
                    .collect();
                let ms = median_ms(runs, || decoder.forward(&inputs, &mut kv, &mut logits).expect("a step"));
                let rate = (rows * new) as f64 / ms * 1e3;
                let share = 100.0 * bound_ms / ms;
                println!("| {name} | {threads} | {phase} | {rows} | {context} | {ms:.2} | {rate:.0} | {share:.0} % |");
            };
            for rows in [1, 2, 4, 8, 16] {
                line("decode", rows, 1, 16, 21);
            }
            line("decode", 1, 1, 512, 21);
            line("decode", 8, 1, 512, 21);
            line("prefill", 1, 128, 0, 3);
        }
    }
}
