//! Access to a model's tensors by role, whatever the file format calls them.

use std::path::PathBuf;

use ::safetensors::tensor::Dtype;

use super::names::{Kind, Names};
use super::parts::Parts;
use super::safetensors::{Shards, wrong_type};
use super::{Arch, ModelError, StoredTensor, finite};

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
    shared: Option<Box<Self>>,
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
        match &self.store {
            Store::Gguf(parts) => parts.tensor(name),
            Store::Safetensors { tensors, .. } => tensors.load(name),
        }
    }

    /// The tensor of a role with the dimensions it must have.
    pub fn get(&self, slot: Slot, dims: &[usize]) -> Result<StoredTensor, ModelError> {
        self.get_shaped(slot, &[dims])
    }

    /// The same where several dimensions are allowed; errors name the last.
    pub fn get_shaped(&self, slot: Slot, shapes: &[&[usize]]) -> Result<StoredTensor, ModelError> {
        let path = self.path_of(slot);
        let missing = || ModelError::invalid(path, format!("tensor `{}` is missing", self.name(slot)));
        let tensor = self.find(slot)?.ok_or_else(missing)?;
        if !shapes.contains(&tensor.dims()) {
            let (name, needed) = (self.name(slot), shapes.last().copied().unwrap_or_default());
            let message = format!("tensor `{name}` has shape {:?}, the model needs {needed:?}", tensor.dims());
            return Err(ModelError::invalid(path, message));
        }
        Ok(tensor)
    }

    /// The values of a role's tensor, row by row. They are all finite.
    pub fn floats(&self, slot: Slot, tensor: &StoredTensor) -> Result<Vec<f32>, ModelError> {
        let values = tensor.to_f32().map_err(|error| self.failed(&self.name(slot), &error))?;
        self.checked(slot, finite::check(&values))?;
        Ok(values)
    }

    /// Checks that the numbers of a tensor, or the scales of its blocks, are finite.
    pub fn check(&self, slot: Slot, tensor: &StoredTensor) -> Result<(), ModelError> {
        self.checked(slot, finite::check_stored(tensor.format(), tensor.bytes()))
    }

    /// The error that the kernels have with a tensor.
    fn failed(&self, name: &str, error: &tokenrouter_kernels::Error) -> ModelError {
        ModelError::invalid(&self.path, format!("tensor `{name}`: {error}"))
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
        Ok(self.find(slot)?.map_or(0, |tensor| tensor.bytes().len() as u64))
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
            let values = values.map_err(|error| self.failed(name, &error))?.unwrap_or_default();
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
