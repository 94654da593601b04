//! `POST /v1/completions`. Special tokens that are written out in a prompt are read as such: here the client writes the
//! whole prompt, its form included.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use axum::response::sse::Event;
use tokenrouter_api::completions::{CompletionRequest, Prompt, TextChoice, TextChunk, TextCompletion, TextLogprobs};

use super::format::{Format, event};
use super::generation::{Chunk, Generation, GenerationRequest};
use super::params::{Params, request_id, top_logprobs};
use super::prompt::encode;
use super::{ApiError, App, body, format, observe};

/// Prompts in one request.
const MAX_PROMPTS: usize = 64;

pub(super) async fn completions(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let id = observe::request_id(&request);
    let request = body::read(&app, request, |app, asked| prepare(app, asked, id)).await?;
    format::respond(&app, request).await
}

fn prepare(app: &App, asked: CompletionRequest, id: String) -> Result<GenerationRequest, ApiError> {
    let request_id = request_id(id, &asked.sampling)?;
    let mut params = Params::new(asked.sampling, app)?;
    params.logprobs = top_logprobs("logprobs", asked.prompt.logprobs)?;
    let prompts = asked.prompt.prompt.into_vec();
    if prompts.len() > MAX_PROMPTS {
        let problem = format!("has {} prompts, allowed are {MAX_PROMPTS}", prompts.len());
        return Err(ApiError::field("prompt", problem));
    }
    params.check_room(app, prompts.len())?;
    let prompts = prompts.into_iter().map(|prompt| match prompt {
        Prompt::Text(text) => encode(app, &text),
        Prompt::Ids(ids) => Ok(ids),
    });
    let prompts = prompts.collect::<Result<_, _>>()?;
    Ok(GenerationRequest { prompts, params, format: Format::Text, request_id })
}

/// A chunk of a stream.
pub(super) fn chunk(generation: &Generation, chunk: &Chunk) -> Event {
    let routing = Some(generation.chunk_routing(chunk));
    let usage = generation.params.continuous_usage.then(|| generation.usage());
    let obfuscation = format::obfuscation(generation, &chunk.text);
    event(&TextChunk { obfuscation, routing, usage, ..envelope(generation, vec![choice(generation, chunk)]) })
}

/// The last chunk of a stream, which has the usage.
pub(super) fn usage(generation: &Generation) -> Event {
    event(&TextChunk { usage: Some(generation.usage()), ..envelope(generation, Vec::new()) })
}

fn envelope(generation: &Generation, choices: Vec<TextChoice>) -> TextChunk {
    TextChunk {
        id: generation.id.clone(),
        object: "text_completion".into(),
        created: generation.created,
        model: generation.app.config.model_name.clone(),
        choices,
        ..TextChunk::default()
    }
}

/// An answer that is not streamed.
pub(super) fn whole(generation: &Generation) -> TextCompletion {
    TextCompletion {
        id: generation.id.clone(),
        object: "text_completion".into(),
        created: generation.created,
        model: generation.app.config.model_name.clone(),
        choices: generation.choices.iter().map(|one| choice(generation, &one.whole)).collect(),
        usage: generation.usage(),
        routing: generation.steps(),
    }
}

fn choice(generation: &Generation, chunk: &Chunk) -> TextChoice {
    TextChoice {
        index: chunk.choice,
        text: chunk.text.clone(),
        logprobs: logprobs_of(generation, chunk),
        finish_reason: chunk.finish_reason(),
    }
}

fn logprobs_of(generation: &Generation, chunk: &Chunk) -> Option<TextLogprobs> {
    generation.params.logprobs?;
    let tokens = &chunk.logprobs;
    let top = tokens.iter().map(|token| {
        let entries = token.top.iter();
        Some(entries.map(|(id, logprob)| (generation.token_text(*id).0, Some(f64::from(*logprob)))).collect())
    });
    Some(TextLogprobs {
        text_offset: chunk.offsets.clone(),
        token_logprobs: tokens.iter().map(|token| Some(f64::from(token.logprob))).collect(),
        top_logprobs: top.collect(),
        tokens: tokens.iter().map(|token| generation.token_text(token.token).0).collect(),
    })
}
