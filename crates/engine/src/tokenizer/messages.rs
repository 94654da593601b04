//! Messages as chat templates want them. Clients send what OpenAI's library dumps, and templates differ in what they read.

use serde_json::{Map, Value};

/// The forms in which a template may take these messages, the most telling first: arguments of tool calls as objects or as
/// the text that OpenAI's API has, and no text beside tool calls as null or as empty text.
pub(super) fn forms(messages: &[Value], template: &str) -> Vec<Vec<Value>> {
    let plain: Vec<Value> = messages.iter().map(|message| plain(message, template)).collect();
    if !plain.iter().any(|message| message.get("tool_calls").is_some()) {
        return vec![plain];
    }
    let opened: Vec<Value> = plain.iter().map(opened).collect();
    let (filled, opened_and_filled) = (filled(&plain), filled(&opened));
    vec![opened, opened_and_filled, plain, filled]
}

/// Without fields that are null, and with the role that the template knows.
fn plain(message: &Value, template: &str) -> Value {
    let Value::Object(fields) = message else { return message.clone() };
    let calls = fields.get("tool_calls").is_some_and(|calls| !calls.is_null());
    let kept = fields.iter().filter(|(name, value)| !value.is_null() || (calls && *name == "content"));
    let mut kept: Map<String, Value> = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
    if kept.get("role").and_then(Value::as_str) == Some("developer") && !template.contains("developer") {
        kept.insert("role".into(), "system".into());
    }
    Value::Object(kept)
}

/// With the arguments of its tool calls as objects, where their text is one.
fn opened(message: &Value) -> Value {
    let mut message = message.clone();
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for arguments in calls.into_iter().flatten().filter_map(|call| call.pointer_mut("/function/arguments")) {
        let object = arguments.as_str().and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
        if let Some(object) = object {
            *arguments = Value::Object(object);
        }
    }
    message
}

/// With empty texts in place of absent ones.
fn filled(messages: &[Value]) -> Vec<Value> {
    let mut messages = messages.to_vec();
    for fields in messages.iter_mut().filter_map(Value::as_object_mut) {
        let content = fields.entry("content").or_insert(Value::Null);
        if content.is_null() {
            *content = "".into();
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nulls_are_dropped_and_developers_are_systems_where_a_template_has_none() {
        let messages = [json!({"role": "developer", "content": "a", "refusal": null, "tool_calls": null})];
        assert_eq!(forms(&messages, "system user"), [[json!({"role": "system", "content": "a"})]]);
        assert_eq!(forms(&messages, "'developer'"), [[json!({"role": "developer", "content": "a"})]]);
    }

    #[test]
    fn arguments_are_objects_first_and_text_where_a_template_fails_on_them() {
        let call = |arguments: Value| json!([{"type": "function", "function": {"name": "f", "arguments": arguments}}]);
        let of = |arguments, content| json!({"role": "assistant", "content": content, "tool_calls": call(arguments)});
        let sent = of(json!("{\"x\": 1}"), Value::Null);
        let want = [
            of(json!({"x": 1}), Value::Null),
            of(json!({"x": 1}), json!("")),
            sent.clone(),
            of(json!("{\"x\": 1}"), json!("")),
        ];
        assert_eq!(forms(&[sent], ""), want.map(|message| [message]));
    }
}
