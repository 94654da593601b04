//! How long kernels and steps take on a device, and what they have to read, write and compute for it.

use std::time::Instant;

use super::collective::Alone;
use super::decoder::{CudaDecoder, CudaLimits, CudaNeeds, CudaOutput};
use super::inputs::{BatchInputs, Limits};
use super::matrix::{ActivationType, DeviceMatrix, MatrixKind};
use super::memory::{Buffer, Device};
use super::ops::{ATTENTION_SPLIT, Activations, Heads, LayerCache, RopeWeights, SIGNAL_WORDS};
use super::weights::CudaWeights;
use crate::{DecoderConfig, Error, KvDtype, RowInput, SignalSet};

/// Launches that are timed as one graph: what a launch costs the host is no part of a kernel's time.
const LAUNCHES: usize = 20;
/// Replays of the graph: the fastest counts.
const REPLAYS: usize = 5;
const BLOCK: usize = 32;

/// One kernel at one size.
#[derive(Debug, Clone, PartialEq)]
pub struct Timing {
    /// The kernel.
    pub kernel: &'static str,
    /// Its sizes.
    pub case: String,
    /// Seconds of a launch.
    pub seconds: f64,
    /// Bytes that it has to read and write.
    pub bytes: usize,
    /// Multiplications and additions on tensor cores; 0 where memory is the only bound.
    pub flops: usize,
}

/// A step of a whole model.
#[derive(Debug, Clone, PartialEq)]
pub struct StepTiming {
    /// Rows, each with one new token.
    pub batch: usize,
    /// Positions that each attends to.
    pub context: usize,
    /// Whether the step was one launch of a graph.
    pub graph: bool,
    /// Seconds, with the copies of inputs and signals.
    pub seconds: f64,
    /// Bytes of weights, keys and values that it has to read.
    pub bytes: usize,
}

/// Seconds of one launch: the best of some replays of a graph of many.
fn time(device: &Device, mut launch: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    // Loads the kernel, which a capture must not.
    launch()?;
    device.synchronize()?;
    let graph = device.capture(|| (0..LAUNCHES).try_for_each(|_| launch()))?;
    let mut best = f64::INFINITY;
    for _ in 0..REPLAYS {
        device.synchronize()?;
        let start = Instant::now();
        // SAFETY: what `launch` names outlives this function.
        unsafe { graph.launch()? };
        device.synchronize()?;
        best = best.min(start.elapsed().as_secs_f64() / LAUNCHES as f64);
    }
    Ok(best)
}

/// Bytes per second that a copy within the device reads and writes: the bound of everything that memory bounds.
pub fn bandwidth(device: &Device, bytes: usize) -> Result<f64, Error> {
    let half = bytes / 2 / 16 * 16;
    let memory = device.buffer::<u8>(2 * half)?;
    // One block of a block would be one block of threads: many small ones fill the device.
    let blocks = 2 * half / 65_536;
    let pairs: Vec<i32> = (0..blocks as i32 / 2).flat_map(|i| [i, i + blocks as i32 / 2]).collect();
    let pairs = device.upload(&pairs)?;
    let memory = memory.slice(0..blocks * 65_536);
    let seconds = time(device, || device.copy_blocks((memory, 1), blocks, pairs.all()))?;
    Ok((blocks * 65_536) as f64 / seconds)
}

/// Kernels at the sizes of a model, for batches of one token a row.
pub fn kernels(
    device: &Device,
    c: &DecoderConfig,
    batches: &[usize],
    contexts: &[usize],
) -> Result<Vec<Timing>, Error> {
    let mut timings = Vec::new();
    for batch in batches {
        timings.extend(products(device, c, *batch)?);
        timings.extend(rows(device, c, *batch)?);
        for context in contexts {
            timings.push(attention(device, c, (*batch, *context))?);
        }
    }
    Ok(timings)
}

fn products(device: &Device, c: &DecoderConfig, batch: usize) -> Result<Vec<Timing>, Error> {
    let mut timings = Vec::new();
    for (n, k) in [(c.heads * c.head_dim, c.d_model), (c.ffn, c.d_model), (c.d_model, c.ffn), (c.vocab, c.d_model)] {
        for (kernel, kind) in
            [("gemm_tensor_bf16", MatrixKind::Bf16), ("gemm_q8", MatrixKind::Q8), ("gemm_q4", MatrixKind::Q4)]
        {
            let matrix = DeviceMatrix::zeros(device, kind, n, k)?;
            let a = Activations::new(device, matrix.activation(), batch, k)?;
            let out = device.buffer::<f32>(batch * n)?;
            let seconds = time(device, || device.multiply(&a, &matrix, batch, (out.all(), n)))?;
            timings.push(Timing {
                kernel,
                case: format!("{batch} x {n} x {k}"),
                seconds,
                bytes: matrix.bytes() + batch * (k * a.kind.bytes() + 4 * n),
                flops: if kind == MatrixKind::Bf16 { 2 * batch * n * k } else { 0 },
            });
        }
    }
    Ok(timings)
}

