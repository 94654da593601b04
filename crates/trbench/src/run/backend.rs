//! What answers requests: an engine in this process, or a server with the OpenAI API.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tokenrouter_core::{Request, SamplingParams, StreamEvent};
use tokenrouter_engine::tokenizer::ChatMessage;
use tokenrouter_engine::{Config, Engine, EngineStats};

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

    /// The launch thresholds at the largest number of requests, where they are known.
    pub(super) fn thresholds(&self) -> &[u32] {
        match self {
            Self::Engine(engine) => &engine.info().thresholds,
            Self::Http { .. } | Self::Remote(_) => &[],
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

async fn ask_engine(
    engine: &Engine,
    messages: &[ChatMessage],
    sampling: SamplingParams,
    key: u64,
    reply: &mut Reply,
) -> anyhow::Result<()> {
    let prompt = tokens(engine.text(), messages)?;
    reply.prompt_tokens = Some(prompt.len() as u64);
    if let Some(transcript) = &mut reply.transcript {
        *transcript = Transcript { tokens: prompt.clone(), prompt: prompt.len() };
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
                if let Some(transcript) = &mut reply.transcript {
                    transcript.tokens.push(token.id);
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
                reply.buffer_wait = Some(stats.buffer_wait);
                reply.finish_reason = reason.as_str().to_owned();
                reply.error = reason.error();
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
