//! `system.peer_endpoints`: where the node of each model is.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::Problem;

/// The node of one model.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PeerEndpoint {
    /// Where the node accepts connections of others, such as `tcp://127.0.0.1:30001`. Only the entry model's does. Addresses
    /// other than loopback need `allow_remote_peers`.
    pub bind: String,
    /// Where others reach it, such as `tcp://node1.example.org:30001`; `bind` when empty.
    #[serde(default)]
    pub advertise: String,
    /// Public key of the node, as `trbench keygen` prints it.
    pub public_key: String,
    /// Private key of the node, a file that only its owner can read. Other nodes need not have it.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
}

impl PeerEndpoint {
    /// Where others reach it.
    pub fn advertise(&self) -> &str {
        if self.advertise.is_empty() { &self.bind } else { &self.advertise }
    }

    pub(super) fn validate(&self, model: &str) -> Result<(), Problem> {
        for (key, value) in [("bind", self.bind.as_str()), ("advertise", self.advertise())] {
            let address = value.strip_prefix("tcp://").and_then(|address| address.rsplit_once(':'));
            if address.is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err()) {
                let message = format!("`peer_endpoints.{model}.{key}` is `{value}`, allowed is `tcp://HOST:PORT`");
                return Err(Problem::new(["system", "peer_endpoints", model, key], message));
            }
        }
        crate::keys::PublicKey::from_hex(&self.public_key).map(|_| ()).map_err(|why| {
            let message = format!("`peer_endpoints.{model}.public_key`: {why}");
            Problem::new(["system", "peer_endpoints", model, "public_key"], message)
        })
    }
}
