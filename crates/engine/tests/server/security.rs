//! Keys, ids, origins: the promises of `docs/reference/security.md`.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;

use serde_json::json;
use tokenrouter_engine::server::{ApiKeys, ServeError, serve};
use tokenrouter_engine::{Config, Engine};

use crate::client::{Response, get, send};
use crate::running::{Gate, Running, STAYS, body, emulated};

const CONFIG: &str = "models: {a: {emulated: {latency_ms: 1}}}\nrouting: {method: ensemble}\n\
                      server: {cors_origins: ['https://example.org']}";

fn with_keys() -> Running {
    let config = Config::from_yaml(CONFIG, "test.yaml").unwrap_or_else(|error| panic!("{error}"));
    let engine = Engine::launch(&config).expect("launches");
    Running::start(engine, config.server, ApiKeys::new(["sk-secret"]), Arc::new(Gate::default()))
}

#[test]
fn a_key_is_needed_for_all_but_probes_and_the_page() {
    let server = with_keys();
    let body = body(STAYS, 1, &json!({})).to_string();
    for (method, path) in [
        ("POST", "/generate"),
        ("POST", "/v1/completions"),
        ("POST", "/tokenize"),
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("GET", "/info"),
        ("DELETE", "/v1/requests/a"),
        ("GET", "/nothing"),
    ] {
        let refused = send(server.address, method, path, &[], &body);
        assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")), "{path}");
        let wrong = send(server.address, method, path, &[("authorization", "Bearer sk-secre")], &body);
        assert_eq!(wrong.status, 401, "{path}");
        let right = send(server.address, method, path, &[("authorization", "Bearer sk-secret")], &body);
        assert_ne!(right.status, 401, "{path}");
    }
    for path in ["/", "/health", "/ready"] {
        assert_eq!(get(server.address, path).status, 200, "{path}");
    }
}

#[test]
fn pages_of_other_origins_are_let_in_only_by_name() {
    let server = with_keys();
    let preflight = |origin: &str| {
        let headers = [("origin", origin), ("access-control-request-method", "POST")];
        let response = send(server.address, "OPTIONS", "/v1/completions", &headers, "");
        response.header("access-control-allow-origin").map(str::to_owned)
    };
    assert_eq!(preflight("https://example.org").as_deref(), Some("https://example.org"));
    assert_eq!(preflight("https://example.org.evil"), None);
    let closed = emulated("");
    let headers = [("origin", "https://example.org")];
    assert_eq!(send(closed.address, "GET", "/health", &headers, "").header("access-control-allow-origin"), None);
    // Without a preflight a page can send text only.
    let plain = [("content-type", "text/plain")];
    assert_eq!(send(closed.address, "POST", "/generate", &plain, &body(STAYS, 1, &json!({})).to_string()).status, 415);
}

#[test]
fn a_page_cannot_give_its_own_name_to_an_open_server() {
    let server = emulated("server: {allowed_hosts: [box.lan]}");
    let status = |host: &str| send(server.address, "GET", "/health", &[("host", host)], "").status;
    for host in ["localhost", "127.0.0.1:30000", "[::1]:1", "BOX.lan.:7"] {
        assert_eq!(status(host), 200, "{host}");
    }
    let host = format!("evil.example:{}", server.address.port());
    for (method, path) in
        [("GET", "/"), ("GET", "/health"), ("GET", "/nothing"), ("POST", "/generate"), ("OPTIONS", "/generate")]
    {
        let origin = format!("http://{host}");
        let headers = [("host", host.as_str()), ("origin", &origin)];
        let refused = send(server.address, method, path, &headers, &body(STAYS, 1, &json!({})).to_string());
        assert_eq!(refused.status, 421, "{method} {path}");
        let error = refused.json()["error"].clone();
        assert_eq!((&error["code"], &error["param"]), (&json!("host_not_allowed"), &json!("host")));
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains("`evil.example:") && message.contains("server.allowed_hosts"), "{message}");
    }
    let raw = |request: &str| {
        let mut stream = TcpStream::connect(server.address).expect("connects");
        stream.write_all(request.as_bytes()).expect("writes");
        Response::read(stream).status
    };
    assert_eq!(raw("GET /health HTTP/1.0\r\n\r\n"), 200);
    assert_eq!(raw("GET /health HTTP/1.1\r\n\r\n"), 400);
    assert_eq!(raw("GET http://evil.example/health HTTP/1.1\r\nhost: localhost\r\n\r\n"), 421);
    // A key stands in the way of pages already.
    let keyed = with_keys();
    assert_eq!(send(keyed.address, "GET", "/health", &[("host", "evil.example")], "").status, 200);
}

#[test]
fn ids_are_taken_and_given() {
    let server = emulated("");
    let given = send(server.address, "GET", "/health", &[("x-request-id", "abc-1")], "");
    assert_eq!(given.header("x-request-id"), Some("abc-1"));
    let (one, two) = (get(server.address, "/health"), get(server.address, "/health"));
    assert_eq!(one.header("x-request-id").map(str::len), Some(32));
    assert_ne!(one.header("x-request-id"), two.header("x-request-id"));
    let long = "a".repeat(129);
    assert_eq!(send(server.address, "GET", "/info", &[("x-request-id", &long)], "").status, 400);
}

#[test]
fn a_public_address_without_a_key_is_refused() {
    let config = Config::from_yaml(CONFIG, "test.yaml").unwrap_or_else(|error| panic!("{error}"));
    let engine = Arc::new(Engine::launch(&config).expect("launches"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let result = runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("0.0.0.0:0").await.expect("a port");
        serve(listener, engine, config.server, ApiKeys::default(), std::future::pending()).await
    });
    assert!(matches!(result, Err(ServeError::Exposed { .. })), "{result:?}");
}
