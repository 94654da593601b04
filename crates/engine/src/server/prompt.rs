//! Prompts as text, turned into tokens.

use super::{ApiError, App, no_text};
use crate::engine::Engine;
use crate::tokenizer::Conversation;

/// Tokens of a plain prompt.
pub(super) fn encode(app: &App, text: &str) -> Result<Vec<u32>, ApiError> {
    let codec = app.engine.text().ok_or_else(no_text)?;
    let (least, limit) = (least_tokens(text, app.longest_token), app.engine.info().token_limit);
    if least >= limit {
        return Err(ApiError::too_long(format!(
            "the prompt has {} bytes, which are at least {least} tokens, and a request may have at most {limit} tokens \
             with its output",
            text.len()
        )));
    }
    codec.encode(text).map_err(|error| ApiError::bad_request(error.to_string()))
}

/// Tokens of a conversation.
pub(super) fn encode_conversation(app: &App, conversation: &Conversation) -> Result<Vec<u32>, ApiError> {
    let codec = app.engine.text().ok_or_else(no_text)?;
    let prompt = codec.encode_conversation(conversation);
    prompt.map_err(|error| ApiError::field("messages", format!("cannot be rendered: {error}")))
}

/// Bytes of the longest token, special ones included; 0 where there is no text.
pub(super) fn longest_token(engine: &Engine) -> usize {
    let (Some(codec), Some(texts)) = (engine.text(), engine.token_texts()) else { return 0 };
    let length = |id: u32| match texts.get(id).len() {
        0 => codec.token_name(id).map_or(0, |name| name.len()),
        length => length,
    };
    (0..engine.vocab() as u32).map(length).max().unwrap_or(0)
}

/// Fewer tokens than these cannot hold the text. Space is not counted, because some tokenizers drop it, and the rest may
/// become a third when characters are composed.
fn least_tokens(text: &str, longest_token: usize) -> usize {
    let bytes = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).count();
    (bytes / 3).checked_div(longest_token).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_at_least_the_tokens_that_its_characters_need() {
        assert_eq!(least_tokens(&"a".repeat(3000), 10), 100);
        assert_eq!(least_tokens(&" \n".repeat(3000), 10), 0);
        assert_eq!(least_tokens("a", 0), 0);
    }
}
