//! Around every request: its id, the access log, the numbers, API keys, and what browsers ask.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use tokenrouter_api::openapi::Operation;
use tokio::time::Instant;
use tower_http::cors::{AllowOrigin, CorsLayer};
use tower_http::request_id::{MakeRequestId, PropagateRequestIdLayer, RequestId, SetRequestIdLayer};

use super::error::ErrorCode;
use super::metrics::Endpoint;
use super::open::OpenRequests;
use super::{ApiError, App};

/// Longest request id.
pub(super) const MAX_ID: usize = 128;
const ID_HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// Wraps all routes. The outermost layer is the last one.
pub(super) fn layers(routes: Router<Arc<App>>, app: &Arc<App>) -> Router<Arc<App>> {
    let routes = routes.layer(from_fn_with_state(Arc::clone(app), authorize));
    let routes = match cors(&app.config.cors_origins) {
        Some(cors) => routes.layer(cors),
        None => routes,
    };
    routes
        .layer(from_fn_with_state(Arc::clone(app), check_host))
        .layer(from_fn_with_state(Arc::clone(app), observe))
        .layer(PropagateRequestIdLayer::new(ID_HEADER))
        .layer(SetRequestIdLayer::new(ID_HEADER, NewId(Arc::clone(&app.open))))
        .layer(from_fn(set_aside_bad_id))
}

/// Names requests that have no name.
#[derive(Clone)]
struct NewId(Arc<OpenRequests>);

impl MakeRequestId for NewId {
    fn make_request_id<B>(&mut self, _: &axum::http::Request<B>) -> Option<RequestId> {
        HeaderValue::from_str(&self.0.new_name()).ok().map(RequestId::new)
    }
}

/// The id that this request was given.
pub(super) fn request_id(request: &Request) -> String {
    let id = request.extensions().get::<RequestId>().and_then(|id| id.header_value().to_str().ok());
    id.unwrap_or_default().to_owned()
}

/// An id as it may come from a client.
pub(super) fn valid_id(id: &str) -> Option<&str> {
    let printable = id.bytes().all(|byte| byte.is_ascii_graphic());
    (printable && (1..=MAX_ID).contains(&id.len())).then_some(id)
}

/// The client's id is not one that can be used.
#[derive(Debug, Clone, Copy)]
struct BadId;

/// Takes a bad id off the request, so that it gets a new one, and is refused with that.
async fn set_aside_bad_id(mut request: Request, next: Next) -> Response {
    let given = request.headers().get(&ID_HEADER);
    if given.is_some_and(|id| id.to_str().ok().and_then(valid_id).is_none()) {
        request.headers_mut().remove(&ID_HEADER);
        request.extensions_mut().insert(BadId);
    }
    next.run(request).await
}

/// Counts and logs a request. Neither keys nor texts are logged.
async fn observe(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let method = request.method().clone();
    let path = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let id = request_id(&request);
    app.metrics.in_flight.inc();
    let _in_flight = InFlight(&app);
    // A fault in the answer to one request is told to that client, as JSON.
    let answered = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    let mut response = answered.unwrap_or_else(|_| ApiError::panicked().into_response());
    if method == Method::OPTIONS && response.status() == StatusCode::OK {
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    let took = started.elapsed();
    let endpoint = Endpoint { method: method_label(&method), path, status: response.status().as_u16() };
    app.metrics.answered(&endpoint, took);
    let error = response.extensions().get::<ErrorCode>().map(|code| code.0);
    let ms = took.as_secs_f64() * 1e3;
    let Endpoint { method, path, status } = endpoint;
    if matches!(path.as_str(), "/health" | "/ready" | "/metrics") {
        tracing::debug!(target: "tokenrouter::access", request_id = %id, method, path, status, ms, error);
    } else {
        tracing::info!(target: "tokenrouter::access", request_id = %id, method, path, status, ms, error);
    }
    response
}

/// Methods are the client's text: only the usual ones become labels.
fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        Method::HEAD => "HEAD",
        _ => "other",
    }
}

/// Counts down also when the client goes away before there is a response.
struct InFlight<'a>(&'a App);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.metrics.in_flight.dec();
    }
}

/// Refuses requests under names that may be another site's, where no key does.
async fn check_host(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if app.keys.is_empty()
        && let Err(error) = app.hosts.check(&request)
    {
        return error.into_response();
    }
    next.run(request).await
}

/// Refuses requests without a key, and with a bad id. Questions of browsers (`OPTIONS`) need no key.
async fn authorize(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let preflight = request.method() == Method::OPTIONS;
    if !preflight && !is_open(request.uri().path()) && !app.keys.allow(request.headers()) {
        let message = "an API key is needed: `authorization: Bearer KEY`";
        return ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message).into_response();
    }
    if request.extensions().get::<BadId>().is_some() {
        let message = format!("the header `x-request-id` must be 1 to {MAX_ID} printable characters");
        let param = Some(ID_HEADER.as_str().to_owned());
        return ApiError { param, ..ApiError::bad_request(message) }.into_response();
    }
    if preflight { StatusCode::NO_CONTENT.into_response() } else { next.run(request).await }
}

fn is_open(path: &str) -> bool {
    Operation::ALL.iter().any(|operation| operation.is_open() && operation.path() == path)
}

/// Lets pages of the configured origins read responses; none are by default.
fn cors(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let origins = origins.to_vec();
    let allowed = move |origin: &HeaderValue, _: &axum::http::request::Parts| {
        origins.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes())
    };
    let layer = CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(allowed))
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        .allow_headers([header::AUTHORIZATION, header::CONTENT_TYPE, ID_HEADER])
        .expose_headers([ID_HEADER, header::RETRY_AFTER])
        .vary([header::ORIGIN]);
    Some(layer)
}

#[cfg(test)]
mod tests {
    use axum::routing::get;

    use super::*;
    use crate::server::testing::{app, ask, serve_routes};

    async fn panics() -> StatusCode {
        panic!("a test wants this")
    }

    #[test]
    fn a_panic_is_an_error_in_json() {
        let app = app("");
        let routes = Router::new().route("/panic", get(panics));
        let routes = layers(routes, &app).with_state(Arc::clone(&app));
        serve_routes(app, routes, |app, address| async move {
            let answer = ask(address, "GET", "/panic", "").await;
            assert!(answer.starts_with("HTTP/1.1 500 ") && answer.contains("application/json"), "{answer}");
            assert!(answer.contains(r#""code":"engine""#), "{answer}");
            assert_eq!(app.metrics.in_flight.get(), 0);
        });
    }
}