/// Norms, rotations, gates and signals.
fn rows(device: &Device, c: &DecoderConfig, batch: usize) -> Result<Vec<Timing>, Error> {
    let (d, kind) = (c.d_model, ActivationType::Bf16);
    let heads = Heads { query: c.heads, kv: c.kv_heads, dim: c.head_dim };
    let floats = |count: usize| device.buffer::<f32>(count);
    let (x, delta, weight) = (floats(batch * d)?, floats(batch * d)?, floats(d)?);
    let normed = Activations::new(device, kind, batch, d)?;
    let norm = || device.rms_norm((x.all(), Some(delta.all())), (None, batch), (weight.all(), 1e-6), &normed, None);
    let (gates, gated) = (floats(batch * 2 * c.ffn)?, Activations::new(device, kind, batch, c.ffn)?);
    let (logits, words, top) = (floats(batch * c.vocab)?, device.buffer::<u32>(batch * SIGNAL_WORDS)?, 100);
    let largest = device.buffer::<u32>(batch * 2 * top)?;
    let signals = |top: usize| {
        device.logit_signals((logits.all(), c.vocab), (c.vocab, None), (top, true), (words.all(), largest.all()))
    };
    let cache = Cache::new(device, heads, batch, 1)?;
    let (qkv, table) = (floats(batch * heads.width())?, floats(c.head_dim / 2)?);
    let rope =
        RopeWeights { biases: None, norms: None, eps: 1e-6, cos: table.all(), sin: table.all(), interleaved: false };
    let rope = || device.rope_append(qkv.all(), &cache.inputs, &rope, cache.layer(), heads);
    let case = |what: &str| format!("{batch} x {what}");
    let timing = |kernel, case, seconds, bytes| Timing { kernel, case, seconds, bytes, flops: 0 };
    Ok(vec![
        timing("rms_norm", case(&d.to_string()), time(device, norm)?, batch * d * (3 * 4 + 2)),
        timing(
            "silu_mul",
            case(&c.ffn.to_string()),
            time(device, || device.silu_mul(gates.all(), c.ffn, &gated))?,
            batch * c.ffn * 10,
        ),
        timing(
            "rope_append",
            case(&format!("{}/{} heads", c.heads, c.kv_heads)),
            time(device, rope)?,
            batch * heads.width() * 7,
        ),
        timing("logit_signals", case(&format!("{} vocab", c.vocab)), time(device, || signals(0))?, batch * c.vocab * 4),
        timing(
            "logit_signals",
            case(&format!("{} vocab, top 100", c.vocab)),
            time(device, || signals(top))?,
            batch * c.vocab * 4,
        ),
    ])
}

/// Keys and values of one layer, with a batch of one token a row at the end of its context.
struct Cache {
    keys: Buffer<u8>,
    values: Buffer<u8>,
    inputs: BatchInputs,
}

impl Cache {
    fn new(device: &Device, heads: Heads, batch: usize, context: usize) -> Result<Self, Error> {
        let per_row = context.div_ceil(BLOCK);
        let blocks = batch * per_row;
        let limits = Limits { tokens: batch, rows: batch, vocab: 1, positions: context, blocks, block_size: BLOCK };
        let mut inputs = BatchInputs::new(device, limits)?;
        let ids: Vec<u32> = (0..blocks as u32).collect();
        let row = |blocks| RowInput { tokens: &[0], start: context - 1, blocks, sample: true };
        inputs.set(&ids.chunks(per_row).map(row).collect::<Vec<_>>(), (batch, batch))?;
        let bytes = blocks * BLOCK * heads.kv_width() * KvDtype::Bf16.bytes();
        Ok(Self { keys: device.buffer(bytes)?, values: device.buffer(bytes)?, inputs })
    }

    fn layer(&self) -> LayerCache<'_> {
        LayerCache { keys: self.keys.all(), values: self.values.all(), dtype: KvDtype::Bf16 }
    }
}

