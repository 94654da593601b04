//! The transformer over candle tensors: an oracle for the engine's own runners, independent of batching to the last bit.
//!
//! Rows are ragged: each brings 1..k new tokens at its own positions and reads its own KV blocks. Every float
//! product is done one row at a time, because candle's floating-point product takes another path (and rounds
//! differently) for one row than for several. Quantised products work by row anyway.

use candle_core::quantized::ggml_file::qtensor_from_ggml;
use candle_core::quantized::{QMatMul, QTensor};
use candle_core::{DType, Device, IndexOp, Module, Result, Tensor};

use tokenrouter_core::kv::BlockId;
use tokenrouter_core::step::{Batch, BatchRow, Softmax, StepOutput};
use tokenrouter_engine::config::WeightDtype;
use tokenrouter_engine::model::{
    Arch, Family, LinearPatch, LinearPatches, ModelError, ModelFiles, Slot, StoredTensor, Weights, candle_dtype,
};
use tokenrouter_kernels::Format;

enum Linear {
    Quantized(QMatMul),
    /// Transposed, `[in, out]`.
    Dense(Tensor),
}

impl Linear {
    fn new(stored: &StoredTensor, dtype: WeightDtype, device: &Device) -> Result<Self> {
        let target = match dtype {
            WeightDtype::F32 => DType::F32,
            WeightDtype::Bf16 => DType::BF16,
            WeightDtype::F16 => DType::F16,
            WeightDtype::Native => match as_candle_has_it(stored)? {
                Candle::Quantized(tensor) => return Ok(Self::Quantized(QMatMul::from_arc(tensor.into())?)),
                Candle::Dense(tensor) => tensor.dtype(),
            },
        };
        Ok(Self::Dense(dense(stored, device)?.to_dtype(target)?.t()?))
    }

    /// `[rows, in]` to `[rows, out]`, both f32.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Quantized(matrix) => matrix.forward(x),
            Self::Dense(weights) => {
                let x = x.to_dtype(weights.dtype())?;
                let rows = x.dim(0)?;
                let y = if x.device().is_cpu() && rows > 1 {
                    let each: Vec<Tensor> =
                        (0..rows).map(|r| x.narrow(0, r, 1)?.matmul(weights)).collect::<Result<_>>()?;
                    Tensor::cat(&each, 0)?
                } else {
                    x.matmul(weights)?
                };
                y.to_dtype(DType::F32)
            }
        }
    }
}

/// A tensor in candle's form.
enum Candle {
    Quantized(QTensor),
    Dense(Tensor),
}

/// Blocks of formats that candle does not know are dequantised by the kernels.
fn as_candle_has_it(stored: &StoredTensor) -> Result<Candle> {
    let (dims, bytes, device) = (stored.dims(), stored.bytes(), &Device::Cpu);
    let raw = |dtype| Tensor::from_raw_buffer(bytes, dtype, dims, device).map(Candle::Dense);
    let dtype = match stored.format() {
        Format::F32 => return raw(DType::F32),
        Format::F16 => return raw(DType::F16),
        Format::Bf16 => return raw(DType::BF16),
        format => candle_dtype(format),
    };
    let Some(dtype) = dtype else {
        let values = stored.to_f32().map_err(candle_core::Error::wrap)?;
        return Tensor::from_vec(values, dims, device).map(Candle::Dense);
    };
    qtensor_from_ggml(dtype, bytes, dims.to_vec(), device).map(Candle::Quantized)
}

/// The weights as floats, which candle dequantises.
pub fn dense(stored: &StoredTensor, device: &Device) -> Result<Tensor> {
    match as_candle_has_it(stored)? {
        Candle::Quantized(tensor) => tensor.dequantize(device),
        Candle::Dense(tensor) => tensor.to_device(device),
    }
}

struct Layer {
    /// Stands in for layers that were dropped before this one: `[in, out]` and bias.
    patch: Option<(Linear, Tensor)>,
    attn_norm: Tensor,
    q: Linear,
    k: Linear,
    v: Linear,
    /// Qwen2.
    qkv_bias: Option<[Tensor; 3]>,
    /// Qwen3.
    qk_norm: Option<[Tensor; 2]>,
    output: Linear,
    ffn_norm: Tensor,
    gate: Linear,
    up: Linear,
    down: Linear,
    /// `[slots, kv_heads * head_dim]`.
    keys: Tensor,
    values: Tensor,
}

/// A model on candle tensors, with its KV cache.
pub struct CandleDecoder {
    arch: Arch,
    device: Device,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Linear,
    cos: Tensor,
    sin: Tensor,
    block_size: usize,
}

