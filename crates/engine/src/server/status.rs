//! What the server says of itself: health, readiness, models, settings, and the page for people.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use serde_json::Value;
use tokenrouter_api::models::{Model, Models, Subserver, SubserverStatus};
use tokenrouter_api::openapi;
use tokenrouter_api::status::{Cancelled, Execution, Health, HealthStatus, Info, Launch, Limits, Peer, Ready};

use super::{ApiError, App, operations, params};
use crate::config::ExecutionConfig;
use crate::engine::LaunchInfo;
use crate::node::PeerView;

/// `GET /health`: whether the process can do its work at all.
pub(super) async fn health(State(app): State<Arc<App>>) -> Response {
    match app.engine.failed() {
        None => Json(Health { status: HealthStatus::Ok, reason: None }).into_response(),
        Some(who) => {
            let reason = Some(format!("subserver `{who}` has stopped by a fault"));
            (StatusCode::SERVICE_UNAVAILABLE, Json(Health { status: HealthStatus::Failed, reason })).into_response()
        }
    }
}

/// `GET /ready`: whether new requests are taken.
pub(super) async fn ready(State(app): State<Arc<App>>) -> Response {
    let peers = app.engine.peers();
    let missing = peers.into_iter().find(|peer| !peer.is_up());
    let ready = match (app.engine.failed(), app.open.is_draining(), missing) {
        (Some(_), ..) => Ready::Failed,
        (None, true, _) => Ready::Draining,
        (None, false, Some(peer)) => {
            Ready::PeerMissing { peer: peer.model, state: peer.state.into(), reason: peer.problem }
        }
        (None, false, None) => return Json(Ready::Ready).into_response(),
    };
    (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], Json(ready)).into_response()
}

/// `GET /v1/models`: the routed system, and the models that it is made of with their states.
pub(super) async fn models(State(app): State<Arc<App>>) -> Json<Models> {
    Json(Models { object: "list".into(), data: vec![served(&app)] })
}

/// `GET /v1/models/{id}`: the same by its name.
pub(super) async fn model(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Model>, ApiError> {
    params::check_model(Some(&name(id)?), &app)?;
    Ok(Json(served(&app)))
}

/// The part of the path that varies.
fn name(id: Result<Path<String>, PathRejection>) -> Result<String, ApiError> {
    let Path(id) = id.map_err(|error| ApiError::bad_request(format!("the path cannot be read: {error}")))?;
    Ok(id)
}

fn served(app: &App) -> Model {
    let engine = &app.engine;
    let peers = engine.peers();
    let subserver = |(description, name): (&String, &String)| {
        let failed = engine.failed().is_some_and(|who| who == name || !engine.model_names().iter().any(|n| n == who));
        let peer = peers.iter().find(|peer| peer.model == *name && !peer.is_up());
        let status = match (failed, app.open.is_draining()) {
            _ if peer.is_some() => SubserverStatus::Unreachable,
            (true, _) => SubserverStatus::Failed,
            (false, true) => SubserverStatus::Draining,
            (false, false) => SubserverStatus::Ready,
        };
        Subserver { name: name.clone(), description: description.clone(), status }
    };
    Model {
        id: app.config.model_name.clone(),
        object: "model".into(),
        created: app.started,
        owned_by: "tokenrouter".into(),
        max_model_len: engine.info().token_limit,
        models: engine.info().models.clone(),
        subservers: engine.info().models.iter().zip(engine.model_names()).map(subserver).collect(),
    }
}

/// `GET /info`: the build, what was decided at launch, and every limit.
pub(super) async fn info(State(app): State<Arc<App>>) -> Json<Info> {
    let engine = &app.engine;
    Json(Info {
        version: env!("CARGO_PKG_VERSION").into(),
        model: app.config.model_name.clone(),
        models: engine.model_names().to_vec(),
        entry_model: engine.model_names()[engine.entry_index()].clone(),
        launch: launch(engine.info()),
        peers: engine.peers().into_iter().map(peer).collect(),
        limits: limits(&app),
    })
}

fn launch(info: &LaunchInfo) -> Launch {
    Launch {
        models: info.models.clone(),
        routing: info.routing.clone(),
        max_active: info.max_active,
        thresholds: info.thresholds.clone(),
        execution: match info.execution {
            ExecutionConfig::Async => Execution::Async,
            ExecutionConfig::Lockstep => Execution::Lockstep,
            ExecutionConfig::Standard => Execution::Standard,
        },
        handoff_resume: info.handoff_resume,
        kv_tokens: info.kv_tokens,
        token_limit: info.token_limit,
        emulated: info.emulated,
        local_model: info.local_model.clone(),
        warnings: info.warnings.clone(),
    }
}

fn peer(view: PeerView) -> Peer {
    Peer {
        model: view.model,
        state: view.state.into(),
        address: view.address,
        problem: view.problem,
        connections: view.connections,
        sent: view.sent,
        delivered: view.delivered,
        losses: view.losses,
    }
}

fn limits(app: &App) -> Limits {
    let config = &app.config;
    Limits {
        max_connections: config.max_connections,
        max_concurrent_requests: config.max_concurrent_requests,
        max_queued_requests: config.max_queued_requests,
        max_tokens_per_request: app.engine.info().token_limit,
        max_body_kib: config.max_body_kib,
        max_header_kib: config.max_header_kib,
        max_stop_texts: config.max_stop_texts,
        max_choices: config.max_choices,
        header_timeout_s: config.header_timeout_s,
        body_timeout_s: config.body_timeout_s,
        queue_timeout_s: config.queue_timeout_s,
        request_timeout_s: config.request_timeout_s,
        drain_timeout_s: config.drain_timeout_s,
    }
}

/// `GET /openapi.json`: the routes of this node.
pub(super) async fn openapi(State(app): State<Arc<App>>) -> Json<Value> {
    Json(openapi::document(&operations(&app), env!("CARGO_PKG_VERSION")))
}

/// `DELETE /v1/requests/{id}`: cancels a request by the id of the request or of its answer.
pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Cancelled>, ApiError> {
    let id = name(id)?;
    let found = app.open.find(&id);
    if found.is_empty() {
        let message = "no open request has this id";
        return Err(ApiError::new(StatusCode::NOT_FOUND, "request_not_found", message));
    }
    found.into_iter().for_each(|request| app.engine.abort(request));
    Ok(Json(Cancelled { id, cancelled: true }))
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
