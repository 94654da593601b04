//! Opens GGUF models.

use std::path::Path;

use candle_core::quantized::gguf_file::Value;
use serde_json::json;

use super::arch::layers;
use super::config_json::capped;
use super::keys::GGUF;
use super::parts::Parts;
use super::student::TOKEN_IDS;
use super::weights::gguf_name;
use super::{Arch, Family, ModelError, ModelFiles, RopeScaling, Slot, Weights, rope};
use crate::files::GgufMetadata;
use crate::tokenizer::TextCodec;

pub(super) fn open(path: &Path) -> Result<ModelFiles, ModelError> {
    let parts = Parts::open(path)?;
    let metadata = parts.metadata();
    let mut warnings = Vec::new();
    let mut arch = read_arch(&metadata, &parts, None, &mut warnings)?;
    warnings.extend(check_keys(&metadata)?);
    if metadata.find("tokenizer.ggml.pre").is_none() {
        warnings.push("metadata key `tokenizer.ggml.pre` is missing: the pre-tokenizer is `default`".into());
    }
    let text = TextCodec::from_gguf(&metadata)?;
    let eos = end_tokens(&metadata)?;
    if let Some(divisors) = read_divisors(&metadata, &parts, &arch)? {
        arch.rope_scaling = RopeScaling::Divisors(divisors);
    }
    arch.check().map_err(|message| metadata.invalid(message))?;
    let weights = Weights::gguf(path.to_owned(), parts);
    warnings.extend(weights.check_names(&arch)?);
    Ok(ModelFiles { arch, patches: super::LinearPatches::new(), weights, text, eos, warnings })
}

/// Refuses metadata that are not computed; the warning names unknown keys.
pub(super) fn check_keys(metadata: &GgufMetadata<'_>) -> Result<Option<String>, ModelError> {
    let prefix = format!("{}.", metadata.str("general.architecture")?);
    // The table says `{arch}` for the name of the architecture.
    let general = |key: &str| key.strip_prefix(&prefix).map_or(key.to_owned(), |rest| format!("{{arch}}.{rest}"));
    let entries: Vec<(String, &Value)> = metadata.values.iter().map(|(key, value)| (general(key), value)).collect();
    let checked = GGUF.check(entries.iter().map(|(key, value)| (key.as_str(), *value)), json_of);
    let concrete = |message: String| message.replace("{arch}.", &prefix);
    checked.map(|warning| warning.map(concrete)).map_err(|message| metadata.invalid(concrete(message)))
}

/// A value as JSON. Lists are only told apart from other values, and from empty ones.
fn json_of(value: &Value) -> serde_json::Value {
    match value {
        Value::U8(v) => json!(v),
        Value::I8(v) => json!(v),
        Value::U16(v) => json!(v),
        Value::I16(v) => json!(v),
        Value::U32(v) => json!(v),
        Value::I32(v) => json!(v),
        Value::U64(v) => json!(v),
        Value::I64(v) => json!(v),
        Value::F32(v) => json!(v),
        Value::F64(v) => json!(v),
        Value::Bool(v) => json!(v),
        Value::String(v) => json!(v),
        Value::Array(values) => values.iter().take(16).map(json_of).collect(),
    }
}

