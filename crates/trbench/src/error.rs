//! Errors that decide the exit code.

/// A mistake in what the user gave: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Exit code after Ctrl-C, as shells report it: 128 + SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// Ctrl-C: exit code 130, after partial results were kept.
#[derive(Debug, thiserror::Error)]
#[error("interrupted: {0}")]
pub struct Interrupted(pub String);

/// A usage error as `anyhow::Error`.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    UsageError(message.into()).into()
}
