//! Typed configuration of an engine, read from YAML.
//!
//! Unknown keys, wrong types and inconsistent values are errors that name the place (`file:line:column`), the value
//! and what is allowed. [`reference_yaml`] prints every key with its default and meaning, from these very types.

mod batching;
mod cuda;
mod decode;
mod document;
mod error;
mod node;
mod peers;
mod reference;
mod server;
mod validate;
mod values;

use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use batching::{AdaptationConfig, BatchingConfig, ProfileConfig, ThresholdConfig};
pub use cuda::CudaGraphsConfig;
pub use document::Document;
pub use error::{ConfigError, Origin, Place, Problem};
pub use peers::PeerEndpoint;
pub use reference::reference_yaml;
pub use server::ServerConfig;
use tokenrouter_core::emulated::LatencyProfile;
use tokenrouter_core::names::{list, nearest};
use tokenrouter_core::routing::RoutingConfig;

/// Everything that defines a routed system: its models, how it routes, how it batches.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The models, by name. Their order is the order of `batching.thresholds` and of matrices in reports.
    pub models: IndexMap<String, ModelConfig>,
    /// How the next model of a request is chosen, token by token.
    pub routing: RoutingConfig,
    /// Entry point and admission.
    #[serde(default)]
    pub system: SystemConfig,
    /// When a subserver launches a batch.
    #[serde(default)]
    pub batching: BatchingConfig,
    /// Memory for keys and values.
    #[serde(default)]
    pub kv: KvConfig,
    /// The HTTP server (`trbench serve`).
    #[serde(default)]
    pub server: ServerConfig,
}

/// One model and the subserver that runs it. Exactly one of `path`, `source` and `emulated` is needed.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// A GGUF file, or a directory with `config.json`, `tokenizer.json` and `*.safetensors`. Here and elsewhere, relative
    /// paths are taken from the folder of this file.
    pub path: Option<PathBuf>,
    /// `demo` (fetched by `trbench models fetch demo`), or a hub id such as `Qwen/Qwen3-0.6B`.
    pub source: Option<String>,
    /// No model: a latency profile stands in for the forward pass. Every output then says "emulated".
    pub emulated: Option<EmulatedConfig>,
    /// Indices of the layers to keep, in order; all of them when absent (depth pruning).
    pub layers: Option<Vec<usize>>,
    /// A safetensors file with linear maps that stand in for the dropped layers (`trbench make-draft`).
    pub patch: Option<PathBuf>,
    /// A GGUF file with layers that take the place of the model's own: a student, which shares its embedding, tokenizer
    /// and, for a part of the vocabulary, its head (`python -m tokenrouter.distill`).
    pub student: Option<PathBuf>,
    /// How weights are held: `native` (as in the file), or dequantised to `f32`, `bf16` or `f16`.
    pub dtype: WeightDtype,
    /// `cpu`, or `cuda:N` in a build that has CUDA.
    pub device: DeviceConfig,
    /// Tensor parallelism: this many CUDA devices, from `device` on, hold a part of the model each.
    pub tp_size: usize,
    /// Steps that are captured as CUDA graphs.
    pub cuda_graphs: CudaGraphsConfig,
    /// Threads that compute this model's steps. 0: the machine's cores divided among the models.
    pub threads: usize,
    /// Cores that these threads are pinned to; not pinned when absent.
    pub cores: Option<Vec<usize>>,
    /// Most requests in one step. 0: `system.max_active`.
    pub max_batch: usize,
    /// Limits of the step scheduler.
    pub scheduler: SchedulerConfig,
}

/// A latency profile in place of a model.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EmulatedConfig {
    /// Step time in milliseconds: one number for every batch size, or a list whose entry `b - 1` is for batch size `b`
    /// (larger batches continue along the last two entries).
    pub latency_ms: LatencyProfile,
    /// Milliseconds for every new token beyond the first of a row: what a prompt costs.
    #[serde(default)]
    pub prefill_ms_per_token: f64,
    /// Milliseconds of the model's thread before every step, in virtual time (`trbench run --virtual-time`).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub step_overhead_ms: f64,
    /// Milliseconds of the model's thread for every token that its prefix cache is asked for when a request comes, and
    /// takes in when it leaves; in virtual time.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prefix_ms_per_token: f64,
    /// Milliseconds that a client needs to take a request to this model (`system.execution: standard`): HTTP; in virtual
    /// time.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hop_ms: f64,
    /// The same for every token of the prompt that it sends: text and tokens made of each other; in virtual time.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hop_ms_per_token: f64,
}

