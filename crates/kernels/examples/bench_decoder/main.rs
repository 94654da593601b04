//! Measures decode and prefill speed of a random model of the shape of SmolLM2-135M, and the limits of the machine.
//!
//! `cargo run --release -p tokenrouter-kernels --example bench_decoder -- [--threads 1,2] [--weights q4_1+q8_0,bf16,f32]
//! [--kv f32,f16,bf16] [--batch 1,2,4,8,16] [--ctx 16,512,2048] [--prefill 128,512] [--isa avx2] [--runs 15] [--min]
//! [--json] [--format all|q4_k,q6_k,f16 [--shape 32768,4096]]`
//!
//! `--format` measures products of one random matrix in these formats instead of a model: `--batch` and `--prefill` are
//! their numbers of rows.
//!
//! `--min` reports the shortest time of a phase instead of the median, for machines that others use too. `--json` prints
//! one object per line.

mod bounds;
mod formats;

use std::sync::Arc;
use std::time::Instant;

use bounds::Peaks;
use formats::Matrices;
use tokenrouter_kernels::{
    Decoder, DecoderConfig, Format, Isa, KvCache, KvDtype, LayerWeights, PackedMatrix, Pool, RowInput, StepNeeds,
    StepOutput,
};

const LAYERS: usize = 30;
const D: usize = 576;
const FFN: usize = 1536;
const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const DIM: usize = 64;
const VOCAB: usize = 49152;
const BLOCK: usize = 16;

#[derive(Clone, Copy)]
enum Weights {
    Q4,
    Bf16,
    F32,
}

fn matrix(weights: Weights, kind: Format, n: usize, k: usize) -> PackedMatrix {
    let values = || (0..n * k).map(|i| ((i * 2_654_435_761) % 1000) as f32 / 1e4 - 0.05).collect::<Vec<_>>();
    match weights {
        // Small scales: the exponents of the half floats stay low for any bytes.
        Weights::Q4 => PackedMatrix::from_blocks(kind, n, k, &vec![0x11; n * k / 32 * kind.bytes()]),
        Weights::Bf16 => PackedMatrix::bf16_from_f32(n, k, &values()),
        Weights::F32 => PackedMatrix::from_f32(n, k, &values()),
    }
    .expect("fitting shapes")
}

fn decoder(weights: Weights, isa: Isa, threads: usize, positions: usize) -> Decoder {
    let m = |n, k| matrix(weights, Format::Q4_1, n, k);
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
    let head = Arc::new(matrix(weights, Format::Q8_0, VOCAB, D));
    let config = DecoderConfig {
        d_model: D,
        heads: HEADS,
        kv_heads: KV_HEADS,
        head_dim: DIM,
        ffn: FFN,
        vocab: VOCAB,
        head_tokens: None,
        eps: 1e-5,
        cos: vec![1.0; positions * DIM / 2],
        sin: vec![0.0; positions * DIM / 2],
        rope_interleaved: true,
    };
    let pool = Pool::new(threads, Some((0..threads).collect())).expect("threads");
    let layers = (0..LAYERS).map(layer).collect();
    Decoder::new(config, (isa, pool), Arc::clone(&head), layers, vec![1.0; D], head).expect("a valid model")
}

