//! `POST /generate`: SGLang's form of a plain prompt.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use axum::response::sse::Event;
use tokenrouter_api::generate::{
    GenerateFinish, GenerateRequest, GenerateResponse, GenerateSampling, Generated, MetaInfo,
};
use tokenrouter_api::sampling::Sampling;

use super::completions::encode;
use super::format::{Format, event};
use super::generation::{Choice, Chunk, Generation, GenerationRequest};
use super::params::Params;
use super::{ApiError, App, body, format, observe};
use tokenrouter_core::request::FinishReason;

/// Tokens of an answer when the client does not say, as in SGLang.
const DEFAULT_MAX_TOKENS: u64 = 128;

pub(super) async fn generate(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let mut request_id = observe::request_id(&request);
    let asked: GenerateRequest = body::read(&app, request).await?;
    let sampling = sampling(asked.sampling_params.unwrap_or_default());
    let params = Params::new(Sampling { stream: asked.stream, routing: asked.routing, ..sampling }, &app)?;
    if let Some(rid) = asked.rid {
        request_id = observe::valid_id(&rid)
            .map(str::to_owned)
            .ok_or_else(|| ApiError::field("rid", format!("must be 1 to {} printable characters", observe::MAX_ID)))?;
    }
    let prompt = match (asked.text, asked.input_ids) {
        (Some(text), None) => encode(&app, &text)?,
        (None, Some(ids)) => ids.0,
        _ => return Err(ApiError::bad_request("exactly one of the fields `text` and `input_ids` is needed")),
    };
    let prompts = vec![prompt];
    format::respond(&app, GenerationRequest { prompts, params, format: Format::Generate, request_id }).await
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
