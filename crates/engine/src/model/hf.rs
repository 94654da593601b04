//! Opens model directories with `config.json`, `tokenizer.json` and safetensors.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::arch::layers;
use super::safetensors::Shards;
use super::{Arch, Family, ModelError, ModelFiles, RopeScaling, Weights};
use crate::tokenizer::TextCodec;

pub(super) fn open(dir: &Path) -> Result<ModelFiles, ModelError> {
    let config_path = dir.join("config.json");
    let config = read_json(&config_path)?;
    let arch = read_arch(&config).map_err(|message| ModelError::invalid(&config_path, message))?;
    arch.check().map_err(|message| ModelError::invalid(&config_path, message))?;
    let text = TextCodec::from_dir(dir)?;
    let generation = read_json(&dir.join("generation_config.json")).unwrap_or(Value::Null);
    let eos = [&generation["eos_token_id"], &config["eos_token_id"]].into_iter().find_map(token_ids);
    let eos = eos.ok_or_else(|| ModelError::invalid(&config_path, "key `eos_token_id` is missing"))?;
    let files = safetensors_files(dir)?;
    Ok(ModelFiles {
        arch,
        patches: super::LinearPatches::new(),
        weights: Weights::safetensors(dir.to_owned(), Shards::open(&files)?),
        text,
        eos,
    })
}

fn read_json(path: &Path) -> Result<Value, ModelError> {
    let text = std::fs::read_to_string(path).map_err(|error| ModelError::io(path, error))?;
    serde_json::from_str(&text).map_err(|error| ModelError::invalid(path, format!("not valid JSON: {error}")))
}

fn token_ids(value: &Value) -> Option<Vec<u32>> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Array(items) => items.iter().map(id).collect(),
        value => id(value).map(|id| vec![id]),
    }
}

fn safetensors_files(dir: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let entries = std::fs::read_dir(dir).map_err(|error| ModelError::io(dir, error))?;
    let mut files: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .collect();
    files.sort();
    if files.is_empty() {
        return Err(ModelError::invalid(dir, "no `*.safetensors` file in this directory"));
    }
    Ok(files)
}

fn read_arch(config: &Value) -> Result<Arch, String> {
    let usize_of = |key: &str| config[key].as_u64().map(|v| v as usize).ok_or(format!("key `{key}` is missing"));
    let f32_of =
        |value: &Value, key: &str| value[key].as_f64().map(|v| v as f32).ok_or(format!("key `{key}` is missing"));
    let family = match config["model_type"].as_str() {
        Some("llama" | "mistral") => Family::Llama,
        Some("qwen2") => Family::Qwen2,
        Some("qwen3") => Family::Qwen3,
        other => {
            let name = other.unwrap_or("(missing)");
            return Err(format!("`model_type` `{name}` is not supported, supported are `llama`, `qwen2`, `qwen3`"));
        }
    };
    let (d_model, heads) = (usize_of("hidden_size")?, usize_of("num_attention_heads")?);
    let scaling = &config["rope_scaling"];
    let kind = scaling["rope_type"].as_str().or(scaling["type"].as_str());
    let rope_scaling = match kind {
        None | Some("default") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear(f32_of(scaling, "factor")?),
        Some("llama3") => RopeScaling::Llama3 {
            factor: f32_of(scaling, "factor")?,
            low: f32_of(scaling, "low_freq_factor")?,
            high: f32_of(scaling, "high_freq_factor")?,
            original_context: f32_of(scaling, "original_max_position_embeddings")?,
        },
        Some(other) => return Err(format!("`rope_scaling` type `{other}` is not supported")),
    };
    Ok(Arch {
        family,
        layers: layers(usize_of("num_hidden_layers")?)?,
        d_model,
        heads,
        kv_heads: usize_of("num_key_value_heads").unwrap_or(heads),
        head_dim: usize_of("head_dim").unwrap_or(d_model / heads.max(1)),
        ffn: usize_of("intermediate_size")?,
        vocab: usize_of("vocab_size")?,
        context: usize_of("max_position_embeddings")?,
        eps: f32_of(config, "rms_norm_eps")?,
        rope_theta: f32_of(config, "rope_theta").unwrap_or(10_000.0),
        rope_scaling,
        rope_interleaved: false,
    })
}
