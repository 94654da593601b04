//! `POST /v1/completions`: OpenAI's completions.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::body::body;
use crate::lists::{table, whole};
use crate::sampling::{Sampling, Unsupported};
use crate::usage::{ChunkRouting, Steps, Usage};

/// Texts to be continued.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct CompletionRequest {
    /// How answers are made and given.
    #[serde(flatten)]
    pub sampling: Sampling,
    /// What is continued.
    #[serde(flatten)]
    pub prompt: CompletionPrompt,
    /// Fields that do nothing.
    #[serde(flatten)]
    pub unsupported: Unsupported,
    /// Fields about the prompt that do nothing.
    #[serde(flatten)]
    pub form: PromptOptions,
}

body!(CompletionRequest { sampling, prompt, unsupported, form });

table! {
    /// A prompt is tokens, or text for the model's tokenizer as it is.
    PromptOptions {
        add_special_tokens: [true, null],
        prompt_embeds: [null],
    }
}

/// What is continued.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CompletionPrompt {
    /// One prompt or several, each as text or as token ids. Special tokens that are written out in it are read as such.
    pub prompt: Prompts,
    /// Report the log-probabilities of every token, and of this many of the most likely ones.
    #[serde(default)]
    pub logprobs: Option<u64>,
}

/// One prompt or several.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum Prompts {
    /// One.
    One(Prompt),
    /// Several; at least one.
    Several(#[schemars(length(min = 1))] Vec<Prompt>),
}

/// A prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum Prompt {
    /// Text.
    Text(String),
    /// Token ids; at least one.
    Ids(#[schemars(length(min = 1))] Vec<u32>),
}

impl Prompts {
    /// All of them.
    pub fn into_vec(self) -> Vec<Prompt> {
        match self {
            Self::One(prompt) => vec![prompt],
            Self::Several(prompts) => prompts,
        }
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const EXPECTED: &str = "a text, a list of texts, a list of token ids, or a list of such lists";
        let prompts = whole(deserializer, EXPECTED, |value| match &value {
            Value::Array(list) if list.is_empty() => None,
            Value::Array(list) if !list[0].is_number() => serde_json::from_value(value).ok().map(Self::Several),
            _ => serde_json::from_value(value).ok().map(Self::One),
        })?;
        let all = match &prompts {
            Self::One(prompt) => std::slice::from_ref(prompt),
            Self::Several(prompts) => prompts,
        };
        match all.iter().position(|prompt| matches!(prompt, Prompt::Ids(ids) if ids.is_empty())) {
            Some(index) => {
                Err(D::Error::custom(format!("has no token ids in prompt {index}, it must have at least one")))
            }
            None => Ok(prompts),
        }
    }
}

/// An answer that is not streamed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TextCompletion {
    /// Names the answer; `DELETE /v1/requests/{id}` takes it.
    pub id: String,
    /// The kind of this object.
    #[schemars(extend("const" = "text_completion"))]
    pub object: String,
    /// When the request came, in seconds since 1970.
    pub created: u64,
    /// The served model.
    pub model: String,
    /// The answers, `n` to each prompt.
    pub choices: Vec<TextChoice>,
    /// Tokens of all answers, and what the models did.
    pub usage: Usage,
    /// Every step, where the request asked for a trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routing: Option<Steps>,
}

/// A piece of a stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TextChunk {
    /// Names the answer; `DELETE /v1/requests/{id}` takes it.
    pub id: String,
    /// The kind of this object.
    #[schemars(extend("const" = "text_completion"))]
    pub object: String,
    /// When the request came, in seconds since 1970.
    pub created: u64,
    /// The served model.
    pub model: String,
    /// The answer that the piece belongs to; none in the last chunk, which has the usage.
    pub choices: Vec<TextChoice>,
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

/// One answer, or a piece of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TextChoice {
    /// Its place among all.
    pub index: usize,
    /// The text.
    pub text: String,
    /// Log-probabilities, where the request asked for them.
    pub logprobs: Option<TextLogprobs>,
    /// Why it ended: `stop` or `length`; null while it goes on.
    pub finish_reason: Option<String>,
}

/// Log-probabilities of tokens, as lists with an entry a token.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TextLogprobs {
    /// The tokens as texts.
    pub tokens: Vec<String>,
    /// Natural logarithms of their probabilities.
    pub token_logprobs: Vec<Option<f64>>,
    /// The same of the most likely tokens, falling.
    pub top_logprobs: Vec<Option<IndexMap<String, Option<f64>>>>,
    /// Where each token begins, in characters from the beginning of the answer. A token that begins within a character
    /// has that character's place.
    pub text_offset: Vec<usize>,
}
