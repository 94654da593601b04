//! An OpenAI-compatible HTTP server: chat completions, streamed and not, and health.
//!
//! The listener and the shutdown future are given by the caller, so that tests bind a free port and no signal handler
//! is installed by a library.

mod chat;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::config::ServerConfig;
use crate::engine::{Engine, SubmitError};

/// Name under which the routed system is offered.
const MODEL_ID: &str = "tokenrouter";
/// How long open requests may go on after the shutdown began.
const DRAIN: Duration = Duration::from_secs(10);

struct App {
    engine: Arc<Engine>,
    config: ServerConfig,
    started: u64,
    /// Requests taken, to tell their draws apart.
    requests: AtomicU64,
}

/// Serves until `shutdown` completes, then lets open requests end.
pub async fn serve(
    listener: TcpListener,
    engine: Arc<Engine>,
    config: ServerConfig,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let limit = config.max_body_kib * 1024;
    let app = Arc::new(App { engine: Arc::clone(&engine), config, started: unix_time(), requests: AtomicU64::new(0) });
    let router = Router::new()
        .route("/health", get(health))
        .route("/v1/models", get(models))
        .route("/v1/chat/completions", post(chat::completions))
        .fallback(|| async { ApiError::new(StatusCode::NOT_FOUND, "not_found", "no such path".into()) })
        .layer(DefaultBodyLimit::max(limit))
        .with_state(app);
    let draining = async move {
        shutdown.await;
        // Refuses new requests from here on; the server itself waits for open connections.
        let drain = tokio::task::spawn_blocking(move || engine.drain(DRAIN));
        let _all_ended = drain.await;
    };
    axum::serve(listener, router).with_graceful_shutdown(draining).await
}

fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

async fn health(State(app): State<Arc<App>>) -> Response {
    if app.engine.is_healthy() {
        Json(json!({"status": "ok"})).into_response()
    } else {
        let body = Json(json!({"status": "failed", "reason": "a subserver has stopped"}));
        (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
    }
}

async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let info = app.engine.info();
    Json(json!({"object": "list", "data": [{
        "id": MODEL_ID, "object": "model", "created": app.started, "owned_by": "local", "models": info.models,
    }]}))
}

/// An error in the form of the OpenAI API.
struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: String) -> Self {
        Self { status, code, message }
    }

    fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message.into())
    }

    fn body(&self) -> Value {
        let kind = if self.status.is_client_error() { "invalid_request_error" } else { "server_error" };
        json!({"error": {"message": self.message, "type": kind, "code": self.code, "param": null}})
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::Invalid(_) | SubmitError::TooLong { .. } => Self::bad_request(message),
            SubmitError::Overloaded { .. } => Self::new(StatusCode::TOO_MANY_REQUESTS, "overloaded", message),
            SubmitError::ShuttingDown => Self::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert("retry-after", axum::http::HeaderValue::from_static("1"));
        }
        response
    }
}
