//! What answers requests: an engine in this process, or a server with the OpenAI API.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tokenrouter_core::{Request, SamplingParams, StreamEvent};
use tokenrouter_engine::profile::Span;
use tokenrouter_engine::tokenizer::{ChatMessage, StreamDecoder, TextCodec};
use tokenrouter_engine::{Config, Engine, EngineStats, VirtualEngine};

use super::clock::Clock;
use super::completion;
use super::http;
use super::judge::Transcript;
use super::remote::Remote;
use super::reply::{Reply, tokens};
use crate::spec::{Named, RunSpec};
use crate::trace::TraceStep;

/// Answers requests.
pub(super) enum Backend {
    Engine(Arc<Engine>),
    /// Emulated models in virtual time.
    Virtual(Rc<VirtualEngine>),
    Http {
        client: reqwest::Client,
        url: String,
        model: String,
    },
    /// Servers of single models.
    Remote(Box<Remote>),
}

impl Backend {
    /// The servers of `--endpoint`; those of single models need the configuration.
    pub(super) fn servers(spec: &RunSpec, config: Option<&Config>) -> anyhow::Result<Self> {
        let client = http::client(&spec.headers)?;
        let by_model = |list: &[Named]| list.iter().map(|n| (n.model.clone(), n.value.clone())).collect();
        let (urls, models): (HashMap<_, _>, HashMap<_, _>) = (by_model(&spec.endpoint), by_model(&spec.model));
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
            Self::Virtual(engine) => Some(engine.stats()),
            Self::Http { .. } | Self::Remote(_) => None,
        }
    }

    /// Names of the models and index of the entry model, where they are known.
    pub(super) fn models(&self) -> Option<(Vec<String>, usize)> {
        match self {
            Self::Engine(engine) => Some((engine.model_names().to_vec(), engine.entry_index())),
            Self::Virtual(engine) => Some((engine.model_names().to_vec(), engine.entry_index())),
            Self::Http { .. } | Self::Remote(_) => None,
        }
    }

    /// The launch thresholds at the largest number of requests, where they are known.
    pub(super) fn thresholds(&self) -> &[u32] {
        match self {
            Self::Engine(engine) => &engine.info().thresholds,
            Self::Virtual(engine) => &engine.info().thresholds,
            Self::Http { .. } | Self::Remote(_) => &[],
        }
    }

    pub(super) fn info(&self) -> Value {
        match self {
            Self::Engine(engine) => serde_json::to_value(engine.info()).unwrap_or(Value::Null),
            Self::Virtual(engine) => serde_json::to_value(engine.info()).unwrap_or(Value::Null),
            Self::Http { url, .. } => json!({"endpoint": url}),
            Self::Remote(remote) => remote.info(),
        }
    }

    /// What an engine in this process has to say of its launch.
    pub(super) fn notes(&self) -> impl Iterator<Item = &String> {
        let info = match self {
            Self::Engine(engine) => Some(engine.info()),
            Self::Virtual(engine) => Some(engine.info()),
            Self::Http { .. } | Self::Remote(_) => None,
        };
        info.into_iter().flat_map(|info| info.models.iter().chain(&info.warnings))
    }

    /// What every model did when, by model; empty where nobody knows.
    pub(super) fn spans(&self) -> Vec<Vec<Span>> {
        match self {
            Self::Engine(engine) => engine.profile(),
            Self::Virtual(engine) => engine.profile(),
            Self::Http { .. } | Self::Remote(_) => Vec::new(),
        }
    }

    /// A clock that begins now.
    pub(super) fn clock(&self) -> Clock {
        match self {
            Self::Virtual(engine) => Clock::Virtual(Rc::clone(engine), engine.now()),
            Self::Engine(_) | Self::Http { .. } | Self::Remote(_) => Clock::Real(Instant::now()),
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
            Self::Virtual(engine) => ask_virtual(engine, messages, sampling, key, reply).await,
            Self::Remote(remote) => remote.ask(messages, &sampling, key, reply).await,
            Self::Http { client, url, model } => {
                let request = http::request(model, messages, &sampling, key);
                http::ask(client, url, &request, reply).await
            }
        }
    }
}

