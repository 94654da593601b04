//! Access to a model's tensors by role, whatever the file format calls them.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use candle_core::quantized::{QTensor, gguf_file};
use candle_core::{DType, Device, Tensor};

use super::ModelError;
use super::safetensors::Shards;

/// A tensor's role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// `[vocab, d_model]`.
    Embedding,
    /// `[d_model]`.
    FinalNorm,
    /// `[vocab, d_model]`; absent when tied to the embedding.
    Head,
    /// A tensor of a layer, by its GGUF name, such as `attn_q`.
    Layer(usize, &'static str),
    /// A bias of a layer, by the GGUF name of its matrix.
    LayerBias(usize, &'static str),
}

/// A tensor as the file holds it.
#[derive(Debug, Clone)]
pub enum StoredTensor {
    /// GGML blocks.
    Quantized(Arc<QTensor>),
    /// Floats of the file's type.
    Dense(Tensor),
}

impl StoredTensor {
    /// Row-major `f32` values on the CPU.
    pub fn to_f32(&self) -> candle_core::Result<Vec<f32>> {
        self.to_dense(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
    }

    /// A dense tensor on `device`, dequantised to `f32` if need be.
    pub fn to_dense(&self, device: &Device) -> candle_core::Result<Tensor> {
        match self {
            Self::Quantized(tensor) => tensor.dequantize(device),
            Self::Dense(tensor) => tensor.to_device(device),
        }
    }

    /// Its dimensions.
    pub fn dims(&self) -> &[usize] {
        match self {
            Self::Quantized(tensor) => tensor.shape().dims(),
            Self::Dense(tensor) => tensor.dims(),
        }
    }
}

enum Store {
    Gguf { content: gguf_file::Content, file: Mutex<BufReader<File>> },
    Safetensors(Shards),
}

/// The tensors of one model.
pub struct Weights {
    path: PathBuf,
    store: Store,
}

impl Weights {
    pub(super) fn gguf(path: PathBuf, content: gguf_file::Content, file: BufReader<File>) -> Self {
        Self { path, store: Store::Gguf { content, file: Mutex::new(file) } }
    }

    pub(super) fn safetensors(path: PathBuf, tensors: Shards) -> Self {
        Self { path, store: Store::Safetensors(tensors) }
    }

    /// Where the tensors come from, for messages.
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// The tensor of a role, or `None` if the file has none.
    pub fn find(&self, slot: Slot) -> Result<Option<StoredTensor>, ModelError> {
        match &self.store {
            Store::Gguf { content, file } => {
                let name = gguf_name(slot);
                if !content.tensor_infos.contains_key(&name) {
                    return Ok(None);
                }
                let mut file = file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                let tensor = content.tensor(&mut *file, &name, &Device::Cpu);
                let tensor = tensor.map_err(|source| {
                    ModelError::invalid(&self.path, format!("tensor `{name}` cannot be read: {source}"))
                })?;
                Ok(Some(StoredTensor::Quantized(Arc::new(tensor))))
            }
            Store::Safetensors(tensors) => Ok(tensors.load(&hf_name(slot))?.map(StoredTensor::Dense)),
        }
    }

    /// The tensor of a role with the dimensions it must have.
    pub fn get(&self, slot: Slot, dims: &[usize]) -> Result<StoredTensor, ModelError> {
        let tensor = self.find(slot)?.ok_or_else(|| {
            let name = if matches!(self.store, Store::Gguf { .. }) { gguf_name(slot) } else { hf_name(slot) };
            ModelError::invalid(&self.path, format!("tensor `{name}` is missing"))
        })?;
        if tensor.dims() != dims {
            let message =
                format!("tensor `{}` has shape {:?}, the model needs {dims:?}", gguf_name(slot), tensor.dims());
            return Err(ModelError::invalid(&self.path, message));
        }
        Ok(tensor)
    }
}

fn gguf_name(slot: Slot) -> String {
    match slot {
        Slot::Embedding => "token_embd.weight".into(),
        Slot::FinalNorm => "output_norm.weight".into(),
        Slot::Head => "output.weight".into(),
        Slot::Layer(layer, name) => format!("blk.{layer}.{name}.weight"),
        Slot::LayerBias(layer, name) => format!("blk.{layer}.{name}.bias"),
    }
}

fn hf_name(slot: Slot) -> String {
    match slot {
        Slot::Embedding => "model.embed_tokens.weight".into(),
        Slot::FinalNorm => "model.norm.weight".into(),
        Slot::Head => "lm_head.weight".into(),
        Slot::Layer(layer, name) => format!("model.layers.{layer}.{}.weight", hf_layer_name(name)),
        Slot::LayerBias(layer, name) => format!("model.layers.{layer}.{}.bias", hf_layer_name(name)),
    }
}

fn hf_layer_name(gguf: &'static str) -> &'static str {
    match gguf {
        "attn_norm" => "input_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
        "ffn_norm" => "post_attention_layernorm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        other => other,
    }
}
