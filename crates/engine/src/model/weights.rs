//! Access to a model's tensors by role, whatever the file format calls them.

use std::path::PathBuf;
use std::sync::Arc;

use ::safetensors::tensor::Dtype;
use candle_core::quantized::{QStorage, QTensor};
use candle_core::{DType, Device, Tensor};
use tokenrouter_kernels::BlockKind;

use super::names::{Kind, Names};
use super::parts::Parts;
use super::safetensors::{Shards, wrong_type};
use super::{Arch, ModelError, finite};

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

    /// Some rows of a matrix, as they are stored. All are below its number of rows.
    pub fn rows(&self, rows: &[u32]) -> candle_core::Result<Self> {
        match self {
            Self::Quantized(tensor) => {
                let (n, k) = tensor.shape().dims2()?;
                let (bytes, dtype) = (tensor.data()?, tensor.dtype());
                let chosen: Vec<u8> = rows
                    .iter()
                    .flat_map(|row| &bytes[*row as usize * (bytes.len() / n)..][..bytes.len() / n])
                    .copied()
                    .collect();
                let storage = QStorage::from_data(chosen.into(), &Device::Cpu, dtype)?;
                Ok(Self::Quantized(Arc::new(QTensor::new(storage, (rows.len(), k))?)))
            }
            Self::Dense(tensor) => {
                let index = Tensor::new(rows, tensor.device())?;
                Ok(Self::Dense(tensor.index_select(&index, 0)?))
            }
        }
    }

    /// Bytes that it takes.
    fn bytes(&self) -> usize {
        match self {
            Self::Quantized(tensor) => tensor.storage_size_in_bytes(),
            Self::Dense(tensor) => tensor.elem_count() * tensor.dtype().size_in_bytes(),
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
    Gguf(Parts),
    Safetensors {
        tensors: Shards,
        /// Whether the output head is the embedding, whatever the files have.
        tied: bool,
    },
}

/// The tensors of one model.
pub struct Weights {
    path: PathBuf,
    store: Store,
    /// The model whose embedding this one, a student, shares.
    shared: Option<Box<Weights>>,
}

impl Weights {
    pub(super) fn gguf(path: PathBuf, parts: Parts) -> Self {
        Self { path, store: Store::Gguf(parts), shared: None }
    }

    pub(super) fn safetensors(path: PathBuf, tensors: Shards, tied: bool) -> Self {
        Self { path, store: Store::Safetensors { tensors, tied }, shared: None }
    }

    /// These weights with the embedding of another model, and its head if they have none.
    pub(super) fn with_embedding_of(self, other: Self) -> Self {
        Self { shared: Some(Box::new(other)), ..self }
    }

    /// Whose tensor of a role it is.
    fn owner(&self, slot: Slot) -> &Self {
        match (&self.shared, slot) {
            (Some(shared), Slot::Embedding) => shared,
            (Some(shared), Slot::Head) if !self.has_own(slot) => shared,
            _ => self,
        }
    }

    /// Where the tensors come from, for messages.
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// The file or folder of the tensor of a role, for messages.
    pub fn path_of(&self, slot: Slot) -> &std::path::Path {
        &self.owner(slot).path
    }

    /// What the files call the tensor of a role.
    pub fn name(&self, slot: Slot) -> String {
        match self.owner(slot).store {
            Store::Gguf(_) => gguf_name(slot),
            Store::Safetensors { .. } => hf_name(slot),
        }
    }

    /// Whether there is a tensor of a role. There is no head where it is the embedding.
    pub fn has(&self, slot: Slot) -> bool {
        self.owner(slot).has_own(slot)
    }

    fn has_own(&self, slot: Slot) -> bool {
        match &self.store {
            Store::Gguf(parts) => parts.has(&gguf_name(slot)),
            Store::Safetensors { tied: true, .. } if slot == Slot::Head => false,
            Store::Safetensors { tensors, .. } => tensors.has(&hf_name(slot)),
        }
    }

    /// The tensor of a role, or `None` if there is none.
    pub fn find(&self, slot: Slot) -> Result<Option<StoredTensor>, ModelError> {
        if !self.has(slot) {
            return Ok(None);
        }
        self.owner(slot).load(&self.name(slot))
    }

    fn load(&self, name: &str) -> Result<Option<StoredTensor>, ModelError> {
        Ok(match &self.store {
            Store::Gguf(parts) => parts.tensor(name)?.map(|tensor| StoredTensor::Quantized(Arc::new(tensor))),
            Store::Safetensors { tensors, .. } => tensors.load(name)?.map(StoredTensor::Dense),
        })
    }

    /// The tensor of a role with the dimensions it must have.
    pub fn get(&self, slot: Slot, dims: &[usize]) -> Result<StoredTensor, ModelError> {
        let path = self.path_of(slot);
        let missing = || ModelError::invalid(path, format!("tensor `{}` is missing", self.name(slot)));
        let tensor = self.find(slot)?.ok_or_else(missing)?;
        if tensor.dims() != dims {
            let message =
                format!("tensor `{}` has shape {:?}, the model needs {dims:?}", self.name(slot), tensor.dims());
            return Err(ModelError::invalid(path, message));
        }
        Ok(tensor)
    }

    /// The values of a role's tensor, row by row. They are all finite.
    pub fn floats(&self, slot: Slot, tensor: &StoredTensor) -> Result<Vec<f32>, ModelError> {
        let values = tensor.to_f32().map_err(|error| ModelError::tensor(&self.path, error))?;
        self.checked(slot, finite::check(&values))?;
        Ok(values)
    }

    /// Checks numbers of 16 bits.
    pub fn check_halves<T: finite::Number>(&self, slot: Slot, values: &[T]) -> Result<(), ModelError> {
        self.checked(slot, finite::check(values))
    }

    /// Checks the scales of blocks.
    pub fn check_blocks(&self, slot: Slot, kind: BlockKind, blocks: &[u8]) -> Result<(), ModelError> {
        self.checked(slot, finite::check_blocks(kind, blocks))
    }

    /// Checks that values are finite as f16 too.
    pub fn check_range_of_f16(&self, slot: Slot, values: &[f32]) -> Result<(), ModelError> {
        self.checked(slot, finite::check_range_of_f16(values))
    }

    fn checked(&self, slot: Slot, result: Result<(), String>) -> Result<(), ModelError> {
        result.map_err(|problem| {
            ModelError::invalid(self.path_of(slot), format!("tensor `{}` holds {problem}", self.name(slot)))
        })
    }

    /// Bytes of the files.
    pub(super) fn stored_bytes(&self) -> Result<u64, ModelError> {
        let paths: Vec<&std::path::Path> = match &self.store {
            Store::Gguf(parts) => parts.paths().collect(),
            Store::Safetensors { tensors, .. } => tensors.paths().collect(),
        };
        let size = |path: &std::path::Path| std::fs::metadata(path).map(|meta| meta.len());
        let own = paths.into_iter().map(|path| size(path).map_err(|error| ModelError::io(path, error))).sum();
        match (&self.shared, own) {
            (Some(shared), Ok(own)) => Ok::<u64, _>(own + shared.bytes_of(Slot::Embedding)?),
            (_, own) => own,
        }
    }

    /// Bytes of one tensor.
    fn bytes_of(&self, slot: Slot) -> Result<u64, ModelError> {
        Ok(self.find(slot)?.map_or(0, |tensor| tensor.bytes() as u64))
    }

    /// Refuses tensors that the model of `arch` does not have, and types that are not read, and a head that is missing.
    /// The warning is about a head that is not used.
    pub(super) fn check_names(&self, arch: &Arch) -> Result<Option<String>, ModelError> {
        let invalid = |message| ModelError::invalid(&self.path, message);
        let mut names: Vec<&str> = match &self.store {
            Store::Gguf(parts) => parts.names().collect(),
            Store::Safetensors { tensors, .. } => tensors.names().collect(),
        };
        names.sort_unstable();
        let known = Names::new(arch, |slot| self.name(slot));
        let (mut unknown, mut zero) = (Vec::new(), Vec::new());
        for name in names {
            match known.of(name) {
                Kind::Used => self.check_type(name)?,
                Kind::MustBeZero => zero.push(name),
                Kind::Irrelevant => {}
                Kind::Unknown => unknown.push(name),
            }
        }
        if let Some(first) = unknown.first() {
            return Err(invalid(known.refusal(first, unknown.len())));
        }
        for name in zero {
            let values = self.load(name)?.map(|tensor| tensor.to_f32()).transpose();
            let values = values.map_err(|error| ModelError::tensor(&self.path, error))?.unwrap_or_default();
            if let Some(value) = values.iter().find(|value| **value != 0.0) {
                let message = format!("tensor `{name}` holds {value}: biases there are not supported, allowed is 0");
                return Err(invalid(message));
            }
        }
        self.check_head()
    }

    fn check_type(&self, name: &str) -> Result<(), ModelError> {
        let Store::Safetensors { tensors, .. } = &self.store else { return Ok(()) };
        match tensors.dtype(name) {
            Some(Dtype::F32 | Dtype::F16 | Dtype::BF16) | None => Ok(()),
            Some(other) => Err(ModelError::invalid(&self.path, wrong_type(name, other))),
        }
    }

    fn check_head(&self) -> Result<Option<String>, ModelError> {
        let Store::Safetensors { tensors, tied } = &self.store else { return Ok(None) };
        let (head, embedding) = (hf_name(Slot::Head), hf_name(Slot::Embedding));
        if !tied && !tensors.has(&head) {
            let message =
                format!("tensor `{head}` is missing, and config.json does not say `\"tie_word_embeddings\": true`");
            return Err(ModelError::invalid(&self.path, message));
        }
        let differs = *tied && tensors.has(&head) && !tensors.are_equal(&head, &embedding)?;
        Ok(differs.then(|| {
            format!("tensor `{head}` is not used: config.json says `\"tie_word_embeddings\": true`, and it is not `{embedding}`")
        }))
    }
}

/// What GGUF files call the tensor of a role.
pub(super) fn gguf_name(slot: Slot) -> String {
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