/// Left out of what is written, so that calibrations from before these keys stay valid.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

impl EmulatedConfig {
    /// A profile that knows step times alone.
    pub fn new(latency_ms: LatencyProfile) -> Self {
        Self {
            latency_ms,
            prefill_ms_per_token: 0.0,
            step_overhead_ms: 0.0,
            prefix_ms_per_token: 0.0,
            hop_ms: 0.0,
            hop_ms_per_token: 0.0,
        }
    }

    /// Costs beside the steps' own times, by key.
    pub(crate) fn costs(&self) -> [(&'static str, f64); 4] {
        [
            ("step_overhead_ms", self.step_overhead_ms),
            ("prefix_ms_per_token", self.prefix_ms_per_token),
            ("hop_ms", self.hop_ms),
            ("hop_ms_per_token", self.hop_ms_per_token),
        ]
    }

    /// Whether something costs time beside the steps.
    pub(crate) fn has_costs(&self) -> bool {
        self.costs().iter().any(|(_, ms)| *ms != 0.0)
    }
}

/// How weights are held in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WeightDtype {
    /// As in the file.
    #[default]
    Native,
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
}

/// Where a model computes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum DeviceConfig {
    /// The CPU.
    #[default]
    Cpu,
    /// A CUDA device by ordinal.
    Cuda(usize),
}

/// Limits of one model's step scheduler.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SchedulerConfig {
    /// Most new tokens in one step over all requests; longer prompts are prefilled in chunks so that they cannot stall
    /// decoding.
    pub max_step_tokens: usize,
}

/// Entry point and admission.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SystemConfig {
    /// The model at which requests start; the first one when empty.
    pub entry_model: String,
    /// Most requests decoded at the same time, over all models (the concurrency `N` of the throughput model).
    pub max_active: usize,
    /// Most requests waiting for admission; more are refused.
    pub max_queued: usize,
    /// Most tokens (prompt and output) of one request; 0: what the models' context allows.
    pub max_tokens_per_request: usize,
    /// Whose chat template renders conversations. `shared`: all models must have the same one. `entry`: that of the
    /// entry model, whatever the others have.
    pub chat_template: ChatTemplateConfig,
    /// Who steps the models. `async`: each has its own thread and launches by itself. `lockstep`: one thread steps all of
    /// them in rounds, so that requests wait for the slowest. `standard`: engines that know nothing of each other, and a
    /// client that sends every handoff as a new request with the committed tokens in its prompt. The last two are for
    /// comparison and launch eagerly.
    pub execution: ExecutionConfig,
    /// Whether a request that goes to another model keeps its KV blocks for the return. If not, it leaves them to the
    /// prefix cache and is matched again like a new one, to measure what that costs.
    pub handoff_resume: bool,
    /// Record what every subserver does when (`trbench run --timeline`).
    pub profile: bool,
    /// The node of each model, by name, when each has its own (`trbench serve --local-model`, docs/guides/two-nodes.md).
    pub peer_endpoints: IndexMap<String, PeerEndpoint>,
    /// Silence after which a peer is lost, in milliseconds: requests that were there end with an error.
    pub peer_timeout_ms: u64,
    /// Let `bind` of `peer_endpoints` be an address that other machines reach.
    pub allow_remote_peers: bool,
}

/// Whose chat template renders conversations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChatTemplateConfig {
    /// All models must have the same.
    #[default]
    Shared,
    /// That of the entry model.
    Entry,
}

/// Who steps the models.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExecutionConfig {
    /// Every model by itself.
    #[default]
    Async,
    /// One thread, in rounds.
    Lockstep,
    /// Engines of one model each, and a client that hops.
    Standard,
}

