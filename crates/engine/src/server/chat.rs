//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};

use super::answer::{Answer, Asked};
use super::fields::{Fields, Unsupported, short};
use super::format::Format;
use super::params::{self, Params, template_variables, top_logprobs};
use super::{ApiError, App, body, no_text, stream};
use crate::tokenizer::Conversation;

const FIELDS: &[&str] = &["messages", "tools", "tool_choice", "top_logprobs", "chat_template_kwargs"];
/// Accepted only where they ask for nothing. A template comes with the model, never with a request.
const UNSUPPORTED: &[Unsupported] = &[
    ("add_generation_prompt", "[true]"),
    ("add_special_tokens", "[false]"),
    ("chat_template", "[]"),
    ("continue_final_message", "[false]"),
    ("documents", "[[]]"),
];

pub(super) async fn completions(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let request_id = super::observe::request_id(&request);
    let value = body::json(&app, request).await?;
    let (conversation, params) = parse(&value, &app)?;
    let text = app.engine.text().ok_or_else(no_text)?;
    let prompt = text.encode_conversation(&conversation);
    let prompt = prompt.map_err(|error| ApiError::field("messages", format!("cannot be rendered: {error}")))?;
    let streamed = params.stream;
    let answer = Answer::start(&app, Asked { prompts: vec![prompt], params, format: Format::Chat, request_id }).await?;
    if streamed {
        return Ok(stream::response(answer));
    }
    Ok(Json(answer.collect().await?).into_response())
}

fn parse(value: &Value, app: &App) -> Result<(Conversation, Params), ApiError> {
    let unsupported = [params::UNSUPPORTED, UNSUPPORTED].concat();
    let fields = Fields::of(value)?.check(&[params::FIELDS, FIELDS], &unsupported)?;
    let mut params = Params::parse(fields, app)?;
    let top = top_logprobs(fields, "top_logprobs")?;
    match (fields.boolean("logprobs")?, top) {
        (true, top) => params.logprobs = Some(top.unwrap_or(0)),
        (false, None | Some(0)) => {}
        (false, Some(_)) => return Err(fields.error("top_logprobs", "needs `logprobs` to be true")),
    }
    Ok((conversation(fields)?, params))
}

/// `messages`, `tools` and `chat_template_kwargs`.
pub(super) fn conversation(fields: Fields<'_>) -> Result<Conversation, ApiError> {
    let messages = fields.get("messages").ok_or_else(|| fields.error("messages", "is missing"))?;
    let messages = messages
        .as_array()
        .filter(|messages| !messages.is_empty())
        .ok_or_else(|| fields.error("messages", format!("is `{}`, it must be a list of messages", short(messages))))?;
    let messages = messages.iter().enumerate().map(|(index, message)| self::message(index, message));
    Ok(Conversation {
        messages: messages.collect::<Result<_, _>>()?,
        tools: tools(fields)?,
        variables: template_variables(fields)?,
    })
}

fn message(index: usize, message: &Value) -> Result<Value, ApiError> {
    let place = |part: &str| format!("messages[{index}]{part}");
    let wrong = |part: &str, value: &Value, wanted: &str| {
        ApiError::field(&place(part), format!("is `{}`, it must be {wanted}", short(value)))
    };
    let fields = message.as_object().ok_or_else(|| wrong("", message, "an object with `role` and `content`"))?;
    let mut fields: Map<String, Value> = fields.clone();
    if !fields.get("role").is_some_and(Value::is_string) {
        return Err(wrong(".role", fields.get("role").unwrap_or(&Value::Null), "a text such as `user`"));
    }
    let calls = fields.get("tool_calls").is_some_and(|calls| !calls.is_null() && !super::fields::is_empty_list(calls));
    let content = match fields.get("content") {
        Some(Value::String(_)) => None,
        // Templates look into the text of every message.
        None | Some(Value::Null) if calls => Some(String::new()),
        Some(Value::Array(parts)) => Some(joined(parts).ok_or_else(|| {
            ApiError::field(&place(".content"), "has a part that is not `{\"type\": \"text\", \"text\": ...}`")
        })?),
        other => {
            return Err(wrong(".content", other.unwrap_or(&Value::Null), "a text or a list of text parts"));
        }
    };
    if let Some(content) = content {
        fields.insert("content".into(), content.into());
    }
    if let Some(Value::Array(calls)) = fields.get_mut("tool_calls") {
        calls.iter_mut().for_each(open_arguments);
    }
    Ok(Value::Object(fields))
}

/// The texts of a list of parts, one a line.
fn joined(parts: &[Value]) -> Option<String> {
    let texts = parts.iter().map(|part| part["text"].as_str().filter(|_| part["type"] == "text"));
    Some(texts.collect::<Option<Vec<_>>>()?.join("\n"))
}

/// Arguments of a tool call come as JSON in a text; templates want the object.
fn open_arguments(call: &mut Value) {
    if let Some(arguments) = call.pointer_mut("/function/arguments")
        && let Some(object) = arguments.as_str().and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok())
    {
        *arguments = Value::Object(object);
    }
}

/// The tools that the template shows to the model. What it answers is given as text: calls are not taken apart.
fn tools(fields: Fields<'_>) -> Result<Option<Value>, ApiError> {
    let choice = fields.get("tool_choice");
    match choice {
        None => {}
        Some(choice) if choice == "auto" => {}
        Some(choice) if choice == "none" => return Ok(None),
        Some(choice) => {
            return Err(fields.error("tool_choice", format!("is `{}`, only `auto` and `none`", short(choice))));
        }
    }
    match fields.get("tools") {
        None => Ok(None),
        Some(Value::Array(tools)) if tools.is_empty() => Ok(None),
        Some(tools) if tools.as_array().is_some_and(|tools| tools.iter().all(Value::is_object)) => {
            Ok(Some(tools.clone()))
        }
        Some(tools) => Err(fields.error("tools", format!("is `{}`, it must be a list of objects", short(tools)))),
    }
}
