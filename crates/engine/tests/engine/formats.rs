//! Models whose weights are quantised, computed as the file stores them: against candle's dequantised weights.

use std::path::Path;
use std::sync::Arc;

use candle_core::quantized::QTensor;
use candle_core::quantized::gguf_file::Value;
use candle_core::{Device, Tensor};
use serde_json::json;
use tokenrouter_core::step::Batch;
use tokenrouter_core::{Request, RequestId, SamplingParams};
use tokenrouter_engine::config::{ModelConfig, WeightDtype};
use tokenrouter_engine::model::{ModelFiles, Slot, candle_dtype};
use tokenrouter_engine::runner::{NativeRunner, RunnerOptions};
use tokenrouter_kernels::{Format, Pool};
use tokenrouter_testing::candle_oracle::{CandleDecoder, dense};
use tokenrouter_testing::tiny;

use crate::gguf::{metadata, tensors_of};

const TOKENS: usize = 48;
const SIZE: (usize, usize) = (8, 16);

/// A tensor to be written: dimensions, format and bytes.
struct Stored {
    name: String,
    dims: Vec<usize>,
    format: Format,
    bytes: Vec<u8>,
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn value(out: &mut Vec<u8>, value: &Value) {
    let mut put = |kind: u32, bytes: &[u8]| {
        out.extend(kind.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::U32(v) => put(4, &v.to_le_bytes()),
        Value::F32(v) => put(6, &v.to_le_bytes()),
        Value::String(v) => {
            put(8, &[]);
            text(out, v);
        }
        Value::Array(values) => {
            put(9, &8u32.to_le_bytes());
            out.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|v| text(out, v.to_string().expect("lists of texts")));
        }
        other => panic!("the tests' metadata have no {other:?}"),
    }
}

/// Writes a GGUF file. (Candle's writer knows fewer formats.)
fn write(path: &Path, config: &serde_json::Value, tensors: &[Stored]) {
    let mut values = metadata();
    for (key, name) in [
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("block_count", "num_hidden_layers"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
    ] {
        values.insert(format!("llama.{key}"), Value::U32(config[name].as_u64().expect("a size") as u32));
    }
    let heads = config["num_attention_heads"].as_u64().expect("a size");
    let dim = config["hidden_size"].as_u64().expect("a size") / heads;
    values.insert("llama.rope.dimension_count".into(), Value::U32(dim as u32));
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((values.len() as u64).to_le_bytes());
    for (key, v) in &values {
        text(&mut out, key);
        value(&mut out, v);
    }
    let mut offset = 0;
    for tensor in tensors {
        text(&mut out, &tensor.name);
        out.extend((tensor.dims.len() as u32).to_le_bytes());
        tensor.dims.iter().rev().for_each(|dim| out.extend((*dim as u64).to_le_bytes()));
        out.extend(tensor.format.ggml().to_le_bytes());
        out.extend((offset as u64).to_le_bytes());
        offset += tensor.bytes.len().next_multiple_of(32);
    }
    for tensor in tensors {
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(&tensor.bytes);
    }
    std::fs::write(path, out).expect("writable");
}

/// Quantises to the formats of candle, and to those that it does not have as simply as they allow.
fn quantize(tensor: &Tensor, format: Format) -> Vec<u8> {
    let Some(dtype) = candle_dtype(format) else { return by_table(tensor, format) };
    QTensor::quantize(tensor, dtype).and_then(|tensor| Ok(tensor.data()?.into_owned())).expect("quantised")
}

const IQ4: [f32; 16] = [-127., -104., -83., -65., -49., -35., -22., -10., 1., 13., 25., 38., 53., 69., 89., 113.];
const FP4: [f32; 16] = [0., 1., 2., 3., 4., 6., 8., 12., 0., -1., -2., -3., -4., -6., -8., -12.];

/// The nearest entries of the table, with a scale that makes the largest weight of a block the largest entry.
fn by_table(tensor: &Tensor, format: Format) -> Vec<u8> {
    let values: Vec<f32> = tensor.flatten_all().and_then(|tensor| tensor.to_vec1()).expect("floats");
    let table = if format == Format::Mxfp4 { FP4 } else { IQ4 };
    let mut out = Vec::new();
    for block in values.chunks(format.columns()) {
        let max = block.iter().fold(0f32, |max, x| max.max(x.abs()));
        let scale = match format {
            Format::Mxfp4 => {
                let exponent = (max / 12.0).log2().ceil() as i32;
                out.push((exponent + 128) as u8);
                2f32.powi(exponent)
            }
            Format::Iq4Xs => {
                // All scales are 31: 63 minus 32.
                let d = half::f16::from_f32(max / 113.0 / 31.0);
                out.extend(d.to_le_bytes());
                out.extend([0xff; 6]);
                d.to_f32() * 31.0
            }
            _ => {
                let d = half::f16::from_f32(max / 113.0);
                out.extend(d.to_le_bytes());
                d.to_f32()
            }
        };
        let nearest = |x: f32| {
            let distance = |i: &usize| (table[*i] * scale - x).abs();
            (0..16).min_by(|a, b| distance(a).total_cmp(&distance(b))).expect("16 entries") as u8
        };
        for block in block.chunks(32) {
            out.extend((0..16).map(|i| nearest(block[i]) | nearest(block[i + 16]) << 4));
        }
    }
    out
}

fn config() -> serde_json::Value {
    let mut config = tiny::config("llama");
    for (key, value) in [("hidden_size", 256), ("intermediate_size", 512), ("num_hidden_layers", 2)] {
        config[key] = json!(value);
    }
    config
}

/// The random model; `format` says how each matrix is stored.
fn model(dir: &Path, format: impl Fn(&str) -> Format) -> (ModelFiles, usize) {
    let config = config();
    let tensors: Vec<Stored> = tensors_of(&config)
        .into_iter()
        .map(|(name, tensor)| {
            let format = if tensor.rank() == 1 { Format::F32 } else { format(&name) };
            Stored { dims: tensor.dims().to_vec(), bytes: quantize(&tensor, format), name, format }
        })
        .collect();
    let path = dir.join("model.gguf");
    write(&path, &config, &tensors);
    let matrices = tensors.iter().filter(|t| t.dims.len() > 1 && t.name != "token_embd.weight");
    (open(&path).expect("a model"), matrices.map(|tensor| tensor.bytes.len()).sum())
}

fn open(path: &Path) -> Result<ModelFiles, String> {
    let config = ModelConfig { path: Some(path.to_owned()), ..ModelConfig::default() };
    ModelFiles::open(&config).map_err(|error| error.to_string())
}

fn native(files: &ModelFiles, dtype: WeightDtype, threads: usize) -> Result<NativeRunner, String> {
    let options = RunnerOptions { kv: SIZE, ..RunnerOptions::default() };
    let pool = Pool::new(threads, None).expect("threads");
    let runner = NativeRunner::load(&files.arch, (&files.weights, &files.patches), dtype, &options, pool);
    runner.map_err(|error| error.to_string())
}

/// The logits after every token of a text, fed one by one.
fn logits(mut step: impl FnMut(&Batch) -> Vec<f32>) -> Vec<Vec<f32>> {
    let request = Arc::new(Request::new(vec![0], SamplingParams::default(), 0));
    let blocks: Vec<u32> = (0..SIZE.0 as u32).collect();
    let log: Vec<u32> = (0..TOKENS).map(|i| ((i * i * 7 + i * 3) % tiny::VOCAB) as u32).collect();
    (0..TOKENS)
        .map(|i| {
            let mut batch = Batch::default();
            batch.push(RequestId(0), &request, (&log[..=i], i..i + 1), &blocks);
            step(&batch)
        })
        .collect()
}

/// Mean KL divergence in nats, and the share of equal first choices.
fn compare(got: &[Vec<f32>], want: &[Vec<f32>]) -> (f64, f64) {
    let log_softmax = |x: &[f32]| {
        let max = x.iter().copied().fold(f32::MIN, f32::max);
        let sum = x.iter().map(|x| f64::from(x - max).exp()).sum::<f64>().ln();
        x.iter().map(|x| f64::from(x - max) - sum).collect::<Vec<_>>()
    };
    let first = |x: &[f32]| (0..x.len()).max_by(|a, b| x[*a].total_cmp(&x[*b]));
    let (mut kl, mut same) = (0.0, 0.0);
    for (got, want) in got.iter().zip(want) {
        let (q, p) = (log_softmax(got), log_softmax(want));
        kl += p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
        same += f64::from(u8::from(first(got) == first(want)));
    }
    (kl / got.len() as f64, same / got.len() as f64)
}

fn check(what: &str, format: impl Fn(&str) -> Format) {
    let dir = tempfile::tempdir().expect("a folder");
    let (files, bytes) = model(dir.path(), format);
    // Every tensor has the weights that candle reads from it.
    for slot in [Slot::Embedding, Slot::Head, Slot::Layer(0, "attn_v"), Slot::Layer(1, "ffn_down")] {
        let stored = files.weights.find(slot).expect("readable").expect("there");
        let candle = dense(&stored, &Device::Cpu).and_then(|t| t.to_dtype(candle_core::DType::F32)?.flatten_all());
        let candle: Vec<f32> = candle.and_then(|tensor| tensor.to_vec1()).expect("floats");
        assert_eq!(stored.to_f32().expect("floats"), candle, "{what}, {slot:?}");
    }
    let oracle = CandleDecoder::load(&files, WeightDtype::F32, SIZE).expect("loads");
    let want = logits(|batch| oracle.forward(batch).and_then(|(_, t)| t.flatten_all()?.to_vec1()).expect("logits"));
    let run = |dtype, threads| {
        let mut runner = native(&files, dtype, threads).expect("loads");
        let size = runner.parts().0.weight_bytes();
        (logits(|batch| runner.logits(batch).expect("a step").to_vec()), size)
    };
    let (got, size) = run(WeightDtype::Native, 1);
    // As stored, and no more than 15 % of that above it.
    assert!(size * 100 <= bytes * 115, "{what}: {size} bytes in memory, {bytes} in the file");
    let (kl, same) = compare(&got, &want);
    assert!(kl < 1e-3 && same >= 0.9, "{what}: KL {kl}, first choices {same}");
    assert_eq!(run(WeightDtype::Native, 2).0, got, "{what}");
    // Dequantised, nothing is rounded but sums.
    let (kl, same) = compare(&run(WeightDtype::F32, 1).0, &want);
    assert!(kl < 1e-8 && same == 1.0, "{what} as f32: KL {kl}, first choices {same}");
}

#[test]
fn every_format_gives_the_logits_of_its_dequantised_weights() {
    for format in Format::ALL {
        check(format.name(), |_| format);
    }
}

/// As `llama-quantize` writes Q4_K_M: values and the second matrix of the feed-forward layer, of some layers, have more
/// bits, and so has the head.
#[test]
fn formats_may_differ_from_tensor_to_tensor() {
    check("Q4_K_M", |name| match name {
        "output.weight" | "blk.1.attn_v.weight" | "blk.1.ffn_down.weight" => Format::Q6K,
        _ => Format::Q4K,
    });
    let all = Format::ALL;
    check("all in turn", |name| all[name.bytes().map(usize::from).sum::<usize>() % all.len()]);
}

#[test]
fn other_types_can_be_asked_for_and_halves_stay_halves() {
    let dir = tempfile::tempdir().expect("a folder");
    let (files, bytes) = model(dir.path(), |_| Format::F16);
    let run = |dtype| {
        let mut runner = native(&files, dtype, 1).expect("loads");
        let size = runner.parts().0.weight_bytes();
        (logits(|batch| runner.logits(batch).expect("a step").to_vec()), size)
    };
    let (got, size) = run(WeightDtype::Native);
    assert_eq!((&got, size), (&run(WeightDtype::F32).0, bytes), "widening is exact");
    assert_eq!(run(WeightDtype::F16).0, got);
    let (bf16, size) = run(WeightDtype::Bf16);
    let (kl, same) = compare(&bf16, &got);
    assert!(size == bytes && kl > 0.0 && kl < 1e-4 && same >= 0.9, "KL {kl}, first choices {same}");
}

/// A file of some size, with zeros for weights: it is neither widened nor held twice.
#[test]
fn loading_needs_little_more_memory_than_the_file() {
    const D: usize = 2048;
    const FFN: usize = 8192;
    let mut config = tiny::config("llama");
    for (key, value) in
        [("hidden_size", D), ("intermediate_size", FFN), ("num_hidden_layers", 1), ("num_attention_heads", 16)]
    {
        config[key] = json!(value);
    }
    let matrix = |name: &str, format: Format, n: usize, k: usize| Stored {
        name: format!("{name}.weight"),
        dims: vec![n, k],
        format,
        bytes: vec![0; n * k / format.columns() * format.bytes()],
    };
    let norm = |name: &str| Stored {
        name: format!("{name}.weight"),
        dims: vec![D],
        format: Format::F32,
        bytes: 1f32.to_le_bytes().repeat(D),
    };
    let tensors = [
        matrix("token_embd", Format::Q4K, tiny::VOCAB, D),
        norm("output_norm"),
        norm("blk.0.attn_norm"),
        matrix("blk.0.attn_q", Format::Q4K, D, D),
        matrix("blk.0.attn_k", Format::Q4K, D / 8, D),
        matrix("blk.0.attn_v", Format::Q6K, D / 8, D),
        matrix("blk.0.attn_output", Format::Q4K, D, D),
        norm("blk.0.ffn_norm"),
        matrix("blk.0.ffn_gate", Format::Q4K, FFN, D),
        matrix("blk.0.ffn_up", Format::Q4K, FFN, D),
        matrix("blk.0.ffn_down", Format::Q6K, D, FFN),
    ];
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("model.gguf");
    write(&path, &config, &tensors);
    let size = std::fs::metadata(&path).expect("a file").len();
    let files = open(&path).expect("a model");
    let mut runner = None;
    let counted = allocation_counter::measure(|| runner = native(&files, WeightDtype::Native, 1).ok());
    assert!(runner.is_some());
    // Of the last matrix, the file's form is there as well; small matrices share memory that is taken in large parts.
    let last = tensors.last().map_or(0, |tensor| tensor.bytes.len() as u64);
    let allowed = size * 115 / 100 + last + (16 << 20);
    assert!(counted.bytes_max <= allowed, "{} bytes for a file of {size}, allowed are {allowed}", counted.bytes_max);
    assert!(counted.bytes_current as u64 <= size * 115 / 100 + (16 << 20), "{} bytes stay", counted.bytes_current);
}

#[test]
fn blocks_with_bad_scales_and_rows_without_whole_blocks_name_their_tensor() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("model.gguf");
    for (format, at) in [(Format::Q4K, 2), (Format::Q6K, 208), (Format::Q2K, 82), (Format::Q5_1, 2), (Format::F16, 2)] {
        let tensors = |spoil: bool| {
            let of = |(name, tensor): (String, Tensor)| {
                let wanted = name == "blk.1.ffn_up.weight";
                let format = if wanted { format } else { Format::F32 };
                let mut bytes = quantize(&tensor, format);
                if wanted && spoil {
                    let at = 3 * format.bytes() + if format == Format::F16 { 0 } else { at };
                    bytes[at..at + 2].copy_from_slice(&0x7c00u16.to_le_bytes());
                }
                Stored { dims: tensor.dims().to_vec(), bytes, name, format }
            };
            tensors_of(&config()).into_iter().map(of).collect::<Vec<_>>()
        };
        write(&path, &config(), &tensors(false));
        assert!(native(&open(&path).expect("opens"), WeightDtype::Native, 1).is_ok());
        write(&path, &config(), &tensors(true));
        let message = native(&open(&path).expect("opens"), WeightDtype::Native, 1).expect_err("infinite");
        assert!(message.contains("tensor `blk.1.ffn_up.weight` holds inf"), "{message}");
        assert!(message.contains(if format == Format::F16 { "at index 3" } else { "of block 3" }), "{message}");
    }
    let mut tensors: Vec<Stored> = tensors_of(&config())
        .into_iter()
        .map(|(name, tensor)| Stored {
            dims: tensor.dims().to_vec(),
            bytes: quantize(&tensor, Format::F32),
            name,
            format: Format::F32,
        })
        .collect();
    let up = tensors.iter_mut().find(|tensor| tensor.name == "blk.1.ffn_up.weight").expect("there");
    (up.format, up.dims) = (Format::Q4K, vec![1024, 128]);
    write(&path, &config(), &tensors);
    let message = open(&path).expect_err("half blocks");
    let wanted = "tensor `blk.1.ffn_up.weight` has rows of 128 numbers, Q4_K allows multiples of 256";
    assert!(message.contains(wanted), "{message}");
}
