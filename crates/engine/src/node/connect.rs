//! Making connections: who may come in, and trying again.

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustls::{ClientConfig, ServerConfig};

use super::connection::{Incoming, Secure};
use super::hello::{self, NodeFacts, Refusal};
use super::peer::{LinkInput, Status};
use super::{NodeError, NodePlan, Outlets, Stop, bounds, peer_timeout, resolve, tls};
use crate::config::Config;
use crate::keys::{KeyError, PrivateKey, PublicKey};
use tokenrouter_core::request::ModelIndex;
use tokenrouter_core::transport::codec::{self, Bounds, MAX_PACKET};

/// Longest time until both ends know each other.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Longest wait for an answer to a connection attempt.
const CONNECT: Duration = Duration::from_secs(1);
/// Waits between two attempts: doubled from the first to the last.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Most connections whose other end is not known yet. Anybody who reaches the port can have one, for `HANDSHAKE`.
const MAX_STRANGERS: usize = 16;

/// One of the other models.
struct Peer {
    name: String,
    index: ModelIndex,
    key: PublicKey,
    /// Of messages from it.
    bounds: Bounds,
    link: SyncSender<LinkInput>,
    status: Arc<Status>,
}

/// What every connection has to pass.
pub(super) struct Entrance {
    local: String,
    own: PrivateKey,
    facts: NodeFacts,
    keys: Vec<Option<PublicKey>>,
    peers: OnceLock<Vec<Peer>>,
    write: Duration,
    strangers: AtomicUsize,
}

impl Entrance {
    pub(super) fn new(plan: &NodePlan<'_>) -> Result<Self, NodeError> {
        let config = plan.config;
        let names = config.model_names();
        let local = names[plan.local].clone();
        let endpoints = &config.system.peer_endpoints;
        let key_file = endpoints.get(&local).and_then(|endpoint| endpoint.key_file.as_ref()).ok_or_else(|| {
            NodeError::Config(format!(
                "`system.peer_endpoints.{local}.key_file` is missing (`trbench keygen` makes one)"
            ))
        })?;
        let own = PrivateKey::load(key_file)?;
        let key = |name: &String| {
            let text = endpoints.get(name).map(|endpoint| endpoint.public_key.as_str()).unwrap_or_default();
            PublicKey::from_hex(text)
                .map_err(|why| NodeError::Config(format!("`system.peer_endpoints.{name}.public_key`: {why}")))
        };
        let keys = names.iter().map(key).collect::<Result<Vec<_>, _>>()?;
        if own.public() != keys[plan.local] {
            return Err(NodeError::Key(KeyError::new(
                key_file,
                format!(
                    "its public key is {}, and `system.peer_endpoints.{local}.public_key` is {}",
                    own.public(),
                    keys[plan.local]
                ),
            )));
        }
        Ok(Self {
            local,
            own,
            facts: plan.facts.clone(),
            keys: keys.into_iter().enumerate().map(|(model, key)| (model != plan.local).then_some(key)).collect(),
            peers: OnceLock::new(),
            write: peer_timeout(config),
            strangers: AtomicUsize::new(0),
        })
    }

    /// Says whose connections go where.
    pub(super) fn set_peers(&self, plan: &NodePlan<'_>, outlets: &Outlets, statuses: &[Arc<Status>]) {
        let names = plan.config.model_names();
        let linked = self.keys.iter().zip(outlets).enumerate();
        let linked = linked.filter_map(|(index, (key, link))| Some((index, (*key)?, link.clone()?)));
        let peers = linked.zip(statuses).map(|((index, key, link), status)| Peer {
            name: names[index].clone(),
            index,
            key,
            bounds: bounds(plan, index, plan.local),
            link,
            status: Arc::clone(status),
        });
        let _only_once = self.peers.set(peers.collect());
    }

    fn peers(&self) -> &[Peer] {
        self.peers.get().map_or(&[], Vec::as_slice)
    }

    /// Greets, then reads until the connection ends. `expected` is the model that must be there, when that is known.
    fn serve(&self, connection: Secure, expected: Option<ModelIndex>, deadline: Instant) -> Result<(), Refusal> {
        let mut incoming = Incoming::default();
        let find = |name: &str| {
            let peer = self.peers().iter().find(|peer| peer.name == name && expected.is_none_or(|e| e == peer.index));
            let peer = peer.ok_or_else(|| format!("model `{name:.100}` is no peer here"))?;
            if connection.peer_has(peer.key) {
                return Ok(peer.index);
            }
            Err(format!("model `{name}` has another key than its `public_key` in `system.peer_endpoints`"))
        };
        let index = hello::exchange(&connection, &mut incoming, (&self.local, &self.facts), &find, deadline)?;
        connection.established(self.write)?;
        let peer = self.peers().iter().find(|peer| peer.index == index).expect("found above");
        let connection = Arc::new(connection);
        if peer.link.send(LinkInput::Connected(Arc::clone(&connection))).is_err() {
            return Ok(());
        }
        let broken = loop {
            let decode = |frame: &[u8]| codec::decode(frame, &peer.bounds);
            match connection.receive(&mut incoming, MAX_PACKET, None, decode) {
                Ok(Ok(packet)) => {
                    if peer.link.send(LinkInput::Packet(packet)).is_err() {
                        return Ok(());
                    }
                }
                Ok(Err(error)) => break Some(format!("a message that is none: {error}")),
                Err(_) => break None,
            }
        };
        connection.shutdown();
        let _stopped = peer.link.send(LinkInput::Broken(connection));
        if let Some(why) = broken {
            peer.status.problem(why);
        }
        Ok(())
    }
}

