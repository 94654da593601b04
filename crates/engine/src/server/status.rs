//! What the server says of itself: health, readiness, models, settings, and the page for people.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use serde_json::{Value, json};

use super::{ApiError, App};

/// `GET /health`: whether the process can do its work at all.
pub(super) async fn health(State(app): State<Arc<App>>) -> Response {
    match app.engine.failed() {
        None => Json(json!({"status": "ok"})).into_response(),
        Some(who) => {
            let body = json!({"status": "failed", "reason": format!("subserver `{who}` has stopped by a fault")});
            (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
        }
    }
}

/// `GET /ready`: whether new requests are taken.
pub(super) async fn ready(State(app): State<Arc<App>>) -> Response {
    let status = match (app.engine.failed(), app.open.is_draining()) {
        (Some(_), _) => "failed",
        (None, true) => "draining",
        (None, false) => "ready",
    };
    let peers = app.engine.peers();
    let missing = peers.iter().find(|peer| !peer.is_up());
    let retry = [(header::RETRY_AFTER, "1")];
    if status == "ready" {
        let Some(peer) = missing else { return Json(json!({"status": "ready"})).into_response() };
        let body = json!({"status": "peer_missing", "peer": peer.model, "state": peer.state, "reason": peer.problem});
        return (StatusCode::SERVICE_UNAVAILABLE, retry, Json(body)).into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, retry, Json(json!({"status": status}))).into_response()
}

/// `GET /v1/models`: the routed system, and the models that it is made of with their states.
pub(super) async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let engine = &app.engine;
    let peers = engine.peers();
    let descriptions = engine.info().models.iter().zip(engine.model_names());
    let subservers: Vec<Value> = descriptions
        .map(|(description, name)| {
            let failed =
                engine.failed().is_some_and(|who| who == name || !engine.model_names().iter().any(|n| n == who));
            let peer = peers.iter().find(|peer| peer.model == *name && !peer.is_up());
            let status = match (failed, app.open.is_draining()) {
                _ if peer.is_some() => "unreachable",
                (true, _) => "failed",
                (false, true) => "draining",
                (false, false) => "ready",
            };
            json!({"name": name, "description": description, "status": status})
        })
        .collect();
    Json(json!({"object": "list", "data": [{
        "id": app.config.model_name, "object": "model", "created": app.started, "owned_by": "tokenrouter",
        "max_model_len": engine.info().token_limit, "models": engine.info().models, "subservers": subservers,
    }]}))
}

/// `GET /info`: the build, what was decided at launch, and every limit.
pub(super) async fn info(State(app): State<Arc<App>>) -> Json<Value> {
    let config = &app.config;
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "model": config.model_name,
        "models": app.engine.model_names(),
        "entry_model": app.engine.model_names()[app.engine.entry_index()],
        "launch": app.engine.info(),
        "peers": app.engine.peers(),
        "limits": {
            "max_connections": config.max_connections,
            "max_concurrent_requests": config.max_concurrent_requests,
            "max_queued_requests": config.max_queued_requests,
            "max_tokens_per_request": app.engine.info().token_limit,
            "max_body_kib": config.max_body_kib,
            "max_header_kib": config.max_header_kib,
            "max_stop_texts": config.max_stop_texts,
            "max_choices": config.max_choices,
            "header_timeout_s": config.header_timeout_s,
            "body_timeout_s": config.body_timeout_s,
            "queue_timeout_s": config.queue_timeout_s,
            "request_timeout_s": config.request_timeout_s,
            "drain_timeout_s": config.drain_timeout_s,
        },
    }))
}

/// `DELETE /v1/requests/{id}`: cancels a request by the id of the request or of its answer.
pub(super) async fn cancel(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let found = app.open.find(&id);
    if found.is_empty() {
        let message = "no open request has this id";
        return Err(ApiError::new(StatusCode::NOT_FOUND, "request_not_found", message));
    }
    found.into_iter().for_each(|request| app.engine.abort(request));
    Ok(Json(json!({"id": id, "cancelled": true})))
}

/// `GET /`: one page without outside assets.
pub(super) async fn page() -> Response {
    // Nothing but this page's own script and style, and requests to this server.
    const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                          frame-ancestors 'none'; base-uri 'none'; form-action 'none'";
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, Html(include_str!("page.html"))).into_response()
}