fn attention(device: &Device, c: &DecoderConfig, (batch, context): (usize, usize)) -> Result<Timing, Error> {
    let heads = Heads { query: c.heads, kv: c.kv_heads, dim: c.head_dim };
    let cache = Cache::new(device, heads, batch, context)?;
    let qkv = device.buffer::<f32>(batch * heads.width())?;
    let partials = device.buffer::<f32>(Device::partial_len(batch, context.div_ceil(ATTENTION_SPLIT), heads))?;
    let out = Activations::new(device, ActivationType::Bf16, batch, heads.query * heads.dim)?;
    let how = (heads, Some(partials.all()));
    let seconds = time(device, || device.attention(qkv.all(), &cache.inputs, cache.layer(), how, &out))?;
    let bytes = 2 * batch * context * heads.kv_width() * KvDtype::Bf16.bytes();
    Ok(Timing { kernel: "attention_decode", case: format!("{batch} x {context} positions"), seconds, bytes, flops: 0 })
}

/// Steps of a model of `layers` layers with random bf16 weights, at every batch size, with graphs and without.
pub fn steps(
    device: &Device,
    config: &DecoderConfig,
    layers: usize,
    (batches, context): (&[usize], usize),
) -> Result<Vec<StepTiming>, Error> {
    let most = batches.iter().copied().max().unwrap_or(1);
    let per_row = context.div_ceil(BLOCK);
    let mut timings = Vec::new();
    for graphs in [true, false] {
        let weights = CudaWeights::random(device, config, (layers, MatrixKind::Bf16), true)?;
        let limits = CudaLimits {
            tokens: most,
            rows: most,
            kv: (most * per_row, BLOCK),
            kv_dtype: KvDtype::Bf16,
            graphs: if graphs { batches.iter().map(|batch| (*batch, *batch)).collect() } else { Vec::new() },
        };
        let needs = CudaNeeds {
            signals: SignalSet { softmax: true, top_k: 0 },
            extra_row: None,
            bound: config.vocab,
            top_on_host: false,
        };
        let mut decoder = CudaDecoder::new(device, config.clone(), weights, limits, (needs, None), Box::new(Alone))?;
        let kv = 2 * layers * config.kv_heads * config.head_dim * KvDtype::Bf16.bytes();
        for batch in batches {
            let ids: Vec<u32> = (0..(batch * per_row) as u32).collect();
            let row = |blocks| RowInput { tokens: &[1], start: context - 1, blocks, sample: true };
            let rows: Vec<RowInput<'_>> = ids.chunks(per_row).map(row).collect();
            let mut out = CudaOutput::default();
            let mut best = f64::INFINITY;
            for _ in 0..LAUNCHES {
                let start = Instant::now();
                decoder.forward(&rows, &[], &mut out)?;
                best = best.min(start.elapsed().as_secs_f64());
            }
            let bytes = decoder.weight_bytes() + batch * context * kv;
            timings.push(StepTiming { batch: *batch, context, graph: graphs, seconds: best, bytes });
        }
    }
    Ok(timings)
}

#[cfg(all(test, feature = "cuda-emulation"))]
mod tests {
    use super::*;

    /// What is timed runs, and names its bytes.
    #[test]
    fn everything_that_is_timed_runs() {
        let device = Device::emulated();
        let positions = 64;
        let config = DecoderConfig {
            d_model: 32,
            heads: 2,
            kv_heads: 1,
            head_dim: 16,
            ffn: 64,
            vocab: 128,
            head_tokens: None,
            eps: 1e-6,
            cos: vec![1.0; positions * 8],
            sin: vec![0.0; positions * 8],
            rope_interleaved: false,
        };
        let timings = kernels(&device, &config, &[2], &[40]).expect("kernels run");
        assert!(timings.iter().all(|timing| timing.seconds > 0.0 && timing.bytes > 0));
        let attention = timings.last().expect("some");
        assert_eq!((attention.kernel, attention.bytes), ("attention_decode", 2 * 2 * 40 * 16 * 2));
        let steps = steps(&device, &config, 1, (&[1, 2], 40)).expect("steps run");
        assert_eq!(
            steps.iter().map(|step| (step.batch, step.graph)).collect::<Vec<_>>(),
            [(1, true), (2, true), (1, false), (2, false)]
        );
        assert!(bandwidth(&device, 1 << 18).expect("copies") > 0.0);
    }
}
