//! What the server says of itself: `GET /health`, `GET /ready`, `GET /info`, and `DELETE /v1/requests/{id}`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether the process can do its work at all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// Whether all subservers run.
    pub status: HealthStatus,
    /// What has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Whether all subservers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HealthStatus {
    /// They do.
    Ok,
    /// One has stopped by a fault.
    Failed,
}

/// Whether new requests are taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Ready {
    /// They are.
    Ready,
    /// The server is shutting down.
    Draining,
    /// A subserver has stopped by a fault.
    Failed,
    /// The node of a model is not there.
    PeerMissing {
        /// The model.
        peer: String,
        /// `connecting` or `lost`.
        state: String,
        /// Why the last attempt to connect failed.
        reason: Option<String>,
    },
}

/// The build, what was decided at launch, and every limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Info {
    /// The server's version.
    pub version: String,
    /// The name of the routed system.
    pub model: String,
    /// The names of its models.
    pub models: Vec<String>,
    /// The model where requests enter.
    pub entry_model: String,
    /// What was decided at launch.
    pub launch: Launch,
    /// The nodes of other models.
    pub peers: Vec<Peer>,
    /// The limits.
    pub limits: Limits,
}

/// What was decided at launch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Launch {
    /// One line for each model.
    pub models: Vec<String>,
    /// The routing method.
    pub routing: String,
    /// Most requests decoded at the same time.
    pub max_active: usize,
    /// Thresholds at `max_active` requests.
    pub thresholds: Vec<u32>,
    /// Who steps the models.
    pub execution: Execution,
    /// Whether KV blocks stay for the return of a request.
    pub handoff_resume: bool,
    /// Tokens that each model's KV cache holds.
    pub kv_tokens: usize,
    /// Most tokens of one request, prompt and output.
    pub token_limit: usize,
    /// Whether latency profiles stand in for the models.
    pub emulated: bool,
    /// The model of this node, when each has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_model: Option<String>,
    /// Conditions worth a warning.
    pub warnings: Vec<String>,
}

/// Who steps the models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Execution {
    /// Every model by itself.
    Async,
    /// One thread, in rounds.
    Lockstep,
    /// Engines of one model each, and a client that hops.
    Standard,
}

/// The node of another model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Peer {
    /// The model.
    pub model: String,
    /// `connecting`, `up` or `lost`.
    pub state: String,
    /// Where it is connected, if it is.
    pub address: Option<String>,
    /// Why the last attempt to connect failed, until one succeeds.
    pub problem: Option<String>,
    /// Connections so far.
    pub connections: u64,
    /// Messages sent for the first time, and again.
    pub sent: (u64, u64),
    /// Messages that came.
    pub delivered: u64,
    /// Times that the peer was lost.
    pub losses: u64,
}

/// The limits, under their names in the `server` section of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)]
pub struct Limits {
    pub max_connections: usize,
    pub max_concurrent_requests: usize,
    pub max_queued_requests: usize,
    pub max_tokens_per_request: usize,
    pub max_body_kib: usize,
    pub max_header_kib: usize,
    pub max_stop_texts: usize,
    pub max_choices: usize,
    pub header_timeout_s: u64,
    pub body_timeout_s: u64,
    pub queue_timeout_s: u64,
    pub request_timeout_s: u64,
    pub drain_timeout_s: u64,
}

/// A request was cancelled.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cancelled {
    /// The id that the client gave.
    pub id: String,
    /// True.
    pub cancelled: bool,
}
