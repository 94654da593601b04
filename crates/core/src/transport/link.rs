//! One end of a reliable link: numbers, acknowledgements, credits, repetition, order, signs of life.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::packet::{Epochs, Frame, PROTOCOL_VERSION, Packet};

/// Numbers of a link.
#[derive(Debug, Clone)]
pub struct LinkConfig {
    /// Most messages that are on the way, and most that the receiver keeps while an earlier one is missing.
    pub window: u32,
    /// Most messages that wait for room on the way.
    pub max_queued: usize,
    /// Time after which a message without acknowledgement is sent again; doubles up to eight times this.
    pub retransmit: Duration,
    /// Longest silence of an end that has nothing to say.
    pub heartbeat: Duration,
    /// Silence after which the peer is given up.
    pub peer_timeout: Duration,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            window: 256,
            max_queued: 4096,
            retransmit: Duration::from_millis(50),
            heartbeat: Duration::from_millis(250),
            peer_timeout: Duration::from_secs(3),
        }
    }
}

/// Where a link stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// Nothing was heard yet; messages wait.
    Connecting,
    /// The peer answers.
    Up,
    /// The peer was given up, and nothing was heard since; messages are refused.
    Lost,
}

/// What came out of a link, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum LinkEvent<T> {
    /// The next message of the peer.
    Deliver(T),
    /// The peer restarted, gave this end up, or was silent for too long: what was sent and not answered is void, and so
    /// is what either end keeps for the other.
    Lost,
    /// The peer answers, for the first time or again.
    Up,
}

/// A message was not taken.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SendError<T> {
    /// The peer is lost. The message is void.
    #[error("the peer is lost")]
    Lost(T),
    /// Too much waits already; to be tried again after [`Link::poll`].
    #[error("too many messages wait for the peer")]
    Full(T),
}

/// Counters of one end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Messages sent for the first time.
    pub sent: u64,
    /// Messages sent again.
    pub repeated: u64,
    /// Messages handed out.
    pub delivered: u64,
    /// Messages that had arrived before.
    pub duplicates: u64,
    /// Messages that arrived before an earlier one.
    pub early: u64,
    /// Packets of other incarnations.
    pub stale: u64,
    /// Packets of another protocol version.
    pub incompatible: u64,
    /// Times that the peer was given up or restarted.
    pub losses: u64,
}

#[derive(Debug, Clone)]
struct Sent<T> {
    message: T,
    due: Duration,
    tries: u32,
}

/// One end of a link. Messages arrive at the other end exactly once and in order while both ends stay up; when one does
/// not, both learn of it, and nothing of the old conversation arrives in the new one.
#[derive(Debug)]
pub struct Link<T> {
    config: LinkConfig,
    state: LinkState,
    epoch: u64,
    /// The peer's epoch; 0 when unknown.
    peer: u64,
    /// Number of the first message in `sent`.
    base: u64,
    sent: VecDeque<Sent<T>>,
    queue: VecDeque<T>,
    /// Messages from this number on have no room at the peer.
    limit: u64,
    expected: u64,
    early: BTreeMap<u64, T>,
    heard: Duration,
    spoke: Option<Duration>,
    ack_due: bool,
    counters: LinkCounters,
}

impl<T: Clone> Link<T> {
    /// A link at time `now`. `epoch` must be above every one that this end has had, and above 0; the time of the start
    /// will do.
    pub fn new(config: LinkConfig, epoch: u64, now: Duration) -> Self {
        assert!(epoch > 0 && config.window > 0, "epoch and window are above 0");
        Self {
            state: LinkState::Connecting,
            epoch,
            peer: 0,
            base: 0,
            sent: VecDeque::new(),
            queue: VecDeque::new(),
            limit: u64::from(config.window),
            expected: 0,
            early: BTreeMap::new(),
            heard: now,
            spoke: None,
            ack_due: false,
            counters: LinkCounters::default(),
            config,
        }
    }

    /// Where it stands.
    pub fn state(&self) -> LinkState {
        self.state
    }

    /// Counters so far.
    pub fn counters(&self) -> LinkCounters {
        self.counters
    }

