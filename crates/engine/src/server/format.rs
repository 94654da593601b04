//! The APIs in whose form an answer is given: OpenAI's chat completions and completions, and SGLang's `generate`.

use std::sync::Arc;

use axum::Json;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokenrouter_api::chat::ChatCompletion;
use tokenrouter_api::completions::TextCompletion;
use tokenrouter_api::generate::GenerateResponse;

use super::generation::{Chunk, Generation, GenerationRequest};
use super::{ApiError, App, chat, completions, generate, stream};

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
    /// `/generate`.
    Generate,
}

/// An answer that is not streamed.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Whole {
    Chat(ChatCompletion),
    Text(TextCompletion),
    Generate(GenerateResponse),
}

/// Generates, and responds with the answer or with a stream of it.
pub(super) async fn respond(app: &Arc<App>, request: GenerationRequest) -> Result<Response, ApiError> {
    let streamed = request.params.stream;
    let generation = Generation::start(app, request).await?;
    if streamed {
        return Ok(stream::response(generation));
    }
    Ok(Json(generation.collect().await?).into_response())
}

impl Format {
    pub(super) fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl",
            Self::Text => "cmpl",
            Self::Generate => "gen",
        }
    }

    /// What a stream begins with.
    pub(super) fn opening(self, generation: &Generation) -> Vec<Event> {
        if self == Self::Chat { chat::opening(generation) } else { Vec::new() }
    }

    /// A chunk of a stream. It says how many tokens it holds and which models wrote them.
    pub(super) fn chunk(self, generation: &Generation, chunk: &Chunk) -> Event {
        match self {
            Self::Chat => chat::chunk(generation, chunk),
            Self::Text => completions::chunk(generation, chunk),
            Self::Generate => generate::chunk(generation, chunk),
        }
    }

    /// What a stream ends with.
    pub(super) fn closing(self, generation: &Generation) -> Vec<Event> {
        let usage = match self {
            Self::Chat if generation.params.include_usage => Some(chat::usage(generation)),
            Self::Text if generation.params.include_usage => Some(completions::usage(generation)),
            _ => None,
        };
        usage.into_iter().chain([Event::default().data("[DONE]")]).collect()
    }

    /// An answer that is not streamed.
    pub(super) fn whole(self, generation: &Generation) -> Whole {
        match self {
            Self::Chat => Whole::Chat(chat::whole(generation)),
            Self::Text => Whole::Text(completions::whole(generation)),
            Self::Generate => Whole::Generate(generate::whole(generation)),
        }
    }
}

/// Letters for a chunk, so that the length of what is sent tells less of the length of its text.
pub(super) fn obfuscation(generation: &Generation, text: &str) -> Option<String> {
    const BLOCK: usize = 32;
    generation.params.obfuscate.then(|| {
        let mut letters = generation.app.open.new_name();
        letters.truncate(BLOCK - text.len() % BLOCK);
        letters
    })
}

/// An event with an object.
pub(super) fn event(value: &impl Serialize) -> Event {
    // Plain structs with text keys: writing them into memory cannot fail.
    Event::default().data(serde_json::to_string(value).unwrap_or_default())
}
