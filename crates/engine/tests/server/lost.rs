//! A system of two nodes, one of which is not there.

use std::sync::Arc;

use serde_json::json;
use tokenrouter_engine::config::PeerEndpoint;
use tokenrouter_engine::node::PrivateKey;
use tokenrouter_engine::server::ApiKeys;
use tokenrouter_engine::{Config, Engine};

use crate::running::{Gate, Running, STAYS};

#[test]
fn a_lost_peer_is_unavailable_by_its_name() {
    let yaml = "models: {small: {emulated: {latency_ms: 1}}, large: {emulated: {latency_ms: 1}}}\n\
                routing: {method: random, semantics: borrow, probability: 1.0}\n";
    let mut config = Config::from_yaml(yaml, "test.yaml").unwrap_or_else(|error| panic!("{error}"));
    let keys = tempfile::tempdir().expect("a folder");
    for name in ["small", "large"] {
        let path = keys.path().join(name);
        let public_key = PrivateKey::generate(&path).expect("a key").public().to_string();
        let bind = "tcp://127.0.0.1:0".into();
        let endpoint = PeerEndpoint { bind, advertise: String::new(), public_key, key_file: Some(path) };
        config.system.peer_endpoints.insert(name.into(), endpoint);
    }
    // The other node is never started.
    let engine = Engine::launch_node(&config, "small").expect("launches");
    let server = Running::start(engine, config.server, ApiKeys::default(), Arc::new(Gate::default()));
    let whole = server.ask(STAYS, 10, &json!({"stream": false}));
    assert_eq!((whole.status, whole.header("retry-after")), (503, Some("1")));
    let error = whole.json()["error"].clone();
    assert_eq!(error["code"], "peer_lost", "{error}");
    assert!(error["message"].as_str().is_some_and(|message| message.contains("`large`")), "{error}");
    let (events, done) = server.ask(STAYS, 10, &json!({})).events();
    assert_eq!((&events.last().expect("an event")["error"]["code"], done), (&json!("peer_lost"), false));
    server.baseline();
}
