//! One call of `/v1/completions`: tokens with the log-probabilities of the most likely ones.

use anyhow::{Context, bail};
use reqwest::StatusCode;
use serde::Serialize;
use serde_json::Value;
use tokenrouter_api::completions::CompletionRequest;
use tokenrouter_api::to_json;
use tokenrouter_core::routing::Signals;

use super::chunk::{self, End};
use super::http;
use crate::error::usage;

/// Log-probabilities asked for each token, where a method reads the entropy.
pub(super) const TOP: usize = 20;
/// Longest answer, in bytes.
const MAX_ANSWER: usize = 16 << 20;

/// A server of one model.
#[derive(Debug)]
pub(super) struct Endpoint {
    /// The model's name in the configuration.
    pub(super) name: String,
    /// Where completions are.
    pub(super) url: String,
    /// The model's name at the server.
    pub(super) model: String,
    /// Whether its answers have had token ids.
    pub(super) gives_ids: std::cell::Cell<bool>,
    /// Whether it refused to be asked for them.
    pub(super) refuses_ids: std::cell::Cell<bool>,
}

/// A token of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token {
    pub(super) text: String,
    pub(super) id: Option<u32>,
    /// Entropy in nats over the most likely tokens that were returned, renormalised; NaN when there are none.
    pub(super) entropy: f32,
}

/// An answer.
#[derive(Debug)]
pub(super) struct Completion {
    pub(super) tokens: Vec<Token>,
    /// Why it ended: `stop`, `length`, or a name of the server's own; empty where it names none.
    pub(super) reason: String,
    /// Tokens of the prompt, where they are told.
    pub(super) prompt_tokens: Option<u64>,
    /// Their ids, where they are told.
    pub(super) prompt_ids: Option<Vec<u32>>,
}

/// The base of a server's address.
pub(super) fn base(url: &str) -> anyhow::Result<&str> {
    let parsed = reqwest::Url::parse(url).map_err(|error| usage(format!("--endpoint `{url}`: {error}")))?;
    if !matches!(parsed.scheme(), "http" | "https") {
        return Err(usage(format!("--endpoint `{url}`: allowed schemes are `http` and `https`")));
    }
    if parsed.password().is_some() {
        return Err(usage("--endpoint: an address is recorded, so it must not have a password; use --header"));
    }
    Ok(url.trim_end_matches('/').trim_end_matches("/v1"))
}

/// A request for token ids too.
#[derive(Serialize)]
struct WithIds {
    #[serde(flatten)]
    request: CompletionRequest,
    /// vLLM's name for it. Servers that do not know it ignore it, or refuse it by name; then it is not sent again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    return_token_ids: bool,
}

impl Endpoint {
    /// Asks for tokens; the request has the prompt and the sampling parameters.
    pub(super) async fn complete(
        &self,
        client: &reqwest::Client,
        mut request: CompletionRequest,
    ) -> anyhow::Result<Completion> {
        request.sampling.model = Some(self.model.clone());
        let mut body = WithIds { request, return_token_ids: !self.refuses_ids.get() };
        let place = || format!("endpoint `{}` ({})", self.name, self.url);
        let (mut status, mut bytes) = self.post(client, &to_json(&body)).await.with_context(place)?;
        if body.return_token_ids && status.is_client_error() && contains(&bytes, b"return_token_ids") {
            self.refuses_ids.set(true);
            body.return_token_ids = false;
            (status, bytes) = self.post(client, &to_json(&body)).await.with_context(place)?;
        }
        if !status.is_success() {
            let text = String::from_utf8_lossy(&bytes);
            bail!("{}: {}", place(), http::refused(status, &text, &to_json(&body)));
        }
        let answer = serde_json::from_slice(&bytes).with_context(|| format!("{}: the answer is not JSON", place()))?;
        if let Some(message) = chunk::error(&answer) {
            bail!("{}: the server reported: {message}", place());
        }
        let completion = parse(&answer).map_err(|what| anyhow::anyhow!("{}: {what}", place()))?;
        self.gives_ids.set(completion.tokens.iter().all(|token| token.id.is_some()) && !completion.tokens.is_empty());
        Ok(completion)
    }