impl std::fmt::Debug for CandleDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CandleDecoder").field("arch", &self.arch).finish_non_exhaustive()
    }
}

impl CandleDecoder {
    /// Loads the weights and makes a cache of `blocks * block_size` positions, on the CPU.
    pub fn load(
        files: &ModelFiles,
        dtype: WeightDtype,
        (blocks, block_size): (usize, usize),
    ) -> std::result::Result<Self, ModelError> {
        let (arch, weights, patches, device) = (&files.arch, &files.weights, &files.patches, &Device::Cpu);
        let failed = |error: candle_core::Error| invalid(weights, &error);
        let loader = Loader { arch, weights, patches, dtype, device };
        let embedding = weights.get(Slot::Embedding, &[arch.vocab, arch.d_model])?;
        let head = match weights.find(Slot::Head)? {
            Some(_) => weights.get(Slot::Head, &[arch.vocab, arch.d_model])?,
            None => embedding.clone(),
        };
        let slots = blocks * block_size;
        let layers =
            arch.layers.iter().map(|layer| loader.layer(*layer, slots)).collect::<std::result::Result<_, _>>()?;
        let positions = arch.context.min(slots);
        let (cos, sin) = arch.rope_tables(positions);
        let table = |values| Tensor::from_vec(values, (positions, arch.head_dim / 2), device).map_err(failed);
        let embed = || dense(&embedding, device)?.to_dtype(DType::F32);
        Ok(Self {
            arch: arch.clone(),
            device: device.clone(),
            embedding: embed().map_err(failed)?,
            layers,
            norm: loader.vector(Slot::FinalNorm, arch.d_model)?,
            head: Linear::new(&head, dtype, device).map_err(failed)?,
            cos: table(cos)?,
            sin: table(sin)?,
            block_size,
        })
    }

    /// One step: hidden states after the final norm `[rows that sample, d_model]` and logits `[rows that sample, vocab]`,
    /// in f32. At least one row must sample.
    pub fn forward(&self, batch: &Batch) -> Result<(Tensor, Tensor)> {
        let x = self.prefill(batch)?;
        let mut end = 0;
        let last = batch.rows().iter().filter_map(|row| {
            end += batch.tokens(row).len();
            row.sample.then_some(end as u32 - 1)
        });
        let last: Vec<u32> = last.collect();
        let count = last.len();
        let x = x.index_select(&Tensor::from_vec(last, count, &self.device)?, 0)?;
        let hidden = candle_nn::ops::rms_norm(&x, &self.norm, self.arch.eps)?;
        let logits = self.head.forward(&hidden)?;
        Ok((hidden, logits))
    }

    /// One step without the head: stores keys and values, returns the residual stream `[new tokens, d_model]`.
    pub fn prefill(&self, batch: &Batch) -> Result<Tensor> {
        self.copy_blocks(batch.copies())?;
        let rows = batch.rows();
        let flat: Vec<u32> = rows.iter().flat_map(|row| batch.tokens(row).iter().copied()).collect();
        let positions: Vec<u32> = rows
            .iter()
            .flat_map(|row| (row.start..row.start + batch.tokens(row).len()).map(|position| position as u32))
            .collect();
        let total = flat.len();
        let positions = Tensor::from_vec(positions, total, &self.device)?;
        let shape = (total, 1, self.arch.head_dim / 2);
        let cos = self.cos.index_select(&positions, 0)?.reshape(shape)?;
        let sin = self.sin.index_select(&positions, 0)?.reshape(shape)?;
        let slots: Vec<Tensor> = rows.iter().map(|row| self.slots(batch, row)).collect::<Result<_>>()?;
        let mut x = self.embedding.index_select(&Tensor::from_vec(flat, total, &self.device)?, 0)?;
        for layer in &self.layers {
            if let Some((weight, bias)) = &layer.patch {
                x = (&x + weight.forward(&x)?.broadcast_add(bias)?)?;
            }
            let h = candle_nn::ops::rms_norm(&x, &layer.attn_norm, self.arch.eps)?;
            let attended = self.attention(layer, &h, (&cos, &sin), batch, &slots)?;
            x = (x + layer.output.forward(&attended)?)?;
            let h = candle_nn::ops::rms_norm(&x, &layer.ffn_norm, self.arch.eps)?;
            let gated = (candle_nn::ops::silu(&layer.gate.forward(&h)?)? * layer.up.forward(&h)?)?;
            x = (x + layer.down.forward(&gated)?)?;
        }
        Ok(x)
    }

