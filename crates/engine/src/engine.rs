//! The engine: loads models, starts one subserver per model, takes requests, gives out token streams.

mod launch;
mod limits;
mod load;
mod node;
mod plan;
mod resources;
mod start;
mod stream;
mod thresholds;
mod virtual_time;

pub use plan::Plan;
pub use stream::TokenStream;
pub use virtual_time::{Timed, VirtualEngine, VirtualStream};

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::mpsc;

use crate::adaptation::Worker;
use crate::config::{Config, ConfigError, ExecutionConfig};
use crate::driver::{DetachedStates, Inbound, Shared, Streams};
use crate::model::ModelError;
use crate::node::{Node, NodeError, PeerView};
use crate::profile::{Recorder, Span};
use crate::tokenizer::TextCodec;
use limits::Limits;
use tokenrouter_core::request::{ModelIndex, Request, RequestId};
use tokenrouter_core::routing::registry::{self, BuiltPolicy, SystemView};
use tokenrouter_core::scheduler::{Event, MAX_STEPS_WITHOUT_COMMIT, ModelStats, Snapshot};
use tokenrouter_core::token_texts::TokenTexts;

/// What a configuration has room for.
#[derive(Debug)]
pub struct Capacity {
    /// Tokens that the KV cache of each model holds.
    pub kv_tokens: usize,
    /// Most tokens of one request, prompt and output.
    pub token_limit: usize,
    /// The tokenizer; emulated models have none.
    pub text: Option<TextCodec>,
}

/// An engine could not be launched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A model could not be loaded.
    #[error("model `{name}`: {reason}")]
    Model {
        /// The model's name.
        name: String,
        /// Why. It is part of the message, so it is no source.
        reason: Box<ModelError>,
    },
    /// The configuration is valid, but not for these models.
    #[error("{0}")]
    Unusable(String),
    /// The operating system refused.
    #[error("cannot start a thread: {0}")]
    Thread(String),
    /// This node could not be started.
    #[error(transparent)]
    Node(#[from] NodeError),
}

/// A request was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The prompt is empty or has an id outside the vocabulary, or a parameter is out of range.
    #[error("{0}")]
    Invalid(String),
    /// The prompt leaves no room for output.
    #[error("the prompt has {prompt} tokens, and a request may have at most {limit} tokens with its output")]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Most tokens of prompt and output.
        limit: usize,
    },
    /// Too many requests are waiting.
    #[error("{open} requests are open, at most {limit} are allowed (`max_active` + `max_queued`)")]
    Overloaded {
        /// Open requests.
        open: usize,
        /// Their bound.
        limit: usize,
    },
    /// The engine drains or has stopped.
    #[error("the engine is shutting down")]
    ShuttingDown,
    /// Requests enter elsewhere.
    #[error("this node serves model `{local}`, requests enter at the node of model `{entry}`")]
    NotEntry {
        /// The model of this node.
        local: String,
        /// The entry model.
        entry: String,
    },
    /// A subserver has stopped by a fault: nothing can be served any more.
    #[error("a subserver has failed")]
    Failed,
}

/// Counters of an engine.
#[derive(Debug, Clone, Serialize)]
pub struct EngineStats {
    /// Model names, in order.
    pub names: Vec<String>,
    /// Counters of each model.
    pub models: Vec<ModelStats>,
    /// KV blocks held by each model.
    pub held_blocks: Vec<usize>,
    /// Requests open, admitted or queued.
    pub open_requests: usize,
}

struct Inner {
    names: Vec<String>,
    entry: ModelIndex,
    inboxes: Vec<SyncSender<Inbound>>,
    streams: Arc<Streams>,
    shared: Vec<Arc<Shared>>,
    next_id: AtomicU64,
    accepting: AtomicBool,
    healthy: Arc<AtomicBool>,
    /// Who failed first.
    failed: Arc<OnceLock<String>>,
    limits: Limits,
    /// Present when clients take requests from model to model (`system.execution: standard`).
    detached: Option<Arc<DetachedStates>>,
    /// The model of this node, when each has its own.
    local: Option<ModelIndex>,
}

impl Inner {
    /// Never blocks for long: the inbox has room for every open request.
    fn tell(&self, model: ModelIndex, event: Event) {
        let mut inbound = Inbound::Event(event);
        while let Err(TrySendError::Full(back)) = self.inboxes[model].try_send(inbound) {
            inbound = back;
            std::thread::yield_now();
        }
    }

