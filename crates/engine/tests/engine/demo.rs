//! The real demo model: tokenizer, chat template and logits against llama.cpp (fixtures), and the engine's greedy
//! output against the one-request reference loop.
//!
//! Needs the model in the cache: `cargo run --release -p trbench -- models fetch demo`.

use serde_json::Value;
use tokenrouter_engine::config::ModelConfig;
use tokenrouter_engine::model::ModelFiles;
use tokenrouter_engine::tokenizer::ChatMessage;

pub(crate) fn files() -> ModelFiles {
    let config = ModelConfig { source: Some("demo".into()), ..ModelConfig::default() };
    ModelFiles::open(&config).unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn fixture(name: &str) -> Value {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).expect("a fixture")).expect("valid JSON")
}

#[test]
fn token_ids_equal_llama_cpp() {
    let text = files().text;
    let fixture = fixture("tokenizer_smollm2.json");
    let cases = fixture["cases"].as_array().expect("cases");
    assert!(cases.len() > 100);
    let mut wrong = Vec::new();
    for case in cases {
        let input = case["text"].as_str().expect("text");
        let want: Vec<u32> = serde_json::from_value(case["ids"].clone()).expect("ids");
        let got = text.encode(input).expect("encodes");
        if got != want {
            wrong.push(format!("{input:?}: {got:?} instead of {want:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn decoding_in_pieces_gives_the_whole_text() {
    let text = files().text;
    for case in fixture("tokenizer_smollm2.json")["cases"].as_array().expect("cases") {
        let input = case["text"].as_str().expect("text");
        let ids = text.encode(input).expect("encodes");
        let mut stream = text.stream(&[]);
        let mut pieces: Vec<String> = ids.iter().map(|id| stream.push(*id).expect("decodes")).collect();
        let whole = pieces.iter().all(|piece| !piece.contains('\u{fffd}'));
        assert!(whole || input.contains('\u{fffd}'), "{input:?}: a split character in {pieces:?}");
        pieces.push(stream.finish().expect("decodes"));
        assert_eq!(pieces.concat(), text.decode(&ids).expect("decodes"));
    }
}

#[test]
fn chat_template_renders_as_jinja2_does() {
    let text = files().text;
    let fixture = fixture("chat_template.json");
    let mut compared = 0;
    for case in fixture["cases"].as_array().expect("cases") {
        if case["add_generation_prompt"] == Value::Bool(true) {
            let messages: Vec<ChatMessage> = serde_json::from_value(case["messages"].clone()).expect("messages");
            assert_eq!(text.apply_chat_template(&messages).expect("renders"), case["text"].as_str().expect("text"));
            compared += 1;
        }
    }
    assert!(compared >= 3);
}
