//! A model's weights on a device.

use super::matrix::{ActivationType, DeviceMatrix, MatrixKind};
use super::memory::{Buffer, Device};
use super::ops::Heads;
use crate::{DecoderConfig, Error, check};

/// Weights of a layer, as [`crate::LayerWeights`], on a device.
#[derive(Debug)]
pub struct CudaLayer {
    /// Stands in for layers that were dropped before this one: `[d_model, d_model]` and `[d_model]`.
    pub patch: Option<(DeviceMatrix, Buffer<f32>)>,
    /// `[d_model]`.
    pub attn_norm: Buffer<f32>,
    /// Queries, keys, values: `[heads * head_dim, d_model]`, and twice `[kv_heads * head_dim, d_model]`.
    pub qkv: [DeviceMatrix; 3],
    /// Concatenated biases of the three (Qwen2).
    pub qkv_bias: Option<Buffer<f32>>,
    /// Norms of every query head and every key head, `[head_dim]` each (Qwen3).
    pub qk_norm: Option<[Buffer<f32>; 2]>,
    /// `[d_model, heads * head_dim]`.
    pub output: DeviceMatrix,
    /// `[d_model]`.
    pub ffn_norm: Buffer<f32>,
    /// Gate and up, `[ffn, d_model]` each.
    pub gate_up: [DeviceMatrix; 2],
    /// `[d_model, ffn]`.
    pub down: DeviceMatrix,
}

/// A model's weights on a device.
#[derive(Debug)]
pub struct CudaWeights {
    /// `[vocab, d_model]`.
    pub embedding: DeviceMatrix,
    /// The layers.
    pub layers: Vec<CudaLayer>,
    /// `[d_model]`.
    pub norm: Buffer<f32>,
    /// `[vocab, d_model]`; `None`: the embedding.
    pub head: Option<DeviceMatrix>,
}

impl CudaWeights {
    /// Weights of a model without biases that look random, made on the device; `qk_norm` as Qwen3 has them.
    pub fn random(
        device: &Device,
        c: &DecoderConfig,
        (layers, kind): (usize, MatrixKind),
        qk_norm: bool,
    ) -> Result<Self, Error> {
        let (d, q, kv) = (c.d_model, c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let mut seed = 0;
        let mut matrix = |n: usize, k: usize| {
            let matrix = DeviceMatrix::zeros(device, kind, n, k)?;
            seed += 1;
            // Sums of k products of this size stay near 1.
            device.fill(&matrix, seed, (3.0 / k as f32).sqrt()).map(|()| matrix)
        };
        let ones = |n: usize| device.upload(&vec![1.0; n]);
        let embedding = matrix(c.vocab, d)?;
        let layer = |_| {
            Ok(CudaLayer {
                patch: None,
                attn_norm: ones(d)?,
                qkv: [matrix(q, d)?, matrix(kv, d)?, matrix(kv, d)?],
                qkv_bias: None,
                qk_norm: if qk_norm { Some([ones(c.head_dim)?, ones(c.head_dim)?]) } else { None },
                output: matrix(d, q)?,
                ffn_norm: ones(d)?,
                gate_up: [matrix(c.ffn, d)?, matrix(c.ffn, d)?],
                down: matrix(d, c.ffn)?,
            })
        };
        let layers = (0..layers).map(layer).collect::<Result<_, Error>>()?;
        Ok(Self { embedding, layers, norm: ones(d)?, head: None })
    }

    /// The type of activations of all products but those with patches.
    pub(super) fn activation(&self) -> ActivationType {
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let mut layers = self
            .layers
            .iter()
            .flat_map(|layer| layer.qkv.iter().chain(&layer.gate_up).chain([&layer.output, &layer.down]));
        let kind = head.activation();
        if layers.all(|matrix| matrix.activation() == kind) { kind } else { ActivationType::F32 }
    }

    /// Whether they have the shapes of the configuration.
    pub(super) fn check(&self, c: &DecoderConfig, heads: Heads) -> Result<(), Error> {
        let (d, q, kv) = (c.d_model, c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let matrix = |what, m: &DeviceMatrix, n, k| {
            check(what, m.n(), m.n() == n, n).and_then(|()| check(what, m.k(), m.k() == k, k))
        };
        let vector = |what, v: &Buffer<f32>, n: usize| check(what, v.len(), v.len() == n, n);
        matrix("embedding", &self.embedding, c.vocab, d)?;
        self.head.iter().try_for_each(|head| matrix("head", head, c.vocab, d))?;
        vector("final norm", &self.norm, d)?;
        check("rotary sines", c.sin.len(), c.sin.len() == c.cos.len(), c.cos.len())?;
        for layer in &self.layers {
            vector("attention norm", &layer.attn_norm, d)?;
            vector("feed-forward norm", &layer.ffn_norm, d)?;
            for (m, n) in layer.qkv.iter().zip([q, kv, kv]) {
                matrix("queries, keys or values", m, n, d)?;
            }
            matrix("attention output", &layer.output, d, q)?;
            layer.gate_up.iter().try_for_each(|m| matrix("gate or up", m, c.ffn, d))?;
            matrix("down", &layer.down, d, c.ffn)?;
            if let Some((weight, bias)) = &layer.patch {
                matrix("patch", weight, d, d)?;
                vector("bias of a patch", bias, d)?;
            }
            layer.qkv_bias.iter().try_for_each(|bias| vector("qkv bias", bias, heads.width()))?;
            layer.qk_norm.iter().flatten().try_for_each(|norm| vector("head norm", norm, c.head_dim))?;
        }
        Ok(())
    }
}
