//! The thread of one peer: it owns the link, numbers and repeats messages, writes packets, and notices silence. Readers of
//! connections and the subserver send it what comes; it never waits for the subserver's link thread at the other end.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::connection::{Secure, begin_frame, end_frame};
use crate::driver::{Carrier, Inbound};
use tokenrouter_core::scheduler::Event;
use tokenrouter_core::transport::codec::{self, Bounds, NodeMessage};
use tokenrouter_core::transport::{Link, LinkCounters, LinkEvent, LinkState, Packet, SendError};

/// What the thread of a peer takes.
#[allow(clippy::large_enum_variant, reason = "a handoff is the common case, and boxing it would allocate at every one")]
#[derive(Debug)]
pub(crate) enum LinkInput {
    /// From the subserver, for the peer.
    Send(Inbound),
    /// From the reader of a connection.
    Packet(Packet<NodeMessage>),
    /// There is a new connection, the latest of all.
    Connected(Arc<Secure>),
    /// This connection has ended.
    Broken(Arc<Secure>),
    /// End the thread.
    Stop,
}

impl Carrier for SyncSender<LinkInput> {
    fn try_send(&self, message: Inbound) -> Result<(), Inbound> {
        match self.try_send(LinkInput::Send(message)) {
            Err(TrySendError::Full(LinkInput::Send(message))) => Err(message),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// How a peer is.
#[derive(Debug, Clone, Serialize)]
pub struct PeerView {
    /// The model at the peer.
    pub model: String,
    /// `connecting`, `up` or `lost`.
    pub state: &'static str,
    /// Where it is connected, if it is.
    pub address: Option<String>,
    /// Why the last attempt to connect failed, until one succeeds.
    pub problem: Option<String>,
    /// Connections so far.
    pub connections: u64,
    /// Messages sent for the first time, and again.
    pub sent: (u64, u64),
    /// Messages that came.
    pub delivered: u64,
    /// Times that the peer was lost.
    pub losses: u64,
}

impl PeerView {
    /// Whether requests can go there.
    pub fn is_up(&self) -> bool {
        self.state == "up"
    }
}

/// How a peer is, for those who ask.
#[derive(Debug)]
pub(crate) struct Status(Mutex<PeerView>);

impl Status {
    pub(super) fn new(model: &str) -> Self {
        Self(Mutex::new(PeerView {
            model: model.to_owned(),
            state: "connecting",
            address: None,
            problem: None,
            connections: 0,
            sent: (0, 0),
            delivered: 0,
            losses: 0,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, PeerView> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn view(&self) -> PeerView {
        self.lock().clone()
    }

    /// Notes why there is no connection; logs it when it is news.
    pub(super) fn problem(&self, why: String) {
        let mut view = self.lock();
        if view.problem.as_ref() != Some(&why) {
            tracing::warn!(target: "tokenrouter", peer = %view.model, "no connection: {why}");
            view.problem = Some(why);
        }
    }

    fn connection(&self, connection: Option<&Secure>) {
        let mut view = self.lock();
        view.address = connection.map(Secure::peer_address);
        if let Some(address) = &view.address {
            tracing::info!(target: "tokenrouter", peer = %view.model, %address, "connected");
            view.connections += 1;
            view.problem = None;
        }
    }

    fn publish(&self, state: LinkState, counters: LinkCounters) {
        let mut view = self.lock();
        view.state = match state {
            LinkState::Connecting => "connecting",
            LinkState::Up => "up",
            LinkState::Lost => "lost",
        };
        view.sent = (counters.sent, counters.repeated);
        (view.delivered, view.losses) = (counters.delivered, counters.losses);
    }
}

/// The parts of the thread.
pub(super) struct PeerThread {
    pub(super) link: Link<NodeMessage>,
    pub(super) inputs: Receiver<LinkInput>,
    /// Of this node's subserver.
    pub(super) inbox: SyncSender<Inbound>,
    /// Of messages to the peer.
    pub(super) bounds: Bounds,
    pub(super) status: Arc<Status>,
    pub(super) start: Instant,
    /// Silence after which a connection is taken for broken, though nobody said so.
    pub(super) silence: Duration,
    pub(super) connection: Option<Arc<Secure>>,
    pub(super) heard: Duration,
    pub(super) buffers: Buffers,
}

/// Kept from one turn to the next.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    packets: Vec<Packet<NodeMessage>>,
    events: Vec<LinkEvent<NodeMessage>>,
    bytes: Vec<u8>,
}

/// The subserver has gone, or this thread is to go.
struct Stopped;

/// Most inputs between two writes.
const BURST: usize = 256;

impl PeerThread {
    /// Runs until told to stop.
    pub(super) fn run(mut self) {
        while self.turn().is_ok() {}
        self.drop_connection();
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn turn(&mut self) -> Result<(), Stopped> {
        let mut due = self.link.next_poll();
        if self.connection.is_some() {
            due = due.min(self.heard + self.silence);
        }
        let first = match self.inputs.recv_timeout(due.saturating_sub(self.now())) {
            Ok(input) => Some(input),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Err(Stopped),
        };
        let mut next = first;
        for _ in 0..BURST {
            let Some(input) = next else { break };
            self.take(input)?;
            next = self.inputs.try_recv().ok();
        }
        if let Some(input) = next {
            self.take(input)?;
        }
        let now = self.now();
        if self.connection.is_some() && now >= self.heard + self.silence {
            // Waiting for the operating system's own timeouts would take longer than connecting again.
            self.drop_connection();
        }
        self.link.poll(now, &mut self.buffers.packets, &mut self.buffers.events);
        self.deliver()?;
        self.write();
        self.status.publish(self.link.state(), self.link.counters());
        Ok(())
    }

    fn take(&mut self, input: LinkInput) -> Result<(), Stopped> {
        let now = self.now();
        match input {
            LinkInput::Stop => return Err(Stopped),
            LinkInput::Send(inbound) => {
                if let Some(message) = to_message(inbound) {
                    self.send(message);
                }
            }
            LinkInput::Packet(packet) => {
                self.heard = now;
                self.link.receive(now, packet, &mut self.buffers.events);
            }
            LinkInput::Connected(connection) => {
                self.drop_connection();
                self.status.connection(Some(&connection));
                self.connection = Some(connection);
                self.heard = now;
                self.link.path_restored(now);
            }
            LinkInput::Broken(connection) => {
                if self.connection.as_ref().is_some_and(|current| Arc::ptr_eq(current, &connection)) {
                    self.drop_connection();
                }
            }
        }
        self.deliver()
    }

    fn send(&mut self, message: NodeMessage) {
        match self.link.send(message) {
            // The scheduler was told, and what it handed over has ended.
            Ok(()) | Err(SendError::Lost(_)) => {}
            Err(SendError::Full(_)) => {
                tracing::error!(target: "tokenrouter", "too much waits for the peer: it is given up");
                self.link.give_up(&mut self.buffers.events);
            }
        }
    }

    fn deliver(&mut self) -> Result<(), Stopped> {
        let peer = self.bounds.to;
        if !self.buffers.events.is_empty() {
            // Whoever sees what follows from an event sees the state that goes with it.
            self.status.publish(self.link.state(), self.link.counters());
        }
        for event in self.buffers.events.drain(..) {
            let inbound = match event {
                LinkEvent::Deliver(NodeMessage::Peer(message)) => Inbound::Event(Event::Peer(message)),
                LinkEvent::Deliver(NodeMessage::Stream(id, event)) => Inbound::Stream(id, event),
                LinkEvent::Lost => {
                    tracing::warn!(target: "tokenrouter", model = peer, "peer lost: its requests end");
                    Inbound::Event(Event::PeerLost(peer))
                }
                LinkEvent::Up => {
                    tracing::info!(target: "tokenrouter", model = peer, "peer is up");
                    Inbound::Event(Event::PeerUp(peer))
                }
            };
            // The subserver empties its inbox between steps and never waits for this thread.
            self.inbox.send(inbound).map_err(|_| Stopped)?;
        }
        Ok(())
    }

    fn write(&mut self) {
        let Buffers { packets, bytes, .. } = &mut self.buffers;
        let Some(connection) = &self.connection else {
            // The link sends them again when there is a connection.
            packets.clear();
            return;
        };
        bytes.clear();
        for packet in packets.drain(..) {
            let start = begin_frame(bytes);
            codec::encode(&packet, &self.bounds, bytes);
            end_frame(bytes, start);
        }
        if !bytes.is_empty() && connection.send(bytes).is_err() {
            self.drop_connection();
        }
    }

    fn drop_connection(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.shutdown();
            self.status.connection(None);
        }
    }
}

fn to_message(inbound: Inbound) -> Option<NodeMessage> {
    match inbound {
        Inbound::Event(Event::Peer(message)) => Some(NodeMessage::Peer(message)),
        Inbound::Stream(id, event) => Some(NodeMessage::Stream(id, event)),
        Inbound::Event(_) | Inbound::Stop => None,
    }
}
