//! Requests: what a client asks, what it gets, and why it ended.

use std::time::Duration;

/// Index of a model in the configuration's order.
pub type ModelIndex = usize;

/// Identity of a request within an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "request {}", self.0)
    }
}

/// How the next token is chosen from a model's logits, and when to stop.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// Only the `top_k` most likely tokens; 0 is all.
    pub top_k: usize,
    /// Only the most likely tokens whose probabilities add up to `top_p`; 1 is all.
    pub top_p: f32,
    /// Seed of this request's draws (sampling and routing).
    pub seed: u64,
    /// Most tokens to commit.
    pub max_tokens: usize,
    /// Go on after an end-of-sequence token.
    pub ignore_eos: bool,
    /// Further token ids that end the request.
    pub stop_token_ids: Vec<u32>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            seed: 0,
            max_tokens: 256,
            ignore_eos: false,
            stop_token_ids: Vec::new(),
        }
    }
}

/// A request as a client states it.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Token ids of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// Sampling and stopping.
    pub sampling: SamplingParams,
    /// Names this request in keyed draws. Equal keys and seeds give equal draws, whatever the schedule.
    pub key: u64,
}

/// A token of the committed stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommittedToken {
    /// Token id.
    pub id: u32,
    /// The model that wrote it.
    pub origin: ModelIndex,
}

/// Why a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-sequence or stop token was committed.
    Stop,
    /// `max_tokens` or the context length was reached.
    Length,
    /// The client went away or asked for it.
    Cancelled,
    /// Something failed; the text says what.
    Error(String),
}

impl FinishReason {
    /// The word used in results and in the HTTP API.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
            Self::Error(_) => "error",
        }
    }
}

/// What happened to a request, reported when it ends.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RequestStats {
    /// Tokens committed by each model.
    pub tokens_by_model: Vec<u64>,
    /// Times the request moved from one model to another.
    pub handoffs: u64,
    /// Time in the admission queue.
    pub queue_wait: Duration,
    /// Time spent ready in the buffers of idle or busy models, waiting for a batch to be launched.
    pub admission_wait: Duration,
}

impl RequestStats {
    /// Committed tokens.
    pub fn tokens(&self) -> u64 {
        self.tokens_by_model.iter().sum()
    }
}

/// One event of a request's stream. `Finished` is always the last.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// A committed token.
    Token(CommittedToken),
    /// The end.
    Finished(FinishReason, RequestStats),
}
