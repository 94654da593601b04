//! The `server` section.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::{Problem, in_range};

/// The HTTP server.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// Address to listen on; loopback unless changed. Any other is refused without an API key.
    pub host: std::net::IpAddr,
    /// TCP port; 0 takes a free one and prints it.
    pub port: u16,
    /// Name of the routed system in requests and answers.
    pub model_name: String,
    /// A file of API keys, one a line; `#` begins a comment.
    pub api_key_file: Option<PathBuf>,
    /// The environment variable that may hold an API key.
    pub api_key_env: String,
    /// Serve a public address without any API key.
    pub allow_unauthenticated: bool,
    /// Origins whose pages may use this server, such as `https://example.org`; none by default (CORS is off).
    pub cors_origins: Vec<String>,
    /// Names under which clients reach this server, such as `box.lan`, beside `localhost` and loopback addresses. Without
    /// an API key, requests under other names get status 421: a page of any site can give its own name this address.
    pub allowed_hosts: Vec<String>,
    /// Most connections at a time; more wait to be accepted.
    pub max_connections: usize,
    /// Most requests open at a time, in whatever state; more get status 429.
    pub max_concurrent_requests: usize,
    /// Most requests waiting for admission; more get status 429. `system.max_queued` bounds the engine's own queue.
    pub max_queued_requests: usize,
    /// Largest request body, in KiB.
    pub max_body_kib: usize,
    /// Largest head of a request, in KiB.
    pub max_header_kib: usize,
    /// Most stop texts of a request.
    pub max_stop_texts: usize,
    /// Most answers to one prompt (`n`).
    pub max_choices: usize,
    /// Longest time in which a client sends the head of a request, in seconds; also how long an idle connection stays.
    pub header_timeout_s: u64,
    /// Longest time in which a client sends a body, in seconds.
    pub body_timeout_s: u64,
    /// Longest wait for admission, in seconds; then status 503.
    pub queue_timeout_s: u64,
    /// Longest time one request may take, in seconds.
    pub request_timeout_s: u64,
    /// How long open requests may go on after a shutdown began, in seconds.
    pub drain_timeout_s: u64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            host: std::net::Ipv4Addr::LOCALHOST.into(),
            port: 30000,
            model_name: "tokenrouter".into(),
            api_key_file: None,
            api_key_env: "TOKENROUTER_API_KEY".into(),
            allow_unauthenticated: false,
            cors_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            max_connections: 1024,
            max_concurrent_requests: 512,
            max_queued_requests: 256,
            max_body_kib: 4096,
            max_header_kib: 16,
            max_stop_texts: 16,
            max_choices: 8,
            header_timeout_s: 15,
            body_timeout_s: 30,
            queue_timeout_s: 60,
            request_timeout_s: 600,
            drain_timeout_s: 30,
        }
    }
}

impl ServerConfig {
    pub(super) fn validate(&self) -> Result<(), Problem> {
        let count = |key, value: usize, allowed| in_range(["server", key], value, allowed);
        count("max_connections", self.max_connections, [1, 65_536])?;
        count("max_concurrent_requests", self.max_concurrent_requests, [1, 65_536])?;
        count("max_queued_requests", self.max_queued_requests, [1, 65_536])?;
        count("max_body_kib", self.max_body_kib, [1, 1 << 20])?;
        // The HTTP library reads in pieces of 8 KiB.
        count("max_header_kib", self.max_header_kib, [8, 1024])?;
        count("max_stop_texts", self.max_stop_texts, [1, 1024])?;
        count("max_choices", self.max_choices, [1, 128])?;
        let seconds = |key, value: u64, allowed| in_range(["server", key], value, allowed);
        seconds("header_timeout_s", self.header_timeout_s, [1, 3600])?;
        seconds("body_timeout_s", self.body_timeout_s, [1, 3600])?;
        seconds("queue_timeout_s", self.queue_timeout_s, [1, 86_400])?;
        seconds("request_timeout_s", self.request_timeout_s, [1, 86_400])?;
        seconds("drain_timeout_s", self.drain_timeout_s, [0, 86_400])?;
        if self.model_name.is_empty() {
            return Err(Problem::new(["server", "model_name"], "`model_name` is empty"));
        }
        let is_name = |name: &&String| {
            let has_port = match name.strip_prefix('[') {
                Some(rest) => !rest.ends_with(']'),
                None => name.contains(':') && name.parse::<std::net::Ipv6Addr>().is_err(),
            };
            !has_port && !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || "/@*".contains(c))
        };
        if let Some(name) = self.allowed_hosts.iter().find(|name| !is_name(name)) {
            let message = format!(
                "`allowed_hosts` has `{name}`, it must be a name or an address without a port, as in `box.lan`"
            );
            return Err(Problem::new(["server", "allowed_hosts"], message));
        }
        Ok(())
    }
}
