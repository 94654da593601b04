//! What servers say, in the words of OpenAI, vLLM, SGLang, llama.cpp, TGI and others: pieces of a stream, ends, errors.

use serde_json::Value;

/// Longest text of a server that an error repeats, in characters.
const SHOWN: usize = 300;
/// Parts of a delta that a model writes. Whoever waits for the first token waits for the first of any of them.
const WRITTEN: [&str; 9] = [
    "content",
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    "thinking_blocks",
    "refusal",
    "tool_calls",
    "function_call",
    "audio",
];

/// The error in an answer or an event, in the server's own words; none where it reports none.
pub(super) fn error(value: &Value) -> Option<String> {
    let said = match &value["error"] {
        Value::Null | Value::Bool(false) if value["object"] == "error" => &value["message"],
        Value::Null | Value::Bool(false) => return None,
        Value::Object(error) => ["message", "detail", "error"]
            .iter()
            .find_map(|key| error.get(*key).filter(|text| !text.is_null()))
            .unwrap_or(&value["error"]),
        // TGI and others: a text, with its kind beside it.
        said => said,
    };
    Some(match said {
        Value::String(text) => shown(text),
        Value::Null => shown(&value.to_string()),
        said => shown(&said.to_string()),
    })
}

/// The message in a body with an error status: of JSON in any form, or its beginning.
pub(super) fn refusal(body: &str) -> String {
    let value: Value = serde_json::from_str(body).unwrap_or_default();
    let plain = ["message", "detail"].iter().find_map(|key| match &value[*key] {
        Value::Null => None,
        Value::String(text) => Some(shown(text)),
        other => Some(shown(&other.to_string())),
    });
    error(&value).or(plain).unwrap_or_else(|| shown(body))
}

/// The beginning of a text.
pub(super) fn shown(text: &str) -> String {
    text.trim().chars().take(SHOWN).collect()
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// By itself, at its limit, or for a reason of the server's own, which keeps its name.
    Complete(String),
    /// The server gave up the request.
    Aborted,
    /// The server failed.
    Failed,
}

/// The end that a server names.
pub(super) fn end(reason: &str) -> End {
    match reason.to_ascii_lowercase().as_str() {
        "stop" | "eos" | "eos_token" | "end_turn" | "end" | "stop_sequence" | "stop_str" | "stop_token"
        | "matched_stop" | "completed" | "finish" => End::Complete("stop".into()),
        "length" | "max_tokens" | "max_length" | "max_new_tokens" | "max_output_tokens" | "model_length" | "limit" => {
            End::Complete("length".into())
        }
        "abort" | "aborted" | "cancel" | "cancelled" | "canceled" => End::Aborted,
        "error" => End::Failed,
        _ => End::Complete(reason.to_owned()),
    }
}

