//! Errors in the form of the OpenAI API.

use axum::Json;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use tokenrouter_api::error::{ErrorBody, ErrorDetail};

use crate::engine::SubmitError;

/// The client's request ended because somebody cancelled it (the status that nginx gave this meaning).
const CANCELLED: u16 = 499;
/// Seconds after which a refused client may come again.
const RETRY_AFTER: &str = "1";

/// An error, with the field or header that it is about.
#[derive(Debug)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    pub(super) code: &'static str,
    pub(super) message: String,
    pub(super) param: Option<String>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), param: None }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    /// About one field; the message begins with its name.
    pub(super) fn field(name: &str, problem: impl std::fmt::Display) -> Self {
        Self { param: Some(name.to_owned()), ..Self::bad_request(format!("field `{name}` {problem}")) }
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "engine", message)
    }

    pub(super) fn panicked() -> Self {
        Self::internal("the server has failed at this request; its log says where")
    }

    /// The node of a model is gone, and with it what it knew of the request.
    pub(super) fn lost(model: &str) -> Self {
        let message = format!("model `{model}` was lost or cannot be reached");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "peer_lost", message)
    }

    pub(super) fn too_long(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "context_length_exceeded", message)
    }

    pub(super) fn overloaded(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "overloaded", message)
    }

    pub(super) fn draining() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", "the server is shutting down")
    }

    pub(super) fn cancelled() -> Self {
        let status = StatusCode::from_u16(CANCELLED).unwrap_or(StatusCode::BAD_REQUEST);
        Self::new(status, "cancelled", "the request was cancelled")
    }

    /// For bodies and for events of a stream.
    pub(super) fn body(&self) -> ErrorBody {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "server_error",
        };
        ErrorBody {
            error: ErrorDetail {
                message: self.message.clone(),
                kind: Some(kind.into()),
                code: Some(self.code.into()),
                param: self.param.clone(),
            },
        }
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::Invalid(_) => Self::bad_request(message),
            SubmitError::TooLong { .. } => Self::too_long(message),
            SubmitError::Overloaded { .. } => Self::overloaded(message),
            SubmitError::ShuttingDown => Self::draining(),
            SubmitError::NotEntry { .. } => Self::new(StatusCode::NOT_FOUND, "not_entry", message),
            SubmitError::Failed => Self::new(StatusCode::SERVICE_UNAVAILABLE, "failed", message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert("retry-after", HeaderValue::from_static(RETRY_AFTER));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert("www-authenticate", HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        // The access log says why without reading the body.
        response.extensions_mut().insert(ErrorCode(self.code));
        response
    }
}

/// The code of an error, for the access log.
#[derive(Debug, Clone, Copy)]
pub(super) struct ErrorCode(pub(super) &'static str);
