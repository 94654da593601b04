//! Records of a file, whatever holds them: JSONL, a JSON list, `{"data": [...]}`, a single object, CSV, or Parquet.

use std::borrow::Cow;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde_json::Value;

use super::error::{DatasetError, Located, Place, shown};
use super::{csv, parquet};

/// What holds the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// One JSON object a line.
    Lines,
    /// A JSON list of objects.
    List,
    /// A JSON object with the list under `data`.
    DataList,
    /// A single JSON object.
    Object,
    /// Rows of a Parquet file.
    Parquet,
    /// Rows of a CSV file.
    Csv,
}

impl Container {
    /// In words.
    pub fn label(self) -> &'static str {
        match self {
            Self::Lines => "JSONL",
            Self::List => "JSON list",
            Self::DataList => "JSON object with the list under `data`",
            Self::Object => "JSON object",
            Self::Parquet => "Parquet",
            Self::Csv => "CSV",
        }
    }
}

/// The records of a file, read as they are asked for where the container allows that.
pub(super) struct Records {
    pub(super) container: Container,
    pub(super) iter: Box<dyn Iterator<Item = Located>>,
}

/// Opens a file.
pub(super) fn open(path: &Path) -> Result<Records, DatasetError> {
    let file = path.display().to_string();
    let failed = |what: String| DatasetError::new(&file, Place::File, what);
    let unreadable = |error| failed(format!("cannot read the data set: {error}"));
    let mut input = File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    input.by_ref().take(parquet::MAGIC.len() as u64).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes == parquet::MAGIC || path.extension().is_some_and(|extension| extension == "parquet") {
        return Ok(Records { container: Container::Parquet, iter: parquet::rows(input, &file)? });
    }
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv")) {
        let whole = std::io::Cursor::new(bytes).chain(input);
        return Ok(Records { container: Container::Csv, iter: csv::rows(whole, &file)? });
    }
    input.read_to_end(&mut bytes).map_err(unreadable)?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
        DatasetError::new(&file, Place::Line(line), format!("byte {at} of the file is not UTF-8"))
    })?;
    from_text(text, &file)
}

/// Records of a text.
pub(super) fn from_text(text: impl Into<Cow<'static, str>>, file: &str) -> Result<Records, DatasetError> {
    let lines = Lines { text: text.into(), at: 0, number: 0, file: file.to_owned() };
    let content = lines.text.trim_start_matches('\u{feff}').trim();
    let Some(first) = content.lines().next() else {
        return Ok(Records { container: Container::Lines, iter: Box::new(std::iter::empty()) });
    };
    let alone = first.len() == content.len();
    match serde_json::from_str(first) {
        Ok(value) if alone => whole(value, file),
        Ok(_) => Ok(Records { container: Container::Lines, iter: Box::new(lines) }),
        // The first line is not complete: the text is one value over several lines, or broken.
        Err(_) => {
            let value = serde_json::from_str(content).map_err(|error| {
                let skipped = lines.text.len() - lines.text.trim_start_matches('\u{feff}').trim_start().len();
                let before = lines.text[..skipped].matches('\n').count();
                DatasetError::new(file, Place::Line(before + error.line()), not_json(&error))
            })?;
            whole(value, file)
        }
    }
}

/// What the parser says, without the line, which is part of the place.
fn not_json(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or(&text);
    format!("not valid JSON: {what} at column {}", error.column())
}

/// Records of a single JSON value.
fn whole(value: Value, file: &str) -> Result<Records, DatasetError> {
    let (container, list) = match value {
        Value::Array(list) => (Container::List, list),
        Value::Object(mut object) => match object.get_mut("data").map(Value::take) {
            Some(Value::Array(list)) => (Container::DataList, list),
            Some(other) if object.len() == 1 => {
                let what = format!("field `data` is {}, expected a list of records", shown(&other));
                return Err(DatasetError::new(file, Place::File, what));
            }
            // A record may have a field of that name.
            Some(other) => {
                object.insert("data".into(), other);
                (Container::Object, vec![Value::Object(object)])
            }
            None => (Container::Object, vec![Value::Object(object)]),
        },
        other => {
            let what = format!("expected an object or a list of objects, found {}", shown(&other));
            return Err(DatasetError::new(file, Place::File, what));
        }
    };
    let file = file.to_owned();
    let iter = list.into_iter().zip(1..).map(move |(value, number)| {
        let place = if container == Container::Object { Place::File } else { Place::Entry(number) };
        object(value, place, &file)
    });
    Ok(Records { container, iter: Box::new(iter) })
}

fn object(value: Value, place: Place, file: &str) -> Located {
    match value {
        Value::Object(object) => Ok((place, object)),
        other => Err(DatasetError::new(file, place, format!("expected an object, found {}", shown(&other)))),
    }
}

/// Objects of a JSONL text; blank lines are skipped.
struct Lines {
    text: Cow<'static, str>,
    at: usize,
    number: usize,
    file: String,
}

impl Iterator for Lines {
    type Item = Located;

    fn next(&mut self) -> Option<Located> {
        loop {
            let rest = self.text.get(self.at..).filter(|rest| !rest.is_empty())?;
            let line = rest.split('\n').next().unwrap_or(rest);
            self.at += line.len() + 1;
            self.number += 1;
            let line = if self.number == 1 { line.trim_start_matches('\u{feff}') } else { line }.trim();
            if line.is_empty() {
                continue;
            }
            let place = Place::Line(self.number);
            return Some(match serde_json::from_str(line) {
                Ok(value) => object(value, place, &self.file),
                Err(error) => Err(DatasetError::new(&self.file, place, not_json(&error))),
            });
        }
    }
}
