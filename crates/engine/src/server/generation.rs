//! An answer that is being generated: one request of a client, which may be several requests of the engine.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::http::StatusCode;
use futures_util::stream::{SelectAll, Stream, StreamExt, unfold};
use tokenrouter_api::usage::{ChunkRouting, Step, Steps, Usage, UsageRouting};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::format::{Format, Whole};
use super::metrics::Outcome;
use super::open::Permit;
use super::params::Params;
use super::{ApiError, App};
use crate::engine::TokenStream;
use crate::tokenizer::StreamDecoder;
use tokenrouter_core::request::{
    FinishReason, ModelIndex, Request, RequestStats, StepRecord, StreamEvent, TokenLogprobs,
};

type Events = SelectAll<Pin<Box<dyn Stream<Item = (usize, StreamEvent)> + Send>>>;

/// What a handler wants to have generated.
pub(super) struct GenerationRequest {
    /// One answer, or `params.n`, to each.
    pub(super) prompts: Vec<Vec<u32>>,
    pub(super) params: Params,
    pub(super) format: Format,
    /// Name of the request, for logs and cancellation.
    pub(super) request_id: String,
}

/// Text that became certain, with the tokens that made it so.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub(super) choice: usize,
    pub(super) text: String,
    /// The model that wrote each token.
    pub(super) origins: Vec<ModelIndex>,
    pub(super) logprobs: Vec<TokenLogprobs>,
    /// Where the token of each entry of `logprobs` begins, in characters of the whole text.
    pub(super) offsets: Vec<usize>,
    pub(super) steps: Vec<Step>,
    pub(super) finish: Option<FinishReason>,
}

/// One of the texts that are being written.
pub(super) struct Choice {
    /// Absent when the models are emulated.
    decoder: Option<StreamDecoder>,
    /// What has not been given out.
    pending: Chunk,
    /// All of it, with all tokens.
    pub(super) whole: Chunk,
    pub(super) ids: Vec<u32>,
    /// Characters that have begun in the tokens with log-probabilities.
    characters: usize,
    pub(super) stats: RequestStats,
    arrived: Instant,
    admitted: Instant,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

/// An answer that is being generated. Dropping it (the client is gone) cancels what is left of it.
pub(super) struct Generation {
    pub(super) app: Arc<App>,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) params: Params,
    pub(super) format: Format,
    pub(super) prompt_tokens: usize,
    pub(super) choices: Vec<Choice>,
    pub(super) started: Instant,
    events: Events,
    open: usize,
    deadline: Instant,
    aborting: watch::Receiver<bool>,
    /// How it ended; disconnected until it ends otherwise.
    outcome: Outcome,
    _permit: Permit,
}

impl Generation {
    /// Takes the request in and waits until the first of its answers is admitted.
    pub(super) async fn start(app: &Arc<App>, request: GenerationRequest) -> Result<Self, ApiError> {
        let started = Instant::now();
        let id = format!("{}-{}", request.format.id_prefix(), request.request_id);
        let refused = |error: ApiError| {
            app.metrics.completed(Outcome::Rejected);
            error
        };
        let permit = app.open.enter(&request.request_id, &id).map_err(refused)?;
        let GenerationRequest { prompts, params, format, .. } = request;
        let prompt_tokens = prompts.iter().map(Vec::len).sum();
        let mut streams = submit(app, &prompts, &params, &permit).map_err(refused)?;
        app.metrics.prompt_tokens.inc_by(prompt_tokens as u64);
        let mut aborting = app.open.aborting();
        // A client that goes away here drops this future, and with it the streams.
        let mut guard = DisconnectGuard(Some(app));
        let admitted = admission(app, &mut streams[0], started, &mut aborting).await;
        guard.0 = None;
        admitted.inspect_err(|error| app.metrics.completed(Outcome::of_error(error)))?;
        permit.admitted();
        app.metrics.queue_time.observe(started.elapsed().as_secs_f64());
        let choices: Vec<Choice> = (0..streams.len()).map(|index| Choice::new(app, index, &params, started)).collect();
        let open = streams.len();
        let events = streams.into_iter().enumerate().map(|(index, stream)| -> Pin<Box<dyn Stream<Item = _> + Send>> {
            Box::pin(unfold(stream, move |mut stream| async move {
                let event = stream.next().await?;
                Some(((index, event), stream))
            }))
        });
        Ok(Self {
            id,
            created: super::unix_time(),
            deadline: started + Duration::from_secs(app.config.request_timeout_s),
            params,
            format,
            prompt_tokens,
            choices,
            started,
            events: events.collect(),
            open,
            aborting,
            outcome: Outcome::Disconnected,
            _permit: permit,
            app: Arc::clone(app),
        })
    }

