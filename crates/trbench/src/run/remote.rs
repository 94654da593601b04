//! `standard` on real servers: a client that sends every handoff as a new completion with the committed tokens in its
//! prompt.
//!
//! The decisions come from the engine's own policy. Entropy is that over the most likely tokens which the server returns,
//! renormalised: at most `ln 20`, and never above the entropy of the whole vocabulary. An end token has no
//! log-probabilities in an answer, so that a method which reads them stays there. Where a decision needs no signal, a run
//! of tokens is asked at once, otherwise one token at a time.

use std::collections::HashMap;

use anyhow::bail;
use serde_json::{Value, json};
use tokenrouter_api::completions::{CompletionPrompt, CompletionRequest, Prompt, Prompts};
use tokenrouter_api::sampling::Sampling;
use tokenrouter_core::routing::registry::{self, SystemView};
use tokenrouter_core::routing::{BatchView, Candidate, Decision, RequestState, RoutingPolicy, Row};
use tokenrouter_core::step::{Softmax, StepOutput};
use tokenrouter_core::{RequestId, SamplingParams};
use tokenrouter_engine::config::Config;
use tokenrouter_engine::model::ModelFiles;
use tokenrouter_engine::tokenizer::{ChatMessage, TextCodec};

use super::completion::{Completion, Endpoint, TOP, Token};
use super::reply::{Reply, render};
use crate::error::usage;

/// Methods whose signals servers return.
const METHODS: [&str; 3] = ["random", "entropy", "rstitch"];
/// Completions without a committed token after which a request is given up.
const MAX_STEPS_WITHOUT_COMMIT: usize = 32;

/// Servers of single models, and who decides between them.
pub(super) struct Remote {
    client: reqwest::Client,
    policy: Box<dyn RoutingPolicy>,
    /// In the order of the configuration's models.
    endpoints: Vec<Endpoint>,
    entry: usize,
    /// The entry model's, when its files are here: for its chat template.
    text: Option<TextCodec>,
}

/// A request on its way between the servers.
struct Journey {
    prompt: String,
    /// Ids of the prompt and of the committed tokens, as far as all are known.
    ids: Option<Vec<u32>>,
    at: usize,
    position: usize,
    visit_steps: u32,
    visit_tokens: u32,
    state: RequestState,
    by_entry: u64,
    steps_without_commit: usize,
}

/// One completion by one server.
struct Visit<'a> {
    sampling: &'a SamplingParams,
    /// Key of the request's draws.
    key: u64,
    /// Most tokens to ask for.
    wanted: usize,
}

impl Remote {
    /// Servers by model name, for the models and the method of a configuration.
    pub(super) fn new(
        client: reqwest::Client,
        config: &Config,
        urls: &HashMap<String, String>,
        models: &HashMap<String, String>,
    ) -> anyhow::Result<Self> {
        let names = config.model_names();
        if let Some(unknown) = urls.keys().find(|name| !names.contains(*name)) {
            return Err(usage(format!("--endpoint: unknown model `{unknown}`, known are {}", names.join(", "))));
        }
        let method = config.routing.method.as_str();
        if !METHODS.contains(&method) {
            let known = METHODS.join(", ");
            return Err(usage(format!(
                "--endpoint: servers return no signals for method `{method}`, only for {known}"
            )));
        }
        if config.routing.options.get("entropy_norm") == Some(&json!("vocab")) {
            return Err(usage("--endpoint: `routing.entropy_norm` is `vocab`, servers allow `nats`"));
        }
        let mut view = SystemView::emulated(&names.iter().map(String::as_str).collect::<Vec<_>>(), 1);
        view.entry = config.entry_index();
        let policy = registry::build(&config.routing, &view).map_err(usage)?;
        let endpoint = |name: &String| {
            let url = urls
                .get(name)
                .ok_or_else(|| usage(format!("--endpoint: model `{name}` has none, give `{name}=URL`")))?;
            Ok(Endpoint {
                url: format!("{}/v1/completions", super::completion::base(url)?),
                model: models.get(name).or(models.get("")).cloned().unwrap_or_else(|| "default".into()),
                name: name.clone(),
                gives_ids: std::cell::Cell::new(false),
                refuses_ids: std::cell::Cell::new(false),
            })
        };
        let endpoints = names.iter().map(endpoint).collect::<anyhow::Result<Vec<_>>>()?;
        let model = &config.models[config.entry_index()];
        let files = if model.emulated.is_none() { ModelFiles::open(model).ok() } else { None };
        Ok(Self { client, policy, endpoints, entry: config.entry_index(), text: files.map(|files| files.text) })
    }

    pub(super) fn info(&self) -> Value {
        let urls: Vec<_> = self.endpoints.iter().map(|e| json!({"model": e.name, "url": e.url})).collect();
        let prompt =
            if self.text.is_some() { "chat template of the entry model" } else { "messages, blank lines between" };
        json!({"execution": "standard", "endpoints": urls, "prompt": prompt, "entropy": format!("over {TOP} tokens")})
    }

