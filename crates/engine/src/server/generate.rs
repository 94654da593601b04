//! `POST /generate`: SGLang's form of a plain prompt.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use axum::response::sse::Event;
use tokenrouter_api::generate::{
    GenerateFinish, GenerateRequest, GenerateResponse, GenerateSampling, Generated, MetaInfo,
};
use tokenrouter_api::sampling::Sampling;

use super::format::{Format, event};
use super::generation::{Choice, Chunk, Generation, GenerationRequest};
use super::params::{Params, request_id};
use super::prompt::encode;
use super::{ApiError, App, body, format, observe};
use tokenrouter_core::request::FinishReason;

/// Tokens of an answer when the client does not say, as in SGLang.
const DEFAULT_MAX_TOKENS: u64 = 128;

pub(super) async fn generate(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let id = observe::request_id(&request);
    let request = body::read(&app, request, |app, asked| prepare(app, asked, id)).await?;
    format::respond(&app, request).await
}

fn prepare(app: &App, asked: GenerateRequest, id: String) -> Result<GenerationRequest, ApiError> {
    let sampling = sampling(asked.sampling_params.unwrap_or_default());
    let sampling = Sampling { stream: asked.stream, routing: asked.routing, rid: asked.rid, ..sampling };
    let request_id = request_id(id, &sampling)?;
    let params = Params::new(sampling, app)?;
    params.check_room(app, 1)?;
    let prompt = match (asked.text, asked.input_ids) {
        (Some(text), None) => encode(app, &text)?,
        (None, Some(ids)) => ids.0,
        _ => return Err(ApiError::bad_request("exactly one of the fields `text` and `input_ids` is needed")),
    };
    Ok(GenerationRequest { prompts: vec![prompt], params, format: Format::Generate, request_id })
}

/// The same parameters under the names that the rest of the server uses.
fn sampling(asked: GenerateSampling) -> Sampling {
    Sampling {
        max_tokens: Some(asked.max_new_tokens.unwrap_or(DEFAULT_MAX_TOKENS)),
        min_tokens: asked.min_new_tokens,
        seed: asked.sampling_seed,
        temperature: asked.temperature,
        top_p: asked.top_p,
        top_k: asked.top_k,
        min_p: asked.min_p,
        repetition_penalty: asked.repetition_penalty,
        presence_penalty: asked.presence_penalty,
        frequency_penalty: asked.frequency_penalty,
        stop: asked.stop,
        stop_token_ids: asked.stop_token_ids,
        ignore_eos: asked.ignore_eos,
        n: asked.n,
        ..Sampling::default()
    }
}

/// An event of a stream: the whole text so far.
pub(super) fn chunk(generation: &Generation, chunk: &Chunk) -> Event {
    event(&generated(generation, &generation.choices[chunk.choice]))
}

/// An answer that is not streamed.
pub(super) fn whole(generation: &Generation) -> GenerateResponse {
    let mut all: Vec<Generated> = generation.choices.iter().map(|choice| generated(generation, choice)).collect();
    if all.len() == 1 { GenerateResponse::One(all.remove(0)) } else { GenerateResponse::Several(all) }
}

fn generated(generation: &Generation, choice: &Choice) -> Generated {
    let tokens = choice.ids.len();
    let finish_reason = choice.whole.finish.as_ref().map(|reason| GenerateFinish {
        kind: reason.as_str().into(),
        length: (*reason == FinishReason::Length).then_some(tokens),
    });
    Generated {
        text: choice.whole.text.clone(),
        output_ids: choice.ids.clone(),
        meta_info: MetaInfo {
            id: generation.id.clone(),
            finish_reason,
            prompt_tokens: generation.prompt_tokens,
            completion_tokens: tokens,
            e2e_latency: generation.started.elapsed().as_secs_f64(),
            routing: generation.usage_routing(),
        },
    }
}
