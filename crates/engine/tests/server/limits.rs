//! Bounds: of numbers, of sizes, and of times.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::client::{Response, get, post, send};
use crate::running::{STAYS, body, emulated, until};

const ENDLESS: usize = 50_000;

fn error(response: Response) -> (u16, Option<String>, Value) {
    let retry = response.header("retry-after").map(str::to_owned);
    (response.status, retry, response.json()["error"].clone())
}

#[test]
fn more_requests_than_allowed_are_told_to_come_again() {
    let server = emulated("server: {max_concurrent_requests: 1}");
    let mut first = server.ask(STAYS, ENDLESS, &json!({}));
    assert!(first.event().is_some());
    let (status, retry, error) = error(server.ask(STAYS, 1, &json!({})));
    assert_eq!((status, retry.as_deref(), &error["code"]), (429, Some("1"), &json!("overloaded")));
    first.leave();
    until("room", || server.ask(STAYS, 1, &json!({})).status == 200);
}

#[test]
fn the_queue_is_bounded_in_length_and_in_time() {
    let server = emulated("system: {max_active: 1}\nserver: {max_queued_requests: 1, queue_timeout_s: 1}");
    let mut first = server.ask(STAYS, ENDLESS, &json!({}));
    assert!(first.event().is_some());
    let address = server.address;
    let second = std::thread::spawn(move || error(post(address, "/generate", &body(STAYS, 1, &json!({})))));
    until("a queue", || server.snapshot(0).occupancy.queued == 1);
    let (status, retry, third) = error(server.ask(STAYS, 1, &json!({})));
    assert_eq!((status, retry.as_deref(), &third["code"]), (429, Some("1"), &json!("overloaded")));
    let (status, retry, second) = second.join().expect("no panic");
    assert_eq!((status, retry.as_deref(), &second["code"]), (503, Some("1"), &json!("queue_timeout")));
    assert!(first.event().is_some(), "the admitted request goes on");
    first.leave();
    server.baseline();
}

#[test]
fn a_request_that_takes_too_long_ends_with_an_error() {
    let server = emulated("server: {request_timeout_s: 1}");
    let (events, done) = server.ask(STAYS, ENDLESS, &json!({})).events();
    assert_eq!((&events.last().expect("an event")["error"]["code"], done), (&json!("timeout"), false));
    let (status, _, error) = error(server.ask(STAYS, ENDLESS, &json!({"stream": false})));
    assert_eq!((status, &error["code"]), (504, &json!("timeout")));
    server.baseline();
}

#[test]
fn a_request_that_can_never_fit_is_refused_at_once() {
    let server = emulated("system: {max_tokens_per_request: 100}");
    let long: Vec<u32> = vec![1; 120];
    let (status, _, too_long) = error(server.ask(STAYS, 1, &json!({"input_ids": long})));
    let message = too_long["message"].as_str().expect("a message");
    assert!(status == 400 && message.contains("120") && message.contains("100"), "{message}");
    let (status, _, too_much) = error(server.ask(STAYS, 98, &json!({})));
    let message = too_much["message"].as_str().expect("a message");
    assert!(status == 400 && message.contains(" 3 ") && message.contains("98") && message.contains("100"), "{message}");
    assert_eq!(server.ask(STAYS, 97, &json!({"stream": false})).json()["meta_info"]["completion_tokens"], 97);
}

#[test]
fn a_request_that_no_queue_has_room_for_is_wrong_and_not_early() {
    let server = emulated("system: {max_active: 2, max_queued: 4}");
    let ask = |prompts: usize, n: usize| {
        post(server.address, "/v1/completions", &json!({"prompt": vec![[1]; prompts], "n": n, "max_tokens": 1}))
    };
    let (status, retry, refused) = error(ask(4, 2));
    assert_eq!((status, retry), (400, None), "{refused}");
    let message = refused["message"].as_str().expect("a message");
    for number in ["4 prompts", "`n` of 2", "8 answers", "at most 6", "max_queued"] {
        assert!(message.contains(number), "{message}");
    }
    assert_eq!(ask(3, 2).status, 200);
    server.baseline();
}