    /// Takes a request on to another model, as a new one.
    fn go_on(&self, id: RequestId, to: ModelIndex, request: Arc<Request>) {
        self.tell(to, Event::ClientRequest(id, request));
        if self.streams.is_aborted(id) {
            self.tell(to, Event::Cancel(id));
        }
    }
}

/// A running routed system.
pub struct Engine {
    inner: Arc<Inner>,
    threads: Vec<JoinHandle<()>>,
    node: Option<Node>,
    /// With `batching.thresholds: adaptive`.
    worker: Option<Worker>,
    text: Option<TextCodec>,
    texts: Option<Arc<TokenTexts>>,
    info: LaunchInfo,
}

/// What an engine decided at launch.
#[derive(Debug, Clone, Serialize)]
pub struct LaunchInfo {
    /// One line per model.
    pub models: Vec<String>,
    /// The routing method.
    pub routing: String,
    /// Most requests decoded at the same time.
    pub max_active: usize,
    /// Thresholds at `max_active` requests.
    pub thresholds: Vec<u32>,
    /// Who steps the models.
    pub execution: ExecutionConfig,
    /// Whether KV blocks stay for the return of a request.
    pub handoff_resume: bool,
    /// Tokens that each model's KV cache holds.
    pub kv_tokens: usize,
    /// Most tokens of one request, prompt and output.
    pub token_limit: usize,
    /// Whether latency profiles stand in for the models.
    pub emulated: bool,
    /// Whether they do so in virtual time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub virtual_time: bool,
    /// The model of this node, when each has its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_model: Option<String>,
    /// Conditions worth a warning.
    pub warnings: Vec<String>,
}

impl Engine {
    /// What a configuration has room for: its models' files are opened, and their weights not loaded.
    ///
    /// # Errors
    /// As [`Engine::launch`].
    pub fn capacity(config: &Config) -> Result<Capacity, EngineError> {
        launch::capacity(config)
    }

    /// Loads the models and starts the subservers. Blocks until all are ready.
    pub fn launch(config: &Config) -> Result<Self, EngineError> {
        launch::launch(&Plan::new(config)?, config, &|view| registry::build(&config.routing, view))
    }

    /// Launches one model of a system whose other model has a node of its own (`system.peer_endpoints`). Does not wait
    /// for the peer.
    pub fn launch_node(config: &Config, model: &str) -> Result<Self, EngineError> {
        launch::launch(&Plan::for_node(config, model)?, config, &|view| registry::build(&config.routing, view))
    }

    /// Like [`Self::launch`], with a policy that is not in the registry: `make` builds it from what is known of the
    /// models. `config.routing` only gives its name.
    pub fn launch_with(config: &Config, make: &dyn Fn(&SystemView) -> BuiltPolicy) -> Result<Self, EngineError> {
        launch::launch(&Plan::new(config)?, config, make)
    }

    /// Takes a request. Its tokens come out of the stream as they are committed; dropping the stream cancels it.
    pub fn generate(&self, request: Request) -> Result<TokenStream, SubmitError> {
        let inner = &self.inner;
        self.check_accepting()?;
        let request = inner.limits.check(request, inner.streams.len())?;
        let id = RequestId(inner.next_id.fetch_add(1, Ordering::Relaxed));
        // Room for every token, every step of a trace, and the end: the engine never waits for a slow reader.
        let logprobs = if request.logprobs.is_some() { request.sampling.max_tokens } else { 0 };
        let steps =
            if request.trace { request.sampling.max_tokens * (MAX_STEPS_WITHOUT_COMMIT as usize + 1) } else { 0 };
        let (sender, receiver) = mpsc::channel(request.sampling.max_tokens + logprobs + steps + 1);
        let admitted = inner.streams.insert(id, sender);
        let hops = inner.detached.is_some().then(|| stream::Hops::new(&request, inner.entry));
        inner.tell(inner.entry, Event::ClientRequest(id, Arc::new(request)));
        if !inner.healthy.load(Ordering::Acquire) {
            inner.streams.remove(id);
            return Err(SubmitError::Failed);
        }
        Ok(TokenStream::new(id, (receiver, admitted), Arc::clone(inner), hops))
    }

