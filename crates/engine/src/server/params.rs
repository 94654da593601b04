//! What chat completions and text completions have in common: sampling, streaming and routing.

use serde_json::{Map, Value};

use super::fields::{Fields, Unsupported};
use super::{ApiError, App};
use crate::config::list;
use crate::request::MAX_TOP_LOGPROBS;
use crate::request::{RoutingOverrides, SamplingParams};

/// Fields of both.
pub(super) const FIELDS: &[&str] = &[
    "model",
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
    "stop_token_ids",
    "ignore_eos",
    "seed",
    "n",
    "stream",
    "stream_options",
    "logprobs",
    "routing",
    // Names for the client's own books; they change nothing.
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
];
/// Fields of either API that are accepted only where they ask for nothing.
pub(super) const UNSUPPORTED: &[Unsupported] = &[
    ("audio", "[]"),
    ("best_of", "[1]"),
    ("echo", "[false]"),
    ("function_call", "[\"none\"]"),
    ("functions", "[[]]"),
    ("logit_bias", "[{}]"),
    ("modalities", "[[\"text\"]]"),
    ("parallel_tool_calls", "[true]"),
    ("prediction", "[]"),
    ("reasoning_effort", "[]"),
    ("response_format", "[{\"type\": \"text\"}]"),
    ("service_tier", "[\"auto\", \"default\"]"),
    ("skip_special_tokens", "[true]"),
    ("store", "[false]"),
    ("suffix", "[\"\"]"),
    ("use_beam_search", "[false]"),
    ("verbosity", "[]"),
    ("web_search_options", "[]"),
];
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
}

impl Params {
    /// From a body whose field names were checked.
    pub(super) fn parse(fields: Fields<'_>, app: &App) -> Result<Self, ApiError> {
        check_model(fields, app)?;
        let max_tokens = match fields.integer("max_completion_tokens")? {
            Some(value) => Some(value),
            None => fields.integer("max_tokens")?,
        };
        let seed = fields.integer("seed")?;
        let n = fields.integer_within("n", 1, app.config.max_choices as u64)?.unwrap_or(1);
        let options = fields.object("stream_options", "stream_options.")?;
        options.check(&[&["include_usage", "continuous_usage_stats"]], &[])?;
        let (routing, trace) = routing(fields, app)?;
        Ok(Self {
            sampling: sampling(fields, max_tokens.unwrap_or(DEFAULT_MAX_TOKENS), seed, app)?,
            seeded: seed.is_some(),
            sized: max_tokens.is_some(),
            n: n as usize,
            logprobs: None,
            routing,
            trace,
            stream: fields.boolean("stream")?,
            include_usage: options.boolean("include_usage")?,
            continuous_usage: options.boolean("continuous_usage_stats")?,
        })
    }
}

/// The number of most likely tokens that `name` asks for.
pub(super) fn top_logprobs(fields: Fields<'_>, name: &str) -> Result<Option<usize>, ApiError> {
    let top = fields.integer_within(name, 0, MAX_TOP_LOGPROBS as u64)?;
    Ok(top.map(|top| top as usize))
}

fn check_model(fields: Fields<'_>, app: &App) -> Result<(), ApiError> {
    let served = app.config.model_name.as_str();
    match fields.text("model")? {
        Some(model) if model != served && model != ANY_MODEL => Err(ApiError {
            param: Some("model".into()),
            ..ApiError::new(
                axum::http::StatusCode::NOT_FOUND,
                "model_not_found",
                format!("field `model` is `{}`, served is `{served}`", super::fields::short(&Value::from(model))),
            )
        }),
        _ => Ok(()),
    }
}

fn sampling(fields: Fields<'_>, max_tokens: u64, seed: Option<u64>, app: &App) -> Result<SamplingParams, ApiError> {
    let defaults = SamplingParams::default();
    let float = |name: &str, default: f32| Ok::<_, ApiError>(fields.float(name)?.map_or(default, |value| value as f32));
    // -1 is how some clients write "all".
    let top_k = match fields.get("top_k") {
        Some(value) if value.as_i64() == Some(-1) => 0,
        _ => fields.integer("top_k")?.unwrap_or(0),
    };
    let sampling = SamplingParams {
        temperature: float("temperature", 1.0)?,
        top_p: float("top_p", defaults.top_p)?,
        top_k: usize::try_from(top_k).unwrap_or(usize::MAX),
        min_p: float("min_p", defaults.min_p)?,
        repetition_penalty: float("repetition_penalty", defaults.repetition_penalty)?,
        presence_penalty: float("presence_penalty", defaults.presence_penalty)?,
        frequency_penalty: float("frequency_penalty", defaults.frequency_penalty)?,
        min_tokens: fields.integer("min_tokens")?.unwrap_or(0) as usize,
        stop: fields.texts("stop", app.config.max_stop_texts)?,
        seed: seed.unwrap_or(0),
        max_tokens: usize::try_from(max_tokens).unwrap_or(usize::MAX),
        ignore_eos: fields.boolean("ignore_eos")?,
        stop_token_ids: fields.ids("stop_token_ids")?.unwrap_or_default(),
    };
    sampling.check().map_err(ApiError::bad_request)?;
    Ok(sampling)
}

/// `routing: {method, threshold, seed, trace}`.
fn routing(fields: Fields<'_>, app: &App) -> Result<(RoutingOverrides, bool), ApiError> {
    let options = fields.object("routing", "routing.")?;
    options.check(&[&["method", "threshold", "seed", "trace"]], &[])?;
    let configured = app.engine.info().routing.as_str();
    if let Some(method) = options.text("method")?
        && method != configured
    {
        return Err(options.error("method", format!("is `{method}`, this server routes by {}", list(&[configured]))));
    }
    let overrides = RoutingOverrides { threshold: options.float("threshold")?, seed: options.integer("seed")? };
    Ok((overrides, options.boolean("trace")?))
}

/// Variables of the chat template.
pub(super) fn template_variables(fields: Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    const NAME: &str = "chat_template_kwargs";
    const RESERVED: [&str; 4] = ["messages", "tools", "bos_token", "eos_token"];
    match fields.get(NAME) {
        None => Ok(Map::new()),
        Some(Value::Object(variables)) => match RESERVED.iter().find(|name| variables.contains_key(**name)) {
            Some(name) => Err(fields.error(NAME, format!("sets `{name}`, which comes from the request or the model"))),
            None => Ok(variables.clone()),
        },
        Some(value) => Err(fields.error(NAME, format!("is `{}`, it must be an object", super::fields::short(value)))),
    }
}
