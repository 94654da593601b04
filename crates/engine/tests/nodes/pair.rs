//! Keys, configurations and nodes of a pair of models.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokenrouter_core::routing::RoutingConfig;
use tokenrouter_core::{CommittedToken, FinishReason, Request, SamplingParams, StepRecord, StreamEvent};
use tokenrouter_engine::config::{Config, PeerEndpoint};
use tokenrouter_engine::node::{PeerView, PrivateKey};
use tokenrouter_engine::{Engine, TokenStream};

/// The names of the models; requests enter at the first.
pub(crate) const NAMES: [&str; 2] = ["small", "large"];

/// A system of two emulated models with the keys of both nodes.
pub(crate) struct Pair {
    pub(crate) config: Config,
    _keys: tempfile::TempDir,
}

impl Pair {
    pub(crate) fn new(routing: RoutingConfig) -> Self {
        let yaml = "models:\n  small: {emulated: {latency_ms: 0.02}}\n  large: {emulated: {latency_ms: 0.05}}\n\
                    routing: {method: random}\nsystem: {max_tokens_per_request: 256, peer_timeout_ms: 3000}\n";
        let mut config = Config::from_yaml(yaml, "nodes.yaml").expect("a valid configuration");
        config.routing = routing;
        Self::of(config)
    }

    /// Gives a configuration endpoints and keys.
    pub(crate) fn of(mut config: Config) -> Self {
        let keys = tempfile::tempdir().expect("a folder");
        for name in NAMES {
            let path = keys.path().join(format!("{name}.key"));
            let key = PrivateKey::generate(&path).expect("a key");
            let endpoint = PeerEndpoint {
                bind: "tcp://127.0.0.1:0".into(),
                advertise: String::new(),
                public_key: key.public().to_string(),
                key_file: Some(path),
            };
            config.system.peer_endpoints.insert(name.into(), endpoint);
        }
        Self { config, _keys: keys }
    }

    /// The node of the entry model.
    pub(crate) fn small(&self) -> Engine {
        Engine::launch_node(&self.config, "small").expect("launches")
    }

    /// The configuration of the other node, which finds the entry model's at `address`.
    pub(crate) fn config_at(&self, address: SocketAddr) -> Config {
        let mut config = self.config.clone();
        config.system.peer_endpoints["small"].advertise = format!("tcp://{address}");
        config
    }

    pub(crate) fn large(&self, address: SocketAddr) -> Engine {
        Engine::launch_node(&self.config_at(address), "large").expect("launches")
    }

    /// Both nodes, connected.
    pub(crate) fn nodes(&self) -> (Engine, Engine) {
        let small = self.small();
        let large = self.large(address(&small));
        wait_until("both nodes are up", || is_up(&small) && is_up(&large));
        (small, large)
    }
}

pub(crate) fn address(engine: &Engine) -> SocketAddr {
    engine.peer_address().expect("the entry model's node accepts connections")
}

pub(crate) fn peer(engine: &Engine) -> PeerView {
    engine.peers().pop().expect("one peer")
}

pub(crate) fn is_up(engine: &Engine) -> bool {
    peer(engine).is_up()
}

/// Longest wait for something that happens soon, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::yield_now();
    }
}

pub(crate) fn held(engine: &Engine) -> usize {
    engine.stats().held_blocks.iter().sum()
}

pub(crate) fn requests(count: u64, tokens: usize) -> Vec<Request> {
    let request = |key: u64| {
        let sampling = SamplingParams { max_tokens: tokens + key as usize, seed: 9, ..SamplingParams::default() };
        let prompt = (0..40 + key as u32).map(|i| (i * 31 + key as u32 % 2) % 1000).collect();
        Request { trace: true, ..Request::new(prompt, sampling, key) }
    };
    (0..count).map(request).collect()
}

pub(crate) type Answer = (Vec<StepRecord>, Vec<CommittedToken>, FinishReason, u64);

pub(crate) fn collect(mut stream: TokenStream) -> Answer {
    let (mut steps, mut tokens) = (Vec::new(), Vec::new());
    while let Some(event) = stream.blocking_next() {
        match event {
            StreamEvent::Step(step) => steps.push(step),
            StreamEvent::Logprobs(_) => {}
            StreamEvent::Token(token) => tokens.push(token),
            StreamEvent::Finished(reason, stats) => return (steps, tokens, reason, stats.handoffs),
        }
    }
    panic!("the stream ended without an end");
}

pub(crate) fn run(engine: &Engine, requests: &[Request]) -> Vec<Answer> {
    let streams: Vec<_> = requests.iter().map(|request| engine.generate(request.clone()).expect("taken")).collect();
    streams.into_iter().map(collect).collect()
}

/// What one process makes of the requests.
pub(crate) fn expected(config: &Config, requests: &[Request]) -> Vec<Answer> {
    run(&Engine::launch(config).expect("launches"), requests)
}
