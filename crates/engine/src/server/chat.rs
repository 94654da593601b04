//! `POST /v1/chat/completions`.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout_at};

use super::{ApiError, App, MODEL_ID, unix_time};
use crate::engine::{Engine, TokenStream};
use crate::request::{FinishReason, Request, RequestStats, SamplingParams, StepRecord, StreamEvent};
use crate::tokenizer::{ChatMessage, StreamDecoder};

/// Fields that are understood.
const FIELDS: [&str; 21] = [
    "model",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "stop",
    "routing",
    "seed",
    "stream",
    "stream_options",
    "ignore_eos",
    "stop_token_ids",
    "n",
    "user",
];
/// Tokens of an answer when the client does not say.
const DEFAULT_MAX_TOKENS: usize = 1024;

/// A request body, checked.
struct Body {
    messages: Vec<ChatMessage>,
    sampling: SamplingParams,
    /// Whether the client chose the seed.
    seeded: bool,
    stream: bool,
    include_usage: bool,
    /// Every step is reported (`routing: {trace: true}`).
    trace: bool,
}

impl Body {
    fn parse(value: &Value) -> Result<Self, ApiError> {
        let fields = value.as_object().ok_or_else(|| ApiError::bad_request("the body must be a JSON object"))?;
        for (name, value) in fields {
            let harmless = value.is_null() || *value == json!(0) || *value == json!(false) || *value == json!([]);
            if !FIELDS.contains(&name.as_str()) && !harmless {
                return Err(ApiError::bad_request(format!("field `{name}` is not supported")));
            }
        }
        if fields.get("n").is_some_and(|n| *n != json!(1) && !n.is_null()) {
            return Err(ApiError::bad_request("field `n` must be 1"));
        }
        let messages = fields.get("messages").ok_or_else(|| ApiError::bad_request("field `messages` is missing"))?;
        let messages: Vec<ChatMessage> = serde_json::from_value(messages.clone())
            .map_err(|error| ApiError::bad_request(format!("field `messages`: {error}")))?;
        if messages.is_empty() {
            return Err(ApiError::bad_request("field `messages` is empty"));
        }
        let max_tokens = match integer(fields, "max_completion_tokens")? {
            Some(value) => Some(value),
            None => integer(fields, "max_tokens")?,
        };
        let defaults = SamplingParams::default();
        let stop_ids = fields.get("stop_token_ids").filter(|value| !value.is_null());
        let stop_token_ids = stop_ids.map(|ids| serde_json::from_value(ids.clone())).transpose();
        Ok(Self {
            messages,
            sampling: SamplingParams {
                temperature: float(fields, "temperature")?.unwrap_or(1.0),
                top_p: float(fields, "top_p")?.unwrap_or(defaults.top_p),
                top_k: integer(fields, "top_k")?.unwrap_or(0) as usize,
                min_p: float(fields, "min_p")?.unwrap_or(defaults.min_p),
                repetition_penalty: float(fields, "repetition_penalty")?.unwrap_or(defaults.repetition_penalty),
                presence_penalty: float(fields, "presence_penalty")?.unwrap_or(defaults.presence_penalty),
                frequency_penalty: float(fields, "frequency_penalty")?.unwrap_or(defaults.frequency_penalty),
                min_tokens: integer(fields, "min_tokens")?.unwrap_or(0) as usize,
                stop: texts(fields, "stop")?,
                seed: integer(fields, "seed")?.unwrap_or(0),
                max_tokens: max_tokens.map_or(DEFAULT_MAX_TOKENS, |value| value as usize),
                ignore_eos: boolean(fields, "ignore_eos")?,
                stop_token_ids: stop_token_ids
                    .map_err(|error| ApiError::bad_request(format!("field `stop_token_ids`: {error}")))?
                    .unwrap_or_default(),
            },
            trace: trace(fields)?,
            seeded: integer(fields, "seed")?.is_some(),
            stream: boolean(fields, "stream")?,
            include_usage: fields.get("stream_options").is_some_and(|options| options["include_usage"] == json!(true)),
        })
    }
}

fn integer(fields: &Map<String, Value>, name: &str) -> Result<Option<u64>, ApiError> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_u64().map(Some).ok_or_else(|| {
            ApiError::bad_request(format!("field `{name}` is `{value}`, it must be an integer, 0 or more"))
        }),
    }
}

