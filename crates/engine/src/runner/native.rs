//! The runner over this project's CPU kernels.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tokenrouter_kernels::{
    Decoder, Format, Isa, KvCache, KvDtype, LayerWeights, PackedMatrix, Patch, Pool, SignalSet, StepNeeds,
};

use super::sampler::{Candidates, Sampler};
use super::{RunnerOptions, row_inputs};
use crate::config::{KvDtypeConfig, WeightDtype};
use crate::model::{Arch, Family, LinearPatch, LinearPatches, ModelError, Slot, StoredTensor, Weights};
use tokenrouter_core::routing::SignalNeeds;
use tokenrouter_core::step::Batch;
use tokenrouter_core::step::{ModelRunner, RunnerError, Softmax, StepOutput};

/// Runs a model on the CPU kernels, with its KV cache.
#[derive(Debug)]
pub struct NativeRunner {
    decoder: Decoder,
    kv: KvCache,
    needs: SignalNeeds,
    vocab: usize,
    d_model: usize,
    sampler: Sampler,
    step: tokenrouter_kernels::StepOutput,
}

impl NativeRunner {
    /// Loads and repacks the weights.
    pub fn load(
        arch: &Arch,
        (weights, patches): (&Weights, &LinearPatches),
        dtype: WeightDtype,
        options: &RunnerOptions,
        pool: Pool,
    ) -> Result<Self, ModelError> {
        let (blocks, block_size) = options.kv;
        let path = weights.path();
        let failed = |error: tokenrouter_kernels::Error| ModelError::invalid(path, error.to_string());
        let kv = KvCache::new(
            arch.layers.len(),
            arch.kv_heads,
            arch.head_dim,
            (blocks, block_size),
            kv_dtype(options.kv_dtype),
        )
        .map_err(failed)?;
        let loader = Loader { arch, weights, patches, dtype };
        let embedding = Arc::new(loader.matrix(Slot::Embedding, arch.vocab, arch.d_model)?);
        let head = match (&arch.head_tokens, weights.has(Slot::Head)) {
            (Some(tokens), _) => Arc::new(loader.part_of_head(tokens)?),
            (None, true) => Arc::new(loader.matrix(Slot::Head, arch.vocab, arch.d_model)?),
            (None, false) => Arc::clone(&embedding),
        };
        let layers = arch.layers.iter().map(|layer| loader.layer(*layer)).collect::<Result<_, _>>()?;
        let config = arch.decoder_config(arch.context.min(blocks * block_size));
        let norm = loader.vector(Slot::FinalNorm, arch.d_model)?;
        let decoder = Decoder::new(config, (Isa::detect(), pool), embedding, layers, norm, head).map_err(failed)?;
        Ok(Self {
            decoder,
            kv,
            needs: options.needs,
            vocab: arch.vocab,
            d_model: arch.d_model,
            sampler: Sampler::new(options),
            step: tokenrouter_kernels::StepOutput::default(),
        })
    }

    /// The decoder and its cache, for those who run steps without a scheduler.
    pub fn parts(&mut self) -> (&mut Decoder, &mut KvCache) {
        (&mut self.decoder, &mut self.kv)
    }

    /// One step: logits `[rows that sample, vocab]`, valid until the next step.
    pub fn logits(&mut self, batch: &Batch) -> Result<&[f32], tokenrouter_kernels::Error> {
        for (from, to) in batch.copies() {
            self.kv.copy_block(*from, *to)?;
        }
        let rows = row_inputs(batch);
        let needs = StepNeeds {
            hidden: self.needs.hidden,
            residual: false,
            signals: SignalSet { softmax: self.needs.softmax, top_k: self.needs.top_logits },
            extra_row: self.needs.extra_row,
        };
        self.decoder.forward(&rows, &mut self.kv, needs, &mut self.step)?;
        Ok(&self.step.logits)
    }
}

impl ModelRunner for NativeRunner {
    fn forward(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), RunnerError> {
        self.step(batch, output).map_err(RunnerError::new)
    }
}

impl NativeRunner {
    fn step(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), tokenrouter_kernels::Error> {
        output.clear();
        self.logits(batch)?;
        let start = Instant::now();
        let step = &mut self.step;
        let rows = batch.rows().iter().filter(|row| row.sample);
        for ((row, logits), signals) in rows.zip(step.logits.chunks_exact_mut(self.vocab)).zip(&step.signals) {
            let raw = row.request.logprobs.map(|_| logits.to_vec());
            let candidates = Candidates { logits, argmax: Some(signals.argmax), history: batch.history(row) };
            output.tokens.push(self.sampler.sample(candidates, &row.request, row.position()));
            if let Some(raw) = raw {
                self.sampler.note_logprobs(row, &raw, output);
            }
            if self.needs.softmax {
                output.softmax.push(Softmax { entropy: signals.entropy, log_sum_exp: signals.log_sum_exp });
            }
        }
        output.sampling = start.elapsed();
        std::mem::swap(&mut output.top, &mut step.top);
        std::mem::swap(&mut output.hidden, &mut step.hidden);
        std::mem::swap(&mut output.extra, &mut step.extra);
        if self.needs.embedding {
            output.embedding.resize(output.tokens.len() * self.d_model, 0.0);
            for (token, out) in output.tokens.iter().zip(output.embedding.chunks_exact_mut(self.d_model)) {
                self.decoder.embedding_row(*token, out)?;
            }
        }
        Ok(())
    }
}

