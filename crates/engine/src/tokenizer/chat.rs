//! Chat templates: the Jinja text that a model ships, rendered by minijinja.

use std::path::Path;

use minijinja::{Environment, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};

use super::TextError;
use crate::model::{GgufMetadata, ModelError, gguf_usize};

const NAME: &str = "chat";
/// Instructions that a template may take: thousands of messages, and no endless loop.
const FUEL: u64 = 20_000_000;

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant` or what else the template knows.
    pub role: String,
    /// The text.
    pub content: String,
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Compiles a template.
    pub fn new(source: String, bos: String, eos: String) -> Result<Self, TextError> {
        let mut environment = Environment::new();
        // Templates are written for Python's Jinja: its string and list methods, and its whitespace rules.
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(FUEL));
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_template_owned(NAME, source.clone()).map_err(|error| TextError::Template(error.to_string()))?;
        Ok(Self { environment, source, bos, eos })
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    pub(super) fn from_gguf(metadata: &GgufMetadata<'_>) -> Result<Option<Self>, ModelError> {
        if metadata.find("tokenizer.chat_template").is_none() {
            return Ok(None);
        }
        let tokens = metadata.strings("tokenizer.ggml.tokens")?;
        let token = |key: &str| metadata.find(key).and_then(gguf_usize).and_then(|id| tokens.get(id).cloned());
        let (bos, eos) = (token("tokenizer.ggml.bos_token_id"), token("tokenizer.ggml.eos_token_id"));
        let source = metadata.str("tokenizer.chat_template")?;
        Self::new(source, bos.unwrap_or_default(), eos.unwrap_or_default())
            .map(Some)
            .map_err(|error| metadata.invalid(error.to_string()))
    }

    pub(super) fn from_dir(dir: &Path) -> Result<Option<Self>, ModelError> {
        let path = dir.join("tokenizer_config.json");
        let config: serde_json::Value = match std::fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text)
                .map_err(|error| ModelError::invalid(&path, format!("not valid JSON: {error}")))?,
            Err(_) => serde_json::Value::Null,
        };
        let file = std::fs::read_to_string(dir.join("chat_template.jinja")).ok();
        let Some(source) = file.or_else(|| config["chat_template"].as_str().map(str::to_owned)) else {
            return Ok(None);
        };
        let token = |key: &str| {
            let value = &config[key];
            value.as_str().or_else(|| value["content"].as_str()).unwrap_or_default().to_owned()
        };
        Self::new(source, token("bos_token"), token("eos_token"))
            .map(Some)
            .map_err(|error| ModelError::invalid(&path, error.to_string()))
    }

    /// The prompt text of a conversation, up to where the assistant's turn begins.
    pub fn render(&self, messages: &[ChatMessage]) -> Result<String, TextError> {
        let failed = |error: minijinja::Error| TextError::Template(error.to_string());
        let template = self.environment.get_template(NAME).map_err(failed)?;
        template
            .render(context! { messages, add_generation_prompt => true, bos_token => self.bos, eos_token => self.eos })
            .map_err(failed)
    }
}
