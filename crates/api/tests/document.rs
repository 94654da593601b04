//! The OpenAPI document by itself: references, names, and schemas that are valid and say what the reader of bodies does.

use std::collections::BTreeSet;

use boon::{Compiler, Schemas};
use serde_json::{Value, json};
use tokenrouter_api::chat::ChatRequest;
use tokenrouter_api::completions::CompletionRequest;
use tokenrouter_api::generate::GenerateRequest;
use tokenrouter_api::openapi::{Operation, document};
use tokenrouter_api::tokenize::{DetokenizeRequest, TokenizeRequest};
use tokenrouter_api::{Body, read};

const PLACE: &str = "http://test/openapi.json";

fn whole() -> Value {
    document(&Operation::ALL, "1.2.3")
}

/// Every value below, with its own first.
fn all(value: &Value) -> Vec<&Value> {
    let below: Box<dyn Iterator<Item = &Value>> = match value {
        Value::Array(list) => Box::new(list.iter()),
        Value::Object(map) => Box::new(map.values()),
        _ => Box::new(std::iter::empty()),
    };
    std::iter::once(value).chain(below.flat_map(all)).collect()
}

#[test]
fn every_reference_leads_somewhere_and_every_schema_is_valid() {
    let document = whole();
    for reference in all(&document).iter().filter_map(|value| value.get("$ref")?.as_str()) {
        let pointer = reference.strip_prefix('#').expect("a reference into the document");
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
    let mut compiler = Compiler::new();
    compiler.add_resource(PLACE, document.clone()).expect("added");
    let schemas = document["components"]["schemas"].as_object().expect("schemas");
    for name in schemas.keys() {
        compiler
            .compile(&format!("{PLACE}#/components/schemas/{name}"), &mut Schemas::new())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn every_operation_is_described_under_a_name_of_its_own() {
    let document = whole();
    let mut names = BTreeSet::new();
    for operation in Operation::ALL {
        let described = &document["paths"][operation.path()][operation.method()];
        assert!(names.insert(described["operationId"].as_str().expect("a name")), "{operation:?}");
        assert!(described["responses"]["200"]["content"].as_object().is_some_and(|content| !content.is_empty()));
        let body = operation.method() == "post";
        assert_eq!(described.get("requestBody").is_some(), body, "{operation:?}");
        assert_eq!(described.get("parameters").is_some(), operation.path().contains('{'), "{operation:?}");
    }
    let count: usize = document["paths"]
        .as_object()
        .expect("paths")
        .values()
        .filter_map(Value::as_object)
        .map(serde_json::Map::len)
        .sum();
    assert_eq!(count, Operation::ALL.len());
}

/// Whether the schema of a body and the reader agree on it; returns what they say.
fn taken<T: Body>(name: &str, body: &Value) -> bool {
    let mut compiler = Compiler::new();
    compiler.add_resource(PLACE, whole()).expect("added");
    let mut schemas = Schemas::new();
    let index = compiler.compile(&format!("{PLACE}#/components/schemas/{name}"), &mut schemas).expect("a schema");
    let valid = schemas.validate(body, index).is_ok();
    let read = read::<T>(body);
    assert_eq!(valid, read.is_ok(), "{name} {body}: the schema says {valid}, the reader {:?}", read.err());
    valid
}

#[test]
fn schemas_of_requests_take_what_is_read_and_no_more() {
    let message = json!([{"role": "user", "content": "hi"}]);
    for (want, body) in [
        (true, json!({"messages": message})),
        (true, json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "n": 2})),
        (true, json!({"messages": [{"role": "tool", "content": "1", "tool_call_id": "a"}], "tool_choice": "none"})),
        (true, json!({"messages": message, "temperature": null, "audio": null, "documents": [], "top_k": -1})),
        (true, json!({"messages": message, "max_tokens": 5.0, "stop": "a", "chat_template_kwargs": {"a": null}})),
        (
            true,
            json!({"messages": message, "response_format": {"type": "text"}, "stream_options": {"include_usage": true}}),
        ),
        (false, json!({"messages": []})),
        (false, json!({})),
        (false, json!([])),
        (false, json!({"messages": message, "logprobs": 1})),
        (false, json!({"messages": message, "temprature": 1})),
        (false, json!({"messages": message, "prompt": "a"})),
        (false, json!({"messages": message, "response_format": {"type": "json_object"}})),
        (false, json!({"messages": message, "stream_options": {"usage": true}})),
        (false, json!({"messages": message, "routing": {"treshold": 1}})),
        (true, json!({"messages": message, "seed": -1, "length_penalty": 1, "priority": 2})),
        (false, json!({"messages": message, "seed": 0.5})),
        (false, json!({"messages": message, "tools": [1]})),
        (false, json!({"messages": message, "tool_choice": "required"})),
        (false, json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})),
    ] {
        assert_eq!(taken::<ChatRequest>("ChatRequest", &body), want, "{body}");
    }
    for (want, body) in [
        (true, json!({"prompt": "a"})),
        (true, json!({"prompt": [1, 2]})),
        (true, json!({"prompt": ["a", [1, 2]], "logprobs": 3, "stop_token_ids": [1]})),
        (false, json!({"prompt": []})),
        (false, json!({"prompt": [[]]})),
        (false, json!({"prompt": ["a", []]})),
        (false, json!({"prompt": {"a": 1}})),
        (false, json!({"prompt": [1, "a"]})),
        (false, json!({"prompt": "a", "logprobs": true})),
        (false, json!({"prompt": "a", "echo": true})),
        (false, json!({"prompt": "a", "messages": message})),
    ] {
        assert_eq!(taken::<CompletionRequest>("CompletionRequest", &body), want, "{body}");
    }
    for (want, body) in [
        (true, json!({"input_ids": [1], "sampling_params": {"max_new_tokens": 4, "regex": null}})),
        (false, json!({"input_ids": [1], "sampling_params": {"max_tokens": 4}})),
        (false, json!({"input_ids": [1], "sampling_params": {"regex": "a"}})),
        (false, json!({"input_ids": [-1]})),
    ] {
        assert_eq!(taken::<GenerateRequest>("GenerateRequest", &body), want, "{body}");
    }
    assert!(taken::<TokenizeRequest>("TokenizeRequest", &json!({"prompt": "a", "add_special_tokens": true})));
    assert!(!taken::<TokenizeRequest>("TokenizeRequest", &json!({"prompt": "a", "add_special_tokens": false})));
    assert!(taken::<DetokenizeRequest>("DetokenizeRequest", &json!({"tokens": [1]})));
    assert!(!taken::<DetokenizeRequest>("DetokenizeRequest", &json!({"model": "a"})));
}
