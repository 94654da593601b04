//! Converts errors to the exceptions of `tokenrouter.errors`.

use pyo3::prelude::*;
use tokenrouter_engine::{EngineError, SubmitError};

/// The exceptions, by name.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Config,
    Model,
    InvalidRequest,
    Overloaded,
    Closed,
    ThroughputModel,
}

impl Kind {
    fn class(self) -> &'static str {
        match self {
            Self::Config => "ConfigError",
            Self::Model => "ModelError",
            Self::InvalidRequest => "InvalidRequestError",
            Self::Overloaded => "OverloadedError",
            Self::Closed => "EngineClosedError",
            Self::ThroughputModel => "ThroughputModelError",
        }
    }
}

/// An exception of the package. The classes are defined in Python, so they can also be a `ValueError`.
pub(crate) fn raise(py: Python<'_>, kind: Kind, message: impl Into<String>) -> PyErr {
    let exception = || py.import("tokenrouter.errors")?.getattr(kind.class())?.call1((message.into(),));
    exception().map_or_else(|error| error, PyErr::from_value)
}

/// The error of an engine that could not be launched.
pub(crate) fn launch(py: Python<'_>, error: &EngineError) -> PyErr {
    let kind = if matches!(error, EngineError::Model { .. }) { Kind::Model } else { Kind::Config };
    raise(py, kind, error.to_string())
}

/// The error of a request that was refused.
pub(crate) fn submit(py: Python<'_>, error: &SubmitError) -> PyErr {
    let kind = match error {
        SubmitError::Overloaded { .. } => Kind::Overloaded,
        SubmitError::ShuttingDown | SubmitError::Failed => Kind::Closed,
        _ => Kind::InvalidRequest,
    };
    raise(py, kind, error.to_string())
}
