//! The row of a request that has ended.

use std::time::Duration;

use super::reply::Reply;
use crate::dataset::Item;
use crate::grade;
use crate::record::Record;

/// Where a request stands in a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) id: u64,
    pub(super) repeat: usize,
    pub(super) trial: usize,
    pub(super) start: Duration,
    pub(super) lag: Duration,
}

pub(super) fn record(place: Place, item: &Item, (reply, elapsed): (&Reply, Duration), thresholds: &str) -> Record {
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    // Servers have names of their own for how an answer is complete.
    let complete = reply.error.is_none() && !matches!(reply.finish_reason.as_str(), "" | "cancelled" | "error");
    let e2el = complete.then(|| ms(elapsed));
    let ttft = reply.first_token.map(ms);
    let answer = if complete { grade::extract_answer(&reply.text) } else { None };
    Record {
        id: place.id,
        item: item.id.clone(),
        repeat: place.repeat,
        prompt_tokens: reply.prompt_tokens,
        completion_tokens: reply.tokens,
        ttft_ms: ttft,
        tpot_ms: match (e2el, ttft) {
            (Some(e2el), Some(ttft)) if reply.tokens > 1 => Some((e2el - ttft) / (reply.tokens - 1) as f64),
            _ => None,
        },
        e2el_ms: e2el,
        tokens_per_s: e2el.map(|e2el| reply.tokens as f64 / e2el * 1e3),
        llm_ratio: reply.llm_ratio,
        handoffs: reply.handoffs,
        buffer_wait_ms: reply.buffer_wait.map(ms),
        finish_reason: reply.finish_reason.clone(),
        error: reply.error.clone(),
        answer,
        correct: item.prompt.answer.filter(|_| complete && reply.has_text).map(|right| answer == Some(right)),
        turn: item.turn,
        trial: place.trial,
        start_ms: Some(ms(place.start)),
        client_lag_ms: Some(ms(place.lag)),
        thresholds: thresholds.to_owned(),
    }
}