    /// Messages that the peer has not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.sent.len() + self.queue.len()
    }

    /// Takes a message for the peer; [`Self::poll`] gives the packet out.
    pub fn send(&mut self, message: T) -> Result<(), SendError<T>> {
        if self.state == LinkState::Lost {
            return Err(SendError::Lost(message));
        }
        if self.queue.len() >= self.config.max_queued {
            return Err(SendError::Full(message));
        }
        self.queue.push_back(message);
        Ok(())
    }

    /// Takes a packet from the path.
    pub fn receive(&mut self, now: Duration, packet: Packet<T>, events: &mut Vec<LinkEvent<T>>) {
        if packet.version != PROTOCOL_VERSION {
            self.counters.incompatible += 1;
            return;
        }
        let Epochs { from, to } = packet.epochs;
        // A packet for an earlier incarnation of this end says nothing about the peer of today.
        if from == 0 || from < self.peer || (to != 0 && to != self.epoch) {
            self.counters.stale += 1;
            return;
        }
        self.heard = now;
        if from > self.peer {
            if self.peer != 0 {
                self.lose(events);
            }
            (self.peer, self.state, self.ack_due) = (from, LinkState::Connecting, true);
        }
        if to == self.epoch {
            // Only now: an end that sends to a peer that does not know it could not tell the peer that it gave up.
            if self.state != LinkState::Up {
                (self.state, self.ack_due) = (LinkState::Up, true);
                events.push(LinkEvent::Up);
            }
            self.acknowledge(packet.ack, packet.credit);
            if let Frame::Data { sequence, message } = packet.frame {
                self.take(sequence, message, events);
            }
        }
    }

    fn acknowledge(&mut self, ack: u64, credit: u32) {
        while self.base < ack && self.sent.pop_front().is_some() {
            self.base += 1;
        }
        self.limit = self.limit.max(ack.saturating_add(u64::from(credit)));
    }

    fn take(&mut self, sequence: u64, message: T, events: &mut Vec<LinkEvent<T>>) {
        self.ack_due = true;
        if sequence < self.expected || self.early.contains_key(&sequence) {
            self.counters.duplicates += 1;
            return;
        }
        if sequence >= self.expected + u64::from(self.config.window) {
            // Beyond the room that was granted: it will come again.
            return;
        }
        if sequence > self.expected {
            self.counters.early += 1;
            self.early.insert(sequence, message);
            return;
        }
        let mut next = Some(message);
        while let Some(message) = next {
            self.expected += 1;
            self.counters.delivered += 1;
            events.push(LinkEvent::Deliver(message));
            next = self.early.remove(&self.expected);
        }
    }

    /// Gives out the packets that are due, and notices silence.
    pub fn poll(&mut self, now: Duration, packets: &mut Vec<Packet<T>>, events: &mut Vec<LinkEvent<T>>) {
        if now >= self.heard + self.config.peer_timeout {
            self.give_up(events);
        }
        if self.state == LinkState::Up {
            self.transmit(now, packets);
        }
        if self.ack_due || self.spoke.is_none_or(|spoke| now >= spoke + self.config.heartbeat) {
            packets.push(self.packet(Frame::Header));
            self.spoke = Some(now);
            self.ack_due = false;
        }
    }

    /// Gives the peer up, as after a silence. To be called when nothing more can be kept for it.
    pub fn give_up(&mut self, events: &mut Vec<LinkEvent<T>>) {
        if self.state != LinkState::Lost {
            self.lose(events);
            // What the peer still sends to the incarnation that was given up must not arrive.
            self.epoch += 1;
            self.peer = 0;
            self.state = LinkState::Lost;
        }
    }

    /// The path was broken and is there again: what was not acknowledged is sent again at the next [`Self::poll`], as a
    /// sign of life is.
    pub fn path_restored(&mut self, now: Duration) {
        self.sent.iter_mut().for_each(|sent| sent.due = now);
        self.spoke = None;
    }

    fn transmit(&mut self, now: Duration, packets: &mut Vec<Packet<T>>) {
        let first = packets.len();
        for index in 0..self.sent.len() {
            let sent = &mut self.sent[index];
            if now >= sent.due {
                sent.tries += 1;
                sent.due = now + self.config.retransmit * (1 << sent.tries.min(3));
                self.counters.repeated += 1;
                let (sequence, message) = (self.base + index as u64, sent.message.clone());
                packets.push(self.packet(Frame::Data { sequence, message }));
            }
        }
        while self.sent.len() < self.config.window as usize && self.base + (self.sent.len() as u64) < self.limit {
            let Some(message) = self.queue.pop_front() else { break };
            let sequence = self.base + self.sent.len() as u64;
            self.counters.sent += 1;
            packets.push(self.packet(Frame::Data { sequence, message: message.clone() }));
            self.sent.push_back(Sent { message, due: now + self.config.retransmit, tries: 0 });
        }
        if packets.len() > first {
            self.spoke = Some(now);
            self.ack_due = false;
        }
    }

    fn packet(&self, frame: Frame<T>) -> Packet<T> {
        Packet {
            version: PROTOCOL_VERSION,
            epochs: Epochs { from: self.epoch, to: self.peer },
            ack: self.expected,
            credit: self.config.window - self.early.len() as u32,
            frame,
        }
    }

    fn lose(&mut self, events: &mut Vec<LinkEvent<T>>) {
        self.counters.losses += 1;
        self.sent.clear();
        self.queue.clear();
        self.early.clear();
        (self.base, self.expected, self.limit) = (0, 0, u64::from(self.config.window));
        events.push(LinkEvent::Lost);
    }

    /// When [`Self::poll`] has something to do again, at the latest.
    pub fn next_poll(&self) -> Duration {
        let Some(spoke) = self.spoke.filter(|_| !self.ack_due) else { return Duration::ZERO };
        let mut next = spoke + self.config.heartbeat;
        if self.state != LinkState::Lost {
            next = next.min(self.heard + self.config.peer_timeout);
        }
        self.sent.iter().map(|sent| sent.due).fold(next, Duration::min)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
