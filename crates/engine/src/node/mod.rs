//! One model of a system on a node of its own: connections to the nodes of the others.
//!
//! For each peer there is a thread that owns its [`tokenrouter_core::transport::Link`], and a thread that reads from the connection. The
//! node of the entry model accepts connections, the others connect, again and again if need be. A connection that breaks
//! costs time and nothing else: the link repeats what has not arrived. A peer that stays silent for `peer_timeout` is lost
//! ([`tokenrouter_core::scheduler::Event::PeerLost`]), and may come back. `docs/guides/two-nodes.md` and `docs/reference/security.md`.

mod bench;
mod connect;
mod connection;
mod hello;
mod peer;
mod tls;

use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use crate::keys::{KeyError, PrivateKey, PublicKey};
pub use bench::{LinkLatency, link_latency};
pub(crate) use hello::NodeFacts;
pub use peer::PeerView;
pub(crate) use peer::{LinkInput, Status};

use self::connect::{Acceptor, Dialer, Entrance};
use self::peer::PeerThread;
use crate::config::Config;
use crate::driver::Inbound;
use tokenrouter_core::request::ModelIndex;
use tokenrouter_core::transport::codec::Bounds;
use tokenrouter_core::transport::{Link, LinkConfig};

/// A node could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// A key file cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// An address cannot be used.
    #[error("`system.peer_endpoints.{model}.{key}` is `{value}`: {why}")]
    Address {
        /// The endpoint.
        model: String,
        /// `bind` or `advertise`.
        key: &'static str,
        /// Its value.
        value: String,
        /// Why.
        why: String,
    },
    /// The configuration does not say enough, or too much.
    #[error("{0}")]
    Config(String),
    /// The operating system refused.
    #[error("{0}")]
    System(String),
}

/// What a node needs to know of its system.
pub(crate) struct NodePlan<'a> {
    pub(crate) config: &'a Config,
    /// The model of this node.
    pub(crate) local: ModelIndex,
    pub(crate) vocab: usize,
    pub(crate) token_limit: usize,
    pub(crate) facts: NodeFacts,
    /// The engine's time zero.
    pub(crate) start: Instant,
}

/// Ends threads that wait.
#[derive(Debug, Default)]
struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
    /// Sockets that threads may wait for.
    sockets: Mutex<Vec<TcpStream>>,
}

impl Stop {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_set(&self) -> bool {
        *self.lock()
    }

    /// Waits; true when it is time to stop.
    fn wait(&self, time: Duration) -> bool {
        let result = self.changed.wait_timeout_while(self.lock(), time, |stopped| !*stopped);
        *result.unwrap_or_else(PoisonError::into_inner).0
    }

    /// The socket is shut down at the stop.
    fn watch(&self, socket: &TcpStream) {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that have ended have no peer any more.
        sockets.retain(|socket| socket.peer_addr().is_ok());
        sockets.extend(socket.try_clone());
        if self.is_set() {
            sockets.iter().for_each(|socket| drop(socket.shutdown(std::net::Shutdown::Both)));
        }
    }

    fn set(&self) {
        *self.lock() = true;
        self.changed.notify_all();
        let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.iter().for_each(|socket| drop(socket.shutdown(std::net::Shutdown::Both)));
    }
}

/// The connections of a node.
#[derive(Debug)]
pub(crate) struct Node {
    statuses: Vec<Arc<Status>>,
    inputs: Vec<SyncSender<LinkInput>>,
    address: Option<SocketAddr>,
    stop: Arc<Stop>,
    threads: Vec<JoinHandle<()>>,
}

/// Where each model's messages go from here, by model.
pub(crate) type Outlets = Vec<Option<SyncSender<LinkInput>>>;

