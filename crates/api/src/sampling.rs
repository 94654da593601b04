//! What requests for chat completions and for completions have in common: sampling, streaming and routing.

use std::ops::Not;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Only, Texts, TokenIds, TopK};

/// How answers are made and given, whatever their prompt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Sampling {
    /// The served model's name, or `default`.
    pub model: Option<String>,
    /// Most tokens of an answer; 1024, or what fits, when absent.
    pub max_tokens: Option<u64>,
    /// The same under its newer name, which comes first.
    pub max_completion_tokens: Option<u64>,
    /// 0 is greedy; 1 when absent.
    pub temperature: Option<f64>,
    /// Only the most likely tokens whose probabilities add up to it; 1 is all.
    pub top_p: Option<f64>,
    /// Only so many of the most likely tokens; 0 and -1 are all.
    pub top_k: Option<TopK>,
    /// Only tokens at least this times as likely as the most likely one; 0 is all.
    pub min_p: Option<f64>,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output; 1 is none.
    pub repetition_penalty: Option<f64>,
    /// Taken off the logits of tokens seen in the output; 0 is none.
    pub presence_penalty: Option<f64>,
    /// Taken off the logits of tokens in the output, times their number; 0 is none.
    pub frequency_penalty: Option<f64>,
    /// Tokens before which no token that ends the answer is chosen.
    pub min_tokens: Option<u64>,
    /// Texts that end an answer; it ends before them.
    pub stop: Option<Texts>,
    /// Further token ids that end an answer.
    pub stop_token_ids: Option<TokenIds>,
    /// Go on after a token that ends the model's text.
    #[serde(skip_serializing_if = "Not::not")]
    pub ignore_eos: bool,
    /// Seed of the draws: equal requests with a seed have equal answers.
    pub seed: Option<u64>,
    /// Answers to each prompt; 1 when absent.
    pub n: Option<u64>,
    /// Give the answer in pieces, as server-sent events.
    #[serde(skip_serializing_if = "Not::not")]
    pub stream: bool,
    /// What a stream reports besides.
    pub stream_options: Option<StreamOptions>,
    /// Routing of this request.
    pub routing: Option<RoutingOptions>,
    /// For the client's own books; changes nothing.
    pub user: Option<Value>,
    /// For the client's own books; changes nothing.
    pub metadata: Option<Value>,
    /// For the client's own books; changes nothing.
    pub safety_identifier: Option<Value>,
    /// For the client's own books; changes nothing.
    pub prompt_cache_key: Option<Value>,
}

/// Fields that other servers know and this one does not.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[allow(missing_docs)]
pub struct Unsupported {
    #[schemars(extend("enum" = [null]))]
    pub audio: Only,
    #[schemars(extend("enum" = [1, null]))]
    pub best_of: Only,
    #[schemars(extend("enum" = [false, null]))]
    pub echo: Only,
    #[schemars(extend("enum" = ["none", null]))]
    pub function_call: Only,
    #[schemars(extend("enum" = [[], null]))]
    pub functions: Only,
    #[schemars(extend("enum" = [{}, null]))]
    pub logit_bias: Only,
    #[schemars(extend("enum" = [["text"], null]))]
    pub modalities: Only,
    #[schemars(extend("enum" = [true, null]))]
    pub parallel_tool_calls: Only,
    #[schemars(extend("enum" = [null]))]
    pub prediction: Only,
    #[schemars(extend("enum" = [null]))]
    pub reasoning_effort: Only,
    #[schemars(extend("enum" = [{"type": "text"}, null]))]
    pub response_format: Only,
    #[schemars(extend("enum" = ["auto", "default", null]))]
    pub service_tier: Only,
    #[schemars(extend("enum" = [true, null]))]
    pub skip_special_tokens: Only,
    #[schemars(extend("enum" = [false, null]))]
    pub store: Only,
    #[schemars(extend("enum" = ["", null]))]
    pub suffix: Only,
    #[schemars(extend("enum" = [false, null]))]
    pub use_beam_search: Only,
    #[schemars(extend("enum" = [null]))]
    pub verbosity: Only,
    #[schemars(extend("enum" = [null]))]
    pub web_search_options: Only,
}

/// What a stream reports besides its pieces.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct StreamOptions {
    /// A last chunk with the usage.
    #[serde(skip_serializing_if = "Not::not")]
    pub include_usage: bool,
    /// The usage so far in every chunk.
    #[serde(skip_serializing_if = "Not::not")]
    pub continuous_usage_stats: bool,
}

/// Routing of one request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct RoutingOptions {
    /// The method; it must be the configured one.
    pub method: Option<String>,
    /// Replaces the method's threshold, for methods that compare one.
    pub threshold: Option<f64>,
    /// Seed of routing draws.
    pub seed: Option<u64>,
    /// Report every step.
    #[serde(skip_serializing_if = "Not::not")]
    pub trace: bool,
}
