//! Weights of a model, or of one rank of it, on a device.
//!
//! Tensor parallelism is Megatron's: queries, keys, values, gate and up are cut by rows, so that a rank has some heads and a
//! part of the feed-forward layer; the matrices after them are cut by columns, and their products are summed over the
//! ranks. Embedding and output head are on every rank.

use std::path::Path;

use candle_core::quantized::GgmlDType;
use candle_core::{DType, Tensor};
use half::{bf16, f16};
use tokenrouter_kernels::DecoderConfig;
use tokenrouter_kernels::cuda::{Buffer, CudaLayer, CudaWeights, Device, DeviceMatrix, HostMatrix, MatrixKind};

use super::ranks::Rank;
use crate::config::WeightDtype;
use crate::model::{Arch, Family, LinearPatch, LinearPatches, ModelError, Slot, StoredTensor, Weights};
use crate::runner::native::block_kind;

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
        let kind = match (self.dtype, stored) {
            (WeightDtype::Native, StoredTensor::Quantized(tensor)) => {
                if let Some(kind) = block_kind(tensor.dtype()).filter(|_| k.is_multiple_of(32)) {
                    let bytes = tensor.data().map_err(|error| ModelError::tensor(self.path(), error))?;
                    self.weights.check_blocks(slot, kind, &bytes)?;
                    return HostMatrix::from_blocks(kind, n, k, &bytes).map_err(|error| self.failed(error));
                }
                // Formats without a kernel of their own are computed in f32, but for those that are floats anyway.
                match tensor.dtype() {
                    GgmlDType::F16 => MatrixKind::F16,
                    GgmlDType::BF16 => MatrixKind::Bf16,
                    _ => MatrixKind::F32,
                }
            }
            (WeightDtype::Native, StoredTensor::Dense(tensor))
                if matches!(tensor.dtype(), DType::BF16 | DType::F16) =>
            {
                return self.half_matrix(slot, tensor, n, k);
            }
            (WeightDtype::Native, StoredTensor::Dense(_)) => MatrixKind::F32,
            (WeightDtype::F32, _) => MatrixKind::F32,
            (WeightDtype::Bf16, _) => MatrixKind::Bf16,
            (WeightDtype::F16, _) => MatrixKind::F16,
        };
        let values = self.weights.floats(slot, stored)?;
        if kind == MatrixKind::F16 {
            self.weights.check_range_of_f16(slot, &values)?;
        }
        HostMatrix::from_f32(kind, n, k, &values).map_err(|error| self.failed(error))
    }

    /// As it is: large models would spend minutes on the way over f32.
    fn half_matrix(&self, slot: Slot, tensor: &Tensor, n: usize, k: usize) -> Result<HostMatrix, ModelError> {
        let failed = |error| ModelError::tensor(self.path(), error);
        let flat = tensor.flatten_all().map_err(failed)?;
        let matrix = if tensor.dtype() == DType::BF16 {
            let values = flat.to_vec1::<bf16>().map_err(failed)?;
            self.weights.check_halves(slot, &values)?;
            HostMatrix::from_bits(MatrixKind::Bf16, n, k, values.into_iter().map(bf16::to_bits))
        } else {
            let values = flat.to_vec1::<f16>().map_err(failed)?;
            self.weights.check_halves(slot, &values)?;
            HostMatrix::from_bits(MatrixKind::F16, n, k, values.into_iter().map(f16::to_bits))
        };
        matrix.map_err(|error| self.failed(error))
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