    /// Sends a body; what comes back is bounded.
    async fn post(&self, client: &reqwest::Client, body: &Value) -> anyhow::Result<(StatusCode, Vec<u8>)> {
        let mut response = client.post(&self.url).json(body).send().await.context("cannot reach it")?;
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.context("the connection broke")? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > MAX_ANSWER {
                bail!("the answer is longer than {MAX_ANSWER} bytes");
            }
        }
        Ok((response.status(), bytes))
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Understands both forms of log-probabilities: lists beside each other (OpenAI completions, vLLM, SGLang), and one
/// object for each token (OpenAI chat, llama.cpp).
fn parse(answer: &Value) -> Result<Completion, String> {
    let choice = &answer["choices"][0];
    let logprobs = &choice["logprobs"];
    let mut tokens = match (logprobs["tokens"].as_array(), logprobs["content"].as_array()) {
        (Some(texts), _) => texts
            .iter()
            .enumerate()
            .map(|(index, text)| {
                let text = text.as_str().ok_or_else(|| wrong(&format!("tokens[{index}]"), text, "a text"))?;
                let top = logprobs["top_logprobs"][index].as_object();
                let values = top.into_iter().flat_map(|top| top.values().filter_map(Value::as_f64));
                Ok(Token { text: text.to_owned(), id: None, entropy: entropy(values) })
            })
            .collect::<Result<Vec<_>, String>>()?,
        (None, Some(entries)) => entries
            .iter()
            .enumerate()
            .map(|(index, entry)| {
                let text = entry["token"].as_str();
                let text = text.ok_or_else(|| wrong(&format!("content[{index}].token"), &entry["token"], "a text"))?;
                let top = entry["top_logprobs"].as_array();
                let values = top.into_iter().flatten().filter_map(|one| one["logprob"].as_f64());
                let id = entry["id"].as_u64().and_then(|id| u32::try_from(id).ok());
                Ok(Token { text: text.to_owned(), id, entropy: entropy(values) })
            })
            .collect::<Result<Vec<_>, String>>()?,
        // A server that stops at once has nothing to say of tokens.
        (None, None) if choice["text"].as_str() == Some("") => Vec::new(),
        (None, None) => return Err(wrong("tokens", &logprobs["tokens"], "a list (`logprobs.content` is none either)")),
    };
    let ids = |list: &Value| -> Option<Vec<u32>> {
        list.as_array()?.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect()
    };
    for (token, id) in tokens.iter_mut().zip(ids(&choice["token_ids"]).into_iter().flatten()) {
        token.id = Some(id);
    }
    let reason = chunk::piece(answer).reason.unwrap_or_default();
    let reason = match chunk::end(&reason) {
        End::Complete(reason) => reason,
        End::Aborted | End::Failed => return Err(format!("the server gave the request up, with `{reason}`")),
    };
    Ok(Completion {
        tokens,
        reason,
        prompt_tokens: answer["usage"]["prompt_tokens"].as_u64(),
        prompt_ids: ids(&choice["prompt_token_ids"]),
    })
}

fn wrong(field: &str, value: &Value, expected: &str) -> String {
    format!("field `choices[0].logprobs.{field}` is {value}, expected {expected}")
}

fn entropy(logprobs: impl Iterator<Item = f64>) -> f32 {
    let mut top: Vec<(f32, u32)> = logprobs.map(|logprob| (logprob as f32, 0)).collect();
    top.sort_by(|a, b| b.0.total_cmp(&a.0));
    top.truncate(TOP);
    let signals =
        Signals { entropy: f32::NAN, log_sum_exp: 0.0, top: &top, hidden: &[], embedding: &[], extra: f32::NAN };
    signals.top_entropy(TOP)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_forms_of_logprobs_are_understood() {
        let half = 0.5f64.ln();
        let lists = json!({"choices": [{"text": "ab", "finish_reason": "length", "token_ids": [4, 5], "logprobs": {
            "tokens": ["a", "b"], "top_logprobs": [{"a": half, "x": half}, {"b": 0.0}]}}]});
        let objects = json!({"choices": [{"text": "ab", "finish_reason": "length", "logprobs": {"content": [
            {"token": "a", "id": 4, "top_logprobs": [{"logprob": half}, {"logprob": half}]},
            {"token": "b", "id": 5, "top_logprobs": [{"logprob": 0.0}]}]}}]});
        for answer in [lists, objects] {
            let tokens = parse(&answer).expect("understood").tokens;
            assert_eq!(
                tokens.iter().map(|t| (t.text.as_str(), t.id)).collect::<Vec<_>>(),
                [("a", Some(4)), ("b", Some(5))]
            );
            assert!(
                (tokens[0].entropy - std::f32::consts::LN_2).abs() < 1e-6 && tokens[1].entropy == 0.0,
                "{tokens:?}"
            );
        }
        let stopped = json!({"choices": [{"text": "", "finish_reason": "stop", "logprobs": null}]});
        assert!(parse(&stopped).expect("understood").tokens.is_empty());
    }

    #[test]
    fn missing_fields_are_named() {
        let message = |answer: Value| parse(&answer).expect_err("refused");
        let text = message(json!({"choices": [{"text": "a", "finish_reason": "length"}]}));
        assert!(text.contains("`choices[0].logprobs.tokens` is null"), "{text}");
        let aborted = json!({"choices": [{"text": "a", "finish_reason": "abort", "logprobs": {"tokens": ["a"]}}]});
        let text = message(aborted);
        assert!(text.contains("gave the request up, with `abort`"), "{text}");
        let unnamed = parse(&json!({"choices": [{"text": "a", "logprobs": {"tokens": ["a"]}}]})).expect("understood");
        assert_eq!(unnamed.reason, "");
    }
}