impl Node {
    /// Starts the threads. `inbox` is that of the node's subserver, `room` the messages that may wait for it.
    pub(crate) fn start(
        plan: &NodePlan<'_>,
        inbox: &SyncSender<Inbound>,
        room: usize,
    ) -> Result<(Self, Outlets), NodeError> {
        let (config, local) = (plan.config, plan.local);
        let names = config.model_names();
        let entry = config.entry_index();
        let entrance = Arc::new(Entrance::new(plan)?);
        let stop = Arc::new(Stop::default());
        let mut node = Self {
            statuses: Vec::new(),
            inputs: Vec::new(),
            address: None,
            stop: Arc::clone(&stop),
            threads: Vec::new(),
        };
        let mut outlets: Outlets = vec![None; names.len()];
        for peer in (0..names.len()).filter(|peer| *peer != local) {
            let (sender, inputs) = sync_channel(room);
            let status = Arc::new(Status::new(&names[peer]));
            let thread = PeerThread {
                link: Link::new(link_config(config), epoch_micros(), plan.start.elapsed()),
                inputs,
                inbox: inbox.clone(),
                bounds: bounds(plan, local, peer),
                status: Arc::clone(&status),
                start: plan.start,
                silence: peer_timeout(config) / 3,
                connection: None,
                heard: Duration::ZERO,
                buffers: peer::Buffers::default(),
            };
            node.threads.push(spawn(format!("peer-{}", names[peer]), move || thread.run())?);
            node.statuses.push(status);
            node.inputs.push(sender.clone());
            outlets[peer] = Some(sender);
        }
        entrance.set_peers(plan, &outlets, &node.statuses);
        // One of two listens: that of the entry model, or else that of the earlier one.
        let accepts = |a: ModelIndex, b: ModelIndex| a == entry || (b != entry && a < b);
        if (0..names.len()).any(|peer| peer != local && accepts(local, peer)) {
            let listener = listen(config, &names[local])?;
            node.address = listener.local_addr().ok();
            let acceptor = Acceptor { listener, entrance: Arc::clone(&entrance), stop: Arc::clone(&stop) };
            node.threads.push(spawn("peer-accept".into(), move || acceptor.run())?);
        }
        for peer in (0..names.len()).filter(|peer| *peer != local && accepts(*peer, local)) {
            let dialer = Dialer::new(config, peer, Arc::clone(&entrance), Arc::clone(&stop))?;
            node.threads.push(spawn(format!("peer-dial-{}", names[peer]), move || dialer.run())?);
        }
        Ok((node, outlets))
    }

    /// How the peers are.
    pub(crate) fn peers(&self) -> Vec<PeerView> {
        self.statuses.iter().map(|status| status.view()).collect()
    }

    /// Where it accepts connections, if it does.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.set();
        for inputs in &self.inputs {
            // A thread that waits for the subserver, which has ended, ends by itself.
            let _ended = inputs.send(LinkInput::Stop);
        }
        if let Some(mut address) = self.address {
            if address.ip().is_unspecified() {
                address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
            }
            // There is no other way to wake a thread that accepts.
            let _woken = TcpStream::connect_timeout(&address, Duration::from_secs(1));
        }
        for thread in self.threads.drain(..) {
            let _reported_already = thread.join();
        }
    }
}

fn bounds(plan: &NodePlan<'_>, from: ModelIndex, to: ModelIndex) -> Bounds {
    Bounds {
        from,
        to,
        entry: plan.config.entry_index(),
        models: plan.config.models.len(),
        vocab: plan.vocab,
        token_limit: plan.token_limit,
    }
}

fn peer_timeout(config: &Config) -> Duration {
    Duration::from_millis(config.system.peer_timeout_ms)
}

fn link_config(config: &Config) -> LinkConfig {
    let peer_timeout = peer_timeout(config);
    LinkConfig {
        window: 1024,
        max_queued: 1 << 16,
        // A connection loses nothing: only a new one has to repeat, and that it does at once.
        retransmit: peer_timeout,
        heartbeat: peer_timeout / 12,
        peer_timeout,
    }
}

/// Rises from one start of a node to the next.
fn epoch_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_micros() as u64)
}

/// The same for the scheduler core.
pub(crate) fn epoch_millis() -> u64 {
    epoch_micros() / 1000
}

fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, NodeError> {
    let builder = std::thread::Builder::new().name(name);
    builder.spawn(body).map_err(|error| NodeError::System(format!("cannot start a thread: {error}")))
}

/// The listener of a node. Addresses that others reach are refused unless the configuration says otherwise.
fn listen(config: &Config, model: &str) -> Result<TcpListener, NodeError> {
    let value = config.system.peer_endpoints.get(model).map(|endpoint| endpoint.bind.clone()).unwrap_or_default();
    let fail = |why: String| NodeError::Address { model: model.to_owned(), key: "bind", value: value.clone(), why };
    let addresses = resolve(&value).map_err(&fail)?;
    if let Some(open) = addresses.iter().find(|address| !address.ip().is_loopback())
        && !config.system.allow_remote_peers
    {
        let why = format!("{} can be reached by others; say so with `system.allow_remote_peers: true`", open.ip());
        return Err(fail(why));
    }
    TcpListener::bind(&addresses[..]).map_err(|error| fail(error.to_string()))
}

/// The addresses of `tcp://HOST:PORT`.
fn resolve(value: &str) -> Result<Vec<SocketAddr>, String> {
    let host = value.strip_prefix("tcp://").ok_or("allowed is `tcp://HOST:PORT`")?;
    let addresses: Vec<SocketAddr> = host.to_socket_addrs().map_err(|error| error.to_string())?.collect();
    if addresses.is_empty() { Err("it has no address".into()) } else { Ok(addresses) }
}
