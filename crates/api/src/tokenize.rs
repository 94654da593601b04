//! `POST /tokenize` and `POST /detokenize`: what clients use to make prompts of a given length.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::body::body;
use crate::chat::{Messages, ToolChoice, Tools};
use crate::{Only, TokenIds};

/// A text (`prompt` or `text`) or a conversation (`messages`) to be made into tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct TokenizeRequest {
    /// The served model's name; not looked at.
    pub model: Option<Value>,
    /// The text. Special tokens that are written out in it are read as such.
    pub prompt: Option<String>,
    /// The same under another name.
    pub text: Option<String>,
    /// The messages of a conversation.
    pub messages: Option<Messages>,
    /// Tools that the template shows to the model.
    pub tools: Option<Tools>,
    /// Whether the tools are shown.
    pub tool_choice: Option<ToolChoice>,
    /// Further variables of the template.
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Not supported.
    #[schemars(extend("enum" = [true, null]))]
    pub add_special_tokens: Only,
    /// Not supported.
    #[schemars(extend("enum" = [true, null]))]
    pub add_generation_prompt: Only,
    /// Not supported.
    #[schemars(extend("enum" = [false, null]))]
    pub return_token_strs: Only,
}

body!(TokenizeRequest);

/// Tokens of a text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tokenized {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// How many there are.
    pub count: usize,
    /// Most tokens of a request, with its output.
    pub max_model_len: usize,
}

/// Tokens to be made into text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct DetokenizeRequest {
    /// The served model's name; not looked at.
    #[serde(default)]
    pub model: Option<Value>,
    /// The tokens.
    pub tokens: TokenIds,
    /// Not supported.
    #[serde(default)]
    #[schemars(extend("enum" = [true, null]))]
    pub skip_special_tokens: Only,
}

body!(DetokenizeRequest);

/// Text of tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Detokenized {
    /// The text.
    pub prompt: String,
    /// The same.
    pub text: String,
}
