//! The HTTP server: OpenAI's chat completions, completions and models, SGLang's `generate`, tokenizing, health, metrics and
//! a page for people. What it takes and answers are the types of `tokenrouter_api`.
//!
//! The listener and the shutdown future are given by the caller, so that tests bind a free port and no signal handler
//! is installed by a library. `docs/reference/http-api.md` lists fields and errors, `docs/reference/request-states.md` what
//! becomes of a request when its client goes away, `docs/reference/security.md` the bounds.

mod auth;
mod body;
mod chat;
mod completions;
mod connection;
mod error;
mod format;
mod generate;
mod generation;
mod hosts;
mod metrics;
mod observe;
mod open;
mod params;
mod prompt;
mod refused;
mod status;
mod stream;
#[cfg(test)]
mod testing;
mod tokenize;
mod workers;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{MethodFilter, MethodRouter, on};
use tokenrouter_api::openapi::Operation;
use tokio::net::TcpListener;
use tokio::sync::watch;

pub use auth::ApiKeys;
use error::ApiError;
use hosts::AllowedHosts;
use metrics::Metrics;
use open::OpenRequests;
use workers::TextWorkers;

use crate::config::ServerConfig;
use crate::engine::Engine;

/// The server could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Everybody could use it.
    #[error(
        "{address} can be reached by others, and no API key is set: set `server.api_key_file` or the environment variable \
         {variable}, listen on 127.0.0.1, or force it with `server.allow_unauthenticated: true`"
    )]
    Exposed {
        /// Where it would have listened.
        address: SocketAddr,
        /// The variable that may hold a key.
        variable: String,
    },
    /// The keys cannot be read.
    #[error("API keys: {0}")]
    Keys(String),
    /// The listener is unusable.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// What all handlers share.
struct App {
    engine: Arc<Engine>,
    config: ServerConfig,
    keys: ApiKeys,
    hosts: AllowedHosts,
    started: u64,
    texts: Arc<TextWorkers>,
    /// Requests taken, to tell their draws apart.
    requests: AtomicU64,
    open: Arc<OpenRequests>,
    metrics: Metrics,
}

impl App {
    fn new(engine: Arc<Engine>, config: ServerConfig, keys: ApiKeys, on_loopback: bool) -> Self {
        Self {
            hosts: AllowedHosts::new(&config.allowed_hosts, on_loopback),
            engine,
            keys,
            started: unix_time(),
            texts: Arc::new(TextWorkers::new()),
            requests: AtomicU64::new(0),
            open: Arc::new(OpenRequests::new(&config)),
            metrics: Metrics::new(),
            config,
        }
    }
}

/// Serves until `shutdown` completes, then takes nothing new and lets open requests end for as long as
/// `server.drain_timeout_s`; the rest get an error.
pub async fn serve(
    listener: TcpListener,
    engine: Arc<Engine>,
    config: ServerConfig,
    keys: ApiKeys,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let address = listener.local_addr()?;
    keys.check_exposure(address, &config)?;
    let drain_timeout = Duration::from_secs(config.drain_timeout_s);
    let app = Arc::new(App::new(engine, config, keys, address.ip().is_loopback()));
    let open = Arc::clone(&app.open);
    let closing = watch::Sender::new(false);
    let connections = connection::serve(listener, router(&app), &app.config, closing.subscribe());
    let drain = async {
        shutdown.await;
        tracing::info!(open = open.open.get(), "draining");
        // Connections are still accepted: whoever asks is told to come again.
        if !open.drain(drain_timeout).await {
            tracing::warn!(open = open.open.get(), "the drain timeout is over, open requests are aborted");
            let _in_time = tokio::time::timeout(ABORT, open.wait_empty()).await;
        }
        closing.send_replace(true);
    };
    tokio::join!(connections, drain);
    Ok(())
}

/// Time that aborted requests get to tell their clients.
const ABORT: Duration = Duration::from_secs(2);

/// The routes of this node: those for clients only at the model where requests enter.
fn operations(app: &App) -> Vec<Operation> {
    let is_entry = app.engine.hosts(app.engine.entry_index());
    Operation::ALL.into_iter().filter(|operation| is_entry || operation.on_every_node()).collect()
}

fn router(app: &Arc<App>) -> Router {
    let routes = operations(app).into_iter().fold(Router::new(), |routes, operation| {
        let method = match operation.method() {
            "post" => MethodFilter::POST,
            "delete" => MethodFilter::DELETE,
            _ => MethodFilter::GET,
        };
        // A model's name may have slashes.
        let path = if operation == Operation::Model { "/v1/models/{*id}" } else { operation.path() };
        routes.route(path, handler(operation, method))
    });
    let routes = routes.fallback(no_such_path).method_not_allowed_fallback(|| async {
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "this path does not take this method")
    });
    observe::layers(routes, app).with_state(Arc::clone(app))
}

fn handler(operation: Operation, method: MethodFilter) -> MethodRouter<Arc<App>> {
    match operation {
        Operation::ChatCompletions => on(method, chat::completions),
        Operation::Completions => on(method, completions::completions),
        Operation::Models => on(method, status::models),
        Operation::Model => on(method, status::model),
        Operation::Cancel => on(method, status::cancel),
        Operation::Generate => on(method, generate::generate),
        Operation::Tokenize => on(method, tokenize::tokenize),
        Operation::Detokenize => on(method, tokenize::detokenize),
        Operation::Health => on(method, status::health),
        Operation::Ready => on(method, status::ready),
        Operation::Info => on(method, status::info),
        Operation::Metrics => on(method, metrics::metrics),
        Operation::OpenApi => on(method, status::openapi),
        Operation::Page => on(method, status::page),
    }
}

async fn no_such_path(State(app): State<Arc<App>>) -> ApiError {
    let engine = &app.engine;
    let message = match engine.local_model() {
        Some(local) if local != engine.entry_index() => format!(
            "no such path: this node serves model `{}`, requests go to the node of model `{}`",
            engine.model_names()[local],
            engine.model_names()[engine.entry_index()]
        ),
        _ => "no such path".into(),
    };
    ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
}

fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// For what needs text, where emulated models write none.
fn no_text() -> ApiError {
    let message = "emulated models read and write no text: send token ids to `/v1/completions` or `/generate`";
    ApiError::new(StatusCode::NOT_IMPLEMENTED, "emulated", message)
}
