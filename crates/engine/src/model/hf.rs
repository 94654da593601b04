//! Opens model directories with `config.json`, `tokenizer.json` and safetensors.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::IgnoredAny;
use serde_json::Value;

use super::config_json::HfConfig;
use super::json::Object;
use super::keys::{CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, Table};
use super::safetensors::Shards;
use super::{ModelError, ModelFiles, Weights, shards};
use crate::tokenizer::TextCodec;

pub(super) fn open(dir: &Path) -> Result<ModelFiles, ModelError> {
    let config = File::read(dir, "config.json", &CONFIG)?.required()?;
    let HfConfig { arch, tied, mut warnings } =
        HfConfig::read(&Object::root(&config.value)).map_err(|message| config.invalid(message))?;
    // The family first: to a model of another one, its name says more than the first key that is not known.
    warnings.extend(config.check()?);
    let generation = File::read(dir, "generation_config.json", &GENERATION)?;
    let tokenizer_config = File::read(dir, "tokenizer_config.json", &TOKENIZER_CONFIG)?;
    for file in [&generation, &tokenizer_config] {
        warnings.extend(file.check()?);
    }
    let text = TextCodec::from_dir(dir)?;
    warnings.extend(check_tokenizer(&dir.join("tokenizer.json"))?);
    let eos = end_tokens([&generation, &config], &tokenizer_config, &text, &mut warnings)?;
    let (files, ignored) = shards::choose(dir)?;
    warnings.extend(ignored);
    let tensors = Shards::open(&files)?;
    let weights = Weights::safetensors(dir.to_owned(), tensors, tied);
    warnings.extend(weights.check_names(&arch)?);
    Ok(ModelFiles { arch, patches: super::LinearPatches::new(), weights, text, eos, warnings })
}

/// A JSON file of the folder; an empty object if it is missing.
struct File {
    path: std::path::PathBuf,
    value: Value,
    missing: Option<std::io::Error>,
    table: &'static Table,
}

impl File {
    fn read(dir: &Path, name: &str, table: &'static Table) -> Result<Self, ModelError> {
        let path = dir.join(name);
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let value: Value = serde_json::from_str(&text)
                    .map_err(|error| ModelError::invalid(&path, format!("not valid JSON: {error}")))?;
                if !value.is_object() {
                    return Err(ModelError::invalid(&path, "not a JSON object"));
                }
                Ok(Self { path, value, missing: None, table })
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Ok(Self { path, value: Value::Object(serde_json::Map::new()), missing: Some(error), table })
            }
            Err(error) => Err(ModelError::io(&path, error)),
        }
    }

    fn required(mut self) -> Result<Self, ModelError> {
        match self.missing.take() {
            Some(error) => Err(ModelError::io(&self.path, error)),
            None => Ok(self),
        }
    }

    /// Refuses keys that are not computed; the warning names unknown ones.
    fn check(&self) -> Result<Option<String>, ModelError> {
        self.table.check_object(&self.value).map_err(|message| self.invalid(message))
    }

    fn invalid(&self, message: impl Into<String>) -> ModelError {
        ModelError::invalid(&self.path, message)
    }
}

/// Names unknown keys of a `tokenizer.json`, whose values the tokenizer library reads.
fn check_tokenizer(path: &Path) -> Result<Option<String>, ModelError> {
    let text = std::fs::read(path).map_err(|error| ModelError::io(path, error))?;
    let invalid = |message: String| ModelError::invalid(path, message);
    let keys: BTreeMap<String, IgnoredAny> =
        serde_json::from_slice(&text).map_err(|error| invalid(error.to_string()))?;
    let entries = keys.iter().map(|(key, value)| (key.as_str(), value));
    TOKENIZER.check(entries, |_| Value::Bool(true)).map_err(invalid)
}

/// The tokens that end an answer: all that any file names.
fn end_tokens(
    files: [&File; 2],
    tokenizer: &File,
    text: &TextCodec,
    warnings: &mut Vec<String>,
) -> Result<Vec<u32>, ModelError> {
    let mut ids = Vec::new();
    for file in files {
        ids.extend(Object::root(&file.value).token_ids("eos_token_id").map_err(|message| file.invalid(message))?);
    }
    let token = match &tokenizer.value["eos_token"] {
        Value::Null => None,
        Value::String(token) => Some(token.as_str()),
        other => match other["content"].as_str() {
            Some(token) => Some(token),
            None => {
                let message = format!("key `eos_token` is `{other}`, allowed is a text or an object with `content`");
                return Err(tokenizer.invalid(message));
            }
        },
    };
    if let Some(token) = token {
        match text.token_id(token) {
            Some(id) => ids.push(id),
            None => warnings.push(format!("`eos_token` of tokenizer_config.json is `{token}`, which is no token")),
        }
    }
    if ids.is_empty() {
        return Err(
            files[1].invalid("key `eos_token_id` is missing, and no other file names a token that ends an answer")
        );
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}
