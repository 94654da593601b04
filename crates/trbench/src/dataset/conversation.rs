//! Sessions of several turns: SWE-smith trajectories, SWE-agent `.traj` files, custom conversations.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Map, Value};
use tokenrouter_engine::tokenizer::ChatMessage;

use super::error::shown;
use super::problem::{ID, identifier};
use super::{Parsed, Session, Turn};

/// Where the messages are.
pub(super) const MESSAGES: &str = "messages";
/// Where the messages of ShareGPT's conversations are.
pub(super) const SHARE_GPT: &str = "conversations";
/// Where the messages of a `.traj` file are.
pub(super) const HISTORY: &str = "history";
/// Names of a recorded trajectory; the first is unique also when an instance was tried several times.
pub(super) const TRAJECTORY_ID: [&str; 2] = ["traj_id", "instance_id"];
/// Speakers of ShareGPT's conversations.
const SPEAKERS: [(&str, &str); 9] = [
    ("system", "system"),
    ("human", "user"),
    ("user", "user"),
    ("gpt", "assistant"),
    ("chatgpt", "assistant"),
    ("assistant", "assistant"),
    ("bing", "assistant"),
    ("bard", "assistant"),
    ("tool", "user"),
];
/// Roles that are understood. What tools say reaches the model as `user`: chat templates know no ids of calls.
const ROLES: [(&str, &str); 6] = [
    ("system", "system"),
    ("developer", "system"),
    ("user", "user"),
    ("assistant", "assistant"),
    ("tool", "user"),
    ("function", "user"),
];

/// A session from the messages under `field`. A `recorded` session ends with its last assistant message; in others, the
/// assistant also has to answer what comes after it.
pub(super) fn parse(
    record: &Map<String, Value>,
    field: &'static str,
    recorded: bool,
    fallback: &str,
) -> Result<Parsed, String> {
    let value = record.get(field).unwrap_or(&Value::Null);
    let messages = if field == SHARE_GPT { said(value)? } else { messages_of(value, field)? };
    let turns = turns_of(messages, recorded).map_err(|what| format!("field `{field}`: {what}"))?;
    let mut used = vec![("messages", field)];
    let id = identifier(record, &TRAJECTORY_ID).or_else(|| identifier(record, &ID));
    if let Some((name, _)) = id {
        used.push(("id", name));
    }
    let id = id.map_or_else(|| fallback.to_owned(), |(_, id)| id);
    Ok(Parsed { session: Session { id, turns }, used })
}

/// Whether a record is a conversation of ShareGPT's without anything that a person says. Long conversations were cut into
/// records there, and some have nothing but the end of an answer.
pub(super) fn asks_nothing(record: &Map<String, Value>) -> bool {
    let Some(Value::Array(list)) = record.get(SHARE_GPT) else { return false };
    let asks = |item: &Value| {
        let user = SPEAKERS.iter().any(|(name, role)| item["from"].as_str() == Some(name) && *role == "user");
        user && item["value"].as_str().is_some_and(|text| !text.trim().is_empty())
    };
    let speaks = |item: &Value| SPEAKERS.iter().any(|(name, _)| item["from"].as_str() == Some(name));
    let known = |item: &Value| speaks(item) && item["value"].is_string();
    list.iter().all(known) && !list.iter().any(asks)
}

/// What was said in a conversation of ShareGPT's, from the first words of a person on.
fn said(value: &Value) -> Result<Vec<ChatMessage>, String> {
    let Value::Array(list) = value else {
        return Err(format!(
            "field `{SHARE_GPT}` is {}, expected a list of objects with `from` and `value`",
            shown(value)
        ));
    };
    let message = |(item, number): (&Value, usize)| {
        let at = |what: String| format!("field `{SHARE_GPT}`, message {number}: {what}");
        let speaker = SPEAKERS.iter().find(|(name, _)| item["from"].as_str() == Some(name));
        let Some((_, role)) = speaker else {
            let allowed = SPEAKERS.map(|(name, _)| format!("`{name}`")).join(", ");
            return Err(at(format!("field `from` is {}, allowed are {allowed}", shown(&item["from"]))));
        };
        let text = item["value"].as_str();
        let text = text.ok_or_else(|| at(format!("field `value` is {}, expected text", shown(&item["value"]))))?;
        Ok(ChatMessage { role: (*role).to_owned(), content: text.to_owned() })
    };
    let mut messages = list.iter().zip(1..).map(message).collect::<Result<Vec<_>, String>>()?;
    // The end of an answer whose question is in another record.
    let question = messages.iter().position(|message| message.role == "user").unwrap_or(messages.len());
    let mut index = 0;
    messages.retain(|message| {
        index += 1;
        index > question || message.role == "system"
    });
    Ok(messages)
}

