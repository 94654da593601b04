//! What comes back for a request.

use std::time::Duration;

use tokenrouter_engine::tokenizer::{ChatMessage, TextCodec};

use super::clock::Clock;
use super::judge::Transcript;
use crate::trace::TraceStep;

/// What came back so far; kept when a request is interrupted.
#[derive(Debug)]
pub(super) struct Reply {
    clock: Clock,
    /// When it was sent, or was to be.
    start: Duration,
    pub(super) prompt_tokens: Option<u64>,
    pub(super) tokens: u64,
    pub(super) text: String,
    /// Whether there is text at all: emulated models write none, and nothing is graded then.
    pub(super) has_text: bool,
    pub(super) first_token: Option<Duration>,
    last_token: Option<Duration>,
    /// Milliseconds between one token and the next, where they are asked for.
    pub(super) gaps: Option<Vec<f64>>,
    pub(super) llm_ratio: Option<f64>,
    pub(super) handoffs: Option<u64>,
    /// Time ready before a launch, over all visits.
    pub(super) buffer_wait: Option<Duration>,
    pub(super) finish_reason: String,
    pub(super) error: Option<String>,
    /// Whether steps are wanted, and the steps.
    pub(super) trace: bool,
    /// See `trace`.
    pub(super) steps: Vec<TraceStep>,
    /// Counts the tokens of all requests as they come, for the progress bar.
    pub(super) live: std::rc::Rc<std::cell::Cell<u64>>,
    /// Prompt and answer, where they are to be judged and the tokens are known.
    pub(super) transcript: Option<Transcript>,
}

impl Reply {
    pub(super) fn new((clock, start): (Clock, Duration), live: std::rc::Rc<std::cell::Cell<u64>>, trace: bool) -> Self {
        Self {
            clock,
            start,
            prompt_tokens: None,
            tokens: 0,
            text: String::new(),
            has_text: false,
            first_token: None,
            last_token: None,
            gaps: None,
            llm_ratio: None,
            handoffs: None,
            buffer_wait: None,
            finish_reason: String::new(),
            error: None,
            trace,
            steps: Vec::new(),
            live,
            transcript: None,
        }
    }

    /// Text that became certain with the last token.
    pub(super) fn add_text(&mut self, piece: &str) {
        self.text.push_str(piece);
        if let Some(step) = self.steps.last_mut().filter(|step| step.record.committed) {
            step.text.push_str(piece);
        }
    }

    /// The time of the load.
    pub(super) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// A token has just come.
    pub(super) fn count_token(&mut self) {
        self.count_token_at(self.now());
    }

    /// A token came at this time of the load.
    pub(super) fn count_token_at(&mut self, time: Duration) {
        let now = time.saturating_sub(self.start);
        self.first_token.get_or_insert(now);
        if let (Some(gaps), Some(last)) = (&mut self.gaps, self.last_token.replace(now)) {
            gaps.push((now - last).as_secs_f64() * 1e3);
        }
        self.tokens += 1;
        self.live.set(self.live.get() + 1);
    }
}

/// The tokens of a conversation. Emulated models read nothing: about as many tokens as the text would have.
pub(super) fn tokens(text: Option<&TextCodec>, messages: &[ChatMessage]) -> anyhow::Result<Vec<u32>> {
    match text {
        Some(codec) => Ok(codec.encode(&render(text, messages)?)?),
        None => Ok(messages.iter().flat_map(|message| message.content.bytes()).step_by(4).map(u32::from).collect()),
    }
}

/// A conversation as one text.
pub(super) fn render(text: Option<&TextCodec>, messages: &[ChatMessage]) -> anyhow::Result<String> {
    if let Some(text) = text.filter(|text| text.has_chat_template()) {
        return Ok(text.apply_chat_template(messages)?);
    }
    let contents: Vec<_> = messages.iter().map(|message| message.content.as_str()).collect();
    Ok(contents.join("\n\n"))
}