/// `routing: {trace: true}`.
fn trace(fields: &Map<String, Value>) -> Result<bool, ApiError> {
    match fields.get("routing") {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Object(options)) => match options.keys().find(|key| *key != "trace") {
            Some(key) => {
                Err(ApiError::bad_request(format!("field `routing.{key}` is not supported, supported is `trace`")))
            }
            None => boolean(options, "trace"),
        },
        Some(value) => Err(ApiError::bad_request(format!(
            "field `routing` is `{value}`, it must be an object such as {{\"trace\": true}}"
        ))),
    }
}

/// A text, or a list of texts.
fn texts(fields: &Map<String, Value>, name: &str) -> Result<Vec<String>, ApiError> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![text.clone()]),
        Some(value) => serde_json::from_value(value.clone()).map_err(|_| {
            ApiError::bad_request(format!("field `{name}` is `{value}`, it must be a text or a list of texts"))
        }),
    }
}

fn float(fields: &Map<String, Value>, name: &str) -> Result<Option<f32>, ApiError> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value
            .as_f64()
            .map(|value| Some(value as f32))
            .ok_or_else(|| ApiError::bad_request(format!("field `{name}` is `{value}`, it must be a number"))),
    }
}

fn boolean(fields: &Map<String, Value>, name: &str) -> Result<bool, ApiError> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(value) => Err(ApiError::bad_request(format!("field `{name}` is `{value}`, it must be true or false"))),
    }
}

pub(super) async fn completions(
    State(app): State<Arc<App>>,
    body: Result<Json<Value>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Json(value) = body.map_err(|error| ApiError::new(error.status(), "invalid_body", error.body_text()))?;
    let body = Body::parse(&value)?;
    let engine = &app.engine;
    let text = engine.text().ok_or_else(|| {
        ApiError::new(StatusCode::NOT_IMPLEMENTED, "emulated", "emulated models write no text".into())
    })?;
    let invalid = |error: crate::tokenizer::TextError| ApiError::bad_request(error.to_string());
    let prompt = text.encode(&text.apply_chat_template(&body.messages).map_err(invalid)?).map_err(invalid)?;
    let prompt_tokens = prompt.len();
    // A given seed makes an answer repeatable; without one, equal requests draw differently.
    let key = if body.seeded { 0 } else { app.requests.fetch_add(1, Ordering::Relaxed) + 1 };
    let decoder = text.stream(&body.sampling.stop);
    let stream = engine.generate(Request { trace: body.trace, ..Request::new(prompt, body.sampling, key) })?;
    let answer = Answer {
        id: format!("chatcmpl-{}", stream.id().0),
        created: unix_time(),
        prompt_tokens,
        decoder,
        steps: body.trace.then(Vec::new),
        stream,
        engine: Arc::clone(engine),
        deadline: Instant::now() + Duration::from_secs(app.config.request_timeout_s),
        include_usage: body.include_usage,
        phase: Phase::Role,
    };
    if body.stream {
        let events = tokio_stream::StreamExt::map(answer.into_events(), Ok::<_, Infallible>);
        return Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response());
    }
    Ok(Json(answer.collect().await?).into_response())
}

/// What a streamed answer sends next.
enum Phase {
    Role,
    Tokens,
    Usage(RequestStats),
    Done,
    End,
}

/// An answer on its way. Dropping it (the client is gone) cancels the request.
struct Answer {
    id: String,
    created: u64,
    prompt_tokens: usize,
    decoder: StreamDecoder,
    stream: TokenStream,
    engine: Arc<Engine>,
    deadline: Instant,
    include_usage: bool,
    /// Steps that have not been reported yet, when they are wanted.
    steps: Option<Vec<Value>>,
    phase: Phase,
}

impl Answer {
    /// The next piece of text, or the end. A request over its time ends with an error; dropping it cancels it.
    async fn advance(&mut self) -> Result<Result<String, (FinishReason, RequestStats)>, ApiError> {
        let timeout = |_| ApiError::new(StatusCode::GATEWAY_TIMEOUT, "timeout", "the request took too long".into());
        match timeout_at(self.deadline, self.stream.next()).await.map_err(timeout)? {
            Some(StreamEvent::Step(record)) => {
                self.note(&record);
                Ok(Ok(String::new()))
            }
            Some(StreamEvent::Token(token)) => {
                let piece = self.decoder.push(token.id);
                Ok(Ok(piece.map_err(|error| internal(error.to_string()))?))
            }
            Some(StreamEvent::Finished(FinishReason::Error(message), _)) => Err(internal(message)),
            Some(StreamEvent::Finished(reason, stats)) => Ok(Err((reason, stats))),
            None => Err(internal("the engine has stopped".into())),
        }
    }

