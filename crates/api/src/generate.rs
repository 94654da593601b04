//! `POST /generate`: SGLang's form.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::body::body;
use crate::sampling::RoutingOptions;
use crate::usage::UsageRouting;
use crate::{Only, Seed, Texts, TokenIds, TopK};

/// A prompt to be continued: `text` or `input_ids`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct GenerateRequest {
    /// The prompt as text. Special tokens that are written out in it are read as such.
    pub text: Option<String>,
    /// The prompt as token ids.
    pub input_ids: Option<TokenIds>,
    /// How the answer is made.
    pub sampling_params: Option<GenerateSampling>,
    /// Give the answer in pieces, as server-sent events.
    pub stream: bool,
    /// Name of the request, instead of that of the header `x-request-id`.
    pub rid: Option<String>,
    /// Routing of this request.
    pub routing: Option<RoutingOptions>,
    /// Not supported.
    #[schemars(extend("enum" = [false, null]))]
    pub return_logprob: Only,
    /// Not supported.
    #[schemars(extend("enum" = [-1, null]))]
    pub logprob_start_len: Only,
    /// Not supported.
    #[schemars(extend("enum" = [0, null]))]
    pub top_logprobs_num: Only,
    /// Not supported.
    #[schemars(extend("enum" = [null]))]
    pub token_ids_logprob: Only,
    /// Not supported.
    #[schemars(extend("enum" = [false, true, null]))]
    pub return_text_in_logprobs: Only,
    /// Not supported.
    #[schemars(extend("enum" = [null]))]
    pub image_data: Only,
    /// Not supported.
    #[schemars(extend("enum" = [null]))]
    pub lora_path: Only,
    /// Not supported.
    #[schemars(extend("enum" = [false, null]))]
    pub return_hidden_states: Only,
    /// Changes nothing: requests are served in the order in which they come.
    pub priority: Option<f64>,
    /// Changes nothing: the server's own log has one line a request.
    pub log_metrics: Option<bool>,
    /// Not supported.
    #[schemars(extend("enum" = [null]))]
    pub audio_data: Only,
    /// Not supported.
    #[schemars(extend("enum" = [null]))]
    pub video_data: Only,
    /// Not supported.
    #[schemars(extend("enum" = [null]))]
    pub input_embeds: Only,
    /// Not supported.
    #[schemars(extend("enum" = [["text"], [], null]))]
    pub modalities: Only,
    /// Not supported.
    #[schemars(extend("enum" = [null]))]
    pub session_params: Only,
    /// Not supported.
    #[schemars(extend("enum" = [null]))]
    pub custom_logit_processor: Only,
    /// Not supported.
    #[schemars(extend("enum" = [null]))]
    pub bootstrap_host: Only,
    /// Not supported.
    #[schemars(extend("enum" = [null]))]
    pub bootstrap_port: Only,
    /// Not supported.
    #[schemars(extend("enum" = [null]))]
    pub bootstrap_room: Only,
    /// Not supported.
    #[schemars(extend("enum" = [null]))]
    pub data_parallel_rank: Only,
}

body!(GenerateRequest);

/// Sampling parameters under SGLang's names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct GenerateSampling {
    /// Most tokens of the answer; 128 when absent, as in SGLang.
    pub max_new_tokens: Option<u64>,
    /// Tokens before which no token that ends the answer is chosen.
    pub min_new_tokens: Option<u64>,
    /// Seed of the draws: equal requests with a seed have equal answers. -1 is the same as none: a new one.
    pub sampling_seed: Option<Seed>,
    /// 0 is greedy; 1 when absent.
    pub temperature: Option<f64>,
    /// Only the most likely tokens whose probabilities add up to it; 1 is all.
    pub top_p: Option<f64>,
    /// Sample only from this many of the most likely tokens; 0 and -1 mean all.
    pub top_k: Option<TopK>,
    /// Only tokens at least this times as likely as the most likely one; 0 is all.
    pub min_p: Option<f64>,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output; 1 is none.
    pub repetition_penalty: Option<f64>,
    /// Taken off the logits of tokens seen in the output; 0 is none.
    pub presence_penalty: Option<f64>,
    /// Taken off the logits of tokens in the output, times their number; 0 is none.
    pub frequency_penalty: Option<f64>,
    /// Texts that end the answer; it ends before them.
    pub stop: Option<Texts>,
    /// Further token ids that end the answer.
    pub stop_token_ids: Option<TokenIds>,
    /// Go on after a token that ends the model's text.
    pub ignore_eos: bool,
    /// Answers; 1 when absent.
    pub n: Option<u64>,
    /// Not supported.
    #[schemars(extend("enum" = [true, null]))]
    pub skip_special_tokens: Only,
    /// Not supported.
    #[schemars(extend("enum" = [null]))]
    pub json_schema: Only,
    /// Not supported.
    #[schemars(extend("enum" = [null]))]
    pub regex: Only,
    /// Not supported.
    #[schemars(extend("enum" = [null]))]
    pub ebnf: Only,
    /// Not supported.
    #[schemars(extend("enum" = [false, null]))]
    pub no_stop_trim: Only,
    /// Not supported.
    #[schemars(extend("enum" = [true, false, null]))]
    pub spaces_between_special_tokens: Only,
    /// Not supported.
    #[schemars(extend("enum" = [{}, null]))]
    pub logit_bias: Only,
    /// Not supported.
    #[schemars(extend("enum" = [[], "", null]))]
    pub stop_regex: Only,
    /// Not supported.
    #[schemars(extend("enum" = [null]))]
    pub structural_tag: Only,
    /// Not supported.
    #[schemars(extend("enum" = [null]))]
    pub custom_params: Only,
    /// Not supported.
    #[schemars(extend("enum" = [1, null]))]
    pub stream_interval: Only,
}

/// An answer that is not streamed: one object, or a list of them where the request asked for several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum GenerateResponse {
    /// One.
    One(Generated),
    /// Several.
    Several(Vec<Generated>),
}

/// The whole text so far, and what is known of the request. An event of a stream is one too.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Generated {
    /// The text; empty where the models are emulated.
    pub text: String,
    /// Its tokens.
    pub output_ids: Vec<u32>,
    /// What is known of the request.
    pub meta_info: MetaInfo,
}

/// What is known of a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MetaInfo {
    /// Names the answer; `DELETE /v1/requests/{id}` takes it.
    pub id: String,
    /// Why it ended; null while it goes on.
    pub finish_reason: Option<GenerateFinish>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the answer.
    pub completion_tokens: usize,
    /// Seconds since the request came.
    pub e2e_latency: f64,
    /// What the models did.
    pub routing: UsageRouting,
}

/// Why an answer ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GenerateFinish {
    /// `stop` or `length`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Tokens of the answer, where they reached the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<usize>,
}
