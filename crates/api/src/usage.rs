//! What answers of several APIs have in common: tokens, and what the models did.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Tokens of all answers to a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Usage {
    /// Tokens of the prompts.
    pub prompt_tokens: u64,
    /// Tokens of the answers.
    pub completion_tokens: u64,
    /// Both.
    pub total_tokens: u64,
    /// What the models did; servers without routing leave it out.
    #[schemars(required)]
    pub routing: Option<UsageRouting>,
}

/// What the models did for a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct UsageRouting {
    /// Tokens that each model wrote.
    pub tokens_by_model: IndexMap<String, u64>,
    /// Share of tokens that the entry model did not write.
    pub llm_ratio: f64,
    /// How often the request went from one model to another.
    pub handoffs: u64,
    /// Time ready before the launch of a batch, over all models, in milliseconds.
    pub buffer_wait_ms: f64,
    /// Time in the admission queue, in milliseconds.
    pub queue_wait_ms: f64,
}

/// Tokens of a piece of a stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ChunkRouting {
    /// How many tokens the piece holds: a character, or a text that might become a stop text, can take several.
    pub tokens: usize,
    /// Who wrote each.
    pub models: Vec<String>,
    /// The steps that made them, where the request asked for a trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<Vec<Step>>,
}

/// Every step of a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Steps {
    /// In their order.
    pub steps: Vec<Step>,
}

/// A step of a model for a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// Index of the candidate in the answer.
    pub position: usize,
    /// The model that made the step.
    pub model: String,
    /// The candidate.
    pub token: u32,
    /// Its text.
    pub text: Option<String>,
    /// Whether it became part of the answer.
    pub committed: bool,
    /// Where the request went on: the same model if it stayed; null if it ended.
    pub to: Option<String>,
    /// The number that the routing method compared with its threshold, if it has one.
    pub score: Option<f64>,
}
