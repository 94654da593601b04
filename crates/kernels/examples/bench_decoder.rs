//! Decode and prefill speed of a random model of the shape of SmolLM2-135M, beside what the machine could do.
//!
//! `cargo run --release -p tokenrouter-kernels --example bench_decoder [threads...] [q4_1+q8_0|bf16|f32...]`

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use tokenrouter_kernels::{
    BlockKind, Decoder, DecoderConfig, Isa, KvCache, LayerWeights, PackedMatrix, Pool, RowInput, StepNeeds, StepOutput,
};

const LAYERS: usize = 30;
const D: usize = 576;
const FFN: usize = 1536;
const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const DIM: usize = 64;
const VOCAB: usize = 49152;
const BLOCK: usize = 16;
/// Positions of a row in the cache.
const MAX: usize = 2064;
/// Rows of the cache.
const ROWS: usize = 16;

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
        patch: None,
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

/// Runs `work(thread)` on `threads` threads at once.
fn on_threads(threads: usize, work: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let work = &work;
            scope.spawn(move || work(thread));
        }
    });
}

/// Bytes per second of reading a large array on `threads` threads: the best of several passes, in one, two
/// and four streams a thread.
fn read_bandwidth(data: &[[u64; 16]], threads: usize) -> f64 {
    let part = data.len() / threads;
    let mut best = f64::INFINITY;
    for pass in 0..30 {
        let start = Instant::now();
        on_threads(threads, |thread| {
            let data = &data[thread * part..][..part];
            black_box(match pass % 3 {
                0 => read::<1>(data),
                1 => read::<2>(data),
                _ => read::<4>(data),
            });
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    (part * threads * size_of::<[u64; 16]>()) as f64 / best
}

/// Combines all of `data`, read in `STREAMS` streams side by side.
fn read<const STREAMS: usize>(data: &[[u64; 16]]) -> [u64; 16] {
    let length = data.len() / STREAMS;
    let streams: [&[[u64; 16]]; STREAMS] = std::array::from_fn(|stream| &data[stream * length..][..length]);
    let mut sums = [0u64; 16];
    for at in 0..length {
        for stream in streams {
            for (sum, value) in sums.iter_mut().zip(&stream[at]) {
                *sum ^= value;
            }
        }
    }
    sums
}

/// Multiply-adds of 8-bit integers per second that `threads` threads reach in registers, if the processor has an
/// instruction for them.
fn int8_peak(threads: usize) -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    if Isa::detect() == Isa::Avx512Vnni {
        const ROUNDS: usize = 2_000_000;
        let mut best = f64::INFINITY;
        for _ in 0..5 {
            let start = Instant::now();
            // SAFETY: detected above.
            on_threads(threads, |_| unsafe { vnni(ROUNDS) });
            best = best.min(start.elapsed().as_secs_f64());
        }
        return Some((threads * ROUNDS * 12 * 64) as f64 / best);
    }
    let _ = threads;
    None
}

/// # Safety
/// AVX-512 VNNI.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn vnni(rounds: usize) {
    use std::arch::x86_64::*;
    let (x, y) = (_mm512_set1_epi8(3), _mm512_set1_epi8(black_box(1)));
    let mut sums = [_mm512_setzero_si512(); 12];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_dpbusd_epi32(*sum, x, y);
        }
    }
    black_box(sums.map(|sum| _mm512_reduce_add_epi32(sum)));
}

/// A phase to time.
struct Phase {
    rows: usize,
    new: usize,
    context: usize,
    runs: usize,
}

const PHASES: [Phase; 11] = [
    Phase { rows: 1, new: 1, context: 16, runs: 21 },
    Phase { rows: 2, new: 1, context: 16, runs: 21 },
    Phase { rows: 4, new: 1, context: 16, runs: 21 },
    Phase { rows: 8, new: 1, context: 16, runs: 21 },
    Phase { rows: 16, new: 1, context: 16, runs: 21 },
    Phase { rows: 1, new: 1, context: 512, runs: 15 },
    Phase { rows: 8, new: 1, context: 512, runs: 15 },
    Phase { rows: 1, new: 1, context: 2048, runs: 15 },
    Phase { rows: 8, new: 1, context: 2048, runs: 9 },
    Phase { rows: 1, new: 128, context: 0, runs: 5 },
    Phase { rows: 1, new: 512, context: 0, runs: 3 },
];