/// Memory for keys and values.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KvConfig {
    /// Budget over all models, in MiB. It is divided so that every model holds the same number of tokens. 0, where all
    /// models are on CUDA devices: what those have left after weights and workspace.
    pub memory_mib: usize,
    /// Share of a CUDA device's free memory that may be used: the rest is for the driver and fragmentation.
    pub device_utilization: f64,
    /// Tokens per block: 16, 32 or 64.
    pub block_size: usize,
    /// How keys and values are held: `f32`, `f16` or `bf16`.
    pub dtype: KvDtypeConfig,
    /// Whether keys and values of ended requests are kept for later ones that begin with the same tokens, such as the
    /// next turn of a session.
    pub prefix_cache: bool,
}

/// How keys and values are held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KvDtypeConfig {
    /// 32-bit floats.
    #[default]
    F32,
    /// IEEE half precision: half the memory and bandwidth, 11 bits of precision.
    F16,
    /// bfloat16: half the memory and bandwidth, 8 bits of precision.
    Bf16,
}

impl KvDtypeConfig {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            path: None,
            source: None,
            emulated: None,
            layers: None,
            patch: None,
            student: None,
            dtype: WeightDtype::default(),
            device: DeviceConfig::default(),
            tp_size: 1,
            cuda_graphs: CudaGraphsConfig::default(),
            threads: 0,
            cores: None,
            max_batch: 0,
            scheduler: SchedulerConfig::default(),
        }
    }
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self { max_step_tokens: 256 }
    }
}

impl Default for SystemConfig {
    fn default() -> Self {
        Self {
            entry_model: String::new(),
            max_active: 8,
            max_queued: 256,
            max_tokens_per_request: 0,
            chat_template: ChatTemplateConfig::Shared,
            execution: ExecutionConfig::Async,
            handoff_resume: true,
            profile: false,
            peer_endpoints: IndexMap::new(),
            peer_timeout_ms: 3000,
            allow_remote_peers: false,
        }
    }
}

impl Default for KvConfig {
    fn default() -> Self {
        Self {
            memory_mib: 1024,
            device_utilization: 0.9,
            block_size: 16,
            dtype: KvDtypeConfig::F32,
            prefix_cache: true,
        }
    }
}

impl Config {
    /// Reads and validates a YAML file.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Self::from_document(&Document::from_file(path)?)
    }

    /// Parses and validates YAML text; `origin` is named in errors.
    pub fn from_yaml(text: &str, origin: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Self::from_document(&Document::from_yaml(text, origin)?)
    }

    /// Parses and validates a configuration that the binary holds; `name` is the path of the file that it was made from.
    pub fn built_in(name: &'static str, text: &str) -> Result<Self, ConfigError> {
        Self::from_document(&Document::built_in(name, text)?)
    }

    /// The typed configuration of a document. An error that an override causes names the override.
    pub fn from_document(document: &Document) -> Result<Self, ConfigError> {
        document.config()
    }

    /// Takes relative paths from the folder of the configuration file, so that it can be used from anywhere.
    fn resolve_paths(&mut self, folder: &Path) {
        for model in self.models.values_mut() {
            for path in [&mut model.path, &mut model.patch, &mut model.student].into_iter().flatten() {
                *path = folder.join(&*path);
            }
        }
        let key_files = self.system.peer_endpoints.values_mut().map(|endpoint| &mut endpoint.key_file);
        for path in key_files.chain([&mut self.server.api_key_file]).flatten() {
            *path = folder.join(&*path);
        }
        self.routing.resolve_paths(folder);
    }

    /// The model names, in order.
    pub fn model_names(&self) -> Vec<String> {
        self.models.keys().cloned().collect()
    }

    /// Index of the entry model.
    pub fn entry_index(&self) -> usize {
        self.models.get_index_of(&self.system.entry_model).unwrap_or(0)
    }

    /// Whether latency profiles stand in for the models.
    pub fn is_emulated(&self) -> bool {
        self.models.values().any(|model| model.emulated.is_some())
    }
}