/// The text in the part of a message: a text, or a list of texts and other things.
fn text_of(part: &Value) -> String {
    match part {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

fn says_something(part: &Value) -> bool {
    match part {
        Value::String(text) => !text.is_empty(),
        Value::Array(parts) => !parts.is_empty(),
        Value::Object(parts) => !parts.is_empty(),
        _ => false,
    }
}

/// A piece of the stream of one answer.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Piece {
    /// Text of the answer; reasoning is no part of it.
    pub(super) text: String,
    /// Whether the model wrote anything at all: text, reasoning, a call.
    pub(super) written: bool,
    pub(super) reason: Option<String>,
    pub(super) prompt_tokens: Option<u64>,
    pub(super) completion_tokens: Option<u64>,
}

/// Reads an event. What it leaves out has no value, and what nobody knows is not looked at.
pub(super) fn piece(value: &Value) -> Piece {
    let choice = &value["choices"][0];
    let delta = &choice["delta"];
    let text = if delta.is_null() { text_of(&choice["text"]) } else { text_of(&delta["content"]) };
    let usage = &value["usage"];
    Piece {
        written: !text.is_empty() || WRITTEN.iter().any(|part| says_something(&delta[*part])),
        text,
        // SGLang's own form is an object.
        reason: choice["finish_reason"].as_str().or(choice["finish_reason"]["type"].as_str()).map(str::to_owned),
        prompt_tokens: usage["prompt_tokens"].as_u64(),
        // A server that sends zeros until it knows has not counted yet.
        completion_tokens: usage["completion_tokens"].as_u64().filter(|count| *count > 0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_keep_their_message() {
        for (event, message) in [
            (json!({"error": "boom"}), "boom"),
            (json!({"error": {"message": "boom", "code": 500}}), "boom"),
            (json!({"error": {"detail": "boom"}}), "boom"),
            (json!({"error": {"code": 500}}), r#"{"code":500}"#),
            (json!({"error": true}), "true"),
            (json!({"error": "boom", "error_type": "generation"}), "boom"),
            (json!({"object": "error", "message": "boom", "code": 400}), "boom"),
            (json!({"object": "error"}), r#"{"object":"error"}"#),
        ] {
            assert_eq!(error(&event).as_deref(), Some(message), "{event}");
        }
        for fine in [json!({"choices": []}), json!({"error": null, "choices": []}), json!({"message": "hello"})] {
            assert_eq!(error(&fine), None, "{fine}");
        }
        assert_eq!(refusal(r#"{"detail": [{"loc": ["body", "seed"]}]}"#), r#"[{"loc":["body","seed"]}]"#);
        assert_eq!(refusal(r#"{"error": {"message": "no such model"}}"#), "no such model");
        assert_eq!(refusal("<html>502</html>"), "<html>502</html>");
    }

    #[test]
    fn ends_of_other_servers_are_mapped_or_keep_their_name() {
        for (name, mapped) in [
            ("stop", "stop"),
            ("eos", "stop"),
            ("eos_token", "stop"),
            ("stop_sequence", "stop"),
            ("end_turn", "stop"),
            ("length", "length"),
            ("MAX_TOKENS", "length"),
            ("content_filter", "content_filter"),
            ("tool_calls", "tool_calls"),
            ("Weird", "Weird"),
        ] {
            assert_eq!(end(name), End::Complete(mapped.into()), "{name}");
        }
        assert_eq!((end("abort"), end("cancelled"), end("error")), (End::Aborted, End::Aborted, End::Failed));
    }

    #[test]
    fn whatever_a_model_writes_is_a_piece() {
        let delta = |delta: Value| piece(&json!({"choices": [{"delta": delta, "finish_reason": null}]}));
        for (part, text) in [
            (json!({"content": "a"}), "a"),
            (json!({"content": null, "reasoning_content": "b"}), ""),
            (json!({"content": "", "reasoning": "b"}), ""),
            (json!({"content": [{"type": "thinking", "thinking": []}]}), ""),
            (json!({"content": [{"type": "text", "text": "a"}]}), "a"),
            (json!({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}), ""),
            (json!({"refusal": "no"}), ""),
        ] {
            let piece = delta(part.clone());
            assert_eq!((piece.written, piece.text.as_str()), (true, text), "{part}");
        }
        for nothing in [json!({"role": "assistant", "content": ""}), json!({}), json!({"tool_calls": []}), Value::Null]
        {
            assert_eq!(delta(nothing.clone()), Piece::default(), "{nothing}");
        }
        assert_eq!(piece(&json!({"choices": [{"text": "a"}]})).text, "a");
        let counted = piece(&json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 50}}));
        assert_eq!((counted.prompt_tokens, counted.completion_tokens), (Some(3), Some(50)));
        assert_eq!(piece(&json!({"choices": [], "usage": {"completion_tokens": 0}})).completion_tokens, None);
        let sglang = piece(&json!({"choices": [{"delta": {}, "finish_reason": {"type": "length", "length": 4}}]}));
        assert_eq!(sglang.reason.as_deref(), Some("length"));
    }
}
