//! `GET /v1/models`: the routed system, and the models that it is made of.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A list with one entry.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Models {
    /// The kind of this object.
    #[schemars(extend("const" = "list"))]
    pub object: String,
    /// The routed system.
    pub data: Vec<Model>,
}

/// The routed system under its one name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Model {
    /// The name that requests give.
    pub id: String,
    /// The kind of this object.
    #[schemars(extend("const" = "model"))]
    pub object: String,
    /// When the server started, in seconds since 1970.
    pub created: u64,
    /// The kind of server.
    pub owned_by: String,
    /// Most tokens of a request, with its output.
    pub max_model_len: usize,
    /// One line for each model.
    pub models: Vec<String>,
    /// The models with their states.
    pub subservers: Vec<Subserver>,
}

/// A model of the system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Subserver {
    /// Its name in the configuration.
    pub name: String,
    /// What it is.
    pub description: String,
    /// How it is.
    pub status: SubserverStatus,
}

/// How a model of the system is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SubserverStatus {
    /// It takes requests.
    Ready,
    /// The server is shutting down.
    Draining,
    /// It has stopped by a fault.
    Failed,
    /// Its node does not answer.
    Unreachable,
}
