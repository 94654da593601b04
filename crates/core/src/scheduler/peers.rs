//! Loss and return of peers.
//!
//! A model that is lost has forgotten everything. Requests that were handed to it end with an error: whether it went on
//! with them, and how far, nobody knows. The others lose nothing, and visit it for the first time when it is back. The
//! entry model decides what ends, and says whom it reaches: a request at a model that it does not reach could not end.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use super::core::Core;
use super::message::{Action, PeerBody};
use super::sequence::Place;
use crate::request::{FinishReason, ModelIndex, RequestId, RequestStats};

/// Ended requests that are remembered: longer than a handoff can be on its way.
const CLOSED: usize = 4096;

/// What a core knows of the others.
#[derive(Debug)]
pub(super) struct Peers {
    /// Whether this model reaches them.
    linked: SmallVec<[bool; 4]>,
    /// Whether the entry model does.
    reached: SmallVec<[bool; 4]>,
    /// Requests that have ended, where a handoff from a third model may come after the news of the end.
    closed: HashSet<RequestId>,
    closed_order: VecDeque<RequestId>,
}

impl Peers {
    pub(super) fn new(models: usize) -> Self {
        Self {
            linked: smallvec![true; models],
            reached: smallvec![true; models],
            closed: HashSet::new(),
            closed_order: VecDeque::new(),
        }
    }

    pub(super) fn linked(&self, model: ModelIndex) -> bool {
        self.linked[model]
    }

    pub(super) fn reachable(&self, model: ModelIndex) -> bool {
        self.linked[model] && self.reached[model]
    }

    pub(super) fn has_closed(&self, id: RequestId) -> bool {
        self.closed.contains(&id)
    }

    fn note_closed(&mut self, id: RequestId) {
        if self.closed.insert(id) {
            self.closed_order.push_back(id);
            if self.closed_order.len() > CLOSED
                && let Some(oldest) = self.closed_order.pop_front()
            {
                self.closed.remove(&oldest);
            }
        }
    }
}

impl Core {
    /// Peers are reached over links, and this is incarnation `epoch` of this model: it takes no requests before the entry
    /// model is there, and the entry model's counts are newer than those of its predecessor, which have changed less than
    /// a million times between two epochs. Milliseconds since 1970 will do.
    pub fn begin_over_network(&mut self, epoch: u64) {
        if self.config.model == self.config.entry {
            self.active.version = epoch << 20;
        } else {
            self.peers.linked[self.config.entry] = false;
        }
    }

    /// News of an end at a peer, for the entry model. A request that has come back since is none of that peer's business.
    pub(super) fn finished_at_peer(
        &mut self,
        now: Duration,
        (id, hop): (RequestId, u64),
        reason: FinishReason,
        stats: RequestStats,
        actions: &mut Vec<Action>,
    ) {
        if self.config.model != self.config.entry {
            // From a peer that does not reach the entry model.
            actions.push(self.send(self.config.entry, PeerBody::Finish(id, hop, reason, stats)));
            return;
        }
        let Some(sequence) = self.sequences.get(&id) else { return };
        if matches!(sequence.place, Place::Pending(_)) && hop >= sequence.hop {
            let reason = match reason {
                FinishReason::Lost(_) | FinishReason::Error(_) if sequence.cancelled => FinishReason::Cancelled,
                reason => reason,
            };
            self.finish_at_entry(now, id, reason, stats, actions);
        }
    }

    /// The entry model says that the request has ended.
    pub(super) fn close(&mut self, id: RequestId) {
        // Messages of one peer arrive in order: only a third model's can be late.
        if self.config.models > 2 {
            self.peers.note_closed(id);
        }
        self.drop_or_mark(id);
    }

    /// Frees what is held for a request, at once or when its step is done.
    fn drop_or_mark(&mut self, id: RequestId) {
        match self.sequences.get_mut(&id) {
            Some(sequence) if sequence.place == Place::Running => sequence.closed = true,
            _ => self.drop_sequence(id),
        }
    }

    pub(super) fn peer_lost(&mut self, now: Duration, peer: ModelIndex, actions: &mut Vec<Action>) {
        self.peers.linked[peer] = false;
        if peer != self.config.entry {
            self.forget_peer(now, peer, actions);
            self.tell_reach(peer, false, actions);
            return;
        }
        // Nobody is left to tell. A new entry model begins with new requests.
        let ids: Vec<RequestId> = self.sequences.keys().copied().collect();
        ids.into_iter().for_each(|id| self.drop_or_mark(id));
        self.peers.closed.clear();
        self.peers.closed_order.clear();
        self.peers.reached.fill(true);
    }

    pub(super) fn peer_up(&mut self, peer: ModelIndex, actions: &mut Vec<Action>) {
        self.peers.linked[peer] = true;
        // It has dropped what it held before it knew this entry model, which may be new itself and have lost nothing.
        if !self.sequences.is_empty() {
            self.tell_reach(peer, false, actions);
        }
        self.tell_reach(peer, true, actions);
        if self.config.model == self.config.entry {
            // What it missed: whom the entry model reaches, and with it the number of active requests.
            for model in (0..self.config.models).filter(|model| *model != self.config.model) {
                let up = self.peers.linked[model];
                actions.push(self.send(peer, PeerBody::Reach(model, up)));
            }
        }
    }

    /// Entry only: tells the others whether it reaches `peer`.
    fn tell_reach(&self, peer: ModelIndex, up: bool, actions: &mut Vec<Action>) {
        if self.config.model != self.config.entry {
            return;
        }
        for to in (0..self.config.models).filter(|to| *to != self.config.model && *to != peer) {
            actions.push(self.send(to, PeerBody::Reach(peer, up)));
        }
    }

    /// The entry model reaches `model`, or has lost it.
    pub(super) fn reach(&mut self, now: Duration, model: ModelIndex, up: bool, actions: &mut Vec<Action>) {
        self.peers.reached[model] = up;
        if !up && model != self.config.model {
            self.forget_peer(now, model, actions);
        }
    }

    /// `peer` knows nothing any more, and what it had is lost.
    fn forget_peer(&mut self, now: Duration, peer: ModelIndex, actions: &mut Vec<Action>) {
        let mut lost = Vec::new();
        for (id, sequence) in &mut self.sequences {
            sequence.known[peer] = 0;
            if sequence.place == Place::Pending(peer) {
                lost.push((*id, sequence.hop));
            }
        }
        // Not in the order of a hash table: a schedule must be a function of its events.
        lost.sort_unstable();
        for (id, hop) in lost {
            let reason = FinishReason::Lost(peer);
            let stats = RequestStats::for_models(self.config.models);
            if self.config.model == self.config.entry {
                self.finished_at_peer(now, (id, hop), reason, stats, actions);
            } else {
                actions.push(self.send(self.config.entry, PeerBody::Finish(id, hop, reason, stats)));
            }
        }
    }
}
