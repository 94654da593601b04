//! Sampling parameters from a mapping, under the names of SGLang (`max_new_tokens`) and of OpenAI (`max_tokens`).

use serde::Deserialize;
use tokenrouter_core::{RoutingOverrides, SamplingParams};

/// One text, or a list of them.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Texts {
    One(String),
    Several(Vec<String>),
}

/// The mapping. Unknown names are refused with a message that lists the known ones.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Sampling {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    seed: u64,
    #[serde(alias = "max_tokens")]
    max_new_tokens: usize,
    #[serde(alias = "min_tokens")]
    min_new_tokens: usize,
    ignore_eos: bool,
    stop_token_ids: Vec<u32>,
    stop: Option<Texts>,
    /// Replaces the threshold of the routing method.
    routing_threshold: Option<f64>,
    /// Seed of the routing draws.
    routing_seed: Option<u64>,
}

impl Default for Sampling {
    fn default() -> Self {
        let SamplingParams { temperature, top_k, top_p, min_p, .. } = SamplingParams::default();
        let SamplingParams { repetition_penalty, presence_penalty, frequency_penalty, seed, .. } =
            SamplingParams::default();
        let SamplingParams { max_tokens, min_tokens, ignore_eos, stop_token_ids, .. } = SamplingParams::default();
        Self {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            seed,
            max_new_tokens: max_tokens,
            min_new_tokens: min_tokens,
            ignore_eos,
            stop_token_ids,
            stop: None,
            routing_threshold: None,
            routing_seed: None,
        }
    }
}

impl Sampling {
    /// Parses JSON. The error message names the parameter.
    pub(crate) fn parse(json: &str) -> Result<(SamplingParams, RoutingOverrides), String> {
        let given: Self = serde_json::from_str(json).map_err(|error| format!("sampling_params: {error}"))?;
        let stop = match given.stop {
            None => Vec::new(),
            Some(Texts::One(text)) => vec![text],
            Some(Texts::Several(texts)) => texts,
        };
        let sampling = SamplingParams {
            temperature: given.temperature,
            top_k: given.top_k,
            top_p: given.top_p,
            min_p: given.min_p,
            repetition_penalty: given.repetition_penalty,
            presence_penalty: given.presence_penalty,
            frequency_penalty: given.frequency_penalty,
            seed: given.seed,
            max_tokens: given.max_new_tokens,
            min_tokens: given.min_new_tokens,
            ignore_eos: given.ignore_eos,
            stop_token_ids: given.stop_token_ids,
            stop,
        };
        Ok((sampling, RoutingOverrides { threshold: given.routing_threshold, seed: given.routing_seed }))
    }
}
