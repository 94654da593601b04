//! `POST /tokenize` and `POST /detokenize`: what clients use to make prompts of a given length.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use tokenrouter_api::chat::Conversation;
use tokenrouter_api::tokenize::{DetokenizeRequest, Detokenized, TokenizeRequest, Tokenized};

use super::{ApiError, App, body, chat, no_text};

pub(super) async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    body::read(&app, request, |app, asked| Ok(Json(tokens_of(app, asked)?).into_response())).await
}

fn tokens_of(app: &App, asked: TokenizeRequest) -> Result<Tokenized, ApiError> {
    let text = app.engine.text().ok_or_else(no_text)?;
    let tokens = match (asked.prompt.or(asked.text), asked.messages) {
        (Some(prompt), None) => text.encode(&prompt),
        (None, Some(messages)) => text.encode_conversation(&chat::conversation(Conversation {
            messages,
            tools: asked.tools,
            tool_choice: asked.tool_choice,
            chat_template_kwargs: asked.chat_template_kwargs,
        })?),
        _ => return Err(ApiError::bad_request("exactly one of the fields `prompt` and `messages` is needed")),
    };
    let tokens = tokens.map_err(|error| ApiError::bad_request(error.to_string()))?;
    Ok(Tokenized { count: tokens.len(), tokens, max_model_len: app.engine.info().token_limit })
}

pub(super) async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    body::read(&app, request, |app, asked| Ok(Json(text_of(app, asked)?).into_response())).await
}

fn text_of(app: &App, asked: DetokenizeRequest) -> Result<Detokenized, ApiError> {
    let text = app.engine.text().ok_or_else(no_text)?;
    let (tokens, vocab) = (asked.tokens.0, app.engine.vocab());
    if let Some(id) = tokens.iter().find(|id| **id as usize >= vocab) {
        let problem = format!("has the id {id}, the vocabulary has {vocab} tokens");
        return Err(ApiError::field("tokens", problem));
    }
    let prompt = text.decode(&tokens).map_err(|error| ApiError::bad_request(error.to_string()))?;
    Ok(Detokenized { text: prompt.clone(), prompt })
}
