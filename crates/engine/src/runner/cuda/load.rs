//! Weights of a model, or of one rank of it, on a device.
//!
//! Tensor parallelism is Megatron's: queries, keys, values, gate and up are cut by rows, so that a rank has some heads and a
//! part of the feed-forward layer; the matrices after them are cut by columns, and their products are summed over the
//! ranks. Embedding and output head are on every rank.

use std::path::Path;

use tokenrouter_kernels::cuda::{Buffer, CudaLayer, CudaWeights, Device, DeviceMatrix, HostMatrix, MatrixKind};
use tokenrouter_kernels::{DecoderConfig, Format};

use super::ranks::Rank;
use crate::config::WeightDtype;
use crate::model::{Arch, Family, LinearPatch, LinearPatches, ModelError, Slot, StoredTensor, Weights};

/// Whether a model can be divided among this many ranks.
pub(super) fn check_ranks(arch: &Arch, ranks: usize) -> Result<(), String> {
    for (what, size) in [("heads", arch.heads), ("key/value heads", arch.kv_heads), ("feed-forward rows", arch.ffn)] {
        if ranks == 0 || !size.is_multiple_of(ranks) {
            return Err(format!("`tp_size` is {ranks}: the model's {size} {what} cannot be divided by that"));
        }
    }
    Ok(())
}

pub(super) struct Loader<'a> {
    pub(super) arch: &'a Arch,
    pub(super) weights: &'a Weights,
    pub(super) patches: &'a LinearPatches,
    pub(super) dtype: WeightDtype,
    pub(super) device: &'a Device,
    pub(super) rank: Rank,
}

/// How a matrix is divided among ranks.
#[derive(Clone, Copy)]
enum Cut {
    Whole,
    Rows,
    Columns,
}