/// Messages from a list, or from a text that holds the list as JSON.
fn messages_of(value: &Value, field: &str) -> Result<Vec<ChatMessage>, String> {
    let value = match value {
        Value::String(text) => Cow::Owned(
            serde_json::from_str(text).map_err(|error| format!("field `{field}` is text but not JSON: {error}"))?,
        ),
        other => Cow::Borrowed(other),
    };
    let Value::Array(list) = &*value else {
        return Err(format!("field `{field}` is {}, expected a list of messages", shown(&value)));
    };
    let located = list.iter().zip(1..);
    located.map(|(item, n)| message(item).map_err(|what| format!("field `{field}`, message {n}: {what}"))).collect()
}

fn message(item: &Value) -> Result<ChatMessage, String> {
    let Value::Object(object) = item else {
        return Err(format!("expected an object with `role` and `content`, found {}", shown(item)));
    };
    let role = object.get("role").unwrap_or(&Value::Null);
    let known = ROLES.iter().find(|(name, _)| role.as_str() == Some(name));
    let Some((_, role)) = known else {
        let allowed = ROLES.map(|(name, _)| format!("`{name}`")).join(", ");
        return Err(format!("field `role` is {}, allowed are {allowed}", shown(role)));
    };
    let mut content = content_of(object.get("content").unwrap_or(&Value::Null))?;
    // A call is what the assistant wrote in that turn, so it belongs to the text.
    for call in object.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
        let function = &call["function"];
        if !content.is_empty() {
            content.push('\n');
        }
        content.push_str(&format!("{} {}", text_or_json(&function["name"]), text_or_json(&function["arguments"])));
    }
    Ok(ChatMessage { role: (*role).to_owned(), content })
}

fn text_or_json(value: &Value) -> Cow<'_, str> {
    value.as_str().map_or_else(|| value.to_string().into(), Cow::Borrowed)
}

/// A text, nothing, or a list of `{"type": "text", "text": ...}`.
fn content_of(content: &Value) -> Result<String, String> {
    let parts = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Null => return Ok(String::new()),
        Value::Array(parts) => parts,
        other => return Err(format!("field `content` is {}, expected text or a list of texts", shown(other))),
    };
    let mut result = String::new();
    for (part, number) in parts.iter().zip(1..) {
        let text = match part {
            Value::String(text) => Some(text.as_str()),
            other if other["type"].as_str().is_none_or(|kind| kind == "text") => other["text"].as_str(),
            _ => None,
        };
        result.push_str(text.ok_or_else(|| {
            format!("field `content`, part {number} is {}, expected {{\"type\": \"text\", \"text\": ...}}", shown(part))
        })?);
    }
    Ok(result)
}

/// One turn for every place where the assistant writes after somebody else.
pub(super) fn turns_of(messages: Vec<ChatMessage>, recorded: bool) -> Result<Vec<Turn>, String> {
    let writes = |at: usize| messages.get(at).is_some_and(|message| message.role == "assistant");
    let asked = |end: usize| messages[..end].iter().any(|m| m.role == "user" && !m.content.trim().is_empty());
    let mut ends: Vec<usize> = (1..messages.len()).filter(|at| writes(*at) && !writes(at - 1)).collect();
    let complete = recorded && !ends.is_empty();
    if messages.last().is_some_and(|last| last.role != "assistant") && !complete {
        ends.push(messages.len());
    }
    let Some(first) = ends.first() else {
        return Err(format!("{} messages, none for the assistant to answer", messages.len()));
    };
    if !asked(*first) {
        return Err(format!("message {}: the assistant writes before a `user` message has text", first + 1));
    }
    let history: Arc<[_]> = messages.into();
    Ok(ends
        .into_iter()
        .map(|end| Turn { history: Arc::clone(&history), end, answer: None, ungradable: false })
        .collect())
}