/// Accepts connections.
pub(super) struct Acceptor {
    pub(super) listener: TcpListener,
    pub(super) entrance: Arc<Entrance>,
    pub(super) stop: Arc<Stop>,
}

impl Acceptor {
    pub(super) fn run(self) {
        let keys: Vec<PublicKey> = self.entrance.keys.iter().flatten().copied().collect();
        let config = match tls::server(&self.entrance.own, &keys) {
            Ok(config) => config,
            Err(error) => return tracing::error!(target: "tokenrouter", "no TLS: {error}"),
        };
        loop {
            let accepted = self.listener.accept();
            if self.stop.is_set() {
                return;
            }
            match accepted {
                Ok((socket, _)) => self.admit(socket, &config),
                // Such as too many open files: an immediate retry would spin.
                Err(error) => {
                    tracing::warn!(target: "tokenrouter", "cannot accept a connection of a peer: {error}");
                    if self.stop.wait(BACKOFF.1) {
                        return;
                    }
                }
            }
        }
    }

    fn admit(&self, socket: TcpStream, config: &Arc<ServerConfig>) {
        if self.entrance.strangers.fetch_add(1, Ordering::AcqRel) >= MAX_STRANGERS {
            self.entrance.strangers.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let (entrance, stop, config) = (Arc::clone(&self.entrance), Arc::clone(&self.stop), Arc::clone(config));
        let from = socket.peer_addr().map_or_else(|_| "?".into(), |address| address.to_string());
        let body = move || {
            stop.watch(&socket);
            let deadline = Instant::now() + HANDSHAKE;
            let secure = Secure::accept(socket, config, deadline);
            entrance.strangers.fetch_sub(1, Ordering::AcqRel);
            let served = secure.map_err(Refusal::from).and_then(|secure| entrance.serve(secure, None, deadline));
            if let Err(why) = served
                && !stop.is_set()
            {
                // Who it was is not known for sure, so it is everybody's problem.
                entrance.peers().iter().for_each(|peer| peer.status.problem(format!("refused {}: {why}", host(&from))));
            }
        };
        if let Err(error) = std::thread::Builder::new().name("peer-read".into()).spawn(body) {
            self.entrance.strangers.fetch_sub(1, Ordering::AcqRel);
            tracing::warn!(target: "tokenrouter", "cannot start a thread for a peer: {error}");
        }
    }
}

/// Without the port, which is another one every time.
fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// Connects to one peer, and again.
pub(super) struct Dialer {
    peer: ModelIndex,
    advertise: String,
    tls: Arc<ClientConfig>,
    entrance: Arc<Entrance>,
    stop: Arc<Stop>,
}

impl Dialer {
    pub(super) fn new(
        config: &Config,
        peer: ModelIndex,
        entrance: Arc<Entrance>,
        stop: Arc<Stop>,
    ) -> Result<Self, NodeError> {
        let name = &config.model_names()[peer];
        let endpoint = config.system.peer_endpoints.get(name);
        let advertise = endpoint.map(|endpoint| endpoint.advertise().to_owned()).unwrap_or_default();
        let key = entrance.keys[peer].ok_or_else(|| NodeError::Config(format!("model `{name}` has no key")))?;
        let tls = tls::client(&entrance.own, key).map_err(|error| NodeError::System(format!("no TLS: {error}")))?;
        Ok(Self { peer, advertise, tls, entrance, stop })
    }

    pub(super) fn run(self) {
        let mut wait = BACKOFF.0;
        while !self.stop.is_set() {
            match self.attempt() {
                Ok(()) => wait = BACKOFF.0,
                Err(why) => self.note(&why),
            }
            if self.stop.wait(wait) {
                return;
            }
            wait = (wait * 2).min(BACKOFF.1);
        }
    }

    fn note(&self, why: &Refusal) {
        if let Some(peer) = self.entrance.peers().iter().find(|peer| peer.index == self.peer)
            && !self.stop.is_set()
        {
            peer.status.problem(format!("{}: {why}", self.advertise));
        }
    }

    /// Connects, and reads until the connection ends.
    fn attempt(&self) -> Result<(), Refusal> {
        let addresses = resolve(&self.advertise).map_err(Refusal::Mismatch)?;
        let mut last = None;
        let connect = |address| TcpStream::connect_timeout(address, CONNECT).map_err(|error| last = Some(error)).ok();
        let Some(socket) = addresses.iter().find_map(connect) else {
            return Err(last.map_or_else(|| Refusal::Mismatch("no address".into()), Refusal::from));
        };
        self.stop.watch(&socket);
        let deadline = Instant::now() + HANDSHAKE;
        let secure = Secure::connect(socket, Arc::clone(&self.tls), deadline)?;
        self.entrance.serve(secure, Some(self.peer), deadline)
    }
}