async fn ask_engine(
    engine: &Engine,
    messages: &[ChatMessage],
    sampling: SamplingParams,
    key: u64,
    reply: &mut Reply,
) -> anyhow::Result<()> {
    let mut answer = Answer::new(engine.text(), engine.entry_index(), &sampling);
    let mut stream = engine.generate(question(engine.text(), messages, sampling, key, reply)?)?;
    while let Some(event) = stream.next().await {
        if answer.take(event, reply.now(), reply)? {
            return Ok(());
        }
    }
    bail!("the engine stopped before the request ended")
}

async fn ask_virtual(
    engine: &VirtualEngine,
    messages: &[ChatMessage],
    sampling: SamplingParams,
    key: u64,
    reply: &mut Reply,
) -> anyhow::Result<()> {
    let mut answer = Answer::new(None, engine.entry_index(), &sampling);
    let stream = engine.generate(question(None, messages, sampling, key, reply)?)?;
    let events = stream.await.context("nothing happens any more, and the request has not ended")?;
    let end = reply.now();
    let last = events.last().map_or(Duration::ZERO, |(time, _)| *time);
    for (time, event) in events {
        // Streams have the engine's time.
        answer.take(event, end.saturating_sub(last - time), reply)?;
    }
    Ok(())
}

/// The request that a conversation is.
fn question(
    text: Option<&TextCodec>,
    messages: &[ChatMessage],
    sampling: SamplingParams,
    key: u64,
    reply: &mut Reply,
) -> anyhow::Result<Request> {
    let prompt = tokens(text, messages)?;
    reply.prompt_tokens = Some(prompt.len() as u64);
    if let Some(transcript) = &mut reply.transcript {
        *transcript = Transcript { tokens: prompt.clone(), prompt: prompt.len() };
    }
    Ok(Request { trace: reply.trace, ..Request::new(prompt, sampling, key) })
}

/// What comes back from an engine in this process.
struct Answer<'a> {
    text: Option<&'a TextCodec>,
    decoder: Option<StreamDecoder>,
    entry: usize,
}

impl<'a> Answer<'a> {
    fn new(text: Option<&'a TextCodec>, entry: usize, sampling: &SamplingParams) -> Self {
        Self { text, decoder: text.map(|text| text.stream(&sampling.stop)), entry }
    }

    /// Takes an event of this time of the load in; true at the end.
    fn take(&mut self, event: StreamEvent, time: Duration, reply: &mut Reply) -> anyhow::Result<bool> {
        match event {
            StreamEvent::Step(record) => {
                // The text of a committed token comes with the token.
                let dropped = self.text.filter(|_| !record.committed);
                let text = dropped.map(|text| text.decode(&[record.token])).transpose()?.unwrap_or_default();
                reply.steps.push(TraceStep { record, text });
            }
            StreamEvent::Logprobs(_) => {}
            StreamEvent::Token(token) => {
                reply.count_token_at(time);
                if let Some(transcript) = &mut reply.transcript {
                    transcript.tokens.push(token.id);
                }
                if let Some(decoder) = &mut self.decoder {
                    let piece = decoder.push(token.id)?;
                    reply.add_text(&piece);
                }
            }
            StreamEvent::Finished(reason, stats) => {
                let entry = stats.tokens_by_model.get(self.entry).copied().unwrap_or_default();
                let tokens = stats.tokens();
                reply.llm_ratio = (tokens > 0).then(|| (tokens - entry) as f64 / tokens as f64);
                reply.handoffs = Some(stats.handoffs);
                reply.buffer_wait = Some(stats.buffer_wait);
                reply.finish_reason = reason.as_str().to_owned();
                reply.error = reason.error();
                if let Some(decoder) = &mut self.decoder {
                    let rest = decoder.finish()?;
                    reply.add_text(&rest);
                    reply.has_text = true;
                }
                return Ok(true);
            }
        }
        Ok(false)
    }
}