    fn check_accepting(&self) -> Result<(), SubmitError> {
        let inner = &self.inner;
        if !inner.healthy.load(Ordering::Acquire) {
            return Err(SubmitError::Failed);
        }
        if !inner.accepting.load(Ordering::Acquire) {
            return Err(SubmitError::ShuttingDown);
        }
        if let Some(local) = inner.local.filter(|local| *local != inner.entry) {
            let name = |model: ModelIndex| inner.names[model].clone();
            return Err(SubmitError::NotEntry { local: name(local), entry: name(inner.entry) });
        }
        Ok(())
    }

    /// Cancels a request by id.
    pub fn abort(&self, id: RequestId) {
        let inner = &self.inner;
        if inner.detached.is_none() {
            return inner.tell(inner.entry, Event::Cancel(id));
        }
        // Marked first: a request that is between two models is cancelled where it arrives.
        inner.streams.abort(id);
        (0..inner.inboxes.len()).for_each(|model| inner.tell(model, Event::Cancel(id)));
    }

    /// Takes no new requests and waits for the open ones; returns whether all ended in time.
    pub fn drain(&self, timeout: Duration) -> bool {
        self.inner.accepting.store(false, Ordering::Release);
        self.inner.streams.wait_empty(timeout)
    }

    /// The subserver that failed first, if one did.
    pub fn failed(&self) -> Option<&str> {
        self.inner.failed.get().map(String::as_str)
    }

    /// The model of this node, when each model has its own.
    pub fn local_model(&self) -> Option<ModelIndex> {
        self.inner.local
    }

    /// Whether a model runs in this process.
    pub fn hosts(&self, model: ModelIndex) -> bool {
        self.inner.local.is_none_or(|local| local == model)
    }

    /// How the nodes of the other models are; empty when all models run in this process.
    pub fn peers(&self) -> Vec<PeerView> {
        self.node.as_ref().map(Node::peers).unwrap_or_default()
    }

    /// Where this node accepts connections of others, if it does.
    pub fn peer_address(&self) -> Option<std::net::SocketAddr> {
        self.node.as_ref().and_then(Node::address)
    }

    /// Whether all subservers run.
    pub fn is_healthy(&self) -> bool {
        self.inner.healthy.load(Ordering::Acquire)
    }

    /// Counters, as of each model's last step.
    pub fn stats(&self) -> EngineStats {
        let snapshots = self.snapshots();
        EngineStats {
            names: self.inner.names.clone(),
            held_blocks: snapshots.iter().map(|snapshot| snapshot.kv_held).collect(),
            models: snapshots.into_iter().map(|snapshot| snapshot.stats).collect(),
            open_requests: self.inner.streams.len(),
        }
    }

    /// What every subserver says of itself, by model. No step waits for a reader.
    pub fn snapshots(&self) -> Vec<Snapshot> {
        self.inner.shared.iter().map(|shared| shared.snapshot()).collect()
    }

    /// What every subserver did when, by model; empty without `system.profile`.
    pub fn profile(&self) -> Vec<Vec<Span>> {
        let spans = |shared: &Arc<Shared>| shared.recorder.as_ref().map(Recorder::spans).unwrap_or_default();
        self.inner.shared.iter().map(spans).collect()
    }

    /// Tokenizer and chat template; absent when the models are emulated.
    pub fn text(&self) -> Option<&TextCodec> {
        self.text.as_ref()
    }

    /// The bytes of every token; absent when the models are emulated.
    pub fn token_texts(&self) -> Option<&TokenTexts> {
        self.texts.as_deref()
    }

    /// What was decided at launch.
    pub fn info(&self) -> &LaunchInfo {
        &self.info
    }

    /// Model names, in order.
    pub fn model_names(&self) -> &[String] {
        &self.inner.names
    }

    /// Index of the model at which requests start.
    pub fn entry_index(&self) -> ModelIndex {
        self.inner.entry
    }

    /// Most requests that may be open at a time.
    pub fn most_open(&self) -> usize {
        self.inner.limits.max_open
    }

    /// Vocabulary size.
    pub fn vocab(&self) -> usize {
        self.inner.limits.vocab
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("info", &self.info).finish_non_exhaustive()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.inner.accepting.store(false, Ordering::Release);
        self.worker = None;
        for inbox in &self.inner.inboxes {
            // A subserver empties its inbox between steps; a dead one has closed it.
            let _closed = inbox.send(Inbound::Stop);
        }
        for thread in self.threads.drain(..) {
            let _reported_already = thread.join();
        }
        // After the subserver, which its threads may be waiting for.
        self.node = None;
        self.inner.streams.fail_all("the engine has stopped");
    }
}