    /// The next chunk, or none when everything was given out. After an error there is nothing more.
    pub(super) async fn next_chunk(&mut self) -> Result<Option<Chunk>, ApiError> {
        let result = self.advance().await;
        if let Err(error) = &result {
            self.outcome = Outcome::of_error(error);
        }
        result
    }

    async fn advance(&mut self) -> Result<Option<Chunk>, ApiError> {
        while self.open > 0 {
            let event = tokio::select! {
                biased;
                event = self.events.next() => event,
                () = sleep_until(self.deadline) => return Err(too_long(&self.app)),
                // The sender is never dropped before the server.
                _ = self.aborting.wait_for(|abort| *abort) => return Err(ApiError::draining()),
            };
            let (index, event) = event.ok_or_else(|| ApiError::internal("the engine has stopped"))?;
            if self.take(index, event)? {
                let choice = &mut self.choices[index];
                let empty = Chunk { choice: index, ..Chunk::default() };
                return Ok(Some(std::mem::replace(&mut choice.pending, empty)));
            }
        }
        Ok(None)
    }

    /// Takes an event in; says whether there is something to give out.
    fn take(&mut self, index: usize, event: StreamEvent) -> Result<bool, ApiError> {
        let choice = &mut self.choices[index];
        match event {
            StreamEvent::Step(record) => choice.pending.steps.push(step(&self.app, &record)),
            StreamEvent::Logprobs(logprobs) => {
                let bytes = self.app.engine.token_texts().map(|texts| texts.get(logprobs.token)).unwrap_or_default();
                choice.pending.offsets.push(offset(&mut choice.characters, bytes));
                choice.pending.logprobs.push(logprobs);
            }
            StreamEvent::Token(token) => {
                choice.clock(&self.app);
                choice.ids.push(token.id);
                choice.pending.origins.push(token.origin);
                choice.whole.origins.push(token.origin);
                let Some(decoder) = &mut choice.decoder else { return Ok(true) };
                let text = decoder.push(token.id).map_err(|error| ApiError::internal(error.to_string()))?;
                choice.whole.text.push_str(&text);
                choice.pending.text.push_str(&text);
                return Ok(!choice.pending.text.is_empty());
            }
            StreamEvent::Finished(FinishReason::Error(message), _) => return Err(ApiError::internal(message)),
            StreamEvent::Finished(FinishReason::Lost(model), _) => {
                return Err(ApiError::lost(&self.app.engine.model_names()[model]));
            }
            StreamEvent::Finished(FinishReason::Cancelled, _) => return Err(ApiError::cancelled()),
            StreamEvent::Finished(reason, stats) => {
                let rest = choice.decoder.as_mut().map(StreamDecoder::finish).transpose();
                let rest = rest.map_err(|error| ApiError::internal(error.to_string()))?.unwrap_or_default();
                choice.whole.text.push_str(&rest);
                choice.pending.text.push_str(&rest);
                choice.stats = stats;
                if let Some(first) = choice.first_token {
                    self.app.metrics.decode_time.observe(first.elapsed().as_secs_f64());
                }
                choice.pending.finish = Some(reason.clone());
                choice.whole.finish = Some(reason.clone());
                self.open -= 1;
                if self.open == 0 {
                    self.outcome = if reason == FinishReason::Length { Outcome::Length } else { Outcome::Stop };
                }
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Waits for the end of all texts.
    pub(super) async fn collect(mut self) -> Result<Whole, ApiError> {
        while let Some(chunk) = self.next_chunk().await? {
            let whole = &mut self.choices[chunk.choice].whole;
            whole.logprobs.extend(chunk.logprobs);
            whole.offsets.extend(chunk.offsets);
            whole.steps.extend(chunk.steps);
        }
        Ok(self.format.whole(&self))
    }

    /// Tokens of all texts so far, and what the models did.
    pub(super) fn usage(&self) -> Usage {
        let tokens = self.tokens() as u64;
        let prompt_tokens = self.prompt_tokens as u64;
        Usage {
            prompt_tokens,
            completion_tokens: tokens,
            total_tokens: prompt_tokens + tokens,
            routing: Some(self.usage_routing()),
        }
    }

    fn tokens(&self) -> usize {
        self.choices.iter().map(|choice| choice.ids.len()).sum()
    }

    /// What the models did.
    pub(super) fn usage_routing(&self) -> UsageRouting {
        let names = self.app.engine.model_names();
        let mut total = RequestStats::default();
        self.choices.iter().for_each(|choice| total.add(&choice.stats));
        let mut by_model = vec![0u64; names.len()];
        self.choices.iter().flat_map(|choice| &choice.whole.origins).for_each(|model| by_model[*model] += 1);
        let (tokens, entry) = (self.tokens() as u64, by_model[self.app.engine.entry_index()]);
        UsageRouting {
            tokens_by_model: names.iter().cloned().zip(by_model).collect(),
            llm_ratio: if tokens == 0 { 0.0 } else { (tokens - entry) as f64 / tokens as f64 },
            handoffs: total.handoffs,
            buffer_wait_ms: total.buffer_wait.as_secs_f64() * 1e3,
            queue_wait_ms: total.queue_wait.as_secs_f64() * 1e3,
        }
    }

    /// Which models wrote a chunk, and its steps where they are wanted.
    pub(super) fn chunk_routing(&self, chunk: &Chunk) -> ChunkRouting {
        let names = self.app.engine.model_names();
        ChunkRouting {
            tokens: chunk.origins.len(),
            models: chunk.origins.iter().map(|model| names[*model].clone()).collect(),
            steps: self.params.trace.then(|| chunk.steps.clone()),
        }
    }

    /// All steps, where they are wanted.
    pub(super) fn steps(&self) -> Option<Steps> {
        let steps = || self.choices.iter().flat_map(|choice| choice.whole.steps.iter().cloned()).collect();
        self.params.trace.then(|| Steps { steps: steps() })
    }

    /// A token as text, and its bytes. Parts of characters are shown as U+FFFD; the bytes tell them exactly.
    pub(super) fn token_text(&self, id: u32) -> (String, Vec<u8>) {
        let engine = &self.app.engine;
        let bytes = engine.token_texts().map(|texts| texts.get(id).to_vec()).unwrap_or_default();
        if bytes.is_empty() {
            // A special token: it has a name, and no place in the text.
            return (engine.text().and_then(|text| text.token_name(id)).unwrap_or_default(), bytes);
        }
        (String::from_utf8_lossy(&bytes).into_owned(), bytes)
    }
}

/// Counts a client that goes away before its request is admitted.
struct DisconnectGuard<'a>(Option<&'a App>);

impl Drop for DisconnectGuard<'_> {
    fn drop(&mut self) {
        if let Some(app) = self.0 {
            app.metrics.completed(Outcome::Disconnected);
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        let metrics = &self.app.metrics;
        let tokens = self.tokens();
        let ms = self.started.elapsed().as_secs_f64() * 1e3;
        let (id, prompt_tokens, end) = (&self.id, self.prompt_tokens, self.outcome.as_str());
        tracing::info!(target: "tokenrouter::requests", id, prompt_tokens, tokens, ms, end);
        metrics.completed(self.outcome);
        if matches!(self.outcome, Outcome::Stop | Outcome::Length) {
            metrics.e2e.observe(self.started.elapsed().as_secs_f64());
        }
    }
}

impl Chunk {
    pub(super) fn finish_reason(&self) -> Option<String> {
        self.finish.as_ref().map(|reason| reason.as_str().to_owned())
    }
}

impl Choice {
    fn new(app: &App, index: usize, params: &Params, arrived: Instant) -> Self {
        Self {
            decoder: app.engine.text().map(|text| text.stream(&params.sampling.stop)),
            pending: Chunk { choice: index, ..Chunk::default() },
            whole: Chunk { choice: index, ..Chunk::default() },
            ids: Vec::new(),
            characters: 0,
            stats: RequestStats::default(),
            arrived,
            admitted: Instant::now(),
            first_token: None,
            last_token: None,
        }
    }

    /// Notes when a token came. The first one ends the prefill.
    fn clock(&mut self, app: &App) {
        let now = Instant::now();
        match self.last_token.replace(now) {
            None => {
                self.first_token = Some(now);
                app.metrics.prefill_time.observe((now - self.admitted).as_secs_f64());
                app.metrics.ttft.observe((now - self.arrived).as_secs_f64());
            }
            Some(before) => app.metrics.inter_token.observe((now - before).as_secs_f64()),
        }
    }
}

/// Where a token begins, in characters; `characters` have begun before it. One that begins within a character has that
/// character's place.
fn offset(characters: &mut usize, bytes: &[u8]) -> usize {
    let begins = |byte: &u8| !matches!(byte, 0x80..=0xbf);
    let within = bytes.first().is_some_and(|byte| !begins(byte));
    let offset = characters.saturating_sub(usize::from(within));
    *characters += bytes.iter().filter(|byte| begins(byte)).count();
    offset
}

/// Gives all requests to the engine.
fn submit(app: &App, prompts: &[Vec<u32>], params: &Params, permit: &Permit) -> Result<Vec<TokenStream>, ApiError> {
    let limit = app.engine.info().token_limit;
    let mut streams = Vec::new();
    for (prompt, copy) in prompts.iter().flat_map(|prompt| (0..params.n).map(move |copy| (prompt, copy))) {
        let (length, wanted) = (prompt.len(), params.sampling.max_tokens);
        if params.sized && length < limit && length.saturating_add(wanted) > limit {
            let message = format!(
                "the prompt has {length} tokens and `max_tokens` is {wanted}: a request may have at most {limit} tokens \
                 with its output"
            );
            return Err(ApiError::too_long(message));
        }
        // A given seed makes an answer repeatable; without one, equal requests draw differently.
        let key = if params.seeded { copy as u64 } else { app.requests.fetch_add(1, Ordering::Relaxed) + 1 };
        let stream = app.engine.generate(Request {
            trace: params.trace,
            logprobs: params.logprobs,
            routing: params.routing,
            ..Request::new(prompt.clone(), params.sampling.clone(), key)
        })?;
        permit.runs(stream.id());
        streams.push(stream);
    }
    Ok(streams)
}

/// Waits until the request leaves the admission queue, for as long as `server.queue_timeout_s`.
async fn admission(
    app: &App,
    stream: &mut TokenStream,
    started: Instant,
    aborting: &mut watch::Receiver<bool>,
) -> Result<(), ApiError> {
    let timeout = Duration::from_secs(app.config.queue_timeout_s);
    let result = tokio::select! {
        biased;
        admitted = timeout_at(started + timeout, stream.admitted()) => admitted.map_err(|_| {
            let message = format!("waited {} s for admission (`server.queue_timeout_s`)", app.config.queue_timeout_s);
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "queue_timeout", message)
        }),
        _ = aborting.wait_for(|abort| *abort) => Err(ApiError::draining()),
    };
    result
}

fn too_long(app: &App) -> ApiError {
    let message = format!("the request took longer than {} s", app.config.request_timeout_s);
    ApiError::new(StatusCode::GATEWAY_TIMEOUT, "timeout", message)
}

fn step(app: &App, record: &StepRecord) -> Step {
    let names = app.engine.model_names();
    Step {
        position: record.position,
        model: names[record.model].clone(),
        token: record.token,
        text: app.engine.token_texts().map(|texts| String::from_utf8_lossy(texts.get(record.token)).into_owned()),
        committed: record.committed,
        to: record.to.map(|to| names[to].clone()),
        score: record.score.map(f64::from),
    }
}

#[cfg(test)]
mod tests {
    use super::offset;

    #[test]
    fn offsets_count_characters_and_stay_at_one_that_is_split() {
        let mut characters = 0;
        let crab = "🦀".as_bytes();
        let tokens: [&[u8]; 6] = [b" a", &crab[..1], &crab[1..3], &crab[3..], b"", "éb".as_bytes()];
        let offsets: Vec<usize> = tokens.iter().map(|bytes| offset(&mut characters, bytes)).collect();
        assert_eq!(offsets, [0, 2, 2, 2, 3, 3]);
        // A prompt may end within a character.
        assert_eq!(offset(&mut 0, &crab[2..]), 0);
    }
}
