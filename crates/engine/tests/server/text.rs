//! Texts of a model whose tokenizer is Llama 2's in kind: spaces belong to the words after them, and the decoder takes the
//! first one off.

use std::sync::{Arc, LazyLock};

use serde_json::{Map, Value, json};
use tokenrouter_api::openapi::Operation;
use tokenrouter_engine::server::ApiKeys;
use tokenrouter_engine::{Config, Engine};
use tokenrouter_testing::tiny;

use crate::client::post;
use crate::openapi::Document;
use crate::running::{Gate, Running};

/// Most tokens of a request.
const CONTEXT: usize = 256;

static SERVER: LazyLock<Running> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a folder");
    let config = tiny::config("llama");
    tiny::write(dir.path(), &config, &tiny::tensors(&config, 3));
    let words = (0..tiny::VOCAB - 1).map(|id| (format!("\u{2581}w\u{e9}{id}"), json!(id)));
    let vocab: Map<String, Value> = words.chain([("a".into(), json!(tiny::VOCAB - 1))]).collect();
    let space = json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": space, "post_processor": null, "decoder": space,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "a"},
    });
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).expect("writable");
    let yaml = format!(
        "models: {{a: {{path: '{}', dtype: f32, threads: 1}}}}\nrouting: {{method: ensemble}}\nkv: {{memory_mib: 16}}",
        dir.path().display()
    );
    let config = Config::from_yaml(&yaml, "test.yaml").unwrap_or_else(|error| panic!("{error}"));
    let engine = Engine::launch(&config).unwrap_or_else(|error| panic!("{error}"));
    Running::start(engine, config.server, ApiKeys::default(), Arc::new(Gate::default()))
});

fn complete(more: &Value) -> Value {
    let mut body = json!({
        "prompt": "w\u{e9}5 w\u{e9}7", "max_tokens": 6, "temperature": 0, "logprobs": 1, "ignore_eos": true,
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        body[key] = value.clone();
    }
    let response = post(SERVER.address, "/v1/completions", &body);
    assert_eq!(response.status, 200);
    if body["stream"] == true { json!(response.events().0) } else { response.json() }
}

fn texts(list: &Value) -> Vec<String> {
    serde_json::from_value(list.clone()).expect("texts")
}

#[test]
fn a_completion_begins_with_its_space_and_is_the_text_of_its_tokens() {
    let answer = complete(&json!({}));
    let choice = &answer["choices"][0];
    let (text, tokens) = (choice["text"].as_str().expect("a text"), texts(&choice["logprobs"]["tokens"]));
    assert!(text.starts_with(' '), "{text:?}");
    assert_eq!((tokens.len(), tokens.concat().as_str()), (6, text));
    // A stop text that begins with a space is not given out, wherever it is.
    for stop in [0, 3] {
        let answer = complete(&json!({"stop": [tokens[stop]]}));
        let before = tokens.iter().take_while(|token| **token != tokens[stop]).map(String::as_str);
        assert_eq!(answer["choices"][0]["text"], before.collect::<String>());
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
}

#[test]
fn offsets_are_places_in_the_whole_text_also_in_a_stream() {
    let whole = complete(&json!({}));
    let logprobs = &whole["choices"][0]["logprobs"];
    let offsets: Vec<usize> = serde_json::from_value(logprobs["text_offset"].clone()).expect("numbers");
    let text: Vec<char> = whole["choices"][0]["text"].as_str().expect("a text").chars().collect();
    for (offset, token) in offsets.iter().zip(texts(&logprobs["tokens"])) {
        assert_eq!(text[*offset..*offset + token.chars().count()].iter().collect::<String>(), token);
    }
    let events = complete(&json!({"stream": true}));
    let events = events.as_array().expect("events");
    assert!(events.len() > 2);
    let streamed: Vec<usize> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["text_offset"].as_array())
        .flatten()
        .filter_map(|offset| Some(offset.as_u64()? as usize))
        .collect();
    assert_eq!(streamed, offsets);
}

#[test]
fn a_prompt_that_cannot_fit_is_refused_by_its_length() {
    // More than a token can hold for every token of the context.
    let long = "w\u{e9}5x".repeat(CONTEXT * 10);
    for (path, body) in [("/v1/completions", json!({"prompt": long})), ("/generate", json!({"text": long}))] {
        let response = post(SERVER.address, path, &body);
        assert_eq!(response.status, 400, "{path}");
        let error = response.json()["error"].clone();
        assert_eq!(error["code"], "context_length_exceeded", "{path}: {error}");
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains("bytes") && message.contains(&CONTEXT.to_string()), "{path}: {message}");
    }
    let tokens = post(SERVER.address, "/tokenize", &json!({"prompt": long})).json();
    assert!(tokens["count"].is_u64() && tokens["max_model_len"] == CONTEXT, "counting is free: {tokens}");
}

#[test]
fn completions_are_valid_by_their_schemas() {
    let document = Document::of(&SERVER);
    let body = json!({"prompt": "w\u{e9}5", "max_tokens": 3, "logprobs": 2});
    document.whole(Operation::Completions, post(SERVER.address, "/v1/completions", &body));
    let body = json!({
        "prompt": "w\u{e9}5", "max_tokens": 3, "logprobs": 2, "stream": true,
        "stream_options": {"include_obfuscation": true, "include_usage": true},
    });
    document.stream(Operation::Completions, post(SERVER.address, "/v1/completions", &body));
    document.whole(Operation::Tokenize, post(SERVER.address, "/tokenize", &json!({"prompt": "w\u{e9}5"})));
    document.whole(Operation::Detokenize, post(SERVER.address, "/detokenize", &json!({"tokens": [1, 2]})));
}
