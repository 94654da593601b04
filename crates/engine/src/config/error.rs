//! Configuration errors: where the mistake is, what is wrong, what is allowed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where a configuration comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A file, or the name given to a text.
    File(PathBuf),
    /// A configuration in the binary, with the path of the file that it was made from.
    BuiltIn(&'static str),
}

impl Origin {
    /// The path that relative paths in the configuration are taken from the folder of.
    pub fn path(&self) -> &Path {
        match self {
            Self::File(path) => path,
            Self::BuiltIn(name) => Path::new(name),
        }
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::BuiltIn(name) => write!(f, "built-in configuration {name}"),
        }
    }
}

/// The place of a mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A key of the text, an entry of a list, or broken YAML. Line and column count from 1, columns in characters.
    Text {
        /// The line.
        line: u64,
        /// The column.
        column: u64,
    },
    /// An override, as it was given: `KEY=VALUE`.
    Set(Arc<str>),
    /// The text as a whole.
    Whole,
}

/// A mistake in a configuration, with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// Where the configuration comes from.
    pub origin: Origin,
    /// Where the mistake is.
    pub place: Place,
    /// What is wrong and what is allowed.
    pub message: String,
}

impl std::error::Error for ConfigError {}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (origin, message) = (&self.origin, &self.message);
        match &self.place {
            Place::Text { line, column } => write!(f, "{origin}:{line}:{column}: {message}"),
            Place::Set(set) => write!(f, "--set `{set}`: {message}"),
            Place::Whole => write!(f, "{origin}: {message}"),
        }
    }
}

/// A value that the types allow and the system does not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    /// Keys from the root to the value that should be changed; an entry of a list is a number, from 0.
    pub path: Vec<String>,
    /// What is wrong and what is allowed.
    pub message: String,
}

impl Problem {
    /// A problem of the value at `path`.
    pub(super) fn new<const N: usize>(path: [&str; N], message: impl Into<String>) -> Self {
        Self { path: path.map(str::to_owned).to_vec(), message: message.into() }
    }

    /// The path with an entry of a list at its end.
    pub(super) fn entry(mut self, index: usize) -> Self {
        self.path.push(index.to_string());
        self
    }

    /// The path as people write it: `models.large.device`.
    pub fn key(&self) -> String {
        self.path.join(".")
    }
}

/// Checks that a number is in a range; the message names the last key of `path`.
pub(super) fn in_range<T, const N: usize>(path: [&str; N], value: T, allowed: [T; 2]) -> Result<(), Problem>
where
    T: PartialOrd + std::fmt::Display,
{
    let [low, high] = allowed;
    if low <= value && value <= high {
        return Ok(());
    }
    let key = path.last().copied().unwrap_or_default();
    Err(Problem::new(path, format!("`{key}` is {value}, allowed are {low} to {high}")))
}