impl Loader<'_> {
    /// The rank's share of the shape, and its weights.
    pub(super) fn load(
        &self,
        (blocks, block_size): (usize, usize),
    ) -> Result<(DecoderConfig, CudaWeights), ModelError> {
        let (arch, (_, ranks)) = (self.arch, self.rank);
        if arch.head_tokens.is_some() {
            let message = "a head for a part of the vocabulary is computed on the CPU only: use `device: cpu`";
            return Err(ModelError::invalid(self.path(), message));
        }
        let embedding = self.matrix(Slot::Embedding, (arch.vocab, arch.d_model), Cut::Whole)?;
        let head = match self.weights.has(Slot::Head) {
            true => Some(self.matrix(Slot::Head, (arch.vocab, arch.d_model), Cut::Whole)?),
            false => None,
        };
        let layers = arch.layers.iter().map(|layer| self.layer(*layer)).collect::<Result<_, _>>()?;
        let norm = self.vector(Slot::FinalNorm, arch.d_model)?;
        let whole = arch.decoder_config(arch.context.min(blocks * block_size));
        let config = DecoderConfig {
            heads: arch.heads / ranks,
            kv_heads: arch.kv_heads / ranks,
            ffn: arch.ffn / ranks,
            ..whole
        };
        Ok((config, CudaWeights { embedding, layers, norm, head }))
    }

    fn path(&self) -> &Path {
        self.weights.path()
    }

    fn failed(&self, error: tokenrouter_kernels::Error) -> ModelError {
        ModelError::invalid(self.path(), error.to_string())
    }

    fn matrix(&self, slot: Slot, (n, k): (usize, usize), cut: Cut) -> Result<DeviceMatrix, ModelError> {
        let stored = self.weights.get(slot, &[n, k])?;
        let (rank, ranks) = self.rank;
        let whole = self.host_matrix(slot, &stored, n, k)?;
        let part = match cut {
            Cut::Whole => Ok(whole),
            _ if ranks == 1 => Ok(whole),
            Cut::Rows => whole.rows(rank, ranks),
            Cut::Columns => whole.columns(rank, ranks),
        };
        part.and_then(|part| DeviceMatrix::upload(self.device, &part)).map_err(|error| self.failed(error))
    }

    fn host_matrix(&self, slot: Slot, stored: &StoredTensor, n: usize, k: usize) -> Result<HostMatrix, ModelError> {
        // Formats without a kernel of their own are computed in f32.
        let native = match stored.format() {
            Format::F16 => MatrixKind::F16,
            Format::Bf16 => MatrixKind::Bf16,
            _ => MatrixKind::F32,
        };
        let kind = match self.dtype {
            WeightDtype::Native => match stored.format() {
                format @ (Format::Q4_0 | Format::Q4_1 | Format::Q8_0) => {
                    self.weights.check(slot, stored)?;
                    let host = HostMatrix::from_blocks(format, n, k, stored.bytes());
                    return host.map_err(|error| self.failed(error));
                }
                _ => native,
            },
            WeightDtype::F32 => MatrixKind::F32,
            WeightDtype::Bf16 => MatrixKind::Bf16,
            WeightDtype::F16 => MatrixKind::F16,
        };
        if kind == native && kind != MatrixKind::F32 {
            // As it is: large models would spend minutes on the way over f32.
            self.weights.check(slot, stored)?;
            let bits = stored.bytes().as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
            return HostMatrix::from_bits(kind, n, k, bits).map_err(|error| self.failed(error));
        }
        let values = self.weights.floats(slot, stored)?;
        if kind == MatrixKind::F16 {
            self.weights.check_range_of_f16(slot, &values)?;
        }
        HostMatrix::from_f32(kind, n, k, &values).map_err(|error| self.failed(error))
    }

    fn upload(&self, values: &[f32]) -> Result<Buffer<f32>, ModelError> {
        self.device.upload(values).map_err(|error| self.failed(error))
    }

    fn vector(&self, slot: Slot, length: usize) -> Result<Buffer<f32>, ModelError> {
        self.upload(&self.weights.floats(slot, &self.weights.get(slot, &[length])?)?)
    }

    fn patch(&self, patch: &LinearPatch) -> Result<(DeviceMatrix, Buffer<f32>), ModelError> {
        let d = self.arch.d_model;
        let host = HostMatrix::from_f32(MatrixKind::F32, d, d, &patch.weight);
        let matrix = host.and_then(|host| DeviceMatrix::upload(self.device, &host));
        Ok((matrix.map_err(|error| self.failed(error))?, self.upload(&patch.bias)?))
    }

    /// Biases of the rank's heads of queries, keys and values.
    fn biases(&self, layer: usize, (q, kv): (usize, usize)) -> Result<Buffer<f32>, ModelError> {
        let (rank, ranks) = self.rank;
        let mut biases = Vec::new();
        for (name, width) in [("attn_q", q), ("attn_k", kv), ("attn_v", kv)] {
            let slot = Slot::LayerBias(layer, name);
            let whole = self.weights.floats(slot, &self.weights.get(slot, &[width])?)?;
            biases.extend_from_slice(&whole[width / ranks * rank..width / ranks * (rank + 1)]);
        }
        self.upload(&biases)
    }

    fn layer(&self, index: usize) -> Result<CudaLayer, ModelError> {
        let arch = self.arch;
        let (d, ffn) = (arch.d_model, arch.ffn);
        let (q, kv) = (arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim);
        let matrix = |name, shape, cut| self.matrix(Slot::Layer(index, name), shape, cut);
        let norm = |name, length| self.vector(Slot::Layer(index, name), length);
        Ok(CudaLayer {
            patch: self.patches.get(&index).map(|patch| self.patch(patch)).transpose()?,
            attn_norm: norm("attn_norm", d)?,
            qkv: [
                matrix("attn_q", (q, d), Cut::Rows)?,
                matrix("attn_k", (kv, d), Cut::Rows)?,
                matrix("attn_v", (kv, d), Cut::Rows)?,
            ],
            qkv_bias: match arch.qkv_bias {
                true => Some(self.biases(index, (q, kv))?),
                false => None,
            },
            qk_norm: match arch.family {
                Family::Qwen3 => Some([norm("attn_q_norm", arch.head_dim)?, norm("attn_k_norm", arch.head_dim)?]),
                _ => None,
            },
            output: matrix("attn_output", (d, q), Cut::Columns)?,
            ffn_norm: norm("ffn_norm", d)?,
            gate_up: [matrix("ffn_gate", (ffn, d), Cut::Rows)?, matrix("ffn_up", (ffn, d), Cut::Rows)?],
            down: matrix("ffn_down", (d, ffn), Cut::Columns)?,
        })
    }
}
