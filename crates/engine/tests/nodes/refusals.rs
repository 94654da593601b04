//! Nodes that must not work together, and configurations that are none.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::json;
use tokenrouter_core::routing::RoutingConfig;
use tokenrouter_engine::config::{Config, ExecutionConfig, ThresholdConfig};
use tokenrouter_engine::node::PrivateKey;
use tokenrouter_engine::{Engine, SubmitError};

use crate::pair::{Pair, address, is_up, peer, requests, wait_until};

fn borrow() -> Pair {
    Pair::new(RoutingConfig::new("random", json!({"semantics": "borrow", "probability": 0.5})))
}

/// Starts a large node with another configuration; what both nodes say of it.
fn refused(pair: &Pair, change: impl FnOnce(&mut Config)) -> [String; 2] {
    let small = pair.small();
    let mut config = pair.config_at(address(&small));
    change(&mut config);
    let large = Engine::launch_node(&config, "large").expect("launches");
    wait_until("both say why", || peer(&small).problem.is_some() && peer(&large).problem.is_some());
    assert!(!is_up(&small) && !is_up(&large));
    [&small, &large].map(|engine| peer(engine).problem.unwrap_or_default())
}

#[test]
fn different_configurations_are_refused_by_name() {
    let pair = borrow();
    type Change = fn(&mut Config);
    let cases: [(&str, Change); 7] = [
        ("system.max_active", |config| config.system.max_active = 7),
        ("system.entry_model", |config| {
            // It accepts connections then; the other one cannot find it, so that it has to connect as before.
            config.system.entry_model = "small".into();
            config.system.handoff_resume = false;
        }),
        ("routing.method", |config| config.routing = RoutingConfig::new("query", json!({"large_fraction": 0.5}))),
        ("routing options", |config| config.routing.options["probability"] = json!(0.6)),
        ("batching.thresholds", |config| config.batching.thresholds = ThresholdConfig::Fixed(vec![1, 2])),
        ("batching.max_wait_ms", |config| config.batching.max_wait_ms = 5.0),
        ("kv.block_size", |config| config.kv.block_size = 32),
    ];
    for (name, change) in cases {
        let name = if name == "system.entry_model" { "system.handoff_resume" } else { name };
        for why in refused(&pair, change) {
            assert!(why.contains(&format!("`{name}` is ")), "{name}: {why}");
        }
    }
}

#[test]
fn other_models_are_refused_by_name() {
    let pair = borrow();
    let why = refused(&pair, |config| {
        let model = config.models["small"].clone();
        let endpoint = config.system.peer_endpoints["small"].clone();
        // The same order, another name.
        config.models.shift_insert(0, "tiny".into(), model);
        config.models.shift_remove("small");
        config.system.peer_endpoints.insert("tiny".into(), endpoint);
        config.system.peer_endpoints.shift_remove("small");
    });
    assert!(why.iter().any(|why| why.contains("`models` is ") && why.contains("tiny, large")), "{why:?}");
}

#[test]
fn another_key_is_refused_by_either_node() {
    let pair = borrow();
    let other = borrow();
    // A node that has a key of its own making: the entry model's node does not know it.
    let [small, large] = refused(&pair, |config| {
        let endpoint = &mut config.system.peer_endpoints["large"];
        endpoint.clone_from(&other.config.system.peer_endpoints["large"]);
    });
    assert!(small.contains("its key is not the `public_key`"), "{small}");
    assert!(large.contains("another `public_key` for this node"), "{large}");
    // A node that expects another entry model.
    let [small, large] = refused(&pair, |config| {
        let key = other.config.system.peer_endpoints["small"].public_key.clone();
        config.system.peer_endpoints["small"].public_key = key;
    });
    assert!(large.contains("its key is not the `public_key`"), "{large}");
    assert!(small.contains("another `public_key` for this node"), "{small}");
}

#[test]
fn strangers_are_turned_away_and_the_peer_still_comes_in() {
    let pair = borrow();
    let small = pair.small();
    // Some say nothing, some speak another language.
    let _silent: Vec<_> = (0..8).map(|_| TcpStream::connect(address(&small)).expect("connects")).collect();
    let mut http = TcpStream::connect(address(&small)).expect("connects");
    http.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("written");
    let mut rest = Vec::new();
    let _reset = http.read_to_end(&mut rest);
    assert!(!rest.windows(4).any(|bytes| bytes == b"HTTP"), "it spoke HTTP");
    let large = pair.large(address(&small));
    wait_until("both nodes are up", || is_up(&small) && is_up(&large));
}

/// Why a node does not start.
fn fails(config: &Config, model: &str) -> String {
    Engine::launch_node(config, model).map(|_| ()).expect_err("refused").to_string()
}

#[test]
fn configurations_that_are_none_of_nodes_are_refused() {
    let pair = borrow();
    let with = |change: &dyn Fn(&mut Config)| {
        let mut config = pair.config.clone();
        change(&mut config);
        config
    };
    let error = fails(&pair.config, "smal");
    assert!(error.contains("`smal`") && error.contains("did you mean `small`"), "{error}");
    let error = fails(&with(&|config| config.system.execution = ExecutionConfig::Lockstep), "small");
    assert!(error.contains("`lockstep`"), "{error}");
    let error = fails(&with(&|config| drop(config.system.peer_endpoints.shift_remove("large"))), "small");
    assert!(error.contains("no entry for model `large`"), "{error}");
    let open = |config: &mut Config| config.system.peer_endpoints["small"].bind = "tcp://0.0.0.0:0".into();
    let error = fails(&with(&open), "small");
    assert!(error.contains("`tcp://0.0.0.0:0`") && error.contains("allow_remote_peers"), "{error}");
    let allowed = with(&|config| {
        open(config);
        config.system.allow_remote_peers = true;
    });
    drop(Engine::launch_node(&allowed, "small").expect("allowed"));
    let error = fails(&with(&|config| config.system.peer_endpoints["small"].key_file = None), "small");
    assert!(error.contains("key_file"), "{error}");
    let folder = tempfile::tempdir().expect("a folder");
    let stray = folder.path().join("stray.key");
    let public = PrivateKey::generate(&stray).expect("a key").public().to_string();
    let error = fails(&with(&|config| config.system.peer_endpoints["small"].key_file = Some(stray.clone())), "small");
    assert!(error.contains("stray.key") && error.contains(&public), "{error}");
    let yaml = "models:\n  a: {emulated: {latency_ms: 1}}\nrouting: {method: random}\nsystem:\n  peer_endpoints:\n    a:\n      \
                bind: 127.0.0.1:1\n      public_key: ''\n";
    let error = Config::from_yaml(yaml, "bad.yaml").expect_err("no address").to_string();
    assert!(error.starts_with("bad.yaml:7") && error.contains("tcp://HOST:PORT"), "{error}");
}

#[test]
fn requests_enter_at_the_entry_model_only() {
    let pair = borrow();
    let (_small, large) = pair.nodes();
    let error = large.generate(requests(1, 5).remove(0)).expect_err("refused");
    assert!(matches!(&error, SubmitError::NotEntry { local, entry } if local == "large" && entry == "small"));
    assert!(large.hosts(1) && !large.hosts(0));
}
