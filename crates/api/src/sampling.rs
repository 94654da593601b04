//! What requests for chat completions and for completions have in common: sampling, streaming and routing.

use std::ops::Not;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::lists::table;
use crate::{Seed, Texts, TokenIds, TopK};

/// How answers are made and given, whatever their prompt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Sampling {
    /// The served model's name, or `default`.
    pub model: Option<String>,
    /// Most tokens of an answer; 1024, or what fits, when absent.
    pub max_tokens: Option<u64>,
    /// The same under its newer name, which comes first.
    pub max_completion_tokens: Option<u64>,
    /// 0 is greedy; 1 when absent.
    pub temperature: Option<f64>,
    /// Only the most likely tokens whose probabilities add up to it; 1 is all.
    pub top_p: Option<f64>,
    /// Only so many of the most likely tokens; 0 and -1 are all.
    pub top_k: Option<TopK>,
    /// Only tokens at least this times as likely as the most likely one; 0 is all.
    pub min_p: Option<f64>,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output; 1 is none.
    pub repetition_penalty: Option<f64>,
    /// Taken off the logits of tokens seen in the output; 0 is none.
    pub presence_penalty: Option<f64>,
    /// Taken off the logits of tokens in the output, times their number; 0 is none.
    pub frequency_penalty: Option<f64>,
    /// Tokens before which no token that ends the answer is chosen.
    pub min_tokens: Option<u64>,
    /// Texts that end an answer; it ends before them.
    pub stop: Option<Texts>,
    /// Further token ids that end an answer.
    pub stop_token_ids: Option<TokenIds>,
    /// Go on after a token that ends the model's text.
    #[serde(skip_serializing_if = "Not::not")]
    pub ignore_eos: bool,
    /// Seed of the draws: equal requests with a seed have equal answers. -1 is the same as none: a new one.
    pub seed: Option<Seed>,
    /// Answers to each prompt; 1 when absent.
    pub n: Option<u64>,
    /// Answers among which the best are chosen: all of them, so it must be 1 or `n`.
    pub best_of: Option<u64>,
    /// Give the answer in pieces, as server-sent events.
    #[serde(skip_serializing_if = "Not::not")]
    pub stream: bool,
    /// What a stream reports besides.
    pub stream_options: Option<StreamOptions>,
    /// Routing of this request.
    pub routing: Option<RoutingOptions>,
    /// Name of the request, instead of that of the header `x-request-id`.
    pub request_id: Option<String>,
    /// The same under SGLang's name.
    pub rid: Option<String>,
    /// Changes nothing: requests are served in the order in which they come.
    pub priority: Option<f64>,
    /// Changes nothing: answers are never stored.
    pub store: Option<bool>,
    /// For the client's own books; changes nothing.
    pub user: Option<Value>,
    /// For the client's own books; changes nothing.
    pub metadata: Option<Value>,
    /// For the client's own books; changes nothing.
    pub safety_identifier: Option<Value>,
    /// For the client's own books; changes nothing.
    pub prompt_cache_key: Option<Value>,
    /// For the client's own books; changes nothing.
    pub prompt_cache_retention: Option<Value>,
}

table! {
    /// Fields of OpenAI, vLLM and SGLang that this server does not have.
    Unsupported {
        allowed_token_ids: [null],
        audio: [null],
        bad_words: [[], null],
        bootstrap_host: [null],
        bootstrap_port: [null],
        bootstrap_room: [null],
        // It would keep the cached prefixes of one client from another.
        cache_salt: [null],
        custom_logit_processor: [null],
        custom_params: [null],
        data_parallel_rank: [null],
        ebnf: [null],
        echo: [false, null],
        function_call: ["none", "auto", null],
        functions: [[], null],
        guided_choice: [null],
        guided_decoding_backend: [null],
        guided_grammar: [null],
        guided_json: [null],
        guided_regex: [null],
        guided_whitespace_pattern: [null],
        include_reasoning: [true, null],
        include_stop_str_in_output: [false, null],
        json_schema: [null],
        kv_transfer_params: [null],
        length_penalty: [1, null],
        logit_bias: [{}, null],
        logits_processors: [[], null],
        lora_path: [null],
        media_io_kwargs: [{}, null],
        min_new_tokens: [0, null],
        mm_processor_kwargs: [{}, null],
        modalities: [["text"], null],
        no_stop_trim: [false, null],
        parallel_tool_calls: [true, false, null],
        prediction: [null],
        prompt_logprobs: [null],
        reasoning_effort: [null],
        regex: [null],
        response_format: [{"type": "text"}, null],
        return_hidden_states: [false, null],
        return_token_ids: [false, null],
        return_tokens_as_token_ids: [false, null],
        separate_reasoning: [true, false, null],
        service_tier: ["auto", "default", null],
        session_params: [null],
        skip_special_tokens: [true, null],
        spaces_between_special_tokens: [true, false, null],
        stop_regex: [[], "", null],
        stream_reasoning: [true, false, null],
        structural_tag: [null],
        structured_outputs: [null],
        suffix: ["", null],
        truncate_prompt_tokens: [null],
        use_beam_search: [false, null],
        verbosity: ["medium", null],
        vllm_xargs: [{}, null],
        web_search_options: [null],
    }
}

/// What a stream reports besides its pieces.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct StreamOptions {
    /// A last chunk with the usage.
    #[serde(skip_serializing_if = "Not::not")]
    pub include_usage: bool,
    /// The usage so far in every chunk.
    #[serde(skip_serializing_if = "Not::not")]
    pub continuous_usage_stats: bool,
    /// A field `obfuscation` in every chunk, whose length hides that of the text from those who see encrypted packets.
    #[serde(skip_serializing_if = "Not::not")]
    pub include_obfuscation: bool,
}

/// Routing of one request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct RoutingOptions {
    /// The method; it must be the configured one.
    pub method: Option<String>,
    /// Replaces the method's threshold, for methods that compare one.
    pub threshold: Option<f64>,
    /// Seed of routing draws.
    pub seed: Option<u64>,
    /// Report every step.
    #[serde(skip_serializing_if = "Not::not")]
    pub trace: bool,
}
