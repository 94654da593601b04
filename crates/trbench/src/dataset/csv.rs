//! Rows of CSV files as JSON objects, so that one set of rules reads every container.

use std::io::Read;

use serde_json::{Map, Value};

use super::error::{DatasetError, Located, Place};

/// Columns of which one must be there: what is asked.
const ASKED: [&str; 5] = ["prompt", "question", "Question", "problem", "Problem"];

/// The rows of a file with a header; empty cells count as absent. Rows count from 1, without the header.
pub(super) fn rows(input: impl Read + 'static, file: &str) -> Result<Box<dyn Iterator<Item = Located>>, DatasetError> {
    let mut reader = ::csv::Reader::from_reader(input);
    let headers = reader.headers().map_err(|error| DatasetError::new(file, Place::Line(1), explain(&error)))?;
    let columns: Vec<String> =
        headers.iter().map(|name| name.trim_start_matches('\u{feff}').trim().to_owned()).collect();
    if !columns.iter().any(|column| ASKED.contains(&column.as_str())) {
        let what = format!(
            "no column `prompt`, `question` or `problem` in the header; found {}",
            columns.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
        );
        return Err(DatasetError::new(file, Place::Line(1), what));
    }
    let file = file.to_owned();
    let rows = reader.into_records().zip(1..).map(move |(record, number)| -> Located {
        let record = record.map_err(|error| DatasetError::new(&file, Place::Row(number), explain(&error)))?;
        let cells = columns.iter().zip(record.iter()).filter(|(_, cell)| !cell.trim().is_empty());
        let row: Map<String, Value> =
            cells.map(|(name, cell)| (name.clone(), Value::String(cell.to_owned()))).collect();
        if !ASKED.iter().any(|name| row.contains_key(*name)) {
            let column =
                columns.iter().find(|column| ASKED.contains(&column.as_str())).map_or("prompt", String::as_str);
            return Err(DatasetError::new(&file, Place::Row(number), format!("column `{column}` is empty")));
        }
        Ok((Place::Row(number), row))
    });
    Ok(Box::new(rows))
}

/// What is wrong with a row, with its line in the file: a row can have several.
fn explain(error: &::csv::Error) -> String {
    let line = error.position().map(|at| format!("line {}: ", at.line())).unwrap_or_default();
    match error.kind() {
        ::csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{line}{len} columns, the header has {expected_len}")
        }
        ::csv::ErrorKind::Utf8 { err, .. } => format!("{line}column {} is not UTF-8", err.field() + 1),
        _ => format!("{line}{error}"),
    }
}
