//! Tokenizers from `tokenizer.json`, and what `tokenizer_config.json` says beyond it.

use std::panic::catch_unwind;
use std::path::Path;

use serde_json::Value;
use tokenizers::Tokenizer;
use tokenizers::processors::template::TemplateProcessing;

use crate::files::ModelError;

/// More tokens than any vocabulary has.
const MAX_TOKENS: u32 = 1 << 24;

/// The tokenizer of a model folder.
pub(super) fn tokenizer(dir: &Path) -> Result<Tokenizer, ModelError> {
    let path = dir.join("tokenizer.json");
    if !path.is_file() {
        return Err(ModelError::invalid(dir, "no `tokenizer.json` in this directory"));
    }
    let mut tokenizer = read(&path)?;
    // Tables over all ids follow: one entry must not make them huge.
    if let Some(id) = tokenizer.get_vocab(true).into_values().find(|id| *id >= MAX_TOKENS) {
        let message = format!("token id {id} is out of range, allowed are 0 to {}", MAX_TOKENS - 1);
        return Err(ModelError::invalid(&path, message));
    }
    let config_path = dir.join("tokenizer_config.json");
    let config = match std::fs::read_to_string(&config_path) {
        Ok(text) => serde_json::from_str(&text)
            .map_err(|error| ModelError::invalid(&config_path, format!("not valid JSON: {error}")))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Value::Null,
        Err(error) => return Err(ModelError::io(&config_path, error)),
    };
    check_added(&tokenizer, &config)
        .and_then(|()| begin(&mut tokenizer, &config))
        .map_err(|message| ModelError::invalid(&config_path, message))?;
    Ok(tokenizer)
}

fn read(path: &Path) -> Result<Tokenizer, ModelError> {
    let text = std::fs::read(path).map_err(|error| ModelError::io(path, error))?;
    let invalid =
        |error: &dyn std::fmt::Display| ModelError::invalid(path, format!("tokenizer cannot be read: {error}"));
    // The library panics at broken JSON in some places, and at some values that it does not expect in others.
    serde_json::from_slice::<serde::de::IgnoredAny>(&text).map_err(|error| invalid(&error))?;
    let tokenizer = catch_unwind(|| Tokenizer::from_bytes(&text))
        .map_err(|_| invalid(&"it is inconsistent"))?
        .map_err(|error| invalid(&error))?;
    // Files keep what their last user set for training batches: a prompt would be cut, or filled up, without a word.
    let mut tokenizer = tokenizer;
    tokenizer.with_truncation(None).map_err(|error| invalid(&error))?;
    tokenizer.with_padding(None);
    Ok(tokenizer)
}

/// Refuses tokens that have other ids in the configuration.
fn check_added(tokenizer: &Tokenizer, config: &Value) -> Result<(), String> {
    for (id, token) in config["added_tokens_decoder"].as_object().into_iter().flatten() {
        let Some(content) = token["content"].as_str() else { continue };
        let have = tokenizer.token_to_id(content);
        if have.map(|id| id.to_string()).as_ref() != Some(id) {
            let have = have.map_or("does not have it".to_owned(), |have| format!("says {have}"));
            return Err(format!("`added_tokens_decoder` says that `{content}` is token {id}, tokenizer.json {have}"));
        }
    }
    Ok(())
}

/// Makes prompts begin with `bos_token`, or not, if the configuration says it.
fn begin(tokenizer: &mut Tokenizer, config: &Value) -> Result<(), String> {
    let wanted = match &config["add_bos_token"] {
        Value::Null => return Ok(()),
        Value::Bool(wanted) => *wanted,
        other => return Err(format!("key `add_bos_token` is `{other}`, allowed is `true` or `false`")),
    };
    let token = &config["bos_token"];
    let token = token.as_str().or_else(|| token["content"].as_str());
    let id = token.and_then(|token| tokenizer.token_to_id(token));
    let adds = id.is_some() && tokenizer.encode_fast("a", true).is_ok_and(|ids| ids.get_ids().first() == id.as_ref());
    let (Some(token), Some(id)) = (token, id) else {
        let shown = token.map_or("missing".to_owned(), |token| format!("`{token}`, which is no token"));
        return if wanted { Err(format!("key `add_bos_token` is true, but `bos_token` is {shown}")) } else { Ok(()) };
    };
    if wanted == adds {
        return Ok(());
    }
    // As the Transformers library does it: these settings win over the post-processor of `tokenizer.json`.
    let template = if wanted { format!("{token}:0 $A:0") } else { "$A:0".to_owned() };
    let pair = if wanted { format!("{token}:0 $A:0 {token}:1 $B:1") } else { "$A:0 $B:1".to_owned() };
    let processor = TemplateProcessing::builder()
        .try_single(template)
        .and_then(|builder| builder.try_pair(pair))
        .map_err(|error| format!("key `bos_token` is `{token}`: {error}"))?
        .special_tokens(vec![(token.to_owned(), id)])
        .build()
        .map_err(|error| format!("key `bos_token` is `{token}`: {error}"))?;
    tokenizer.with_post_processor(Some(processor));
    Ok(())
}
