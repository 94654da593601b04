//! A client of servers with the OpenAI API: chat completions as a stream.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, bail};
use eventsource_stream::{EventStreamError, Eventsource};
use futures_util::StreamExt;
use serde_json::Value;
use tokenrouter_api::chat::{ChatChunk, ChatRequest, Content, Conversation, Message, Messages, Role};
use tokenrouter_api::sampling::{Sampling, StreamOptions};
use tokenrouter_api::to_json;
use tokenrouter_core::SamplingParams;
use tokenrouter_engine::tokenizer::ChatMessage;

use super::reply::Reply;

/// Most bytes accepted from a server without the end of an event.
const MAX_EVENT: usize = 1 << 20;

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
            seed: Some(sampling.seed.wrapping_add(key)),
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
    let response = client.post(url).json(&to_json(request)).send().await;
    let response = response.with_context(|| format!("cannot reach `{url}`"))?;
    let status = response.status();
    if !status.is_success() {
        let text = response.text().await.unwrap_or_default();
        bail!("`{url}` answered {status}: {}", text.chars().take(300).collect::<String>());
    }
    reply.has_text = true;
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
    while let Some(event) = events.next().await {
        let data = match event {
            Ok(event) => event.data,
            Err(EventStreamError::Transport(error)) => return Err(error),
            Err(error) => bail!("the server sent events that cannot be read: {error}"),
        };
        unread.set(0);
        if data.trim() == "[DONE]" {
            break;
        }
        take(data.trim(), reply)?;
    }
    if reply.finish_reason.is_empty() {
        bail!("the stream ended without a finish reason");
    }
    Ok(())
}

fn take(data: &str, reply: &mut Reply) -> anyhow::Result<()> {
    let value: Value = serde_json::from_str(data).with_context(|| format!("the server sent `{data}`, not JSON"))?;
    // Servers differ in what they say besides the message.
    if let Some(message) = value["error"]["message"].as_str() {
        bail!("the server reported: {message}");
    }
    let chunk: ChatChunk = serde_json::from_value(value)
        .with_context(|| format!("the server sent `{data}`, not a chunk of a chat completion"))?;
    if let Some(choice) = chunk.choices.into_iter().next() {
        if let Some(text) = choice.delta.content.filter(|text| !text.is_empty()) {
            reply.text.push_str(&text);
            // Corrected by the usage at the end where the server sends one; a chunk can hold several tokens.
            reply.count_token();
        }
        if let Some(reason) = choice.finish_reason {
            reply.finish_reason = reason;
        }
    }
    if let Some(usage) = chunk.usage {
        reply.tokens = usage.completion_tokens;
        reply.prompt_tokens = Some(usage.prompt_tokens);
        if let Some(routing) = usage.routing {
            reply.handoffs = Some(routing.handoffs);
            reply.llm_ratio = Some(routing.llm_ratio);
            reply.buffer_wait = Some(Duration::from_secs_f64(routing.buffer_wait_ms / 1e3));
        }
    }
    Ok(())
}
