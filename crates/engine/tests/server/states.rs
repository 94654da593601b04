//! A client that goes away, in every state that its request can be in: the rows of `docs/reference/request-states.md`.
//! Every test ends with all KV blocks of all models free again.

use serde_json::{Value, json};

use crate::client::post;
use crate::running::{GOES, LARGE, Running, SMALL, STAYS, emulated, until};

/// More tokens than a test waits for.
const ENDLESS: usize = 50_000;

fn none() -> Value {
    json!({})
}

/// Sends a request on another thread, which keeps the connection until told to drop it.
fn hold(server: &Running, seed: u64, more: &Value) -> Held {
    let mut stream = std::net::TcpStream::connect(server.address).expect("connects");
    let body = crate::running::body(seed, ENDLESS, more).to_string();
    let head = format!(
        "POST /generate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    std::io::Write::write_all(&mut stream, head.as_bytes()).expect("writes");
    Held(stream)
}

/// A request whose answer nobody reads.
struct Held(std::net::TcpStream);

impl Held {
    fn leave(self) {
        self.0.shutdown(std::net::Shutdown::Both).expect("closes");
    }
}

#[test]
fn queued() {
    let server = emulated("system: {max_active: 1}");
    let mut first = server.ask(STAYS, ENDLESS, &none());
    assert!(first.event().is_some());
    let second = hold(&server, STAYS, &none());
    until("a queue", || server.snapshot(SMALL).occupancy.queued == 1);
    second.leave();
    until("an empty queue", || server.snapshot(SMALL).occupancy.queued == 0 && server.open() == 1);
    assert!(first.event().is_some(), "the other request goes on");
    first.leave();
    server.baseline();
}

#[test]
fn prefilling() {
    let server = emulated("");
    let prompt: Vec<u32> = (0..20_000).map(|id| id % 1000).collect();
    // 256 tokens a step: some 80 steps of a prompt.
    let request = hold(&server, STAYS, &json!({"input_ids": prompt}));
    until("a prefill", || server.snapshot(SMALL).kv_held > 0);
    assert_eq!(server.snapshot(SMALL).stats.generated, 0, "there is no token yet");
    request.leave();
    server.baseline();
    assert!(server.snapshot(SMALL).stats.emitted < ENDLESS as u64 / 2);
}

#[test]
fn decoding() {
    let server = emulated("");
    let mut request = server.ask(STAYS, ENDLESS, &none());
    assert!(request.event().is_some());
    request.leave();
    server.baseline();
}

#[test]
fn decoding_without_a_stream() {
    let server = emulated("");
    let request = hold(&server, STAYS, &json!({"stream": false}));
    until("tokens", || server.snapshot(SMALL).stats.emitted > 3);
    request.leave();
    server.baseline();
}

#[test]
fn in_the_delayed_buffer() {
    let server = emulated("system: {max_active: 2}\nbatching: {thresholds: [2, 1], max_wait_ms: 600000}");
    server.gate.set(true);
    let away = hold(&server, GOES, &none());
    until("one at the large model", || server.gate.entered() == 1);
    // Two are active, so the small model waits for a second one.
    let waits = hold(&server, STAYS, &none());
    let ready = || server.snapshot(SMALL).occupancy.ready;
    until("a request in the buffer", || ready() == 1 && server.snapshot(SMALL).threshold == 2);
    waits.leave();
    until("an empty buffer", || ready() == 0 && server.open() == 1);
    server.gate.set(false);
    away.leave();
    server.baseline();
}

#[test]
fn in_flight_to_a_peer() {
    let server = emulated("system: {max_active: 2}");
    server.gate.set(true);
    let first = hold(&server, GOES, &none());
    until("one in a step of the large model", || server.gate.entered() == 1);
    // The large model takes nothing in while its step runs: this one is on its way.
    let second = hold(&server, GOES, &none());
    until("two handoffs", || server.snapshot(SMALL).stats.handoffs[LARGE] == 2);
    second.leave();
    until("the cancellation", || crate::client::get(server.address, "/metrics").text().contains("requests_open 1\n"));
    server.gate.set(false);
    until("one left", || server.open() == 1);
    first.leave();
    server.baseline();
}

#[test]
fn running_at_a_peer() {
    let server = emulated("");
    server.gate.set(true);
    let request = hold(&server, GOES, &none());
    until("a step of the large model", || server.gate.entered() == 1);
    request.leave();
    until("the cancellation", || crate::client::get(server.address, "/metrics").text().contains("requests_open 0\n"));
    server.gate.set(false);
    server.baseline();
}

#[test]
fn several_answers_of_one_request() {
    let server = emulated("system: {max_active: 2}");
    let body = json!({"prompt": [[1, 2], [3, 4]], "n": 2, "max_tokens": ENDLESS, "stream": true, "ignore_eos": true});
    let mut request = post(server.address, "/v1/completions", &body);
    assert!(request.event().is_some());
    assert_eq!(server.open(), 4);
    request.leave();
    server.baseline();
}

#[test]
fn cancelled_by_its_id() {
    let server = emulated("");
    let body = crate::running::body(STAYS, ENDLESS, &none()).to_string();
    let id = [("x-request-id", "my-request")];
    let mut request = crate::client::send(server.address, "POST", "/generate", &id, &body);
    assert_eq!(request.header("x-request-id"), Some("my-request"));
    assert!(request.event().is_some());
    let gone = crate::client::send(server.address, "DELETE", "/v1/requests/my-request", &[], "");
    assert_eq!(gone.status, 200);
    let (events, done) = request.events();
    let last = events.last().expect("an event");
    assert_eq!((&last["error"]["code"], done), (&json!("cancelled"), false), "{last}");
    server.baseline();
    let again = crate::client::send(server.address, "DELETE", "/v1/requests/my-request", &[], "");
    assert_eq!(again.status, 404);
}
