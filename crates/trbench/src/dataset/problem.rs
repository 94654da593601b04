//! Problems with integer answers, and single prompts.

use std::sync::Arc;

use serde_json::{Map, Value};
use tokenrouter_engine::tokenizer::ChatMessage;

use super::error::shown;
use super::{Parsed, Session, Turn};
use crate::grade::{last_box, parse_integer};

/// Public names of the text of a problem.
pub(super) const PROBLEM: [&str; 4] = ["problem", "Problem", "question", "Question"];
/// The text of a custom prompt.
pub(super) const PROMPT: [&str; 1] = ["prompt"];
/// Public names of the answer. Some files leave `answer` empty and put the number into `solution`, others have a worked
/// solution there.
pub(super) const ANSWER: [&str; 4] = ["answer", "Answer", "solution", "Solution"];
/// Public names of the identifier.
pub(super) const ID: [&str; 4] = ["id", "ID", "unique_id", "problem_id"];

/// A session with one turn from a record with one of the `texts` fields.
pub(super) fn parse(record: &Map<String, Value>, texts: &[&'static str], fallback: &str) -> Result<Parsed, String> {
    let (field, text) = text_of(record, texts)?;
    let mut used = vec![("text", field)];
    let answer = ANSWER.iter().find_map(|name| Some((*name, integer(record.get(*name)?)?)));
    if let Some((name, _)) = answer {
        used.push(("answer", name));
    }
    let given = |name: &&&str| record.get(**name).is_some_and(|value| !value.is_null() && value != "");
    let ungradable = ANSWER.iter().find(given).filter(|_| answer.is_none());
    if let Some(name) = ungradable {
        used.push(("answer that is no integer", name));
    }
    let id = identifier(record, &ID);
    if let Some((name, _)) = id {
        used.push(("id", name));
    }
    let history: Arc<[_]> = [ChatMessage { role: "user".into(), content: text.to_owned() }].into();
    let turn = Turn { history, end: 1, answer: answer.map(|(_, number)| number), ungradable: ungradable.is_some() };
    let id = id.map_or_else(|| fallback.to_owned(), |(_, id)| id);
    Ok(Parsed { session: Session { id, turns: vec![turn] }, used })
}

/// The first of some fields that has a text.
fn text_of<'a>(record: &'a Map<String, Value>, names: &[&'static str]) -> Result<(&'static str, &'a str), String> {
    for name in names {
        match record.get(*name) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) if text.trim().is_empty() => {}
            Some(Value::String(text)) => return Ok((name, text)),
            Some(other) => return Err(format!("field `{name}` is {}, expected text", shown(other))),
        }
    }
    Err(format!("no text under {}", listed(names)))
}

/// The first of some fields that names the record.
pub(super) fn identifier(record: &Map<String, Value>, names: &[&'static str]) -> Option<(&'static str, String)> {
    names.iter().find_map(|name| match record.get(*name)? {
        Value::String(text) if !text.trim().is_empty() => Some((*name, text.clone())),
        Value::Number(number) => Some((*name, number.to_string())),
        _ => None,
    })
}

/// An integer written as a number or as text, or a worked solution with its answer in a box.
fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64().or_else(|| {
            let float = number.as_f64()?;
            // Columns of answers with gaps come as floats.
            (float.fract() == 0.0 && float.abs() < 1e15).then_some(float as i64)
        }),
        Value::String(text) => parse_integer(last_box(text).unwrap_or(text)),
        _ => None,
    }
}

/// `a`, `b` or `c`, with backticks.
pub(super) fn listed(names: &[&str]) -> String {
    let quoted: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}