    fn copy_blocks(&self, copies: &[(BlockId, BlockId)]) -> Result<()> {
        let size = self.block_size;
        for (from, to) in copies {
            for cache in self.layers.iter().flat_map(|layer| [&layer.keys, &layer.values]) {
                let block = cache.narrow(0, *from as usize * size, size)?.copy()?;
                cache.slice_set(&block, 0, *to as usize * size)?;
            }
        }
        Ok(())
    }

    /// Cache slots of all positions of a row up to its last new token.
    fn slots(&self, batch: &Batch, row: &BatchRow) -> Result<Tensor> {
        let length = row.start + batch.tokens(row).len();
        let blocks = batch.blocks(row);
        let slots: Vec<u32> = (0..length)
            .map(|position| {
                blocks[position / self.block_size] * self.block_size as u32 + (position % self.block_size) as u32
            })
            .collect();
        Tensor::from_vec(slots, length, &self.device)
    }

    fn attention(
        &self,
        layer: &Layer,
        h: &Tensor,
        (cos, sin): (&Tensor, &Tensor),
        batch: &Batch,
        slots: &[Tensor],
    ) -> Result<Tensor> {
        let (heads, kv_heads, dim) = (self.arch.heads, self.arch.kv_heads, self.arch.head_dim);
        let total = h.dim(0)?;
        let [mut q, mut k, mut v] = [layer.q.forward(h)?, layer.k.forward(h)?, layer.v.forward(h)?];
        if let Some([bq, bk, bv]) = &layer.qkv_bias {
            (q, k, v) = (q.broadcast_add(bq)?, k.broadcast_add(bk)?, v.broadcast_add(bv)?);
        }
        let mut q = q.reshape((total, heads, 1, dim))?;
        let mut k = k.reshape((total, kv_heads, 1, dim))?;
        if let Some([q_norm, k_norm]) = &layer.qk_norm {
            q = candle_nn::ops::rms_norm(&q, q_norm, self.arch.eps)?;
            k = candle_nn::ops::rms_norm(&k, k_norm, self.arch.eps)?;
        }
        let rope = if self.arch.rope_interleaved { candle_nn::rotary_emb::rope_i } else { candle_nn::rotary_emb::rope };
        let q = rope(&q.contiguous()?, cos, sin)?.reshape((total, heads, dim))?;
        let k = rope(&k.contiguous()?, cos, sin)?.reshape((total, kv_heads * dim))?;
        let scale = 1.0 / (dim as f64).sqrt();
        let mut out = Vec::with_capacity(total);
        let mut first = 0;
        for (row, slots) in batch.rows().iter().zip(slots) {
            let new = batch.tokens(row).len();
            self.append(layer, batch, row, &k.narrow(0, first, new)?, &v.narrow(0, first, new)?)?;
            let gather = |cache: &Tensor| -> Result<Tensor> {
                cache.index_select(slots, 0)?.reshape(((), kv_heads, dim))?.transpose(0, 1)?.contiguous()
            };
            let (keys, values) = (gather(&layer.keys)?, gather(&layer.values)?);
            // One position at a time: its result then depends on its own past only, not on how a prompt was cut.
            for i in 0..new {
                let length = row.start + i + 1;
                let q = q.i(first + i)?.reshape((kv_heads, heads / kv_heads, dim))?;
                let scores = (q.matmul(&keys.narrow(1, 0, length)?.contiguous()?.transpose(1, 2)?)? * scale)?;
                let weights = candle_nn::ops::softmax_last_dim(&scores)?;
                out.push(weights.matmul(&values.narrow(1, 0, length)?.contiguous()?)?.reshape((1, heads * dim))?);
            }
            first += new;
        }
        Tensor::cat(&out, 0)
    }

    /// Writes the new keys and values of a row into its blocks, one run of consecutive slots at a time.
    fn append(&self, layer: &Layer, batch: &Batch, row: &BatchRow, k: &Tensor, v: &Tensor) -> Result<()> {
        let (blocks, new) = (batch.blocks(row), batch.tokens(row).len());
        let mut done = 0;
        while done < new {
            let position = row.start + done;
            let offset = position % self.block_size;
            let run = (self.block_size - offset).min(new - done);
            let slot = blocks[position / self.block_size] as usize * self.block_size + offset;
            layer.keys.slice_set(&k.narrow(0, done, run)?.contiguous()?, 0, slot)?;
            layer.values.slice_set(&v.narrow(0, done, run)?.contiguous()?, 0, slot)?;
            done += run;
        }
        Ok(())
    }

