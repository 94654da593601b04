//! What clients of OpenAI, vLLM and SGLang send beside the fields that matter: values that ask for nothing are taken, others
//! are refused by name.

use serde_json::{Value, json};

use crate::client::post;
use crate::running::{Running, emulated};

/// Fields of OpenAI, vLLM and SGLang with the values that they have where a client asks for nothing special, and values
/// that change nothing here.
fn neutral() -> Value {
    let text = r#"{
        "allowed_token_ids": null, "audio": null, "bad_words": [], "best_of": 1, "cache_salt": null, "echo": false,
        "ebnf": null, "frequency_penalty": 0, "function_call": null, "functions": null, "guided_choice": null,
        "guided_grammar": null, "guided_json": null, "guided_regex": null, "ignore_eos": false, "include_reasoning": true,
        "include_stop_str_in_output": false, "length_penalty": 1.0, "logit_bias": {}, "lora_path": null, "metadata": {"a": "b"},
        "min_p": 0, "min_tokens": 0, "modalities": ["text"], "n": 1, "parallel_tool_calls": true, "prediction": null,
        "presence_penalty": 0.0, "priority": 0, "prompt_cache_key": "a", "prompt_cache_retention": "24h",
        "prompt_logprobs": null, "reasoning_effort": null, "regex": null, "repetition_penalty": 1.0,
        "response_format": {"type": "text"}, "return_hidden_states": false, "return_tokens_as_token_ids": false,
        "safety_identifier": "a", "seed": -1, "separate_reasoning": true, "service_tier": "auto",
        "skip_special_tokens": true, "spaces_between_special_tokens": true, "stop": null, "stop_token_ids": [],
        "store": false, "stream_options": null, "structured_outputs": null, "temperature": 1, "top_k": -1, "top_p": 0,
        "truncate_prompt_tokens": null, "use_beam_search": false, "user": "a", "verbosity": "medium",
        "vllm_xargs": null, "web_search_options": null
    }"#;
    serde_json::from_str(text).expect("JSON")
}

/// The status of a request with one field more.
fn status(server: &Running, field: &str, value: &Value) -> (u16, Value) {
    let mut body = json!({"prompt": [1], "max_tokens": 1});
    body[field] = value.clone();
    let response = post(server.address, "/v1/completions", &body);
    (response.status, response.json())
}

#[test]
fn values_that_ask_for_nothing_are_taken() {
    let server = emulated("");
    let mut all = json!({"prompt": [1], "max_tokens": 1, "add_special_tokens": true, "suffix": null});
    for (field, value) in neutral().as_object().expect("an object") {
        let (status, answer) = status(&server, field, value);
        assert_eq!(status, 200, "{field}: {value}: {answer}");
        all[field] = value.clone();
    }
    assert_eq!(post(server.address, "/v1/completions", &all).status, 200);
    for (field, value) in [
        ("seed", json!(-7)),
        ("seed", json!(u64::MAX)),
        ("top_p", json!(1e-60)),
        ("top_k", json!(0)),
        ("priority", json!(-3)),
        ("store", json!(true)),
        ("length_penalty", json!(1)),
    ] {
        assert_eq!(status(&server, field, &value).0, 200, "{field}: {value}");
    }
    let several = json!({"prompt": [1], "max_tokens": 1, "n": 3, "best_of": 3});
    assert_eq!(post(server.address, "/v1/completions", &several).status, 200);
    // Emulated models cannot chat: what is refused is not a field.
    let mut chat = neutral();
    chat["messages"] = json!([{"role": "user", "content": "a"}]);
    for (field, value) in [
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("add_generation_prompt", json!(true)),
        ("logprobs", json!(false)),
        ("top_logprobs", json!(0)),
    ] {
        chat[field] = value;
    }
    assert_eq!(post(server.address, "/v1/chat/completions", &chat).status, 501);
    chat["tool_choice"] = json!("none");
    assert_eq!(post(server.address, "/v1/chat/completions", &chat).status, 501);
    let generate = json!({
        "input_ids": [1], "return_logprob": false, "logprob_start_len": -1, "top_logprobs_num": 0, "lora_path": null,
        "priority": 1, "log_metrics": true, "image_data": null, "modalities": ["text"],
        "sampling_params": {"max_new_tokens": 1, "sampling_seed": -1, "top_p": 0, "top_k": -1, "regex": null,
            "skip_special_tokens": true, "spaces_between_special_tokens": true, "no_stop_trim": false, "stop_regex": null},
    });
    assert_eq!(post(server.address, "/generate", &generate).status, 200);
}

#[test]
fn values_that_would_change_the_answer_are_refused_by_name() {
    let server = emulated("");
    for (field, value) in [
        ("best_of", json!(2)),
        ("echo", json!(true)),
        ("guided_json", json!({"type": "object"})),
        ("include_stop_str_in_output", json!(true)),
        ("length_penalty", json!(0.5)),
        ("logit_bias", json!({"1": 2})),
        ("modalities", json!(["audio"])),
        ("response_format", json!({"type": "json_object"})),
        ("seed", json!(1.5)),
        ("seed", json!("a")),
        ("skip_special_tokens", json!(false)),
        ("structured_outputs", json!({"json": {}})),
        ("suffix", json!("a")),
        ("truncate_prompt_tokens", json!(5)),
        ("use_beam_search", json!(true)),
    ] {
        let (status, answer) = status(&server, field, &value);
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(field)), "{field}: {value}: {answer}");
    }
    let body = json!({
        "messages": [{"role": "user", "content": "a"}], "parallel_tool_calls": false,
        "tools": [{"type": "function", "function": {"name": "f"}}],
    });
    let refused = post(server.address, "/v1/chat/completions", &body).json();
    assert_eq!(refused["error"]["param"], "parallel_tool_calls");
}

#[test]
fn streams_have_what_their_options_ask_for() {
    let server = emulated("");
    let ask = |options: Value| {
        let body = json!({"prompt": [1], "max_tokens": 3, "stream": true, "stream_options": options});
        let (events, done) = post(server.address, "/v1/completions", &body).events();
        assert!(done);
        events
    };
    let plain = ask(json!({"include_obfuscation": false, "continuous_usage_stats": true}));
    // A chunk for every token, and the end.
    assert_eq!(plain.len(), 4, "{plain:?}");
    for (index, event) in plain[..3].iter().enumerate() {
        assert_eq!((&event["usage"]["completion_tokens"], &event["obfuscation"]), (&json!(index + 1), &Value::Null));
    }
    let padded = ask(json!({"include_obfuscation": true, "include_usage": true}));
    assert!(padded[..3].iter().all(|event| event["obfuscation"].as_str().is_some_and(|letters| !letters.is_empty())));
    assert_eq!(padded.last().expect("chunks")["usage"]["completion_tokens"], 3);
}

#[test]
fn a_request_names_itself_in_the_body_too() {
    let server = emulated("");
    for field in ["request_id", "rid"] {
        let answer = post(server.address, "/v1/completions", &json!({"prompt": [1], "max_tokens": 1, field: "mine"}));
        assert_eq!(answer.json()["id"], "cmpl-mine");
        assert_eq!(status(&server, field, &json!("two words")).0, 400);
    }
}
