//! Prompts as text, turned into tokens.

use super::{ApiError, App, no_text};
use crate::tokenizer::{Conversation, TextError};

/// Tokens of a plain prompt.
pub(super) fn encode(app: &App, text: &str) -> Result<Vec<u32>, ApiError> {
    let codec = app.engine.text().ok_or_else(no_text)?;
    codec.encode_within(text, app.engine.info().token_limit).map_err(|error| match error {
        TextError::TooLong { .. } => ApiError::too_long(error.to_string()),
        error => ApiError::bad_request(error.to_string()),
    })
}

/// Tokens of a conversation.
pub(super) fn encode_conversation(app: &App, conversation: &Conversation) -> Result<Vec<u32>, ApiError> {
    let codec = app.engine.text().ok_or_else(no_text)?;
    codec.encode_conversation_within(conversation, app.engine.info().token_limit).map_err(|error| match error {
        TextError::TooLong { .. } => ApiError::too_long(error.to_string()),
        error => ApiError::field("messages", format!("cannot be rendered: {error}")),
    })
}
