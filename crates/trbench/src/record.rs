//! What is known of one request when it has ended.

use serde::{Deserialize, Serialize};

/// One row of `result.csv`. Times in milliseconds; empty where there is no value.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Number of the request in its trial.
    pub id: u64,
    /// The dataset's name of the item, or of its session.
    pub item: String,
    /// Which repeat of the item, from 0.
    pub repeat: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u64>,
    /// Tokens of the answer.
    pub completion_tokens: u64,
    /// From sending (in an open loop: from its time of arrival) to the first token.
    pub ttft_ms: Option<f64>,
    /// Mean time between tokens after the first: `(e2el - ttft) / (completion_tokens - 1)`.
    pub tpot_ms: Option<f64>,
    /// From sending to the end.
    pub e2el_ms: Option<f64>,
    /// `completion_tokens` over `e2el`.
    pub tokens_per_s: Option<f64>,
    /// Share of the tokens that were not written by the entry model of the configuration.
    pub llm_ratio: Option<f64>,
    /// Moves from one model to another.
    pub handoffs: Option<u64>,
    /// Time spent ready in the buffers of the models, waiting for batches to be launched.
    #[serde(alias = "admission_wait_ms")]
    pub buffer_wait_ms: Option<f64>,
    /// `stop`, `length`, `cancelled` or `error`; other names of servers, such as `content_filter`, stay as they are.
    pub finish_reason: String,
    /// What went wrong.
    pub error: Option<String>,
    /// The integer found in the answer.
    pub answer: Option<i64>,
    /// Whether it is the right one; empty when the item has no answer.
    pub correct: Option<bool>,
    /// Which turn of its session, from 1.
    #[serde(default)]
    pub turn: usize,
    /// Which trial, from 0.
    #[serde(default)]
    pub trial: usize,
    /// When it was sent, or was to be sent in an open loop, since the start of its trial.
    #[serde(default)]
    pub start_ms: Option<f64>,
    /// How much later than that the client sent it.
    #[serde(default)]
    pub client_lag_ms: Option<f64>,
    /// Launch thresholds that it was served under, one for each model with spaces between them; `adaptive` where they
    /// followed the load, empty where they are not known.
    #[serde(default)]
    pub thresholds: String,
}

impl Record {
    /// Whether the request ran to its end.
    pub(crate) fn is_complete(&self) -> bool {
        self.e2el_ms.is_some()
    }
}
