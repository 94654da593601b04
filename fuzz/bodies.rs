// What the fuzz targets do with their bytes: read them as each of the things that come from outside. They must come back
// soon, without a panic and without much memory. `crates/trbench/tests/fuzz.rs` runs them on the corpus in every test.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokenrouter_core::transport::codec::{self, Bounds};
use tokenrouter_engine::config::ModelConfig;
use tokenrouter_engine::heads::HeadFile;
use tokenrouter_engine::model::ModelFiles;
use tokenrouter_engine::server::{self, ApiKeys};
use tokenrouter_engine::tokenizer::{ChatMessage, ChatTemplate, TextCodec};
use tokenrouter_engine::{Config, Engine};
use trbench::convert::pickle::Pickle;
use trbench::dataset::{self, Kind, Source};

/// Reads `data`; `dir` is an empty folder for it.
pub(crate) type Body = fn(dir: &Path, data: &[u8]);

/// All targets, by the names of their corpora.
pub(crate) const TARGETS: [(&str, Body); 15] = [
    ("config", config),
    ("gguf", gguf),
    ("safetensors", safetensors),
    ("safetensors_index", safetensors_index),
    ("model_config", model_config),
    ("tokenizer_config", tokenizer_config),
    ("head", head),
    ("tokenizer", tokenizer),
    ("chat_template", chat_template),
    ("conversation", conversation),
    ("dataset", dataset),
    ("answer", answer),
    ("pickle", pickle),
    ("http", http),
    ("packet", packet),
];

fn config(_: &Path, data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let _refused = Config::from_yaml(text, "fuzz.yaml");
    }
}

/// A model at a path.
fn model(path: &Path) -> Option<ModelConfig> {
    let path = serde_json::to_string(path).ok()?;
    let yaml = format!("models:\n  m: {{path: {path}}}\nrouting: {{method: none}}\n");
    let yaml = yaml.replace("method: none", "method: random").replace("\n  m:", "\n  n: {path: a}\n  m:");
    let config = Config::from_yaml(&yaml, "fuzz.yaml").expect("a valid configuration");
    config.models.get("m").cloned()
}

fn open(path: &Path) {
    if let Some(Ok(files)) = model(path).map(|config| ModelFiles::open(&config)) {
        let _texts = files.text.token_texts();
    }
}

fn gguf(dir: &Path, data: &[u8]) {
    let path = dir.join("model.gguf");
    std::fs::write(&path, data).expect("a writable folder");
    open(&path);
}

const ARCH: &str = r#"{"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1,
    "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 3, "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5, "eos_token_id": 2, "tie_word_embeddings": true}"#;
const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "c": 2}, "unk_token": "a"}}"#;

fn safetensors(dir: &Path, data: &[u8]) {
    let write = |name: &str, data: &[u8]| std::fs::write(dir.join(name), data).expect("a writable folder");
    write("config.json", ARCH.as_bytes());
    write("tokenizer.json", TOKENIZER.as_bytes());
    write("model.safetensors", data);
    open(dir);
}

/// A folder whose files are good, but for those that `replaced` names.
fn folder(dir: &Path, replaced: &[(&str, &[u8])]) {
    // No tensors: opening reads their names only.
    let empty: &[u8] = b"\x02\0\0\0\0\0\0\0{}";
    let usual = [("config.json", ARCH.as_bytes()), ("tokenizer.json", TOKENIZER.as_bytes()), ("a.safetensors", empty)];
    for (name, data) in usual.iter().chain(replaced) {
        std::fs::write(dir.join(name), data).expect("a writable folder");
    }
    open(dir);
}

fn safetensors_index(dir: &Path, data: &[u8]) {
    folder(dir, &[("model.safetensors.index.json", data)]);
}

/// Both files of keys: most keys mean something in one of them.
fn model_config(dir: &Path, data: &[u8]) {
    folder(dir, &[("config.json", data), ("generation_config.json", data)]);
}

fn tokenizer_config(dir: &Path, data: &[u8]) {
    folder(dir, &[("tokenizer_config.json", data)]);
}

fn head(_: &Path, data: &[u8]) {
    let _refused = HeadFile::from_bytes(data).map(|file| file.sizes());
}

/// Longest tokenizer: longer ones only take longer.
const MAX_TOKENIZER: usize = 1 << 16;

