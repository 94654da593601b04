//! What is wrong with a file, and where.

use serde_json::{Map, Value};

/// Longest part of a value that a message shows, in characters.
const SHOWN: usize = 60;

/// Where in a file a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The file as a whole.
    File,
    /// A line of a JSONL file, from 1.
    Line(usize),
    /// An entry of a JSON list, from 1.
    Entry(usize),
    /// A row of a Parquet file, from 1.
    Row(usize),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File => Ok(()),
            Self::Line(number) => write!(f, ":{number}"),
            Self::Entry(number) => write!(f, ", entry {number}"),
            Self::Row(number) => write!(f, ", row {number}"),
        }
    }
}

/// A file, or a record of it, that is not a data set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}{place}: {what}")]
pub struct DatasetError {
    /// The file as the user wrote it.
    pub file: String,
    /// Where in it.
    pub place: Place,
    /// Field, value, and what is allowed.
    pub what: String,
}

impl DatasetError {
    pub(super) fn new(file: &str, place: Place, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), place, what: what.into() }
    }
}

/// A value for a message: its JSON, cut if it is long.
pub(super) fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("`{}...`", &text[..end]),
        None => format!("`{text}`"),
    }
}

/// A record and where it is.
pub(super) type Located = Result<(Place, Map<String, Value>), DatasetError>;