#[test]
fn sizes_are_bounded() {
    let server = emulated("server: {max_body_kib: 1, max_header_kib: 8, max_stop_texts: 2, max_choices: 2}");
    let address = server.address;
    let large = json!({"input_ids": vec![1; 2000]});
    let (status, _, error_) = error(post(address, "/generate", &large));
    assert_eq!((status, &error_["code"]), (413, &json!("body_too_large")));
    let long = "a".repeat(20_000);
    assert_eq!(send(address, "GET", "/health", &[("x-long", &long)], "").status, 431);
    for (field, value) in [("stop", json!(["a", "b", "c"])), ("n", json!(3)), ("n", json!(0))] {
        let (status, _, error) = error(post(address, "/v1/completions", &json!({"prompt": [1], field: value})));
        assert_eq!((status, &error["param"]), (400, &json!(field)), "{error}");
    }
    assert_eq!(get(address, "/health").status, 200);
}

#[test]
fn slow_clients_are_let_go() {
    let server = emulated("server: {header_timeout_s: 1, body_timeout_s: 1}");
    let mut slow = TcpStream::connect(server.address).expect("connects");
    slow.write_all(b"GET /health HTTP/1.1\r\nhost: te").expect("writes");
    let mut rest = Vec::new();
    // It ends by itself; what the server still says does not matter.
    let _closed = slow.read_to_end(&mut rest);
    let mut half = TcpStream::connect(server.address).expect("connects");
    half.write_all(
        b"POST /generate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{",
    )
    .expect("writes");
    assert_eq!(Response::read(half).status, 408);
}

#[test]
fn fields_are_known_or_refused_by_name() {
    let server = emulated("");
    let refused = |path: &str, body: Value| error(post(server.address, path, &body));
    for (body, param, part) in [
        (json!({"prompt": [1], "temprature": 1}), "temprature", "`temperature`"),
        (json!({"prompt": [1], "echo": true}), "echo", "`false`"),
        (json!({"prompt": [1], "logit_bias": {"5": 1}}), "logit_bias", "`{}`"),
        (json!({"prompt": [1], "stream_options": {"usage": true}}), "stream_options.usage", "include_usage"),
        (json!({"prompt": [1], "routing": {"method": "entropy"}}), "routing.method", "`random`"),
        (json!({"prompt": [1], "routing": {"treshold": 1}}), "routing.treshold", "`threshold`"),
        (json!({"prompt": [1], "model": "other"}), "model", "`tokenrouter`"),
        (json!({"prompt": [1], "seed": 0.5}), "seed", "`0.5`"),
        (json!({"prompt": {"a": 1}}), "prompt", "token ids"),
    ] {
        let (status, _, error) = refused("/v1/completions", body);
        assert!((400..=404).contains(&status) && error["param"] == param, "{status} {error}");
        assert!(error["message"].as_str().expect("a message").contains(part), "{error}");
    }
    let (status, _, error) = refused("/v1/completions", json!({"prompt": [1], "routing": {"threshold": 0.5}}));
    assert!(status == 400 && error["message"].as_str().expect("a message").contains("routing.threshold"), "{error}");
    let (status, _, error) = refused("/v1/completions", json!({"prompt": [1], "logprobs": 1}));
    assert!(status == 400 && error["message"].as_str().expect("a message").contains("logprobs"), "{error}");
    let (status, ..) = refused("/generate", json!({"input_ids": [1], "sampling_params": {"regex": "a"}}));
    assert_eq!(status, 400);
    // What asks for nothing may be there.
    let quiet = json!({"prompt": [1], "max_tokens": 1, "echo": false, "logit_bias": {}, "suffix": null, "user": "me"});
    assert_eq!(post(server.address, "/v1/completions", &quiet).status, 200);
    assert_eq!(post(server.address, "/v1/chat/completions", &json!({"messages": []})).status, 400);
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(post(server.address, "/v1/chat/completions", &chat).status, 501);
    assert_eq!(get(server.address, "/v1/nothing").status, 404);
    assert_eq!(get(server.address, "/generate").status, 405);
}
