//! What chat completions, completions and `/generate` have in common: sampling, streaming and routing.

use axum::http::StatusCode;
use serde_json::Value;
use tokenrouter_api::sampling::{RoutingOptions, Sampling};
use tokenrouter_api::{Seed, Texts};

use super::refused::short;
use super::{ApiError, App, observe};
use tokenrouter_core::names::list;
use tokenrouter_core::request::MAX_TOP_LOGPROBS;
use tokenrouter_core::request::{RoutingOverrides, SamplingParams};

/// Tokens of an answer when the client does not say.
const DEFAULT_MAX_TOKENS: u64 = 1024;
/// The name that clients send when they do not care.
const ANY_MODEL: &str = "default";

/// How an answer is made and given, whatever its prompt.
#[derive(Debug, Clone)]
pub(super) struct Params {
    pub(super) sampling: SamplingParams,
    /// Whether the client chose the seed.
    pub(super) seeded: bool,
    /// Whether the client chose `max_tokens`: then it must fit, otherwise it is what fits.
    pub(super) sized: bool,
    /// Answers to each prompt.
    pub(super) n: usize,
    pub(super) logprobs: Option<usize>,
    pub(super) routing: RoutingOverrides,
    /// Every step is reported.
    pub(super) trace: bool,
    pub(super) stream: bool,
    /// A last chunk with the usage.
    pub(super) include_usage: bool,
    /// The usage so far in every chunk.
    pub(super) continuous_usage: bool,
    /// Every chunk hides the length of its text.
    pub(super) obfuscate: bool,
}

impl Params {
    /// Checks what a client asks for against the configuration.
    pub(super) fn new(asked: Sampling, app: &App) -> Result<Self, ApiError> {
        check_model(asked.model.as_deref(), app)?;
        let max_tokens = asked.max_completion_tokens.or(asked.max_tokens);
        let n = within("n", asked.n, 1, app.config.max_choices)?.unwrap_or(1);
        check_best_of(asked.best_of, n)?;
        let routing = asked.routing.clone().unwrap_or_default();
        check_method(&routing, app)?;
        let options = asked.stream_options.clone().unwrap_or_default();
        Ok(Self {
            seeded: asked.seed.is_some_and(|seed| seed.chosen().is_some()),
            sized: max_tokens.is_some(),
            n,
            logprobs: None,
            routing: RoutingOverrides { threshold: routing.threshold, seed: routing.seed },
            trace: routing.trace,
            stream: asked.stream,
            include_usage: options.include_usage,
            continuous_usage: options.continuous_usage_stats,
            obfuscate: options.include_obfuscation,
            sampling: sampling(asked, max_tokens.unwrap_or(DEFAULT_MAX_TOKENS), app)?,
        })
    }

    /// Refuses what no queue has room for, however long it waits.
    pub(super) fn check_room(&self, app: &App, prompts: usize) -> Result<(), ApiError> {
        let (answers, most) = (prompts * self.n, app.engine.most_open());
        if answers <= most {
            return Ok(());
        }
        Err(ApiError::bad_request(format!(
            "{prompts} prompts with `n` of {} are {answers} answers, this server takes at most {most} at a time \
             (`system.max_active` + `system.max_queued`)",
            self.n
        )))
    }
}

/// Name of a request: that of its fields, or `id`.
pub(super) fn request_id(id: String, asked: &Sampling) -> Result<String, ApiError> {
    let fields = [("request_id", &asked.request_id), ("rid", &asked.rid)];
    let Some((field, given)) = fields.into_iter().find_map(|(field, given)| Some((field, given.as_deref()?))) else {
        return Ok(id);
    };
    let valid = observe::valid_id(given).map(str::to_owned);
    valid.ok_or_else(|| ApiError::field(field, format!("must be 1 to {} printable characters", observe::MAX_ID)))
}

/// All answers are given, so there is nothing to choose the best of.
fn check_best_of(best_of: Option<u64>, n: usize) -> Result<(), ApiError> {
    match best_of {
        Some(value) if value != 1 && value != n as u64 => Err(ApiError::field(
            "best_of",
            format!("is not supported with value `{value}`, only `1` and the value of `n`"),
        )),
        _ => Ok(()),
    }
}

/// The number of most likely tokens that the field `name` asks for.
pub(super) fn top_logprobs(name: &str, value: Option<u64>) -> Result<Option<usize>, ApiError> {
    within(name, value, 0, MAX_TOP_LOGPROBS)
}

/// Checks an integer from `low` to `high`.
fn within(name: &str, value: Option<u64>, low: usize, high: usize) -> Result<Option<usize>, ApiError> {
    match value {
        Some(value) if !(low as u64..=high as u64).contains(&value) => {
            Err(ApiError::field(name, format!("is {value}, allowed is {low} to {high}")))
        }
        value => Ok(value.map(|value| value as usize)),
    }
}

/// Refuses other models than the served one.
pub(super) fn check_model(model: Option<&str>, app: &App) -> Result<(), ApiError> {
    let served = app.config.model_name.as_str();
    match model {
        Some(model) if model != served && model != ANY_MODEL => Err(ApiError {
            param: Some("model".into()),
            ..ApiError::new(
                StatusCode::NOT_FOUND,
                "model_not_found",
                format!("field `model` is `{}`, served is `{served}`", short(&Value::from(model))),
            )
        }),
        _ => Ok(()),
    }
}

fn check_method(routing: &RoutingOptions, app: &App) -> Result<(), ApiError> {
    let configured = app.engine.info().routing.as_str();
    match &routing.method {
        Some(method) if method != configured => Err(ApiError::field(
            "routing.method",
            format!("is `{method}`, this server routes by {}", list(&[configured])),
        )),
        _ => Ok(()),
    }
}

fn sampling(asked: Sampling, max_tokens: u64, app: &App) -> Result<SamplingParams, ApiError> {
    let defaults = SamplingParams::default();
    let float = |value: Option<f64>, default: f32| value.map_or(default, |value| value as f32);
    let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    let stop = asked.stop.map(Texts::into_vec).unwrap_or_default();
    let most = app.config.max_stop_texts;
    if stop.len() > most {
        return Err(ApiError::field("stop", format!("has {} texts, allowed are {most}", stop.len())));
    }
    // A nucleus that holds nothing still has the most likely token, which is what OpenAI makes of 0.
    let top_p = |value: f64| if value >= 0.0 { (value as f32).max(f32::MIN_POSITIVE) } else { value as f32 };
    let sampling = SamplingParams {
        temperature: float(asked.temperature, 1.0),
        top_p: asked.top_p.map_or(defaults.top_p, top_p),
        top_k: size(asked.top_k.unwrap_or_default().0),
        min_p: float(asked.min_p, defaults.min_p),
        repetition_penalty: float(asked.repetition_penalty, defaults.repetition_penalty),
        presence_penalty: float(asked.presence_penalty, defaults.presence_penalty),
        frequency_penalty: float(asked.frequency_penalty, defaults.frequency_penalty),
        min_tokens: size(asked.min_tokens.unwrap_or(0)),
        stop,
        seed: asked.seed.and_then(Seed::chosen).unwrap_or(0),
        max_tokens: size(max_tokens),
        ignore_eos: asked.ignore_eos,
        stop_token_ids: asked.stop_token_ids.unwrap_or_default().0,
    };
    sampling.check().map_err(ApiError::bad_request)?;
    Ok(sampling)
}
