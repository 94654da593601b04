//! Chat templates: the Jinja text that a model ships, rendered as Hugging Face does it.

use std::path::Path;

use chrono::{DateTime, Local};
use minijinja::{Environment, Value, context};
use serde::{Deserialize, Serialize};

use super::jinja::{environment, rewrite};
use super::{Conversation, TextError};
use crate::files::{GgufMetadata, ModelError, gguf_usize};

const NAME: &str = "chat";
/// In place of the other one for conversations with tools, where a model has two.
const TOOLS: &str = "chat with tools";

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
        Self::at(source, bos, eos, Local::now)
    }

    /// The same with a clock.
    pub(super) fn at(
        source: String,
        bos: String,
        eos: String,
        now: fn() -> DateTime<Local>,
    ) -> Result<Self, TextError> {
        let environment = environment(now);
        let mut template = Self { environment, source: source.clone(), bos, eos };
        template.add(NAME, &source)?;
        Ok(template)
    }

    /// Adds the template that is used for conversations with tools.
    pub(super) fn with_tools(mut self, source: &str) -> Result<Self, TextError> {
        self.add(TOOLS, source)?;
        self.source.push_str(source);
        Ok(self)
    }

    fn add(&mut self, name: &'static str, source: &str) -> Result<(), TextError> {
        let added = rewrite(source).and_then(|source| self.environment.add_template_owned(name, source));
        added.map_err(|error| TextError::Template(error.to_string()))
    }

    /// The one for a conversation with tools, or without.
    fn template(&self, tools: bool) -> Result<minijinja::Template<'_, '_>, minijinja::Error> {
        match self.environment.get_template(TOOLS) {
            Ok(template) if tools => Ok(template),
            _ => self.environment.get_template(NAME),
        }
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
        let (named, tools) = templates(&config["chat_template"]);
        let tools = if file.is_some() { None } else { tools };
        let Some(source) = file.or(named) else { return Ok(None) };
        let token = |key: &str| {
            let value = &config[key];
            value.as_str().or_else(|| value["content"].as_str()).unwrap_or_default().to_owned()
        };
        let template = Self::new(source, token("bos_token"), token("eos_token"));
        let template = template.and_then(|template| match tools {
            Some(tools) => template.with_tools(&tools),
            None => Ok(template),
        });
        template.map(Some).map_err(|error| ModelError::invalid(&path, error.to_string()))
    }

    /// The prompt text of a conversation with tools and variables, which win over the usual ones.
    pub(super) fn render_conversation(&self, conversation: &Conversation) -> Result<String, TextError> {
        let failed = |error: minijinja::Error| TextError::Template(error.to_string());
        let template = self.template(conversation.tools.is_some()).map_err(failed)?;
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
        let template = self.template(false).map_err(failed)?;
        template
            .render(context! { messages, add_generation_prompt => true, bos_token => self.bos, eos_token => self.eos })
            .map_err(failed)
    }
}

/// The template of tokenizer_config.json, and the one for tools: a text, or a list of named ones.
fn templates(value: &serde_json::Value) -> (Option<String>, Option<String>) {
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    let Some(list) = value.as_array() else { return (text(value), None) };
    let named = |name: &str| list.iter().find(|entry| entry["name"] == name).and_then(|entry| text(&entry["template"]));
    (named("default").or_else(|| list.first().and_then(|entry| text(&entry["template"]))), named("tool_use"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hugging_face_adds_to_jinja_is_there() {
        let render = |source: &str| {
            let messages = vec![serde_json::json!({"role": "user", "content": "ä", "b": [1, []], "a": {}})];
            let conversation = Conversation { messages, ..Conversation::default() };
            ChatTemplate::new(source.into(), String::new(), String::new())
                .and_then(|template| template.render_conversation(&conversation))
                .unwrap_or_else(|error| panic!("{source}: {error}"))
        };
        // Python 3.11: json.dumps with the same arguments.
        for (source, want) in [
            ("{{ messages[0] | tojson }}", r#"{"role": "user", "content": "ä", "b": [1, []], "a": {}}"#),
            (
                "{{ messages[0] | tojson(separators=(',', ':'), sort_keys=true, ensure_ascii=true) }}",
                r#"{"a":{},"b":[1,[]],"content":"\u00e4","role":"user"}"#,
            ),
            ("{{ messages[0].b | tojson(indent=2) }}", "[\n  1,\n  []\n]"),
            (
                "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
                "02",
            ),
            ("a\n  {%- generation -%}\n b {%- endgeneration %} c", "ab c"),
        ] {
            assert_eq!(render(source), want, "{source}");
        }
        let year: i32 = render("{{ strftime_now('%Y') }}").parse().expect("a year");
        assert!((2020..3000).contains(&year));
        let bad =
            ChatTemplate::new("{{ strftime_now('%Q!') }}".into(), String::new(), String::new()).expect("compiles");
        assert!(bad.render_conversation(&Conversation::default()).is_err());
    }

    #[test]
    fn a_list_of_templates_has_one_for_tools() {
        let list = serde_json::json!([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]);
        assert_eq!(templates(&list), (Some("d".into()), Some("t".into())));
        assert_eq!(templates(&"x".into()), (Some("x".into()), None));
        let template = ChatTemplate::new("d".into(), String::new(), String::new()).and_then(|t| t.with_tools("t"));
        let template = template.expect("compiles");
        let render = |tools| template.render_conversation(&Conversation { tools, ..Conversation::default() });
        assert_eq!(render(None).expect("renders"), "d");
        assert_eq!(render(Some(serde_json::json!([]))).expect("renders"), "t");
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
