//! What answers requests: an engine in this process, or a server with the OpenAI API.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tokenrouter_engine::tokenizer::{ChatMessage, TextCodec};
use tokenrouter_engine::{Config, Engine, EngineStats, FinishReason, Request, SamplingParams, StreamEvent};

use super::args::{Named, RunArgs};
use super::completion;
use super::http;
use super::judge::Answer;
use super::remote::Remote;
use crate::trace::TraceStep;

/// Longest time without a byte from a server.
const READ_TIMEOUT: Duration = Duration::from_secs(300);

/// Answers requests.
pub(super) enum Backend {
    Engine(Arc<Engine>),
    Http {
        client: reqwest::Client,
        url: String,
        model: String,
    },
    /// Servers of single models.
    Remote(Box<Remote>),
}

/// What came back so far; kept when a request is interrupted.
#[derive(Debug)]
pub(super) struct Reply {
    /// When it was sent, or was to be.
    start: Instant,
    pub(super) prompt_tokens: Option<u64>,
    pub(super) tokens: u64,
    pub(super) text: String,
    /// Whether there is text at all: emulated models write none, and nothing is graded then.
    pub(super) has_text: bool,
    pub(super) first_token: Option<Duration>,
    pub(super) llm_ratio: Option<f64>,
    pub(super) handoffs: Option<u64>,
    pub(super) admission_wait: Option<Duration>,
    pub(super) finish_reason: String,
    pub(super) error: Option<String>,
    /// Whether steps are wanted, and the steps.
    pub(super) trace: bool,
    /// See `trace`.
    pub(super) steps: Vec<TraceStep>,
    /// Counts the tokens of all requests as they come, for the progress bar.
    pub(super) live: std::rc::Rc<std::cell::Cell<u64>>,
    /// Prompt and answer, where they are to be judged and the tokens are known.
    pub(super) answer: Option<Answer>,
}

impl Reply {
    pub(super) fn new(start: Instant, live: std::rc::Rc<std::cell::Cell<u64>>, trace: bool) -> Self {
        Self {
            start,
            prompt_tokens: None,
            tokens: 0,
            text: String::new(),
            has_text: false,
            first_token: None,
            llm_ratio: None,
            handoffs: None,
            admission_wait: None,
            finish_reason: String::new(),
            error: None,
            trace,
            steps: Vec::new(),
            live,
            answer: None,
        }
    }

    /// Text that became certain with the last token.
    fn add_text(&mut self, piece: &str) {
        self.text.push_str(piece);
        if let Some(step) = self.steps.last_mut().filter(|step| step.record.committed) {
            step.text.push_str(piece);
        }
    }

    pub(super) fn count_token(&mut self) {
        self.first_token.get_or_insert_with(|| self.start.elapsed());
        self.tokens += 1;
        self.live.set(self.live.get() + 1);
    }
}

impl Backend {
    /// The servers of `--endpoint`; those of single models need the configuration.
    pub(super) fn servers(args: &RunArgs, config: Option<&Config>) -> anyhow::Result<Self> {
        let client =
            reqwest::Client::builder().read_timeout(READ_TIMEOUT).build().context("cannot make an HTTP client")?;
        let by_model = |list: &[Named]| list.iter().map(|n| (n.model.clone(), n.value.clone())).collect();
        let (urls, models): (HashMap<_, _>, HashMap<_, _>) = (by_model(&args.endpoint), by_model(&args.model));
        match config {
            Some(config) => Ok(Self::Remote(Box::new(Remote::new(client, config, &urls, &models)?))),
            None => {
                let base = completion::base(urls.get("").context("no endpoint is given")?)?;
                let model = models.get("").cloned().unwrap_or_else(|| "default".into());
                Ok(Self::Http { client, url: format!("{base}/v1/chat/completions"), model })
            }
        }
    }

    pub(super) fn stats(&self) -> Option<EngineStats> {
        match self {
            Self::Engine(engine) => Some(engine.stats()),
            Self::Http { .. } | Self::Remote(_) => None,
        }
    }

    /// Names of the models and index of the entry model, where they are known.
    pub(super) fn models(&self) -> Option<(Vec<String>, usize)> {
        match self {
            Self::Engine(engine) => Some((engine.model_names().to_vec(), engine.entry_index())),
            Self::Http { .. } | Self::Remote(_) => None,
        }
    }

    pub(super) fn info(&self) -> Value {
        match self {
            Self::Engine(engine) => serde_json::to_value(engine.info()).unwrap_or(Value::Null),
            Self::Http { url, .. } => json!({"endpoint": url}),
            Self::Remote(remote) => remote.info(),
        }
    }

    /// Sends a conversation; fills `reply` as the answer comes.
    pub(super) async fn ask(
        &self,
        messages: &[ChatMessage],
        sampling: SamplingParams,
        key: u64,
        reply: &mut Reply,
    ) -> anyhow::Result<()> {
        match self {
            Self::Engine(engine) => ask_engine(engine, messages, sampling, key, reply).await,
            Self::Remote(remote) => remote.ask(messages, &sampling, key, reply).await,
            Self::Http { client, url, model } => {
                let request = http::request(model, messages, &sampling, key);
                http::ask(client, url, &request, reply).await
            }
        }
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

async fn ask_engine(
    engine: &Engine,
    messages: &[ChatMessage],
    sampling: SamplingParams,
    key: u64,
    reply: &mut Reply,
) -> anyhow::Result<()> {
    let prompt = match engine.text() {
        Some(text) => text.encode(&render(Some(text), messages)?)?,
        // Emulated models read nothing; about as many tokens as the text would have.
        None => messages.iter().flat_map(|message| message.content.bytes()).step_by(4).map(u32::from).collect(),
    };
    reply.prompt_tokens = Some(prompt.len() as u64);
    if let Some(answer) = &mut reply.answer {
        *answer = Answer { tokens: prompt.clone(), prompt: prompt.len() };
    }
    let mut decoder = engine.text().map(|text| text.stream(&sampling.stop));
    let mut stream = engine.generate(Request { trace: reply.trace, ..Request::new(prompt, sampling, key) })?;
    while let Some(event) = stream.next().await {
        match event {
            StreamEvent::Step(record) => {
                // The text of a committed token comes with the token.
                let dropped = engine.text().filter(|_| !record.committed);
                let text = dropped.map(|text| text.decode(&[record.token])).transpose()?.unwrap_or_default();
                reply.steps.push(TraceStep { record, text });
            }
            StreamEvent::Logprobs(_) => {}
            StreamEvent::Token(token) => {
                reply.count_token();
                if let Some(answer) = &mut reply.answer {
                    answer.tokens.push(token.id);
                }
                if let Some(decoder) = &mut decoder {
                    let piece = decoder.push(token.id)?;
                    reply.add_text(&piece);
                }
            }
            StreamEvent::Finished(reason, stats) => {
                let entry = stats.tokens_by_model.get(engine.entry_index()).copied().unwrap_or_default();
                let tokens = stats.tokens();
                reply.llm_ratio = (tokens > 0).then(|| (tokens - entry) as f64 / tokens as f64);
                reply.handoffs = Some(stats.handoffs);
                reply.admission_wait = Some(stats.buffer_wait);
                reply.finish_reason = reason.as_str().to_owned();
                if let FinishReason::Error(message) = reason {
                    reply.error = Some(message);
                }
                if let Some(decoder) = &mut decoder {
                    let rest = decoder.finish()?;
                    reply.add_text(&rest);
                    reply.has_text = true;
                }
                return Ok(());
            }
        }
    }
    bail!("the engine stopped before the request ended")
}