/// What to time.
struct Options {
    threads: Vec<usize>,
    weights: Vec<(&'static str, Weights)>,
    kv: Vec<(&'static str, KvDtype)>,
    batches: Vec<usize>,
    contexts: Vec<usize>,
    prefills: Vec<usize>,
    isa: Isa,
    runs: usize,
    min: bool,
    json: bool,
    /// Measures matrices instead of a model.
    formats: Option<(Vec<Format>, Matrices)>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self, String> {
        let value = |name: &str, default: &str| {
            let at = args.iter().position(|arg| arg == name);
            at.and_then(|at| args.get(at + 1)).map_or(default.to_owned(), String::clone)
        };
        let numbers = |name: &str, default: &str| -> Result<Vec<usize>, String> {
            let text = value(name, default);
            let parts = text.split(',').filter(|part| !part.is_empty());
            parts.map(|part| part.parse().map_err(|_| format!("{name} {text}: not numbers"))).collect()
        };
        let isa = match value("--isa", "best").as_str() {
            "baseline" => Isa::Baseline,
            "avx2" => Isa::Avx2,
            "avxvnni" => Isa::AvxVnni,
            _ => Isa::detect(),
        };
        let (runs, min) =
            (numbers("--runs", "15")?.first().copied().unwrap_or(15), args.iter().any(|arg| arg == "--min"));
        let formats = match value("--format", "").as_str() {
            "" => None,
            names => {
                let [n, k] = numbers("--shape", "32768,4096")?[..] else { return Err("--shape: not n,k".into()) };
                let rows = [numbers("--batch", "1,4,16")?, numbers("--prefill", "128")?].concat();
                Some((formats::parse(names)?, Matrices { shape: (n, k), rows, runs, min, isa }))
            }
        };
        Ok(Self {
            threads: numbers("--threads", "1,2")?,
            weights: choose(
                &value("--weights", "q4_1+q8_0,bf16,f32"),
                &[("q4_1+q8_0", Weights::Q4), ("bf16", Weights::Bf16), ("f32", Weights::F32)],
            )?,
            kv: choose(
                &value("--kv", "f16"),
                &[("f32", KvDtype::F32), ("f16", KvDtype::F16), ("bf16", KvDtype::Bf16)],
            )?,
            batches: numbers("--batch", "1,2,4,8,16")?,
            contexts: numbers("--ctx", "16,512,2048")?,
            prefills: numbers("--prefill", "128,512")?,
            isa,
            runs,
            min,
            formats,
            json: args.iter().any(|arg| arg == "--json"),
        })
    }

    fn phases(&self) -> Vec<Phase> {
        let decode = self
            .contexts
            .iter()
            .flat_map(|context| self.batches.iter().map(|rows| Phase { rows: *rows, new: 1, context: *context }));
        decode.chain(self.prefills.iter().map(|new| Phase { rows: 1, new: *new, context: 0 })).collect()
    }
}

/// Selects the named entries of `all`.
fn choose<T: Copy>(names: &str, all: &[(&'static str, T)]) -> Result<Vec<(&'static str, T)>, String> {
    let find = |name| all.iter().find(|(known, _)| *known == name).copied();
    let known = || all.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    names.split(',').map(|name| find(name).ok_or_else(|| format!("`{name}` is none of {}", known()))).collect()
}

/// A step to time: new tokens of some rows, each after a context.
struct Phase {
    rows: usize,
    new: usize,
    context: usize,
}

impl Phase {
    /// Multiply-adds with weights: all layers for every token, the output matrix once per row.
    fn products(&self) -> f64 {
        let layer = (HEADS + 2 * KV_HEADS) * DIM * D + HEADS * DIM * D + 3 * D * FFN;
        (self.rows * (self.new * LAYERS * layer + VOCAB * D)) as f64
    }

    /// Bytes of keys and values that are read at least once.
    fn kv_bytes(&self, dtype: KvDtype) -> f64 {
        (self.rows * (self.context + self.new) * LAYERS * 2 * KV_HEADS * DIM * dtype.bytes()) as f64
    }
}

/// Milliseconds of a step: the median or the minimum.
fn time_ms(runs: usize, min: bool, mut step: impl FnMut()) -> f64 {
    step();
    let mut times: Vec<f64> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            step();
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_unstable_by(f64::total_cmp);
    times[if min { 0 } else { runs / 2 }]
}

#[allow(clippy::print_stdout, reason = "the output of this program")]
fn main() -> Result<(), String> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let options = Options::parse(&args)?;
    if !options.json && options.formats.is_none() {
        println!("{:?}; read bound: weights, keys and values once a step at the measured read bandwidth;", options.isa);
        println!(
            "peak: products with weights at the measured speed of 8-bit dot products (f32: multiply-adds) in registers\n"
        );
        println!("| weights | KV | threads | phase | batch | context | ms | tok/s | of read bound | of peak |");
        println!("|---|---|---|---|---|---|---|---|---|---|");
    }
    // Must run before a decoder pins this thread, because new threads inherit the pinning.
    let data = bounds::array();
    let bound = |threads: &usize| (*threads, bounds::read_bandwidth(&data, *threads), bounds::peaks(*threads));
    let bounds: Vec<_> = options.threads.iter().map(bound).collect();
    drop(data);
    if let Some((formats, matrices)) = &options.formats {
        return bounds.iter().try_for_each(|(threads, read, _)| matrices.measure(formats, (*threads, *read)));
    }
    for bounds in bounds {
        let (threads, bandwidth, Peaks { int8, f32 }) = bounds;
        if options.json {
            println!(
                r#"{{"threads":{threads},"read_bytes_s":{bandwidth:.4e},"int8_mac_s":{int8:.4e},"f32_mac_s":{f32:.4e}}}"#
            );
        } else {
            println!("| | | {threads} | read {:.1} GB/s | | | | | | |", bandwidth / 1e9);
            println!("| | | {threads} | int8 dot {:.1}, f32 {:.1} GMAC/s | | | | | | |", int8 / 1e9, f32 / 1e9);
        }
        for weights in &options.weights {
            time_phases(&options, *weights, bounds);
        }
    }
    Ok(())
}

fn time_phases(options: &Options, weights: (&str, Weights), bounds: (usize, f64, Peaks)) {
    let phases = options.phases();
    let per_row = phases.iter().map(|phase| phase.context + phase.new).max().unwrap_or(1).div_ceil(BLOCK);
    let rows = phases.iter().map(|phase| phase.rows).max().unwrap_or(1);
    let mut decoder = decoder(weights.1, options.isa, bounds.0, per_row * BLOCK);
    let tables: Vec<Vec<u32>> =
        (0..rows).map(|row| (0..per_row).map(|block| (row * per_row + block) as u32).collect()).collect();
    for (kv_name, dtype) in &options.kv {
        let mut kv = KvCache::new(LAYERS, KV_HEADS, DIM, (rows * per_row, BLOCK), *dtype).expect("a valid cache");
        let mut out = StepOutput::default();
        for phase in &phases {
            fill(&mut decoder, &mut kv, &tables[..phase.rows], phase.context, &mut out);
            let tokens = vec![5u32; phase.new];
            let input = |blocks| RowInput { tokens: &tokens, start: phase.context, blocks, sample: true };
            let inputs: Vec<RowInput<'_>> = tables[..phase.rows].iter().map(|table| input(table)).collect();
            let ms = time_ms(options.runs, options.min, || {
                decoder.forward(&inputs, &mut kv, StepNeeds::default(), &mut out).expect("a step");
            });
            let read = decoder.weight_bytes() as f64 + phase.kv_bytes(*dtype);
            report(options, (weights, kv_name, phase), bounds, (ms, read));
        }
    }
}

/// Gives the rows a context.
fn fill(decoder: &mut Decoder, kv: &mut KvCache, tables: &[Vec<u32>], context: usize, out: &mut StepOutput) {
    let tokens: Vec<u32> = (0..context).map(|i| (i * 7 % VOCAB) as u32).collect();
    for (index, tokens) in tokens.chunks(256).enumerate() {
        let row = RowInput { tokens, start: index * 256, blocks: &tables[0], sample: false };
        decoder.forward(&[row], kv, StepNeeds::default(), out).expect("a step");
    }
    for table in &tables[1..] {
        for (from, to) in tables[0].iter().zip(table).take(context.div_ceil(BLOCK)) {
            kv.copy_block(*from, *to).expect("blocks exist");
        }
    }
}

#[allow(clippy::print_stdout, reason = "the output of this program")]
fn report(
    options: &Options,
    ((name, weights), kv, phase): ((&str, Weights), &str, &Phase),
    (threads, bandwidth, peaks): (usize, f64, Peaks),
    (ms, read): (f64, f64),
) {
    let peak = if matches!(weights, Weights::Q4) { peaks.int8 } else { peaks.f32 };
    let what = if phase.new == 1 { "decode" } else { "prefill" };
    let tokens = (phase.rows * phase.new) as f64;
    let rate = tokens / ms * 1e3;
    let (read_s, products_s) = (read / bandwidth, if peak > 0.0 { phase.products() / peak } else { 0.0 });
    let Phase { rows, new, context } = phase;
    if options.json {
        let bound = tokens / read_s.max(products_s);
        let context = context + if *new == 1 { 0 } else { *new };
        println!(
            r#"{{"phase":"{what}","weights":"{name}","kv":"{kv}","threads":{threads},"batch":{rows},"ctx":{context},"ours_tok_s":{rate:.1},"bound_tok_s":{bound:.1}}}"#
        );
    } else {
        let percent = |s: f64| if s > 0.0 { format!("{:.0} %", 100.0 * s / ms * 1e3) } else { String::new() };
        let (read, products) = (percent(read_s), percent(products_s));
        let batch = rows * new;
        println!(
            "| {name} | {kv} | {threads} | {what} | {batch} | {context} | {ms:.2} | {rate:.0} | {read} | {products} |"
        );
    }
}
