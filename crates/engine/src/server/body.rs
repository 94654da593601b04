//! Bodies of requests, bounded in size and in time.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Bytes, to_bytes};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use serde_json::Value;
use tokenrouter_api::Body;

use super::{ApiError, App};

/// Reads a request of this type and makes something of it, off the thread that serves connections.
pub(super) async fn read<B: Body, T: Send + 'static>(
    app: &Arc<App>,
    request: Request,
    make: impl FnOnce(&App, B) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    check_type(&request)?;
    let bytes = bytes(app, request).await?;
    let (shared, length) = (Arc::clone(app), bytes.len());
    let work = move || {
        let asked = tokenrouter_api::read(&json(&bytes)?)?;
        drop(bytes);
        make(&shared, asked)
    };
    app.texts.run(length, work).await
}

fn check_type(request: &Request) -> Result<(), ApiError> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    // A browser asks before it sends JSON to another site's server; it does not ask for other types.
    if !kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json")) {
        let message = format!("the header `content-type` is `{kind}`, it must be `application/json`");
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message));
    }
    Ok(())
}

fn json(bytes: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", format!("the body is not valid JSON: {error}"))
    })
}

async fn bytes(app: &App, request: Request) -> Result<Bytes, ApiError> {
    let limit = app.config.max_body_kib * 1024;
    let too_large = || {
        let message = format!("the body has more than {} KiB (`server.max_body_kib`)", app.config.max_body_kib);
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    };
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: usize| length > limit) {
        return Err(too_large());
    }
    let time = Duration::from_secs(app.config.body_timeout_s);
    match tokio::time::timeout(time, to_bytes(request.into_body(), limit)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if std::error::Error::source(&error).is_some_and(is_limit) => Err(too_large()),
        Ok(Err(error)) => Err(ApiError::bad_request(format!("the body could not be read: {error}"))),
        Err(_) => {
            let message =
                format!("the body took longer than {} s (`server.body_timeout_s`)", app.config.body_timeout_s);
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message))
        }
    }
}

fn is_limit(error: &(dyn std::error::Error + 'static)) -> bool {
    error.to_string().contains("length limit")
}
