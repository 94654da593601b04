//! `POST /v1/completions` and `POST /generate`: plain prompts. Special tokens that are written out in a prompt are read as
//! such: here the client writes the whole prompt, its form included.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::answer::{Answer, Asked};
use super::fields::{Fields, Unsupported, short};
use super::format::Format;
use super::params::{self, Params, top_logprobs};
use super::{ApiError, App, body, no_text, observe, stream};

/// Fields of `/generate`, and those of its `sampling_params` with the names that the rest of the server uses.
const GENERATE: &[&str] = &["text", "input_ids", "sampling_params", "stream", "rid", "routing"];
const GENERATE_UNSUPPORTED: &[Unsupported] = &[
    ("return_logprob", "[false]"),
    ("logprob_start_len", "[-1]"),
    ("top_logprobs_num", "[0]"),
    ("token_ids_logprob", "[]"),
    ("return_text_in_logprobs", "[false, true]"),
    ("image_data", "[]"),
    ("lora_path", "[]"),
    ("return_hidden_states", "[false]"),
];
const SAMPLING: [(&str, &str); 15] = [
    ("max_new_tokens", "max_tokens"),
    ("min_new_tokens", "min_tokens"),
    ("sampling_seed", "seed"),
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("repetition_penalty", "repetition_penalty"),
    ("presence_penalty", "presence_penalty"),
    ("frequency_penalty", "frequency_penalty"),
    ("stop", "stop"),
    ("stop_token_ids", "stop_token_ids"),
    ("ignore_eos", "ignore_eos"),
    ("n", "n"),
    ("skip_special_tokens", "skip_special_tokens"),
];
const SAMPLING_UNSUPPORTED: &[Unsupported] = &[
    ("json_schema", "[]"),
    ("regex", "[]"),
    ("ebnf", "[]"),
    ("no_stop_trim", "[false]"),
    ("spaces_between_special_tokens", "[true]"),
];
/// Tokens of an answer of `/generate` when the client does not say, as in SGLang.
const GENERATE_MAX_TOKENS: u64 = 128;
/// Prompts in one request.
const MAX_PROMPTS: usize = 64;

pub(super) async fn completions(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let request_id = observe::request_id(&request);
    let value = body::json(&app, request).await?;
    let fields = Fields::of(&value)?.check(&[params::FIELDS, &["prompt"]], params::UNSUPPORTED)?;
    let mut params = Params::parse(fields, &app)?;
    params.logprobs = top_logprobs(fields, "logprobs")?;
    let prompt = fields.get("prompt").ok_or_else(|| fields.error("prompt", "is missing"))?;
    let prompts = prompts(prompt, &app)
        .ok_or_else(|| {
            let problem = "it must be a text, a list of texts, a list of token ids, or a list of such lists";
            fields.error("prompt", format!("is `{}`, {problem}", short(prompt)))
        })?
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    if prompts.len() > MAX_PROMPTS {
        return Err(fields.error("prompt", format!("has {} prompts, allowed are {MAX_PROMPTS}", prompts.len())));
    }
    respond(&app, Asked { prompts, params, format: Format::Text, request_id }).await
}

pub(super) async fn generate(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let mut request_id = observe::request_id(&request);
    let value = body::json(&app, request).await?;
    let fields = Fields::of(&value)?.check(&[GENERATE], GENERATE_UNSUPPORTED)?;
    let sampling = fields.object("sampling_params", "sampling_params.")?;
    let names = SAMPLING.map(|(name, _)| name);
    sampling.check(&[&names], SAMPLING_UNSUPPORTED)?;
    // The same parameters under their usual names, so that they are checked in one place.
    let mut usual = json!({"temperature": 1.0, "max_tokens": GENERATE_MAX_TOKENS});
    for (name, target) in SAMPLING {
        if let Some(value) = sampling.get(name) {
            usual[target] = value.clone();
        }
    }
    for name in ["stream", "routing"] {
        usual[name] = fields.get(name).cloned().unwrap_or_default();
    }
    let usual_fields = Fields::of(&usual)?.check(&[params::FIELDS], params::UNSUPPORTED)?;
    let params = Params::parse(usual_fields, &app)?;
    if let Some(rid) = fields.text("rid")? {
        request_id = observe::valid_id(rid)
            .ok_or_else(|| fields.error("rid", format!("must be 1 to {} printable characters", observe::MAX_ID)))?;
    }
    let prompt = match (fields.text("text")?, fields.ids("input_ids")?) {
        (Some(text), None) => encode(&app, text)?,
        (None, Some(ids)) => ids,
        _ => return Err(ApiError::bad_request("exactly one of the fields `text` and `input_ids` is needed")),
    };
    respond(&app, Asked { prompts: vec![prompt], params, format: Format::Generate, request_id }).await
}

async fn respond(app: &Arc<App>, asked: Asked) -> Result<Response, ApiError> {
    let streamed = asked.params.stream;
    let answer = Answer::start(app, asked).await?;
    if streamed {
        return Ok(stream::response(answer));
    }
    Ok(Json(answer.collect().await?).into_response())
}

fn encode(app: &App, text: &str) -> Result<Vec<u32>, ApiError> {
    let codec = app.engine.text().ok_or_else(no_text)?;
    codec.encode(text).map_err(|error| ApiError::bad_request(error.to_string()))
}

/// One prompt or several, each as text or as token ids.
fn prompts(value: &Value, app: &App) -> Option<Vec<Result<Vec<u32>, ApiError>>> {
    let ids = |value: &Value| serde_json::from_value::<Vec<u32>>(value.clone()).ok();
    match value {
        Value::String(text) => Some(vec![encode(app, text)]),
        Value::Array(list) if list.first().is_some_and(Value::is_number) => Some(vec![Ok(ids(value)?)]),
        Value::Array(list) if !list.is_empty() => list
            .iter()
            .map(|one| match one {
                Value::String(text) => Some(encode(app, text)),
                one => Some(Ok(ids(one)?)),
            })
            .collect(),
        _ => None,
    }
}