fn tokenizer(dir: &Path, data: &[u8]) {
    if data.len() > MAX_TOKENIZER {
        return;
    }
    std::fs::write(dir.join("tokenizer.json"), data).expect("a writable folder");
    if let Ok(codec) = TextCodec::from_dir(dir) {
        let _texts = codec.token_texts();
        if let Ok(ids) = codec.encode("A text, of 3 words.\n") {
            let _text = codec.decode(&ids);
        }
    }
}

fn messages() -> Vec<ChatMessage> {
    let message = |role: &str, content: &str| ChatMessage { role: role.into(), content: content.into() };
    vec![message("system", "Be brief."), message("user", "What is 2 + 2?")]
}

fn chat_template(_: &Path, data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(template) = ChatTemplate::new(text.to_owned(), "<s>".into(), "</s>".into()) {
        let _refused = template.render(&messages());
    }
}

/// Messages as clients of the HTTP interface send them.
fn conversation(_: &Path, data: &[u8]) {
    const TEMPLATE: &str = "{% for m in messages %}{{ m.role.upper() }}: {{ m.content | trim }}\n{% endfor %}";
    let Ok(messages) = serde_json::from_slice::<Vec<ChatMessage>>(data) else { return };
    let template = ChatTemplate::new(TEMPLATE.into(), String::new(), String::new()).expect("a valid template");
    let _refused = template.render(&messages);
}

fn dataset(dir: &Path, data: &[u8]) {
    for name in ["data.jsonl", "data.json", "data.parquet"] {
        let path = dir.join(name);
        std::fs::write(&path, data).expect("a writable folder");
        let _refused = dataset::load(&Source::File(path, &Kind::ALL), Some(100));
    }
}

/// What a model answers to a problem.
fn answer(_: &Path, data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let _any = trbench::grade::extract_answer(text);
    }
}

fn pickle(dir: &Path, data: &[u8]) {
    let _refused = Pickle::parse(data).map(|pickle| pickle.root().to_json());
    let path = dir.join("router.pt");
    std::fs::write(&path, data).expect("a writable folder");
    if let Ok(mut checkpoint) = trbench::convert::archive::Checkpoint::open(&path) {
        let tensors: Vec<_> = checkpoint
            .pickle
            .root()
            .entries()
            .into_iter()
            .flatten()
            .filter_map(|(_, value)| value.tensor().cloned())
            .collect();
        for tensor in tensors {
            let _refused = checkpoint.tensor("t", &tensor);
        }
    }
}

/// A server on a free port, with emulated models; it lives as long as the process.
fn address() -> SocketAddr {
    static ADDRESS: OnceLock<SocketAddr> = OnceLock::new();
    *ADDRESS.get_or_init(|| {
        let yaml = "models: {m: {emulated: {latency_ms: 0.01}}}\nrouting: {method: random, semantics: mixture}\n";
        let config = Config::from_yaml(yaml, "fuzz.yaml").expect("a valid configuration");
        let engine = Arc::new(Engine::launch(&config).expect("launches"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a setting of the socket");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                let ended = server::serve(listener, engine, config.server, ApiKeys::default(), std::future::pending());
                panic!("the server ended: {:?}", ended.await);
            });
        });
        address
    })
}

/// The body of a request to every endpoint that takes one. Whatever it is, an answer comes, and it is no fault of the server.
fn http(_: &Path, data: &[u8]) {
    for path in ["/v1/chat/completions", "/v1/completions", "/generate", "/tokenize", "/detokenize"] {
        let mut stream = TcpStream::connect(address()).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(15))).expect("a setting of the socket");
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            data.len()
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(data)).expect("the server listens");
        // Only the status: the rest of a long answer is cancelled with the connection.
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap_or_else(|error| panic!("{path}: no answer: {error}"));
        let status = String::from_utf8_lossy(&status).into_owned();
        assert!(status.starts_with("HTTP/1.1 ") && !status.ends_with("500"), "{path}: {status}");
    }
}

/// Packets of another node, in either direction.
fn packet(_: &Path, data: &[u8]) {
    for (from, to) in [(0, 1), (1, 0)] {
        let bounds = Bounds { from, to, entry: 0, models: 2, vocab: 50_000, token_limit: 4096 };
        if let Ok(packet) = codec::decode(data, &bounds) {
            let mut again = Vec::new();
            codec::encode(&packet, &bounds, &mut again);
            assert_eq!(again, data, "two forms of one packet");
        }
    }
}
