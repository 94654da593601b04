//! A server on a thread of its own, and a routing policy that tests can hold.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokenrouter_core::routing::{BatchView, Decision, RoutingPolicy};
use tokenrouter_core::scheduler::Snapshot;
use tokenrouter_engine::config::ServerConfig;
use tokenrouter_engine::server::{ApiKeys, ServeError, serve};
use tokenrouter_engine::{Config, Engine};

use crate::client::{Response, post};

pub(crate) const SMALL: usize = 0;
pub(crate) const LARGE: usize = 1;
/// Seeds that say what becomes of a request.
pub(crate) const STAYS: u64 = 0;
pub(crate) const GOES: u64 = 1;
pub(crate) const PANICS: u64 = 2;
/// Longest time for anything to happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is so.
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "{what} did not come about");
        std::thread::yield_now();
    }
}

/// Holds the large model in the middle of a step.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    closed: Mutex<bool>,
    changed: Condvar,
    /// Steps that came to the gate.
    entered: AtomicUsize,
}

impl Gate {
    pub(crate) fn set(&self, closed: bool) {
        *self.closed.lock().expect("not poisoned") = closed;
        self.changed.notify_all();
    }

    pub(crate) fn entered(&self) -> usize {
        self.entered.load(Ordering::Acquire)
    }

    fn pass(&self) {
        self.entered.fetch_add(1, Ordering::Release);
        let closed = self.closed.lock().expect("not poisoned");
        let _open = self.changed.wait_while(closed, |closed| *closed).expect("not poisoned");
    }
}

#[derive(Debug)]
struct BySeed(Arc<Gate>);

impl RoutingPolicy for BySeed {
    fn route(&self, batch: &mut BatchView<'_>) {
        if batch.rows().iter().any(|row| row.model == LARGE) {
            self.0.pass();
        }
        batch.decide(|row, _| match row.seed {
            GOES if row.model == SMALL => Decision::Switch(LARGE),
            PANICS => panic!("a test wants this"),
            _ => Decision::Stay,
        });
    }
}

/// A server and its engine.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Arc<Engine>,
    pub(crate) gate: Arc<Gate>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

/// Two emulated models of 1 ms a step; `more` is YAML on top of that.
pub(crate) fn emulated(more: &str) -> Running {
    let yaml = format!(
        "models: {{small: {{emulated: {{latency_ms: 1}}}}, large: {{emulated: {{latency_ms: 1}}}}}}\n\
         routing: {{method: random}}\n{more}\n"
    );
    let config = Config::from_yaml(&yaml, "test.yaml").unwrap_or_else(|error| panic!("{error}"));
    let gate = Arc::new(Gate::default());
    let policy = Arc::clone(&gate);
    let make = move |_: &_| -> Result<Box<dyn RoutingPolicy>, String> { Ok(Box::new(BySeed(Arc::clone(&policy)))) };
    let engine = Engine::launch_with(&config, &make).expect("launches");
    Running::start(engine, config.server, ApiKeys::default(), gate)
}

impl Running {
    pub(crate) fn start(engine: Engine, config: ServerConfig, keys: ApiKeys, gate: Arc<Gate>) -> Self {
        let engine = Arc::new(engine);
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (send, address) = std::sync::mpsc::channel();
        let served = Arc::clone(&engine);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
                send.send(listener.local_addr().expect("an address")).expect("the test waits");
                let shutdown = async {
                    let _stopped = stopped.await;
                };
                serve(listener, served, config, keys, shutdown).await
            })
        });
        Self { address: address.recv().expect("starts"), engine, gate, stop: Some(stop), thread: Some(thread) }
    }

    /// Asks for tokens of a prompt of ids; the seed says what becomes of the request.
    pub(crate) fn ask(&self, seed: u64, tokens: usize, more: &Value) -> Response {
        post(self.address, "/generate", &body(seed, tokens, more))
    }

    pub(crate) fn snapshot(&self, model: usize) -> Snapshot {
        self.engine.snapshots().swap_remove(model)
    }

    pub(crate) fn open(&self) -> usize {
        self.engine.stats().open_requests
    }

    /// Waits until nothing is held by anybody.
    pub(crate) fn baseline(&self) {
        until("an empty engine", || {
            let idle = |s: Snapshot| s.kv_held + s.occupancy.pending + s.occupancy.queued == 0;
            self.open() == 0 && self.engine.snapshots().into_iter().all(idle)
        });
    }

    /// Begins the shutdown.
    pub(crate) fn begin_shutdown(&mut self) {
        let _serving = self.stop.take().expect("once").send(());
    }

    /// Waits for the end of the server.
    pub(crate) fn join(&mut self) {
        self.thread.take().expect("once").join().expect("no panic").expect("no error");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.gate.set(false);
        if let Some(stop) = self.stop.take() {
            let _serving = stop.send(());
        }
    }
}

pub(crate) fn body(seed: u64, tokens: usize, more: &Value) -> Value {
    let mut body = json!({
        "input_ids": [1, 2, 3], "stream": true,
        "sampling_params": {"max_new_tokens": tokens, "sampling_seed": seed, "ignore_eos": true},
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        body[key] = value.clone();
    }
    body
}
