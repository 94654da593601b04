//! Chat templates: the Jinja text that a model ships, rendered by minijinja.

use std::io;
use std::path::Path;

use minijinja::value::Kwargs;
use minijinja::{Environment, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::{Conversation, TextError};
use crate::files::{GgufMetadata, ModelError, gguf_usize};

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
        environment.add_filter("tojson", tojson);
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

    /// The prompt text of a conversation with tools and variables, which win over the usual ones.
    pub(super) fn render_conversation(&self, conversation: &Conversation) -> Result<String, TextError> {
        let failed = |error: minijinja::Error| TextError::Template(error.to_string());
        let template = self.environment.get_template(NAME).map_err(failed)?;
        let usual = context! {
            messages => conversation.messages, tools => conversation.tools, documents => Value::from(()),
            add_generation_prompt => true, bos_token => self.bos, eos_token => self.eos,
        };
        let variables = Value::from_serialize(&conversation.variables);
        template.render(context! { ..variables, ..usual }).map_err(failed)
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

/// JSON as Python's `json.dumps` writes it, which templates and the models trained with them expect: a space after commas
/// and colons, nothing escaped for HTML, keys in their order.
fn tojson(value: &Value, options: Kwargs) -> Result<Value, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    let _always_so: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let mut out = Vec::new();
    let result = match indent {
        Some(width) => {
            let pad = " ".repeat(width);
            let pretty = PrettyFormatter::with_indent(pad.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut out, pretty))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut out, Spaced)),
    };
    result.map_err(|error| minijinja::Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(Value::from_safe_string(String::from_utf8_lossy(&out).into_owned()))
}

/// One line, with a space after commas and colons.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Templates built like those of the model families, against what Python's Jinja makes of them with Hugging Face's
    /// settings (`tests/fixtures/templates/make_expected.py`).
    #[test]
    fn templates_render_as_in_python() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/templates");
        let fixture = std::fs::read_to_string(folder.join("expected.json")).expect("the fixture");
        let fixture: serde_json::Value = serde_json::from_str(&fixture).expect("JSON");
        let expected = fixture["expected"].as_object().expect("templates");
        assert!(expected.len() >= 2);
        for (name, texts) in expected {
            let source = std::fs::read_to_string(folder.join(name)).expect("the template");
            let template = ChatTemplate::new(source, "<|begin|>".into(), "<|end|>".into()).expect("compiles");
            let cases = fixture["cases"].as_array().expect("cases");
            for (case, text) in cases.iter().zip(texts.as_array().expect("texts")) {
                let conversation = Conversation {
                    messages: case["messages"].as_array().expect("messages").clone(),
                    tools: case.get("tools").cloned(),
                    variables: case["variables"].as_object().cloned().unwrap_or_default(),
                };
                let rendered = template.render_conversation(&conversation).expect("renders");
                assert_eq!(rendered, text.as_str().expect("a text"), "{name}, {case}");
            }
        }
    }

    #[test]
    fn templates_can_refuse_and_cannot_read_files() {
        let render = |source: &str| {
            let messages = vec![serde_json::json!({"role": "user", "content": "{{ 7 * 7 }}"})];
            let conversation = Conversation { messages, ..Conversation::default() };
            ChatTemplate::new(source.into(), String::new(), String::new())
                .and_then(|template| template.render_conversation(&conversation))
                .map_err(|error| error.to_string())
        };
        // What a message says is never a template.
        assert_eq!(render("{{ messages[0].content }}").as_deref(), Ok("{{ 7 * 7 }}"));
        assert!(render("{{ raise_exception('only one') }}").is_err_and(|message| message.contains("only one")));
        assert!(render("{% include '/etc/passwd' %}").is_err());
        assert!(render("{% import '/etc/passwd' as secret %}{{ secret }}").is_err());
    }
}
