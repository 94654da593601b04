//! A network between the models: reliable links over a path that delays, loses, repeats and reorders packets.

use std::time::Duration;

use super::{Input, SimEvent, Simulator};
use crate::request::ModelIndex;
use crate::scheduler::{Core, Event, PeerMessage};
use crate::transport::{Link, LinkConfig, LinkEvent, LinkState, Packet, SendError};

/// What happens to packets, each by itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathFaults {
    /// Delay of every packet.
    pub delay: Duration,
    /// Random addition to it, uniform up to this.
    pub jitter: Duration,
    /// Part of the packets that is lost.
    pub loss: f64,
    /// Part that arrives twice.
    pub duplicate: f64,
    /// Part that is held up for so long that others overtake it.
    pub reorder: f64,
}

/// A time without any path between two models.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Partition {
    /// The two.
    pub models: (ModelIndex, ModelIndex),
    /// Its beginning and end.
    pub span: (Duration, Duration),
}

/// The links of all models, over one kind of path.
#[derive(Debug)]
pub struct Network {
    faults: PathFaults,
    partitions: Vec<Partition>,
    config: LinkConfig,
    /// `ends[a][b]`: the end at `a` of the link with `b`.
    ends: Vec<Vec<Option<Link<PeerMessage>>>>,
    timers: Vec<Option<Duration>>,
}

impl Network {
    /// The links of `models` models that start at time zero.
    pub fn new(models: usize, config: LinkConfig, (faults, partitions): (PathFaults, Vec<Partition>)) -> Self {
        let ends = (0..models).map(|_| (0..models).map(|_| None).collect()).collect();
        let mut network = Self { faults, partitions, config, ends, timers: vec![None; models] };
        (0..models).for_each(|model| network.start(model, 1, Duration::ZERO));
        network
    }

    pub(super) fn stop(&mut self, model: ModelIndex) {
        self.ends[model].iter_mut().for_each(|end| *end = None);
        self.timers[model] = None;
    }

    pub(super) fn start(&mut self, model: ModelIndex, incarnation: u32, now: Duration) {
        // An end that gives its peer up counts on from there.
        let epoch = u64::from(incarnation) << 32;
        for peer in (0..self.ends.len()).filter(|peer| *peer != model) {
            let link = Link::new(self.config.clone(), epoch, now);
            self.ends[model][peer] = Some(link);
        }
    }
}

impl Simulator {
    /// Puts a network between the models.
    pub fn set_network(&mut self, network: Network) {
        self.network = Some(network);
        self.cores.iter_mut().for_each(|core| core.begin_over_network(1));
        (0..self.cores.len()).for_each(|model| self.schedule(self.now, SimEvent::LinkTimer(model)));
    }

    /// Repetitions, duplicates, early messages and losses over all links, of those that run.
    pub fn link_counters(&self) -> [u64; 4] {
        let links = self.network.iter().flat_map(|network| network.ends.iter().flatten().flatten());
        links.map(Link::counters).fold([0; 4], |[a, b, c, d], counters| {
            [a + counters.repeated, b + counters.duplicates, c + counters.early, d + counters.losses]
        })
    }

    /// Whether all models have found each other.
    pub(super) fn is_connected(&self) -> bool {
        let mut ends = self.network.iter().flat_map(|network| network.ends.iter().flatten().flatten());
        ends.all(|end| end.state() == LinkState::Up)
    }

    fn link(&mut self, from: ModelIndex, to: ModelIndex) -> Option<&mut Link<PeerMessage>> {
        self.network.as_mut()?.ends[from][to].as_mut()
    }

    pub(super) fn send_over_link(&mut self, from: ModelIndex, to: ModelIndex, message: PeerMessage) {
        self.note_departure(to, &message);
        let Some(link) = self.link(from, to) else { return };
        match link.send(message) {
            Ok(()) => {}
            // The core was told, and what it handed over has ended.
            Err(SendError::Lost(message)) => self.note_delivery(&message),
            Err(error) => panic!("the links' queues hold more than all requests can send: {error}"),
        }
    }

    pub(super) fn packet(&mut self, from: ModelIndex, to: ModelIndex, packet: Packet<PeerMessage>) {
        let now = self.now;
        let mut events = Vec::new();
        let Some(link) = self.link(to, from) else { return };
        link.receive(now, packet, &mut events);
        self.link_events(to, from, events);
    }

    pub(super) fn link_timer(&mut self, model: ModelIndex) {
        if let Some(network) = &mut self.network {
            network.timers[model] = None;
        }
    }

    fn link_events(&mut self, at: ModelIndex, peer: ModelIndex, events: Vec<LinkEvent<PeerMessage>>) {
        for event in events {
            let event = match event {
                LinkEvent::Deliver(message) => {
                    self.note_delivery(&message);
                    Event::Peer(message)
                }
                LinkEvent::Lost => {
                    self.losses += 1;
                    self.in_flight.retain(|_, link| *link != (at, peer) && *link != (peer, at));
                    Event::PeerLost(peer)
                }
                LinkEvent::Up => Event::PeerUp(peer),
            };
            self.note_link_event(at, peer, &event);
            self.feed(at, Input::Event(event));
        }
    }

    /// Lets every link send what is due, until nothing is.
    pub(super) fn pump_links(&mut self) {
        for model in (0..self.cores.len()).cycle().take(2 * self.cores.len()) {
            for peer in 0..self.cores.len() {
                let now = self.now;
                let (mut packets, mut events) = (Vec::new(), Vec::new());
                let Some(link) = self.link(model, peer) else { continue };
                link.poll(now, &mut packets, &mut events);
                packets.into_iter().for_each(|packet| self.put_on_path(model, peer, packet));
                self.link_events(model, peer, events);
            }
        }
        (0..self.cores.len()).for_each(|model| self.set_timer(model));
    }

    fn set_timer(&mut self, model: ModelIndex) {
        let Some(network) = &mut self.network else { return };
        let next = network.ends[model].iter().flatten().map(Link::next_poll).min();
        let Some(next) = next.map(|next| next.max(self.now + Duration::from_micros(1))) else { return };
        if network.timers[model].is_none_or(|timer| next < timer || timer <= self.now) {
            network.timers[model] = Some(next);
            self.schedule(next, SimEvent::LinkTimer(model));
        }
    }

    fn put_on_path(&mut self, from: ModelIndex, to: ModelIndex, packet: Packet<PeerMessage>) {
        let Some(network) = &self.network else { return };
        let PathFaults { delay, jitter, loss, duplicate, reorder } = network.faults;
        let cut = network.partitions.iter().any(|partition| {
            (partition.models == (from, to) || partition.models == (to, from))
                && (partition.span.0..partition.span.1).contains(&self.now)
        });
        if cut || self.draw(100) < loss {
            // The next draw must be another one.
            self.skipped += 1;
            return;
        }
        let copies = 1 + usize::from(self.draw(101) < duplicate);
        for _ in 0..copies {
            let mut arrival = self.now + delay + jitter.mul_f64(self.draw(102));
            if self.draw(103) < reorder {
                arrival += (delay + jitter + Duration::from_millis(1)).mul_f64(1.0 + 20.0 * self.draw(104));
            }
            self.schedule(arrival, SimEvent::Packet(from, to, packet.clone()));
        }
    }

    /// Whether everything has happened that will, signs of life apart.
    pub(super) fn is_settled(&self) -> bool {
        self.inputs == 0 && self.open.is_empty() && self.in_flight.is_empty() && self.cores.iter().all(Core::is_empty)
    }
}
