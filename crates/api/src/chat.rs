//! `POST /v1/chat/completions`: OpenAI's chat completions.

use std::borrow::Cow;
use std::ops::Not;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::body::body;
use crate::lists::{table, whole};
use crate::sampling::{Sampling, Unsupported};
use crate::usage::{ChunkRouting, Steps, Usage};

/// A conversation to be continued.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ChatRequest {
    /// How answers are made and given.
    #[serde(flatten)]
    pub sampling: Sampling,
    /// The conversation.
    #[serde(flatten)]
    pub prompt: Conversation,
    /// Log-probabilities of the answer.
    #[serde(flatten)]
    pub logprobs: ChatLogprobsOptions,
    /// Fields that do nothing.
    #[serde(flatten)]
    pub unsupported: Unsupported,
    /// Fields about the template that do nothing.
    #[serde(flatten)]
    pub template: TemplateOptions,
}

body!(ChatRequest { sampling, prompt, logprobs, unsupported, template });

/// Messages, and what the chat template is given besides.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Conversation {
    /// The messages so far; at least one.
    pub messages: Messages,
    /// Tools that the template shows to the model. What it answers is given as text: calls are not taken apart.
    #[serde(default)]
    pub tools: Option<Tools>,
    /// Whether the tools are shown.
    #[serde(default)]
    pub tool_choice: Option<ToolChoice>,
    /// Further variables of the template.
    #[serde(default)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
}

/// Log-probabilities of chat completions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ChatLogprobsOptions {
    /// Report the log-probability of every token.
    #[serde(skip_serializing_if = "Not::not")]
    pub logprobs: bool,
    /// Also report those of this many of the most likely tokens.
    pub top_logprobs: Option<u64>,
}

table! {
    /// A template comes with the model, never with a request.
    TemplateOptions {
        add_generation_prompt: [true, null],
        add_special_tokens: [false, null],
        chat_template: [null],
        continue_final_message: [false, null],
        documents: [[], null],
    }
}

/// Messages of a conversation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Messages(#[schemars(length(min = 1))] pub Vec<Message>);

impl<'de> Deserialize<'de> for Messages {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Messages;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of messages")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Messages, A::Error> {
                let mut messages = Vec::new();
                while let Some(message) = seq.next_element()? {
                    messages.push(message);
                }
                if messages.is_empty() {
                    return Err(A::Error::invalid_length(0, &self));
                }
                Ok(Messages(messages))
            }
        }
        deserializer.deserialize_seq(List)
    }
}

/// A message. Fields that the API does not name go to the template as they are.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(expecting = "an object with `role` and `content`")]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, `tool`.
    #[serde(default)]
    #[schemars(required)]
    pub role: Role,
    /// What is said; it may be absent beside tool calls.
    #[serde(default)]
    pub content: Option<Content>,
    /// Calls of tools by the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Value>,
    /// Whatever else the template reads.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// Who speaks; absent where the client left it out.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Role(pub Option<String>);

impl<'de> Deserialize<'de> for Role {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        whole(deserializer, "a text such as `user`", |value| match value {
            Value::String(role) => Some(Self(Some(role))),
            _ => None,
        })
    }
}

impl JsonSchema for Role {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Role".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string"})
    }
}

/// What a message says.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum Content {
    /// A text.
    Text(String),
    /// Texts, to be joined as lines.
    Parts(Vec<TextPart>),
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TextPart {
    /// `text`: there are no other parts.
    #[serde(rename = "type")]
    pub kind: TextKind,
    /// The text.
    pub text: String,
}

/// The kind of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum TextKind {
    /// Text.
    Text,
}

impl Content {
    /// All of it as one text.
    pub fn into_text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Parts(parts) => parts.into_iter().map(|part| part.text).collect::<Vec<_>>().join("\n"),
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Self::Text(text)),
            list @ Value::Array(_) => serde_json::from_value(list)
                .map(Self::Parts)
                .map_err(|_| D::Error::custom("has a part that is not `{\"type\": \"text\", \"text\": ...}`")),
            _ => Err(D::Error::invalid_type(
                serde::de::Unexpected::Other("another value"),
                &"a text or a list of text parts",
            )),
        }
    }
}

/// Tools as the template wants them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Tools(pub Vec<Map<String, Value>>);

impl<'de> Deserialize<'de> for Tools {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        whole(deserializer, "a list of objects", |value| serde_json::from_value(value).ok().map(Self))
    }
}

/// Whether the model may call tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum ToolChoice {
    /// The model sees them and decides.
    Auto,
    /// The model does not see them.
    None,
}

/// An answer that is not streamed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ChatCompletion {
    /// Names the answer; `DELETE /v1/requests/{id}` takes it.
    pub id: String,
    /// The kind of this object.
    #[schemars(extend("const" = "chat.completion"))]
    pub object: String,
    /// When the request came, in seconds since 1970.
    pub created: u64,
    /// The served model.
    pub model: String,
    /// The answers, `n` to each prompt.
    pub choices: Vec<ChatChoice>,
    /// Tokens of all answers, and what the models did.
    pub usage: Usage,
    /// Every step, where the request asked for a trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routing: Option<Steps>,
}

/// One answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ChatChoice {
    /// Its place among all.
    pub index: usize,
    /// What the model says.
    pub message: AssistantMessage,
    /// Log-probabilities, where the request asked for them.
    pub logprobs: Option<ChatLogprobs>,
    /// Why it ended: `stop` or `length`.
    pub finish_reason: Option<String>,
}

/// What the model says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct AssistantMessage {
    /// `assistant`.
    pub role: String,
    /// The text.
    pub content: Option<String>,
}

/// A piece of a stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ChatChunk {
    /// Names the answer; `DELETE /v1/requests/{id}` takes it.
    pub id: String,
    /// The kind of this object.
    #[schemars(extend("const" = "chat.completion.chunk"))]
    pub object: String,
    /// When the request came, in seconds since 1970.
    pub created: u64,
    /// The served model.
    pub model: String,
    /// The answer that the piece belongs to; none in the last chunk, which has the usage.
    pub choices: Vec<ChatChunkChoice>,
    /// Letters that hide the length of the text, where the request asked for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub obfuscation: Option<String>,
    /// Tokens of the piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routing: Option<ChunkRouting>,
    /// Tokens of all answers so far, where the request asked for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// What a piece adds to an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ChatChunkChoice {
    /// The answer's place among all.
    pub index: usize,
    /// What is new.
    pub delta: Delta,
    /// Log-probabilities of the piece's tokens, where the request asked for them.
    pub logprobs: Option<ChatLogprobs>,
    /// Why the answer ended, in its last piece: `stop` or `length`.
    pub finish_reason: Option<String>,
}

/// What is new.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Delta {
    /// `assistant`, in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Text that became certain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

/// Log-probabilities of tokens: of the softmax of the raw logits of the model that wrote the token.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ChatLogprobs {
    /// One entry a token.
    pub content: Vec<ChatLogprob>,
    /// Always null.
    pub refusal: Option<String>,
}

/// A token of an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ChatLogprob {
    /// The token.
    #[serde(flatten)]
    pub token: ScoredToken,
    /// The most likely tokens, falling.
    pub top_logprobs: Vec<ScoredToken>,
}

/// A token and how likely it was.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ScoredToken {
    /// As text; parts of characters are shown as U+FFFD.
    pub token: String,
    /// Natural logarithm of its probability.
    pub logprob: Option<f64>,
    /// Its bytes; none for a special token.
    pub bytes: Option<Vec<u8>>,
}