/// Multiply-adds with weights in a phase: all layers for every token, the head once a row.
fn products(phase: &Phase) -> f64 {
    let layer = (HEADS + 2 * KV_HEADS) * DIM * D + HEADS * DIM * D + 3 * D * FFN;
    (phase.rows * (phase.new * LAYERS * layer + VOCAB * D)) as f64
}

#[allow(clippy::print_stdout, reason = "the output of this program")]
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let threads: Vec<usize> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    let names: Vec<&String> = args.iter().filter(|arg| arg.parse::<usize>().is_err()).collect();
    let threads = if threads.is_empty() { vec![1, 2] } else { threads };
    println!("{:?}; read bound: weights once per step at the measured read bandwidth;", Isa::detect());
    println!("int8 peak: products with weights at the measured speed of 8-bit dot products in registers\n");
    println!("| weights | threads | phase | rows | context | ms | tok/s | of read bound | of int8 peak |");
    println!("|---|---|---|---|---|---|---|---|---|");
    // Before any decoder pins this thread: threads that it starts would inherit that.
    let data = vec![[1u64; 16]; 2 << 20];
    let bounds: Vec<_> = threads.iter().map(|threads| (read_bandwidth(&data, *threads), int8_peak(*threads))).collect();
    drop(data);
    for (threads, (bandwidth, peak)) in threads.into_iter().zip(bounds) {
        println!("| | {threads} | read, GB/s | | | | {:.1} | | |", bandwidth / 1e9);
        if let Some(peak) = peak {
            println!("| | {threads} | int8 dot, GMAC/s | | | | {:.1} | | |", peak / 1e9);
        }
        for (name, weights) in [("q4_1+q8_0", Weights::Q4), ("bf16", Weights::Bf16), ("f32", Weights::F32)] {
            if names.is_empty() || names.iter().any(|wanted| *wanted == name) {
                let peak = peak.filter(|_| matches!(weights, Weights::Q4));
                time_phases(name, decoder(weights, threads), threads, bandwidth, peak);
            }
        }
    }
}

#[allow(clippy::print_stdout, reason = "the output of this program")]
fn time_phases(name: &str, mut decoder: Decoder, threads: usize, bandwidth: f64, peak: Option<f64>) {
    let per_row = MAX / BLOCK;
    let mut kv = KvCache::new(LAYERS, KV_HEADS, DIM, ROWS * per_row, BLOCK).expect("a valid cache");
    let mut out = StepOutput::default();
    let tables: Vec<Vec<u32>> =
        (0..ROWS).map(|row| (0..per_row).map(|block| (row * per_row + block) as u32).collect()).collect();
    for phase in &PHASES {
        let tokens = vec![5u32; phase.new];
        let inputs: Vec<RowInput<'_>> = tables[..phase.rows]
            .iter()
            .map(|blocks| RowInput { tokens: &tokens, start: phase.context, blocks, sample: true })
            .collect();
        let ms = median_ms(phase.runs, || {
            decoder.forward(&inputs, &mut kv, StepNeeds::default(), &mut out).expect("a step")
        });
        let rate = (phase.rows * phase.new) as f64 / ms * 1e3;
        let read = 100.0 * decoder.weight_bytes() as f64 / bandwidth * 1e3 / ms;
        let compute = peak.map_or(String::new(), |peak| format!("{:.0} %", 100.0 * products(phase) / peak * 1e3 / ms));
        let what = if phase.new == 1 { "decode" } else { "prefill" };
        let count = phase.rows * phase.new;
        let context = phase.context;
        println!(
            "| {name} | {threads} | {what} | {count} | {context} | {ms:.2} | {rate:.0} | {read:.0} % | {compute} |"
        );
    }
}
