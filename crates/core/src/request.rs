//! Requests: what a client asks, what it gets, and why it ended.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::token_texts::TokenTexts;

/// Most of the most likely tokens that a request may ask for with its log-probabilities.
pub const MAX_TOP_LOGPROBS: usize = 20;

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
    /// Only tokens at least `min_p` times as likely as the most likely one; 0 is all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output; 1 is none.
    pub repetition_penalty: f32,
    /// Taken off the logits of tokens seen in the output; 0 is none.
    pub presence_penalty: f32,
    /// Taken off the logits of tokens in the output, times their number; 0 is none.
    pub frequency_penalty: f32,
    /// Seed of this request's draws (sampling and routing).
    pub seed: u64,
    /// Most tokens to commit.
    pub max_tokens: usize,
    /// Tokens before which no end-of-sequence token, nor one of `stop_token_ids`, is chosen.
    pub min_tokens: usize,
    /// Go on after an end-of-sequence token.
    pub ignore_eos: bool,
    /// Further token ids that end the request.
    pub stop_token_ids: Vec<u32>,
    /// Texts that end the request when they appear in the committed text.
    pub stop: Vec<String>,
}

impl SamplingParams {
    /// Whether a choice depends on earlier tokens.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Whether the last of the committed tokens ends the request. `texts` are the tokens' texts, for stop texts.
    pub fn finish_after(&self, committed: &[u32], eos: &[u32], texts: Option<&TokenTexts>) -> Option<FinishReason> {
        let token = committed.last()?;
        let ends = self.stop_token_ids.contains(token) || (!self.ignore_eos && eos.contains(token));
        if ends || texts.is_some_and(|texts| self.stops_in(committed, texts)) {
            return Some(FinishReason::Stop);
        }
        (committed.len() >= self.max_tokens).then_some(FinishReason::Length)
    }

    /// Whether a stop text ends within the last token. Earlier ends were found when they came.
    fn stops_in(&self, committed: &[u32], texts: &TokenTexts) -> bool {
        let Some(longest) = self.stop.iter().map(String::len).max() else { return false };
        let mut wanted = longest - 1 + committed.last().map_or(0, |token| texts.get(*token).len());
        let mut tail: Vec<u8> = Vec::new();
        for token in committed.iter().rev() {
            let text = texts.get(*token);
            tail.extend(text.iter().rev());
            wanted = wanted.saturating_sub(text.len());
            if wanted == 0 {
                break;
            }
        }
        tail.reverse();
        self.stop.iter().any(|stop| tail.windows(stop.len()).any(|window| window == stop.as_bytes()))
    }

    /// Checks ranges; the message names the parameter, its value and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        let within = |name: &str, value: f32, low: f32, high: f32| {
            if value.is_finite() && (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(format!("`{name}` is {value}, allowed is {low} to {high}"))
            }
        };
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Err(format!("`temperature` is {}, it must be 0 or more", self.temperature));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(format!("`top_p` is {}, allowed is above 0 up to 1", self.top_p));
        }
        within("min_p", self.min_p, 0.0, 1.0)?;
        within("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        if !(self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0) {
            return Err(format!("`repetition_penalty` is {}, it must be above 0", self.repetition_penalty));
        }
        if self.max_tokens == 0 {
            return Err("`max_tokens` is 0, the smallest is 1".into());
        }
        if self.min_tokens > self.max_tokens {
            return Err(format!("`min_tokens` is {}, above `max_tokens` of {}", self.min_tokens, self.max_tokens));
        }
        if self.stop.iter().any(String::is_empty) {
            return Err("`stop` has an empty text".into());
        }
        Ok(())
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
            max_tokens: 256,
            min_tokens: 0,
            ignore_eos: false,
            stop_token_ids: Vec::new(),
            stop: Vec::new(),
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
    /// Whether every step is reported ([`StreamEvent::Step`]).
    pub trace: bool,
    /// The last tokens of `prompt` that were committed before, when another engine has begun this request. Positions,
    /// and with them draws and limits, count from the first of them.
    pub resumed: usize,
    /// Log-probabilities of every committed token ([`StreamEvent::Logprobs`]), with this many of the most likely tokens.
    pub logprobs: Option<usize>,
    /// What this request changes in the routing.
    pub routing: RoutingOverrides,
}

/// What one request changes in the routing of the system that serves it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RoutingOverrides {
    /// Instead of the threshold of the configured method.
    pub threshold: Option<f64>,
    /// Seed of the routing's draws, instead of the seed of sampling.
    pub seed: Option<u64>,
}

impl Request {
    /// A request without a trace and log-probabilities, routed as configured.
    pub fn new(prompt: Vec<u32>, sampling: SamplingParams, key: u64) -> Self {
        Self { prompt, sampling, key, trace: false, resumed: 0, logprobs: None, routing: RoutingOverrides::default() }
    }

    /// Tokens of the prompt without those that were committed before.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt.len() - self.resumed
    }

    /// Most tokens that the request may have, prompt and output.
    pub fn most_tokens(&self) -> usize {
        self.prompt_tokens() + self.sampling.max_tokens
    }
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
    /// The request goes on at this model as a new one (`system.execution: standard`). Clients never see it.
    Moved(ModelIndex),
    /// This model was lost with what it knew of the request, or cannot be reached.
    Lost(ModelIndex),
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
            Self::Moved(_) => "moved",
            Self::Lost(_) | Self::Error(_) => "error",
        }
    }

    /// What failed, if something did.
    pub fn error(&self) -> Option<String> {
        match self {
            Self::Lost(model) => Some(format!("model {model} was lost or cannot be reached")),
            Self::Error(message) => Some(message.clone()),
            _ => None,
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
    pub buffer_wait: Duration,
}

impl RequestStats {
    /// Nothing so far, at any of `models` models.
    pub fn for_models(models: usize) -> Self {
        Self { tokens_by_model: vec![0; models], ..Self::default() }
    }

    /// Committed tokens.
    pub fn tokens(&self) -> u64 {
        self.tokens_by_model.iter().sum()
    }

    /// Adds what a later part of the same request did.
    pub fn add(&mut self, later: &Self) {
        self.tokens_by_model.resize(self.tokens_by_model.len().max(later.tokens_by_model.len()), 0);
        for (sum, tokens) in self.tokens_by_model.iter_mut().zip(&later.tokens_by_model) {
            *sum += tokens;
        }
        self.handoffs += later.handoffs;
        self.queue_wait += later.queue_wait;
        self.buffer_wait += later.buffer_wait;
    }
}

/// What one step did to a request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Index of the candidate in the committed stream.
    pub position: usize,
    /// The model that made the step.
    pub model: ModelIndex,
    /// The candidate.
    pub token: u32,
    /// Whether it was committed.
    pub committed: bool,
    /// Where the request went on: the same model if it stayed; none if it ended.
    pub to: Option<ModelIndex>,
    /// The number that the routing method compared with its threshold, if it has one.
    pub score: Option<f32>,
}

/// How likely a committed token was to the model that wrote it: the softmax of its raw logits, at temperature 1 and before
/// penalties and truncation, over the common vocabulary.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// The most likely tokens with theirs, falling.
    pub top: Vec<(u32, f32)>,
}

/// One event of a request's stream. `Finished` is always the last.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// A step, when the request asked for a trace; before the token that it committed.
    Step(StepRecord),
    /// Log-probabilities, when the request asked for them; before their token.
    Logprobs(TokenLogprobs),
    /// A committed token.
    Token(CommittedToken),
    /// The end.
    Finished(FinishReason, RequestStats),
}
