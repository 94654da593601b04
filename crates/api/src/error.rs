//! Errors in the form of the OpenAI API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The body of a refused request, and the last event of a stream that failed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// What is wrong.
    pub error: ErrorDetail,
}

/// What is wrong.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ErrorDetail {
    /// For people: names the field, its value and what is allowed.
    pub message: String,
    /// `invalid_request_error`, `authentication_error`, `rate_limit_error` or `server_error`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// For programs: which error it is.
    pub code: Option<String>,
    /// The field or header that it is about, if it is about one.
    pub param: Option<String>,
}