    /// Sends a conversation; fills `reply` as answers come.
    pub(super) async fn ask(
        &self,
        messages: &[ChatMessage],
        sampling: &SamplingParams,
        key: u64,
        reply: &mut Reply,
    ) -> anyhow::Result<()> {
        let mut journey = Journey {
            prompt: render(self.text.as_ref(), messages)?,
            ids: None,
            at: self.entry,
            position: 0,
            visit_steps: 0,
            visit_tokens: 0,
            state: RequestState::default(),
            by_entry: 0,
            steps_without_commit: 0,
        };
        let (mut handoffs, mut end) = (0, None);
        reply.has_text = true;
        while end.is_none() {
            let before = journey.position;
            let visit = Visit { sampling, key, wanted: self.wanted(&journey, sampling, key) };
            let answer = self.complete(&journey, &visit).await?;
            if journey.position == 0 && reply.prompt_tokens.is_none() {
                reply.prompt_tokens = answer.prompt_tokens;
                journey.ids.clone_from(&answer.prompt_ids);
            }
            let from = journey.at;
            end = self.take(&mut journey, &answer, &visit, reply);
            handoffs += u64::from(journey.at != from);
            journey.steps_without_commit = if journey.position > before { 0 } else { journey.steps_without_commit + 1 };
            if journey.steps_without_commit > MAX_STEPS_WITHOUT_COMMIT {
                bail!(
                    "{MAX_STEPS_WITHOUT_COMMIT} completions in a row without a token at position {}",
                    journey.position
                );
            }
        }
        reply.finish_reason = end.unwrap_or_default().to_owned();
        reply.handoffs = Some(handoffs);
        let tokens = journey.position as u64;
        reply.llm_ratio = (tokens > 0).then(|| (tokens - journey.by_entry) as f64 / tokens as f64);
        Ok(())
    }

    /// Tokens until the next decision to leave, where decisions need no signals.
    fn wanted(&self, journey: &Journey, sampling: &SamplingParams, key: u64) -> usize {
        let most = sampling.max_tokens - journey.position;
        if self.policy.needs(journey.at).softmax {
            return 1;
        }
        let stays = |ahead: &usize| {
            let mut row = row(journey, sampling.seed, key);
            row.position += ahead;
            self.decide(&mut row, f32::NAN);
            row.decision == Decision::Stay
        };
        (0..most).take_while(stays).count().saturating_add(1).min(most)
    }

    fn decide(&self, row: &mut Row, entropy: f32) {
        let softmax = vec![Softmax { entropy, log_sum_exp: 0.0 }];
        let output = StepOutput { tokens: vec![row.candidate], softmax, ..StepOutput::default() };
        self.policy.route(&mut BatchView::new(std::slice::from_mut(row), &output));
    }

    async fn complete(&self, journey: &Journey, visit: &Visit<'_>) -> anyhow::Result<Completion> {
        let endpoint = &self.endpoints[journey.at];
        let prompt = match &journey.ids {
            Some(ids) if endpoint.gives_ids.get() => Prompt::Ids(ids.clone()),
            _ => Prompt::Text(journey.prompt.clone()),
        };
        let sampling = Sampling {
            max_tokens: Some(visit.wanted as u64),
            temperature: Some(f64::from(visit.sampling.temperature)),
            seed: Some((visit.sampling.seed.wrapping_add(visit.key) & super::http::MAX_SEED).into()),
            ignore_eos: visit.sampling.ignore_eos,
            ..Sampling::default()
        };
        let logprobs = if self.policy.needs(journey.at).softmax { TOP } else { 1 };
        let prompt = CompletionPrompt { prompt: Prompts::One(prompt), logprobs: Some(logprobs as u64) };
        let request = CompletionRequest { sampling, prompt, unsupported: Default::default(), form: Default::default() };
        endpoint.complete(&self.client, request).await
    }

    /// Commits or drops the tokens of an answer; returns why the request ends, if it does.
    fn take(
        &self,
        journey: &mut Journey,
        answer: &Completion,
        visit: &Visit<'_>,
        reply: &mut Reply,
    ) -> Option<&'static str> {
        let &Visit { sampling, key, wanted } = visit;
        // An end token is a candidate, too, but not part of the answer.
        let ended = answer.reason != "length" && answer.tokens.len() < wanted;
        let end = ended.then(|| Token { text: String::new(), id: None, entropy: f32::NAN });
        for (index, token) in answer.tokens.iter().chain(&end).take(wanted).enumerate() {
            let mut row = row(journey, sampling.seed, key);
            row.candidate = token.id.unwrap_or_default();
            row.state = std::mem::take(&mut journey.state);
            self.decide(&mut row, token.entropy);
            let (to, commit) = match row.decision {
                Decision::Switch(to) if to != journey.at => (to, self.policy.send(&mut row, to) == Candidate::Commit),
                _ => (journey.at, true),
            };
            journey.state = row.state;
            journey.visit_steps += 1;
            if commit && index == answer.tokens.len() {
                return Some("stop");
            }
            if commit {
                journey.commit(token, self.entry);
                reply.text.push_str(&token.text);
                reply.count_token();
            }
            if journey.position >= sampling.max_tokens {
                return Some("length");
            }
            if to != journey.at {
                (journey.at, journey.visit_steps, journey.visit_tokens) = (to, 0, 0);
                return None;
            }
        }
        None
    }
}

impl Journey {
    fn commit(&mut self, token: &Token, entry: usize) {
        self.prompt.push_str(&token.text);
        self.ids = self.ids.take().zip(token.id).map(|(mut ids, id)| {
            ids.push(id);
            ids
        });
        self.position += 1;
        self.visit_tokens += 1;
        self.by_entry += u64::from(self.at == entry);
    }
}

fn row(journey: &Journey, seed: u64, key: u64) -> Row {
    Row {
        request: RequestId(key),
        seed,
        key,
        model: journey.at,
        threshold: None,
        prompt_tokens: 0,
        position: journey.position,
        candidate: 0,
        visit_steps: journey.visit_steps,
        visit_tokens: journey.visit_tokens,
        state: RequestState::default(),
        score: f32::NAN,
        decision: Decision::Stay,
    }
}
