//! Configuration errors that point at a line and suggest the nearest valid name.

use std::path::{Path, PathBuf};

use tokenrouter_core::names::{list, nearest};

/// A problem in a configuration, with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The file (or the name given to the text).
    pub path: PathBuf,
    /// Line and column, from 1; absent when the problem is not at one place.
    pub location: Option<(u64, u64)>,
    /// What is wrong and what is allowed.
    pub message: String,
}

impl std::error::Error for ConfigError {}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:", self.path.display())?;
        if let Some((line, column)) = self.location {
            write!(f, "{line}:{column}:")?;
        }
        write!(f, " {}", self.message)
    }
}

impl ConfigError {
    /// A problem with the file as a whole.
    pub(crate) fn whole(path: &Path, message: String) -> Self {
        Self { path: path.to_owned(), location: None, message }
    }

    /// A problem with the value of `key`: points at the first line that sets it.
    pub(crate) fn at_key(path: &Path, text: &str, key: &str, message: String) -> Self {
        let location = text.lines().zip(1u64..).find_map(|(line, number)| {
            let at = line.find(&format!("{key}:"))?;
            let starts_a_word = line[..at].chars().next_back().is_none_or(|c| !(c.is_alphanumeric() || c == '_'));
            (starts_a_word && !line.trim_start().starts_with('#')).then_some((number, at as u64 + 1))
        });
        Self { path: path.to_owned(), location, message }
    }
}

/// Translates the YAML library's error.
pub(crate) fn from_yaml_error(path: &Path, error: &serde_saphyr::Error) -> ConfigError {
    let error = error.without_snippet();
    let location = error.location().map(|location| (location.line(), location.column()));
    let message = match error {
        serde_saphyr::Error::SerdeUnknownField { field, expected, .. } => {
            format!("unknown key `{field}`, allowed are {}{}", list(expected), nearest(field, expected.iter().copied()))
        }
        serde_saphyr::Error::SerdeUnknownVariant { variant, expected, .. } => format!(
            "unknown value `{variant}`, allowed are {}{}",
            list(expected),
            nearest(variant, expected.iter().copied())
        ),
        serde_saphyr::Error::SerdeMissingField { field, .. } => format!("key `{field}` is missing"),
        other => strip_location(&other.to_string()),
    };
    ConfigError { path: path.to_owned(), location, message }
}

/// The library's message without its own location and snippet: ours comes first on the line.
fn strip_location(rendered: &str) -> String {
    let first = rendered.lines().next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let first =
        first.split_once(": ").map_or(first, |(head, rest)| if head.starts_with("line ") { rest } else { first });
    first.split(" at line ").next().unwrap_or(first).trim().to_owned()
}
