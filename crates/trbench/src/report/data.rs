//! `--output csv`: a line for each system, with the keys of `summary.json`. What the models did is in the JSON alone.

use std::io::Write;

use indexmap::IndexMap;
use serde_json::{Map, Value};

use crate::results::Summary;
use crate::trials;

/// What is no number of the whole system.
const LEFT_OUT: [&str; 3] = ["models", "server_info", "entry"];
/// Maps whose keys stand on their own.
const SPREAD: [&str; 1] = ["latency"];

/// Writes the lines. Intervals are in the columns `NAME_low` and `NAME_high`; a cell without a value is empty.
pub(super) fn write(summaries: &[Summary], out: impl Write) -> anyhow::Result<()> {
    let rows = summaries.iter().map(row).collect::<Result<Vec<_>, _>>()?;
    let mut columns: IndexMap<&str, ()> = IndexMap::new();
    columns.extend(rows.iter().flat_map(|row| row.keys().map(|key| (key.as_str(), ()))));
    let mut csv = csv::Writer::from_writer(out);
    csv.write_record(columns.keys())?;
    for row in &rows {
        csv.write_record(columns.keys().map(|column| row.get(*column).map(cell).unwrap_or_default()))?;
    }
    csv.flush()?;
    Ok(())
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn row(summary: &Summary) -> serde_json::Result<Map<String, Value>> {
    let Value::Object(all) = serde_json::to_value(summary)? else { return Ok(Map::new()) };
    let mut row = Map::new();
    for (key, value) in all.into_iter().filter(|(key, _)| !LEFT_OUT.contains(&key.as_str())) {
        match value {
            Value::Object(map) if SPREAD.contains(&key.as_str()) => {
                for (key, value) in map {
                    add(&mut row, summary, &key, value);
                }
            }
            // Handled with what they are intervals of.
            Value::Object(_) if key == "intervals" => {}
            Value::Object(map) => {
                row.extend(map.into_iter().map(|(inner, value)| (format!("{key}_{inner}"), value)));
            }
            Value::Array(trials) if key == "trials" => {
                row.insert(key, trials.len().into());
            }
            Value::Array(ends) if key.ends_with("_interval") => {
                let name = key.trim_end_matches("_interval");
                let mut ends = ends.into_iter();
                row.insert(format!("{name}_low"), ends.next().unwrap_or_default());
                row.insert(format!("{name}_high"), ends.next().unwrap_or_default());
            }
            Value::Null if key.ends_with("_interval") => {
                let name = key.trim_end_matches("_interval");
                row.insert(format!("{name}_low"), Value::Null);
                row.insert(format!("{name}_high"), Value::Null);
            }
            // No list is a number.
            Value::Array(_) => {}
            value => add(&mut row, summary, &key, value),
        }
    }
    Ok(row)
}

/// A value, and the ends of its interval over trials where such an interval can be.
fn add(row: &mut Map<String, Value>, summary: &Summary, key: &str, value: Value) {
    row.insert(key.to_owned(), value);
    if trials::NAMES.contains(&key) {
        let interval = summary.intervals.get(key);
        row.insert(format!("{key}_low"), interval.map(|mean| mean.low).into());
        row.insert(format!("{key}_high"), interval.map(|mean| mean.high).into());
    }
}
