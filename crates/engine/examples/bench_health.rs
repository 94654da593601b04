//! How long `/health` takes while the server works on the largest bodies that it takes: JSON lines, one for each kind of
//! text and path. Whoever watches the server must not take it for dead because somebody sends it a long text.
//!
//!     cargo run --release -p tokenrouter-engine --example bench_health [KIB]
//!
//! The model is small and its weights are random; its tokenizer is a byte-level BPE with a chat template, as in real ones.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tokenrouter_engine::server::{ApiKeys, serve};
use tokenrouter_engine::{Config, Engine};
use tokenrouter_testing::tiny;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Texts, as they are written between the quotes of JSON.
const TEXTS: [(&str, &str); 6] = [
    ("control tokens", "<|im_end|>"),
    ("one word", "a"),
    ("words", "abc "),
    ("spaces", " "),
    ("multibyte", "\u{1f980}\u{e9}"),
    ("escapes", r"\u0000\n"),
];
const TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                        {% endfor %}<|im_start|>assistant\n";

#[allow(clippy::print_stdout, reason = "the output of this program")]
fn main() -> Result<(), Failure> {
    let kib: usize = std::env::args().nth(1).map_or(Ok(4095), |text| text.parse())?;
    let dir = tempfile::tempdir()?;
    write_model(dir.path())?;
    let yaml = format!(
        "models: {{a: {{path: '{}', dtype: f32, threads: 1}}}}\nrouting: {{method: ensemble}}\nkv: {{memory_mib: 16}}",
        dir.path().display()
    );
    let config = Config::from_yaml(&yaml, "bench_health.yaml")?;
    let engine = Arc::new(Engine::launch(&config)?);
    let (sender, address) = std::sync::mpsc::channel();
    // As `trbench serve` does: one thread for all connections.
    let server = std::thread::spawn(move || -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
            sender.send(listener.local_addr()?)?;
            Ok(serve(listener, engine, config.server, ApiKeys::default(), std::future::pending()).await?)
        })
    });
    let Ok(address) = address.recv() else { return server.join().map_err(|_| "the server panicked")? };
    println!("{}", json!({"kind": "nothing", "health_ms": ms(ask(address, "GET", "/health", "")?.1)}));
    let mut worst = Duration::ZERO;
    for (kind, unit) in TEXTS {
        for path in ["/v1/chat/completions", "/v1/completions", "/tokenize"] {
            let text = unit.repeat(kib * 1024 / unit.len() - 32);
            let body = match path {
                "/v1/chat/completions" => format!(r#"{{"messages": [{{"role": "user", "content": "{text}"}}]}}"#),
                _ => format!(r#"{{"prompt": "{text}"}}"#),
            };
            let slow = std::thread::spawn(move || ask(address, "POST", path, &body));
            let mut longest = Duration::ZERO;
            while !slow.is_finished() {
                longest = longest.max(ask(address, "GET", "/health", "")?.1);
            }
            let (status, took) = slow.join().map_err(|_| "a client panicked")??;
            let line =
                json!({"kind": kind, "path": path, "status": status, "ms": ms(took), "longest_health_ms": ms(longest)});
            println!("{line}");
            worst = worst.max(longest);
        }
    }
    println!("{}", json!({"kind": "all", "longest_health_ms": ms(worst)}));
    Ok(())
}

/// Sends a request on a new connection; the status, and how long it took.
fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> Result<(u16, Duration), Failure> {
    let start = Instant::now();
    let mut stream = TcpStream::connect(address)?;
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let status = answer.get(9..12).and_then(|code| std::str::from_utf8(code).ok()?.parse().ok());
    Ok((status.ok_or("no status")?, start.elapsed()))
}

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e5).round() / 100.0
}

/// A model with a token for every byte, for runs of `a`, and for the two control tokens.
fn write_model(dir: &Path) -> Result<(), Failure> {
    // The characters that byte-level vocabularies write for bytes: printable Latin-1 for itself, the others from U+0100 on.
    let printable = |code: &u32| matches!(code, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let others = 0x100..0x100 + (0..=0xffu32).filter(|code| !printable(code)).count() as u32;
    let mut names: Vec<String> =
        (0..=0xff).filter(printable).chain(others).filter_map(char::from_u32).map(String::from).collect();
    let runs: Vec<String> = (0..6).map(|power| "a".repeat(1 << power)).collect();
    names.extend(runs[1..].iter().cloned());
    let merges: Vec<Value> = runs[..5].iter().map(|run| json!([run, run])).collect();
    let control = ["<|im_start|>", "<|im_end|>"];
    let added = |(name, id): (&str, usize)| json!({"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    let added: Vec<Value> = control.into_iter().zip(names.len()..).map(added).collect();
    let mut config = tiny::config("llama");
    config["vocab_size"] = json!(names.len() + control.len());
    config["eos_token_id"] = json!(names.len() + 1);
    tiny::write(dir, &config, &tiny::tensors(&config, 1));
    let vocab: Map<String, Value> =
        names.into_iter().zip(0..).map(|(name, id): (String, usize)| (name, json!(id))).collect();
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "dropout": null, "unk_token": null, "fuse_unk": false},
    });
    std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string())?;
    std::fs::write(dir.join("tokenizer_config.json"), json!({"chat_template": TEMPLATE}).to_string())?;
    Ok(())
}
