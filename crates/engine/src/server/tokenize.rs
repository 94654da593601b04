//! `POST /tokenize` and `POST /detokenize`: what clients use to make prompts of a given length.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use serde_json::{Value, json};

use super::fields::Fields;
use super::{ApiError, App, body, chat, no_text};

pub(super) async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let value = body::json(&app, request).await?;
    let known = ["model", "prompt", "text", "messages", "tools", "tool_choice", "chat_template_kwargs"];
    let fields = Fields::of(&value)?.check(
        &[&known],
        &[("add_special_tokens", "[true]"), ("add_generation_prompt", "[true]"), ("return_token_strs", "[false]")],
    )?;
    let text = app.engine.text().ok_or_else(no_text)?;
    let prompt = fields.text("prompt")?.or(fields.text("text")?);
    let tokens = match (prompt, fields.get("messages")) {
        (Some(prompt), None) => text.encode(prompt),
        (None, Some(_)) => text.encode_conversation(&chat::conversation(fields)?),
        _ => return Err(ApiError::bad_request("exactly one of the fields `prompt` and `messages` is needed")),
    };
    let tokens = tokens.map_err(|error| ApiError::bad_request(error.to_string()))?;
    Ok(Json(json!({"tokens": tokens, "count": tokens.len(), "max_model_len": app.engine.info().token_limit})))
}

pub(super) async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let value = body::json(&app, request).await?;
    let fields = Fields::of(&value)?.check(&[&["model", "tokens"]], &[("skip_special_tokens", "[true]")])?;
    let text = app.engine.text().ok_or_else(no_text)?;
    let tokens = fields.ids("tokens")?.ok_or_else(|| fields.error("tokens", "is missing"))?;
    let vocab = app.engine.vocab();
    if let Some(id) = tokens.iter().find(|id| **id as usize >= vocab) {
        return Err(fields.error("tokens", format!("has the id {id}, the vocabulary has {vocab} tokens")));
    }
    let prompt = text.decode(&tokens).map_err(|error| ApiError::bad_request(error.to_string()))?;
    Ok(Json(json!({"prompt": prompt, "text": prompt})))
}
