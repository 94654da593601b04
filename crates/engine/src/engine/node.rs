//! What a node checks, and says to its peers, of the system that it is a part of.

use std::fmt::Write as _;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::EngineError;
use crate::config::{Config, ExecutionConfig};
use crate::node::NodeFacts;
use tokenrouter_core::request::ModelIndex;
use tokenrouter_core::routing::registry;
use tokenrouter_core::scheduler::ThresholdTable;

/// The index of the model that a node serves, if the configuration is one of nodes.
pub(super) fn local_model(config: &Config, name: &str) -> Result<ModelIndex, EngineError> {
    let names = config.model_names();
    let Some(local) = config.models.get_index_of(name) else {
        let (known, hint) = (
            tokenrouter_core::names::list(&names),
            tokenrouter_core::names::nearest(name, names.iter().map(String::as_str)),
        );
        return Err(EngineError::Unusable(format!("unknown model `{name}` for this node, known are {known}{hint}")));
    };
    if names.len() != 2 {
        // With more, a client's tokens could come over two links and overtake each other.
        let count = names.len();
        return Err(EngineError::Unusable(format!("nodes serve systems of 2 models, this configuration has {count}")));
    }
    if config.system.execution != ExecutionConfig::Async {
        let execution = format!("{:?}", config.system.execution).to_lowercase();
        let message = format!("`system.execution` is `{execution}`, nodes need `async`");
        return Err(EngineError::Unusable(message));
    }
    if let Some(missing) = names.iter().find(|name| !config.system.peer_endpoints.contains_key(*name)) {
        return Err(EngineError::Unusable(format!("`system.peer_endpoints` has no entry for model `{missing}`")));
    }
    Ok(local)
}

/// What must be the same at all nodes, by the names of the configuration.
pub(super) fn facts(
    config: &Config,
    thresholds: &ThresholdTable,
    (vocab, vocabulary): (usize, Option<u64>),
    (kv_blocks, token_limit): (usize, usize),
) -> NodeFacts {
    let max_active = config.system.max_active;
    let table: String = (1..=max_active).fold(String::new(), |mut text, active| {
        let _infallible = write!(text, "{:?}", thresholds.row(active));
        text
    });
    let vocabulary = vocabulary.map_or_else(|| "emulated".to_owned(), |hash| format!("{hash:016x}"));
    let facts = [
        ("software", env!("CARGO_PKG_VERSION").to_owned()),
        ("models", config.model_names().join(", ")),
        ("system.entry_model", config.model_names()[config.entry_index()].clone()),
        ("vocabulary", format!("{vocabulary} of {vocab} tokens")),
        ("routing.method", config.routing.method.clone()),
        ("routing options", options(config)),
        ("batching.thresholds", format!("{:?} (table {})", thresholds.row(max_active), digest(table.as_bytes()))),
        ("batching.max_wait_ms", config.batching.max_wait_ms.to_string()),
        ("system.max_active", max_active.to_string()),
        ("system.handoff_resume", config.system.handoff_resume.to_string()),
        ("kv.block_size", config.kv.block_size.to_string()),
        ("KV blocks of a model", kv_blocks.to_string()),
        ("most tokens of a request", token_limit.to_string()),
    ];
    facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The options of the routing method. Files may be elsewhere at another node: their contents count.
fn options(config: &Config) -> String {
    let mut options = config.routing.options.clone();
    for option in registry::find(&config.routing.method).map_or(&[][..], |entry| entry.paths) {
        if let Some(Value::String(path)) = options.get_mut(*option)
            && let Ok(content) = std::fs::read(&*path)
        {
            *path = format!("file {}", digest(&content));
        }
    }
    options.sort_keys();
    Value::Object(options).to_string()
}

/// Enough of a digest to tell two contents apart.
fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(8).fold(String::new(), |mut text, byte| {
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}