fn end_tokens(metadata: &GgufMetadata<'_>) -> Result<Vec<u32>, ModelError> {
    let mut ids = Vec::new();
    for name in ["eos", "eot", "eom"] {
        let key = format!("tokenizer.ggml.{name}_token_id");
        if let Some(id) = metadata.optional_usize(&key)? {
            let out_of_range = |_| metadata.invalid(format!("metadata key `{key}` is {id}, which is no token id"));
            ids.push(u32::try_from(id).map_err(out_of_range)?);
        }
    }
    if ids.is_empty() {
        return Err(metadata.invalid("metadata key `tokenizer.ggml.eos_token_id` is missing"));
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// Divisors of the rotary frequencies, which Llama 3 files have.
fn read_divisors(metadata: &GgufMetadata<'_>, parts: &Parts, arch: &Arch) -> Result<Option<Vec<f32>>, ModelError> {
    const NAME: &str = "rope_freqs.weight";
    let Some(tensor) = parts.tensor(NAME)? else { return Ok(None) };
    let values = tensor.to_f32().map_err(|error| metadata.invalid(format!("tensor `{NAME}`: {error}")))?;
    if values.len() != arch.head_dim / 2 {
        let (have, want) = (values.len(), arch.head_dim / 2);
        return Err(metadata.invalid(format!("tensor `{NAME}` has {have} values, the model needs {want}")));
    }
    if let Some(bad) = values.iter().find(|value| !(value.is_finite() && **value > 0.0)) {
        return Err(metadata.invalid(format!("tensor `{NAME}` holds {bad}, allowed are numbers above 0")));
    }
    if arch.rope_scaling != RopeScaling::None {
        return Err(metadata
            .invalid(format!("tensor `{NAME}` and `rope.scaling.type` change the same frequencies: one is allowed")));
    }
    Ok(Some(values))
}

/// `vocab` is known already where the embedding is in another file.
pub(super) fn read_arch(
    metadata: &GgufMetadata<'_>,
    parts: &Parts,
    vocab: Option<usize>,
    warnings: &mut Vec<String>,
) -> Result<Arch, ModelError> {
    let name = metadata.str("general.architecture")?;
    let family = match name.as_str() {
        "llama" => Family::Llama,
        "qwen2" => Family::Qwen2,
        "qwen3" => Family::Qwen3,
        other => {
            let message = format!("architecture `{other}` is not supported, supported are `llama`, `qwen2`, `qwen3`");
            return Err(metadata.invalid(message));
        }
    };
    let key = |suffix: &str| format!("{name}.{suffix}");
    let size = |suffix: &str| metadata.usize(&key(suffix));
    let optional = |suffix: &str| metadata.optional_usize(&key(suffix));
    let (d_model, heads) = (size("embedding_length")?, size("attention.head_count")?.max(1));
    let head_dim = optional("attention.key_length")?.unwrap_or(d_model / heads);
    for suffix in ["attention.value_length", "rope.dimension_count"] {
        match optional(suffix)? {
            Some(other) if other != head_dim => {
                let message =
                    format!("metadata key `{}` is {other}, allowed is the head's length {head_dim}", key(suffix));
                return Err(metadata.invalid(message));
            }
            _ => {}
        }
    }
    let trained = size("context_length")?;
    let rope_scaling = rope::from_gguf(metadata, &name, trained)?;
    let mut context = rope_scaling.context(trained);
    if let Some(window) = optional("attention.sliding_window")?.filter(|window| (1..context).contains(window)) {
        warnings.push(capped(context, window));
        context = window;
    }
    let embedding = parts.dims("token_embd.weight").and_then(|dims| dims.first().copied());
    let vocab = vocab.or(embedding).ok_or_else(|| {
        let student = metadata.find(TOKEN_IDS).map_or("", |_| {
            ": this is a student, which goes under `student`, beside the `path` or `source` of the model whose embedding \
             it shares"
        });
        metadata.invalid(format!("tensor `token_embd.weight` is missing{student}"))
    })?;
    Ok(Arch {
        family,
        layers: layers(size("block_count")?).map_err(|message| metadata.invalid(message))?,
        d_model,
        heads,
        kv_heads: optional("attention.head_count_kv")?.unwrap_or(heads).max(1),
        head_dim,
        ffn: size("feed_forward_length")?,
        vocab,
        head_tokens: None,
        context,
        qkv_bias: family == Family::Qwen2 || parts.has(&gguf_name(Slot::LayerBias(0, "attn_q"))),
        eps: metadata.f32(&key("attention.layer_norm_rms_epsilon"))?,
        rope_theta: metadata.optional_f32(&key("rope.freq_base"))?.unwrap_or(10_000.0),
        rope_scaling,
        rope_interleaved: family == Family::Llama,
    })
}
