//! Requests and what is counted of them, as bytes.

use super::wire::{CodecError, Put, Take, bad};
use super::{Bounds, MAX_TEXT, MAX_TEXTS};
use crate::request::{FinishReason, Request, RequestStats, RoutingOverrides, SamplingParams};

/// Longest error text; what is longer is cut.
const MAX_REASON: usize = 4096;

pub(super) fn put_request(out: &mut Vec<u8>, request: &Request) {
    out.tokens(&request.prompt);
    let sampling = &request.sampling;
    for value in [
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
    ] {
        out.float(value);
    }
    out.size(sampling.top_k);
    out.number(sampling.seed);
    out.size(sampling.max_tokens);
    out.size(sampling.min_tokens);
    out.flag(sampling.ignore_eos);
    out.tokens(&sampling.stop_token_ids);
    out.size(sampling.stop.len());
    sampling.stop.iter().for_each(|text| out.blob(text.as_bytes()));
    out.number(request.key);
    out.flag(request.trace);
    out.size(request.resumed);
    out.option(request.logprobs.map(|top| top as u64));
    out.flag(request.routing.threshold.is_some());
    if let Some(threshold) = request.routing.threshold {
        out.double(threshold);
    }
    out.option(request.routing.seed);
}

pub(super) fn take_request(bytes: &mut Take<'_>, bounds: &Bounds) -> Result<Request, CodecError> {
    let prompt = bytes.tokens(bounds.token_limit, bounds.vocab, "the prompt")?;
    if prompt.is_empty() {
        return Err(bad("the length of the prompt", 0, "1 or more"));
    }
    let mut float = || bytes.float("a sampling parameter");
    let (temperature, top_p, min_p) = (float()?, float()?, float()?);
    let (repetition_penalty, presence_penalty, frequency_penalty) = (float()?, float()?, float()?);
    let sampling = SamplingParams {
        temperature,
        top_p,
        min_p,
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        top_k: bytes.size(usize::MAX, "top_k")?,
        seed: bytes.number("the seed")?,
        max_tokens: bytes.size(bounds.token_limit, "max_tokens")?,
        min_tokens: bytes.size(bounds.token_limit, "min_tokens")?,
        ignore_eos: bytes.flag("ignore_eos")?,
        stop_token_ids: bytes.tokens(MAX_TEXTS, u32::MAX as usize + 1, "stop_token_ids")?,
        stop: {
            let count = bytes.length(MAX_TEXTS, "stop")?;
            (0..count).map(|_| bytes.text(MAX_TEXT, "stop")).collect::<Result<_, _>>()?
        },
    };
    if sampling.check().is_err() {
        return Err(bad("a sampling parameter", 0, "what clients may send"));
    }
    let request = Request {
        key: bytes.number("the key")?,
        trace: bytes.flag("trace")?,
        resumed: bytes.size(prompt.len() - 1, "resumed")?,
        logprobs: bytes.option(crate::request::MAX_TOP_LOGPROBS as u64, "logprobs")?.map(|top| top as usize),
        routing: RoutingOverrides {
            threshold: if bytes.flag("threshold")? { Some(bytes.double("threshold")?) } else { None },
            seed: bytes.option(u64::MAX, "the routing seed")?,
        },
        prompt,
        sampling,
    };
    if request.most_tokens() > bounds.token_limit {
        return Err(bad("prompt and output", request.most_tokens() as u64, format!("{} tokens", bounds.token_limit)));
    }
    Ok(request)
}

pub(super) fn put_stats(out: &mut Vec<u8>, stats: &RequestStats) {
    out.size(stats.tokens_by_model.len());
    stats.tokens_by_model.iter().for_each(|tokens| out.number(*tokens));
    out.number(stats.handoffs);
    out.time(stats.queue_wait);
    out.time(stats.buffer_wait);
}

pub(super) fn take_stats(bytes: &mut Take<'_>, bounds: &Bounds) -> Result<RequestStats, CodecError> {
    let models = bytes.length(bounds.models, "tokens by model")?;
    // The scheduler adds to these by index.
    if models != 0 && models != bounds.models {
        return Err(bad("tokens by model", models as u64, format!("0 or {}", bounds.models)));
    }
    Ok(RequestStats {
        tokens_by_model: (0..models).map(|_| bytes.upto(1 << 48, "tokens")).collect::<Result<_, _>>()?,
        handoffs: bytes.upto(1 << 48, "handoffs")?,
        queue_wait: bytes.time("queue_wait")?,
        buffer_wait: bytes.time("buffer_wait")?,
    })
}

pub(super) fn put_reason(out: &mut Vec<u8>, reason: &FinishReason) {
    match reason {
        FinishReason::Stop => out.byte(0),
        FinishReason::Length => out.byte(1),
        FinishReason::Cancelled => out.byte(2),
        FinishReason::Moved(to) => {
            out.byte(3);
            out.size(*to);
        }
        FinishReason::Lost(model) => {
            out.byte(5);
            out.size(*model);
        }
        FinishReason::Error(text) => {
            out.byte(4);
            let end = (0..=text.len().min(MAX_REASON)).rev().find(|end| text.is_char_boundary(*end));
            out.blob(&text.as_bytes()[..end.unwrap_or(0)]);
        }
    }
}

pub(super) fn take_reason(bytes: &mut Take<'_>, bounds: &Bounds) -> Result<FinishReason, CodecError> {
    Ok(match bytes.byte("a reason")? {
        0 => FinishReason::Stop,
        1 => FinishReason::Length,
        2 => FinishReason::Cancelled,
        3 => FinishReason::Moved(bytes.size(bounds.models - 1, "a model")?),
        4 => FinishReason::Error(bytes.text(MAX_REASON, "an error")?),
        5 => FinishReason::Lost(bytes.size(bounds.models - 1, "a model")?),
        other => return Err(bad("a reason", u64::from(other), "0 to 5")),
    })
}
