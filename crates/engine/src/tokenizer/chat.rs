//! Chat templates: the Jinja text that a model ships, rendered by minijinja.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use minijinja::value::Kwargs;
use minijinja::{Environment, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, Serializer};

use super::{Conversation, TextError};
use crate::files::{GgufMetadata, ModelError, gguf_usize};

const NAME: &str = "chat";
/// In place of the other one for conversations with tools, where a model has two.
const TOOLS: &str = "chat with tools";
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
        environment.add_function("strftime_now", strftime_now);
        environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_filter("tojson", tojson);
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
        let added = self.environment.add_template_owned(name, without_generation(source));
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

/// The template without `{% generation %}` and its end, which mark what the assistant wrote for training.
fn without_generation(source: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(source.len()), source);
    while let Some(start) = rest.find("{%") {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let Some(end) = rest.find("%}").map(|at| at + 2) else { break };
        let words = ["endgeneration", "generation"].into_iter().zip(["endif", "if true"]);
        let tag = rest[2..end - 2].trim_matches(['-', '+']).trim();
        match words.into_iter().find(|(word, _)| *word == tag) {
            Some((word, instead)) => out.push_str(&rest[..end].replacen(word, instead, 1)),
            None => out.push_str(&rest[..end]),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

/// The present date and time as Python's `strftime` writes it.
fn strftime_now(format: &str) -> Result<String, minijinja::Error> {
    let mut text = String::new();
    write!(text, "{}", chrono::Local::now().format(format)).map_err(|_| {
        let message = format!("strftime_now: `{format}` is not a format of dates");
        minijinja::Error::new(ErrorKind::InvalidOperation, message)
    })?;
    Ok(text)
}

/// JSON as Python's `json.dumps` writes it, which templates and the models trained with them expect: a space after commas
/// and colons, nothing escaped for HTML, keys in their order.
fn tojson(value: &Value, options: Kwargs) -> Result<Value, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let separators: Option<Vec<String>> = options.get("separators")?;
    options.assert_all_used()?;
    let failed = |why: String| minijinja::Error::new(ErrorKind::BadSerialization, why);
    let usual = if indent.is_some() { [",", ": "] } else { [", ", ": "] }.map(str::to_owned).to_vec();
    let separators = separators.unwrap_or(usual);
    let [item, key] = &separators[..] else {
        return Err(failed(format!("tojson: `separators` has {} texts, it must have 2", separators.len())));
    };
    let mut json = serde_json::to_value(value).map_err(|error| failed(error.to_string()))?;
    if sorted {
        json.sort_all_objects();
    }
    let mut out = Vec::new();
    let format = Python { item: item.as_bytes(), key: key.as_bytes(), indent, depth: 0, filled: false };
    json.serialize(&mut Serializer::with_formatter(&mut out, format)).map_err(|error| failed(error.to_string()))?;
    let text = String::from_utf8_lossy(&out).into_owned();
    Ok(Value::from_safe_string(if ascii { escaped(&text) } else { text }))
}

/// Other characters than ASCII as `\u` escapes. They occur in texts and names only.
fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() {
            out.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                let _infallible = write!(out, "\\u{unit:04x}");
            }
        }
    }
    out
}

/// Python's separators and indentation.
struct Python<'a> {
    item: &'a [u8],
    key: &'a [u8],
    indent: Option<usize>,
    depth: usize,
    /// Whether the list or object that ends has something in it.
    filled: bool,
}

impl Python<'_> {
    fn line<W: ?Sized + io::Write>(&self, out: &mut W) -> io::Result<()> {
        let Some(width) = self.indent else { return Ok(()) };
        out.write_all(b"\n")?;
        out.write_all(" ".repeat(width * self.depth).as_bytes())
    }

    fn begin<W: ?Sized + io::Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        (self.depth, self.filled) = (self.depth + 1, false);
        out.write_all(bracket)
    }

    fn end<W: ?Sized + io::Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.filled {
            self.line(out)?;
        }
        self.filled = true;
        out.write_all(bracket)
    }

    fn entry<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(self.item)?;
        }
        self.line(out)
    }
}

impl Formatter for Python<'_> {
    fn begin_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.entry(out, first)
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.entry(out, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.key)
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
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
