//! Refused fields of requests, in words: they name the field, its value and what is allowed.

use serde_json::Value;
use tokenrouter_api::{FieldError, Problem};

use super::ApiError;
use tokenrouter_core::names::{list, nearest};

impl From<FieldError> for ApiError {
    fn from(error: FieldError) -> Self {
        let FieldError { field, value, problem } = error;
        if field.is_empty() {
            return Self::bad_request("the body must be a JSON object");
        }
        Self::field(&field, describe(&field, &value, &problem))
    }
}

fn describe(field: &str, value: &Value, problem: &Problem) -> String {
    let value = short(value);
    match problem {
        Problem::Unknown(known) => {
            let name = field.rsplit('.').next().unwrap_or(field);
            let hint = match nearest(name, known.iter().map(String::as_str)) {
                hint if hint.is_empty() => ".".to_owned(),
                hint => hint,
            };
            format!("is not known{hint} Known are {}", list(known))
        }
        Problem::Unsupported(allowed) => {
            let allowed: Vec<String> = allowed.iter().map(Value::to_string).collect();
            let allowed = if allowed.is_empty() { "`null`".to_owned() } else { list(&allowed) };
            format!("is not supported with value `{value}`, only {allowed}")
        }
        Problem::Variant(allowed) => format!("is `{value}`, only {}", list(allowed).replacen(", ", " and ", 1)),
        Problem::Missing => "is missing".to_owned(),
        Problem::Wrong(expected) => format!("is `{value}`, it must be {expected}"),
        Problem::Other(what) => what.clone(),
    }
}

/// A value for a message, cut short.
pub(super) fn short(value: &Value) -> String {
    const MOST: usize = 80;
    let text = value.to_string();
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokenrouter_api::chat::ChatRequest;
    use tokenrouter_api::completions::CompletionRequest;
    use tokenrouter_api::generate::GenerateRequest;
    use tokenrouter_api::{Body, read};

    use super::*;

    fn message<T: Body>(body: Value) -> String {
        match read::<T>(&body) {
            Err(error) => ApiError::from(error).message,
            Ok(_) => panic!("{body} is taken"),
        }
    }

    #[test]
    fn messages_name_the_field_its_value_and_what_is_allowed() {
        let unknown = message::<CompletionRequest>(json!({"prompt": "a", "temprature": 1}));
        assert!(
            unknown.starts_with("field `temprature` is not known; did you mean `temperature`? Known are `model`, ")
        );
        assert!(unknown.contains("`prompt`") && !unknown.contains("`echo`"), "{unknown}");
        let far = message::<CompletionRequest>(json!({"prompt": "a", "zzz": 1}));
        assert!(far.starts_with("field `zzz` is not known. Known are `model`, "), "{far}");
        for (body, want) in [
            (json!([]), "the body must be a JSON object"),
            (json!({}), "field `prompt` is missing"),
            (json!({"prompt": null}), "field `prompt` is missing"),
            (
                json!({"prompt": []}),
                "field `prompt` is `[]`, it must be a text, a list of texts, a list of token ids, or a list of such lists",
            ),
            (json!({"prompt": "a", "seed": 0.5}), "field `seed` is `0.5`, it must be an integer of 64 bits"),
            (json!({"prompt": [[1], []]}), "field `prompt` has no token ids in prompt 1, it must have at least one"),
            (json!({"prompt": "a", "top_k": -2}), "field `top_k` is `-2`, it must be an integer, 0 or more"),
            (json!({"prompt": "a", "top_p": "1"}), "field `top_p` is `\"1\"`, it must be a number"),
            (json!({"prompt": "a", "stream": 1}), "field `stream` is `1`, it must be true or false"),
            (json!({"prompt": "a", "model": 1}), "field `model` is `1`, it must be a text"),
            (
                json!({"prompt": "a", "stop": ["a", 1]}),
                "field `stop` is `[\"a\",1]`, it must be a text or a list of texts",
            ),
            (
                json!({"prompt": "a", "stop_token_ids": [-1]}),
                "field `stop_token_ids` is `[-1]`, it must be a list of token ids",
            ),
            (json!({"prompt": "a", "routing": []}), "field `routing` is `[]`, it must be an object"),
            (json!({"prompt": "a", "routing": {"trace": 1}}), "field `routing.trace` is `1`, it must be true or false"),
            (json!({"prompt": "a", "echo": true}), "field `echo` is not supported with value `true`, only `false`"),
            (json!({"prompt": "a", "audio": 1}), "field `audio` is not supported with value `1`, only `null`"),
            (
                json!({"prompt": "a", "service_tier": "x"}),
                "field `service_tier` is not supported with value `\"x\"`, only `\"auto\"`, `\"default\"`",
            ),
            (
                json!({"prompt": "a", "stream_options": {"include_usages": true}}),
                "field `stream_options.include_usages` is not known; did you mean `include_usage`? Known are \
                 `include_usage`, `continuous_usage_stats`, `include_obfuscation`",
            ),
        ] {
            assert_eq!(message::<CompletionRequest>(body), want);
        }
    }

    #[test]
    fn messages_name_the_place_in_a_conversation() {
        for (body, want) in [
            (json!({"messages": []}), "field `messages` is `[]`, it must be a list of messages"),
            (json!({"messages": 1}), "field `messages` is `1`, it must be a list of messages"),
            (json!({"messages": [1]}), "field `messages[0]` is `1`, it must be an object with `role` and `content`"),
            (
                json!({"messages": [{"role": 1, "content": "a"}]}),
                "field `messages[0].role` is `1`, it must be a text such as `user`",
            ),
            (
                json!({"messages": [{"role": "user", "content": 1}]}),
                "field `messages[0].content` is `1`, it must be a text or a list of text parts",
            ),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
                "field `messages[0].content` has a part that is not `{\"type\": \"text\", \"text\": ...}`",
            ),
            (
                json!({"messages": [{"role": "user", "content": "a"}], "tool_choice": "required"}),
                "field `tool_choice` is `\"required\"`, only `auto` and `none`",
            ),
            (
                json!({"messages": [{"role": "user", "content": "a"}], "tools": [1]}),
                "field `tools` is `[1]`, it must be a list of objects",
            ),
        ] {
            assert_eq!(message::<ChatRequest>(body), want);
        }
        let nested = message::<GenerateRequest>(json!({"sampling_params": {"max_new_tokens": "5"}}));
        assert_eq!(nested, "field `sampling_params.max_new_tokens` is `\"5\"`, it must be an integer, 0 or more");
    }

    #[test]
    fn long_values_are_cut() {
        let text = message::<CompletionRequest>(json!({"prompt": "a", "seed": "x".repeat(1000)}));
        assert!(text.len() < 200 && text.contains("..."), "{text}");
    }
}
