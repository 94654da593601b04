//! Around every request: its id, the access log, the numbers, API keys, and what browsers ask.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;

use super::error::Refusal;
use super::{ApiError, App};

/// Longest request id.
pub(super) const MAX_ID: usize = 128;
const ID_HEADER: HeaderName = HeaderName::from_static("x-request-id");
/// Paths that need no key: probes, and a page that holds no data.
const OPEN: [&str; 3] = ["/", "/health", "/ready"];
/// Paths as patterns; others are counted as one.
const PATHS: [&str; 12] = [
    "/",
    "/health",
    "/ready",
    "/metrics",
    "/info",
    "/generate",
    "/tokenize",
    "/detokenize",
    "/v1/models",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/requests",
];

/// The id of a request, in its extensions.
#[derive(Debug, Clone)]
struct Id(String);

/// The id that this request was given.
pub(super) fn request_id(request: &Request) -> String {
    request.extensions().get::<Id>().map(|id| id.0.clone()).unwrap_or_default()
}

/// An id as it may come from a client.
pub(super) fn valid_id(id: &str) -> Option<String> {
    let printable = id.bytes().all(|byte| byte.is_ascii_graphic());
    (printable && (1..=MAX_ID).contains(&id.len())).then(|| id.to_owned())
}

fn pattern(path: &str) -> &'static str {
    let exact = PATHS.iter().find(|known| **known == path);
    let prefix = || path.strip_prefix("/v1/requests/").map(|_| &"/v1/requests/{id}");
    exact.or_else(prefix).copied().unwrap_or("other")
}

/// Names the request, checks its key, counts and logs it. Neither keys nor texts are logged.
pub(super) async fn observe(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let (method, path) = (request.method().clone(), pattern(request.uri().path()));
    let given = request.headers().get(&ID_HEADER).map(|value| value.to_str().ok().and_then(valid_id));
    let id = given.clone().flatten().unwrap_or_else(|| app.open.new_name());
    request.extensions_mut().insert(Id(id.clone()));
    let origin = request.headers().get(header::ORIGIN).cloned();
    app.metrics.in_flight.add(1);
    let _in_flight = InFlight(&app);
    let mut response = match check(&app, &request, given.as_ref().is_some_and(Option::is_none)) {
        Ok(()) if method == Method::OPTIONS => StatusCode::NO_CONTENT.into_response(),
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(ID_HEADER, value);
    }
    allow_origin(&app, origin.as_ref(), response.headers_mut());
    let (status, took) = (response.status().as_u16(), started.elapsed());
    // Methods are the client's text: only the usual ones become labels.
    let label = if [Method::GET, Method::POST, Method::DELETE, Method::OPTIONS, Method::HEAD].contains(&method) {
        method.as_str()
    } else {
        "other"
    };
    app.metrics.answered(label, path, status, took);
    let error = response.extensions().get::<Refusal>().map(|refusal| refusal.0);
    let ms = took.as_secs_f64() * 1e3;
    if matches!(path, "/health" | "/ready" | "/metrics") {
        tracing::debug!(target: "tokenrouter::access", request_id = %id, method = label, path, status, ms, error);
    } else {
        tracing::info!(target: "tokenrouter::access", request_id = %id, method = label, path, status, ms, error);
    }
    response
}

/// Counts down also when the client goes away before there is a response.
struct InFlight<'a>(&'a App);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.metrics.in_flight.sub(1);
    }
}

fn check(app: &App, request: &Request, bad_id: bool) -> Result<(), ApiError> {
    let preflight = request.method() == Method::OPTIONS;
    if !preflight && !OPEN.contains(&request.uri().path()) && !app.keys.allow(request.headers()) {
        let message = "an API key is needed: `authorization: Bearer KEY`";
        return Err(ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message));
    }
    if bad_id {
        let message = format!("the header `x-request-id` must be 1 to {MAX_ID} printable characters");
        return Err(ApiError { param: Some("x-request-id".into()), ..ApiError::bad_request(message) });
    }
    Ok(())
}

/// Lets pages of the configured origins read the response; none are by default.
fn allow_origin(app: &App, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
    let Some(origin) = origin else { return };
    if !app.config.cors_origins.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes()) {
        return;
    }
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    headers.insert(header::VARY, HeaderValue::from_static("origin"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE"));
    let allowed = HeaderValue::from_static("authorization, content-type, x-request-id");
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("x-request-id, retry-after"));
}