    async fn collect(mut self) -> Result<Value, ApiError> {
        let mut content = String::new();
        let (reason, stats) = loop {
            match self.advance().await? {
                Ok(piece) => content.push_str(&piece),
                Err(end) => break end,
            }
        };
        content.push_str(&self.decoder.finish().map_err(|error| internal(error.to_string()))?);
        let mut answer = json!({
            "id": self.id, "object": "chat.completion", "created": self.created, "model": MODEL_ID,
            "choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "logprobs": null,
                         "finish_reason": reason.as_str()}],
            "usage": self.usage(&stats),
        });
        self.add_steps(&mut answer);
        Ok(answer)
    }

    fn note(&mut self, record: &StepRecord) {
        let names = self.engine.model_names();
        let text = self.engine.text().and_then(|text| text.decode(&[record.token]).ok());
        let step = json!({
            "position": record.position, "model": names[record.model], "token": record.token, "text": text,
            "committed": record.committed, "to": record.to.map(|to| &names[to]), "score": record.score,
        });
        self.steps.get_or_insert_default().push(step);
    }

    /// Reports the steps since the last report.
    fn add_steps(&mut self, answer: &mut Value) {
        if let Some(steps) = &mut self.steps {
            answer["routing"] = json!({"steps": std::mem::take(steps)});
        }
    }

    fn usage(&self, stats: &RequestStats) -> Value {
        let tokens = stats.tokens();
        let by_model: Map<String, Value> =
            self.engine.model_names().iter().cloned().zip(stats.tokens_by_model.iter().map(|n| json!(n))).collect();
        let entry = stats.tokens_by_model.get(self.engine.entry_index()).copied().unwrap_or_default();
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": self.prompt_tokens as u64 + tokens,
            "routing": {
                "tokens_by_model": by_model,
                "llm_ratio": if tokens == 0 { 0.0 } else { (tokens - entry) as f64 / tokens as f64 },
                "handoffs": stats.handoffs,
                "admission_wait_ms": stats.admission_wait.as_secs_f64() * 1e3,
            },
        })
    }

    fn chunk(&mut self, delta: &Value, finish: Option<&str>) -> Event {
        let mut chunk = json!({
            "id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": MODEL_ID,
            "choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}],
        });
        self.add_steps(&mut chunk);
        Event::default().data(chunk.to_string())
    }

    fn into_events(self) -> impl tokio_stream::Stream<Item = Event> {
        futures_util::stream::unfold(self, |mut answer| async move {
            let event = answer.next_event().await?;
            Some((event, answer))
        })
    }

    async fn next_event(&mut self) -> Option<Event> {
        match std::mem::replace(&mut self.phase, Phase::End) {
            Phase::Role => {
                self.phase = Phase::Tokens;
                Some(self.chunk(&json!({"role": "assistant", "content": ""}), None))
            }
            Phase::Tokens => Some(self.next_piece().await),
            Phase::Usage(stats) => {
                self.phase = Phase::Done;
                Some(Event::default().data(
                    json!({
                        "id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": MODEL_ID,
                        "choices": [], "usage": self.usage(&stats),
                    })
                    .to_string(),
                ))
            }
            Phase::Done => Some(Event::default().data("[DONE]")),
            Phase::End => None,
        }
    }

    /// Text as soon as there is some; the end; or an error, after which the stream ends.
    async fn next_piece(&mut self) -> Event {
        loop {
            match self.advance().await {
                Ok(Ok(piece)) if piece.is_empty() => {}
                Ok(Ok(piece)) => {
                    self.phase = Phase::Tokens;
                    return self.chunk(&json!({"content": piece}), None);
                }
                Ok(Err((reason, stats))) => {
                    let rest = self.decoder.finish().unwrap_or_default();
                    let delta = if rest.is_empty() { json!({}) } else { json!({"content": rest}) };
                    self.phase = if self.include_usage { Phase::Usage(stats) } else { Phase::Done };
                    return self.chunk(&delta, Some(reason.as_str()));
                }
                Err(error) => return Event::default().data(error.body().to_string()),
            }
        }
    }
}

fn internal(message: String) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "engine", message)
}
