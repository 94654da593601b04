//! How a server ends: drained, at the end of the drain timeout, or with a subserver that panics.

use serde_json::json;

use crate::client::{get, post};
use crate::running::{PANICS, SMALL, STAYS, emulated, until};

#[test]
fn a_drain_lets_streams_end_and_takes_nothing_new() {
    let mut server = emulated("server: {drain_timeout_s: 600}");
    let mut request = server.ask(STAYS, 300, &json!({}));
    assert!(request.event().is_some());
    assert_eq!(get(server.address, "/ready").status, 200);
    server.begin_shutdown();
    until("not ready", || get(server.address, "/ready").status == 503);
    assert_eq!(get(server.address, "/health").status, 200);
    let refused = server.ask(STAYS, 1, &json!({}));
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(refused.json()["error"]["code"], "shutting_down");
    let (events, done) = request.events();
    assert!(done && events.last().expect("an event")["meta_info"]["finish_reason"]["type"] == "length");
    server.join();
}

#[test]
fn the_drain_timeout_ends_streams_with_an_error() {
    let mut server = emulated("server: {drain_timeout_s: 0}");
    let mut request = server.ask(STAYS, 50_000, &json!({}));
    assert!(request.event().is_some());
    server.begin_shutdown();
    let (events, done) = request.events();
    assert_eq!((&events.last().expect("an event")["error"]["code"], done), (&json!("shutting_down"), false));
    server.baseline();
    server.join();
}

#[test]
fn a_panic_fails_its_requests_and_turns_health_red() {
    let server = emulated("system: {max_active: 2}");
    let mut other = server.ask(STAYS, 50_000, &json!({}));
    assert!(other.event().is_some());
    let (events, done) = server.ask(PANICS, 10, &json!({})).events();
    assert_eq!((&events.last().expect("an event")["error"]["code"], done), (&json!("engine"), false));
    let (events, done) = other.events();
    assert_eq!((&events.last().expect("an event")["error"]["code"], done), (&json!("engine"), false));
    let health = get(server.address, "/health");
    assert_eq!(health.status, 503);
    assert!(health.text().contains("small"));
    assert_eq!(get(server.address, "/ready").status, 503);
    let models = get(server.address, "/v1/models").json();
    let status = |model: usize| models["data"][0]["subservers"][model]["status"].clone();
    assert_eq!((status(SMALL), status(1)), (json!("failed"), json!("ready")));
    let refused = post(server.address, "/generate", &crate::running::body(STAYS, 1, &json!({})));
    assert_eq!((refused.status, refused.json()["error"]["code"].clone()), (503, json!("failed")));
}
