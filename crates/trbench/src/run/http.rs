//! A client of servers with the OpenAI API: chat completions as a stream.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, bail};
use eventsource_stream::{EventStreamError, Eventsource};
use futures_util::StreamExt;
use reqwest::StatusCode;
use serde_json::Value;
use tokenrouter_api::chat::{ChatRequest, Content, Conversation, Message, Messages, Role};
use tokenrouter_api::sampling::{Sampling, StreamOptions};
use tokenrouter_api::to_json;
use tokenrouter_api::usage::UsageRouting;
use tokenrouter_core::SamplingParams;
use tokenrouter_engine::tokenizer::ChatMessage;

use super::chunk::{self, End};
use super::reply::Reply;
use crate::error::usage;
use crate::spec::{Headers, KEY_VARIABLE};

/// Longest time without a byte from a server.
const READ_TIMEOUT: Duration = Duration::from_secs(300);
/// Most bytes accepted from a server without the end of an event.
const MAX_EVENT: usize = 1 << 20;
/// Largest seed that servers take: they read signed numbers.
pub(super) const MAX_SEED: u64 = i64::MAX as u64;

/// A client that sends these headers, and the key of the environment.
pub(super) fn client(headers: &Headers) -> anyhow::Result<reqwest::Client> {
    let headers = headers.with_key(std::env::var(KEY_VARIABLE).ok()).map_err(usage)?;
    // A redirect would take the headers along to wherever the server says.
    let client = reqwest::Client::builder()
        .read_timeout(READ_TIMEOUT)
        .default_headers(headers)
        .redirect(reqwest::redirect::Policy::none());
    client.build().context("cannot make an HTTP client")
}

/// What a status other than success means, in the server's words and ours. `body`: what was sent.
pub(super) fn refused(status: StatusCode, answer: &str, body: &Value) -> String {
    let said = chunk::refusal(answer);
    let hint = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            format!(" (keys: {KEY_VARIABLE} in the environment, or `--header 'Name: value'`)")
        }
        _ if status.is_redirection() => " (redirects are not followed: give the address that it leads to)".into(),
        _ if body["ignore_eos"] == true && answer.contains("ignore_eos") => {
            " (`--ignore-eos` sends `ignore_eos`, a field of vLLM and SGLang: this server refuses it)".into()
        }
        _ => String::new(),
    };
    format!("answered {status}: {said}{hint}")
}

/// What a conversation is sent as.
pub(super) fn request(model: &str, messages: &[ChatMessage], sampling: &SamplingParams, key: u64) -> ChatRequest {
    let message = |message: &ChatMessage| Message {
        role: Role(Some(message.role.clone())),
        content: Some(Content::Text(message.content.clone())),
        ..Message::default()
    };
    ChatRequest {
        sampling: Sampling {
            model: Some(model.to_owned()),
            max_tokens: Some(sampling.max_tokens as u64),
            temperature: Some(f64::from(sampling.temperature)),
            seed: Some((sampling.seed.wrapping_add(key) & MAX_SEED).into()),
            ignore_eos: sampling.ignore_eos,
            stream: true,
            stream_options: Some(StreamOptions { include_usage: true, ..StreamOptions::default() }),
            ..Sampling::default()
        },
        prompt: Conversation { messages: Messages(messages.iter().map(message).collect()), ..Conversation::default() },
        logprobs: Default::default(),
        unsupported: Default::default(),
        template: Default::default(),
    }
}

/// Sends a request; fills `reply` as the answer comes.
pub(super) async fn ask(
    client: &reqwest::Client,
    url: &str,
    request: &ChatRequest,
    reply: &mut Reply,
) -> anyhow::Result<()> {
    let body = to_json(request);
    let response = client.post(url).json(&body).send().await;
    let response = response.with_context(|| format!("cannot reach `{url}`"))?;
    let status = response.status();
    if !status.is_success() {
        let text = response.text().await.unwrap_or_default();
        bail!("`{url}` {}", refused(status, &text, &body));
    }
    reply.has_text = true;
    let most = request.sampling.max_tokens.unwrap_or(u64::MAX);
    let unread = Rc::new(Cell::new(0));
    let counted = Rc::clone(&unread);
    let bytes = response.bytes_stream().map(move |bytes| {
        let bytes = bytes.context("the connection broke")?;
        counted.set(counted.get() + bytes.len());
        if counted.get() > MAX_EVENT {
            bail!("the server sent more than {MAX_EVENT} bytes without the end of an event");
        }
        Ok(bytes)
    });
    let mut events = bytes.eventsource();
    let mut done = false;
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(EventStreamError::Transport(error)) => return Err(error),
            Err(error) => bail!("the server sent events that cannot be read: {error}"),
        };
        unread.set(0);
        let data = event.data.trim();
        if event.event == "error" {
            bail!("the server reported: {}", chunk::refusal(data));
        }
        if data == "[DONE]" {
            done = true;
            break;
        }
        take(data, reply)?;
    }
    match reply.finish_reason.is_empty() {
        false => Ok(()),
        // Some servers name no reason.
        true if done => {
            reply.finish_reason = if reply.tokens >= most { "length" } else { "stop" }.into();
            Ok(())
        }
        true => bail!("the stream ended without a finish reason and without `[DONE]`"),
    }
}

fn take(data: &str, reply: &mut Reply) -> anyhow::Result<()> {
    let value: Value =
        serde_json::from_str(data).with_context(|| format!("the server sent `{}`, not JSON", chunk::shown(data)))?;
    if let Some(message) = chunk::error(&value) {
        bail!("the server reported: {message}");
    }
    if !value.is_object() {
        bail!("the server sent `{}`, not a chunk of a chat completion", chunk::shown(data));
    }
    let piece = chunk::piece(&value);
    reply.text.push_str(&piece.text);
    if piece.written {
        // Corrected by the usage at the end where the server sends one; a chunk can hold several tokens.
        reply.count_token();
    }
    if let Some(reason) = piece.reason {
        reply.finish_reason = match chunk::end(&reason) {
            End::Complete(reason) => reason,
            End::Aborted => "cancelled".into(),
            End::Failed => bail!("the server ended the request with finish_reason `{reason}`"),
        };
    }
    reply.tokens = piece.completion_tokens.unwrap_or(reply.tokens);
    reply.prompt_tokens = piece.prompt_tokens.or(reply.prompt_tokens);
    // Ours only.
    if let Ok(routing) = serde_json::from_value::<UsageRouting>(value["usage"]["routing"].clone()) {
        reply.handoffs = Some(routing.handoffs);
        reply.llm_ratio = Some(routing.llm_ratio);
        reply.buffer_wait = Some(Duration::from_secs_f64(routing.buffer_wait_ms.max(0.0) / 1e3));
    }
    Ok(())
}