struct Loader<'a> {
    arch: &'a Arch,
    weights: &'a Weights,
    patches: &'a LinearPatches,
    dtype: WeightDtype,
}

impl Loader<'_> {
    fn path(&self) -> &Path {
        self.weights.path()
    }

    fn matrix(&self, slot: Slot, n: usize, k: usize) -> Result<PackedMatrix, ModelError> {
        self.pack(slot, self.weights.get(slot, &[n, k])?)
    }

    /// The head of a model that can write these tokens: a matrix that has no other rows, or rows of one that has.
    fn part_of_head(&self, tokens: &[u32]) -> Result<PackedMatrix, ModelError> {
        let (slot, d) = (if self.weights.has(Slot::Head) { Slot::Head } else { Slot::Embedding }, self.arch.d_model);
        let stored = self.weights.get_shaped(slot, &[&[tokens.len(), d], &[self.arch.vocab, d]])?;
        let stored = if stored.dims() == [tokens.len(), d] { stored } else { stored.rows(tokens) };
        self.pack(slot, stored)
    }

    fn pack(&self, slot: Slot, stored: StoredTensor) -> Result<PackedMatrix, ModelError> {
        let (n, k) = match stored.dims() {
            [n, k] => (*n, *k),
            other => {
                let message = format!("tensor `{}` has shape {other:?}, a matrix is needed", self.weights.name(slot));
                return Err(ModelError::invalid(self.weights.path_of(slot), message));
            }
        };
        let format = match self.dtype {
            WeightDtype::Native => stored.format(),
            WeightDtype::F32 => Format::F32,
            WeightDtype::Bf16 => Format::Bf16,
            WeightDtype::F16 => Format::F16,
        };
        let packed = if format == stored.format() {
            self.weights.check(slot, &stored)?;
            PackedMatrix::from_blocks(format, n, k, stored.bytes())
        } else {
            let values = self.weights.floats(slot, &stored)?;
            drop(stored);
            match format {
                Format::Bf16 => PackedMatrix::bf16_from_f32(n, k, &values),
                Format::F16 => {
                    self.weights.check_range_of_f16(slot, &values)?;
                    PackedMatrix::f16_from_f32(n, k, &values)
                }
                _ => PackedMatrix::from_f32(n, k, &values),
            }
        };
        let name = || self.weights.name(slot);
        packed.map_err(|error| ModelError::invalid(self.weights.path_of(slot), format!("tensor `{}`: {error}", name())))
    }

    fn vector(&self, slot: Slot, length: usize) -> Result<Vec<f32>, ModelError> {
        self.weights.floats(slot, &self.weights.get(slot, &[length])?)
    }

    fn patch(&self, patch: &LinearPatch) -> Result<Patch, ModelError> {
        let d = self.arch.d_model;
        let weight = PackedMatrix::from_f32(d, d, &patch.weight);
        let weight = weight.map_err(|error| ModelError::invalid(self.path(), error.to_string()))?;
        Ok(Patch { weight, bias: patch.bias.clone() })
    }

    fn layer(&self, index: usize) -> Result<LayerWeights, ModelError> {
        let arch = self.arch;
        let (d, ffn) = (arch.d_model, arch.ffn);
        let (q, kv) = (arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim);
        let matrix = |name, n, k| self.matrix(Slot::Layer(index, name), n, k);
        let norm = |name, length| self.vector(Slot::Layer(index, name), length);
        let bias = |name, length| self.vector(Slot::LayerBias(index, name), length);
        Ok(LayerWeights {
            patch: self.patches.get(&index).map(|patch| self.patch(patch)).transpose()?,
            attn_norm: norm("attn_norm", d)?,
            q: matrix("attn_q", q, d)?,
            k: matrix("attn_k", kv, d)?,
            v: matrix("attn_v", kv, d)?,
            qkv_bias: match arch.qkv_bias {
                true => Some([bias("attn_q", q)?, bias("attn_k", kv)?, bias("attn_v", kv)?].concat()),
                false => None,
            },
            qk_norm: match arch.family {
                Family::Qwen3 => Some([norm("attn_q_norm", arch.head_dim)?, norm("attn_k_norm", arch.head_dim)?]),
                _ => None,
            },
            output: matrix("attn_output", d, q)?,
            ffn_norm: norm("ffn_norm", d)?,
            gate: matrix("ffn_gate", ffn, d)?,
            up: matrix("ffn_up", ffn, d)?,
            down: matrix("ffn_down", d, ffn)?,
        })
    }
}

pub(super) fn kv_dtype(config: KvDtypeConfig) -> KvDtype {
    match config {
        KvDtypeConfig::F32 => KvDtype::F32,
        KvDtypeConfig::F16 => KvDtype::F16,
        KvDtypeConfig::Bf16 => KvDtype::Bf16,
    }
}