    /// One greedy step: tokens and every signal that needs no head. At least one row must sample.
    pub fn step(&self, batch: &Batch) -> Result<StepOutput> {
        let (hidden, logits) = self.forward(batch)?;
        let mut output = StepOutput { hidden: hidden.flatten_all()?.to_vec1()?, ..StepOutput::default() };
        for logits in logits.to_vec2::<f32>()? {
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            // The first of equal logits wins, as in the engine.
            output.tokens.push(logits.iter().position(|logit| *logit == max).unwrap_or_default() as u32);
            let log_sum_exp =
                f64::from(max) + logits.iter().map(|logit| f64::from(logit - max).exp()).sum::<f64>().ln();
            let entropy: f64 = logits
                .iter()
                .map(|logit| {
                    let log_p = f64::from(*logit) - log_sum_exp;
                    -log_p.exp() * log_p
                })
                .sum();
            output.softmax.push(Softmax { entropy: entropy as f32, log_sum_exp: log_sum_exp as f32 });
        }
        let ids = Tensor::new(output.tokens.as_slice(), &self.device)?;
        output.embedding = self.embedding.index_select(&ids, 0)?.flatten_all()?.to_vec1()?;
        Ok(output)
    }
}

fn invalid(weights: &Weights, error: &candle_core::Error) -> ModelError {
    ModelError::Invalid { path: weights.path().to_owned(), message: error.to_string() }
}

struct Loader<'a> {
    arch: &'a Arch,
    weights: &'a Weights,
    patches: &'a LinearPatches,
    dtype: WeightDtype,
    device: &'a Device,
}

impl Loader<'_> {
    fn failed(&self, error: candle_core::Error) -> ModelError {
        invalid(self.weights, &error)
    }

    fn vector(&self, slot: Slot, length: usize) -> std::result::Result<Tensor, ModelError> {
        let stored = self.weights.get(slot, &[length])?;
        let load = || dense(&stored, self.device)?.to_dtype(DType::F32);
        load().map_err(|error| self.failed(error))
    }

    fn linear(&self, layer: usize, name: &'static str, dims: [usize; 2]) -> std::result::Result<Linear, ModelError> {
        let stored = self.weights.get(Slot::Layer(layer, name), &dims)?;
        Linear::new(&stored, self.dtype, self.device).map_err(|error| self.failed(error))
    }

    fn patch(&self, patch: &LinearPatch) -> std::result::Result<(Linear, Tensor), ModelError> {
        let d = self.arch.d_model;
        let load = || {
            let weight = Tensor::from_slice(&patch.weight, (d, d), self.device)?.t()?;
            Ok((Linear::Dense(weight), Tensor::from_slice(&patch.bias, d, self.device)?))
        };
        load().map_err(|error| self.failed(error))
    }

    fn layer(&self, index: usize, slots: usize) -> std::result::Result<Layer, ModelError> {
        let arch = self.arch;
        let (d, ffn) = (arch.d_model, arch.ffn);
        let (q_width, kv_width) = (arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim);
        let qkv_bias = match arch.qkv_bias {
            true => Some([
                self.vector(Slot::LayerBias(index, "attn_q"), q_width)?,
                self.vector(Slot::LayerBias(index, "attn_k"), kv_width)?,
                self.vector(Slot::LayerBias(index, "attn_v"), kv_width)?,
            ]),
            false => None,
        };
        let qk_norm = match arch.family {
            Family::Qwen3 => Some([
                self.vector(Slot::Layer(index, "attn_q_norm"), arch.head_dim)?,
                self.vector(Slot::Layer(index, "attn_k_norm"), arch.head_dim)?,
            ]),
            _ => None,
        };
        let cache = || Tensor::zeros((slots, kv_width), DType::F32, self.device).map_err(|error| self.failed(error));
        Ok(Layer {
            patch: self.patches.get(&index).map(|patch| self.patch(patch)).transpose()?,
            attn_norm: self.vector(Slot::Layer(index, "attn_norm"), d)?,
            q: self.linear(index, "attn_q", [q_width, d])?,
            k: self.linear(index, "attn_k", [kv_width, d])?,
            v: self.linear(index, "attn_v", [kv_width, d])?,
            qkv_bias,
            qk_norm,
            output: self.linear(index, "attn_output", [d, q_width])?,
            ffn_norm: self.vector(Slot::Layer(index, "ffn_norm"), d)?,
            gate: self.linear(index, "ffn_gate", [ffn, d])?,
            up: self.linear(index, "ffn_up", [ffn, d])?,
            down: self.linear(index, "ffn_down", [d, ffn])?,
            keys: cache()?,
            values: cache()?,
        })
    }
}
