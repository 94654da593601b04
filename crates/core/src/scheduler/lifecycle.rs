//! Beginnings and ends of requests: admission, cancellation, accounting at the entry model.

use std::time::Duration;

use super::core::Core;
use super::message::{Action, ActiveCount, PeerBody};
use super::sequence::{Place, Sequence};
use crate::request::{FinishReason, Request, RequestId, RequestStats};

impl Core {
    /// Ends a request that is here, or passes the wish on to where it went.
    pub(super) fn cancel(&mut self, now: Duration, id: RequestId, actions: &mut Vec<Action>) {
        if let Some(at) = self.queue.iter().position(|(queued, ..)| *queued == id) {
            self.queue.remove(at);
            actions.push(Action::Finish(id, FinishReason::Cancelled, RequestStats::default()));
            return;
        }
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let first = !std::mem::replace(&mut sequence.cancelled, true);
        match sequence.place {
            Place::Running => {}
            Place::Ready(_) => self.finish(now, id, FinishReason::Cancelled, actions),
            // Messages to one peer arrive in order, so this one follows the request wherever it goes; the flag stops
            // it from going round in circles and ends the request should it come back here first.
            Place::Pending(peer) if first => actions.push(self.send(peer, PeerBody::Cancel(id))),
            Place::Pending(_) => {}
        }
    }

    /// Ends a request that is here.
    pub(super) fn finish(&mut self, now: Duration, id: RequestId, reason: FinishReason, actions: &mut Vec<Action>) {
        let stats = self.sequences.get_mut(&id).map(|s| std::mem::take(&mut s.stats)).unwrap_or_default();
        if self.config.model == self.config.entry {
            self.finish_at_entry(now, id, reason, stats, actions);
        } else {
            let hop = self.sequences.get(&id).map_or(0, |sequence| sequence.hop);
            self.drop_sequence(id);
            actions.push(self.send(self.config.entry, PeerBody::Finish(id, hop, reason, stats)));
        }
    }

    /// The entry model closes the books of a request, wherever it ended.
    pub(super) fn finish_at_entry(
        &mut self,
        now: Duration,
        id: RequestId,
        reason: FinishReason,
        stats: RequestStats,
        actions: &mut Vec<Action>,
    ) {
        let need =
            self.sequences.get(&id).map(|s| self.reservation(&s.request)).expect("the entry knows every request");
        self.drop_sequence(id);
        self.reserved -= need;
        self.set_active(self.active.count - 1);
        let peers = if self.config.alone { 0 } else { self.config.models };
        for peer in (0..peers).filter(|peer| *peer != self.config.model) {
            actions.push(self.send(peer, PeerBody::Close(id)));
        }
        actions.push(Action::Finish(id, reason, stats));
        self.admit(now, actions);
    }

    pub(super) fn drop_sequence(&mut self, id: RequestId) {
        let Some(sequence) = self.sequences.remove(&id) else { return };
        assert!(!self.running || sequence.place != Place::Running, "{id} freed while its step runs");
        if matches!(sequence.place, Place::Ready(_)) {
            self.ready.retain(|ready| *ready != id);
        }
        self.kv.release(sequence.blocks, &sequence.log[..sequence.computed]);
    }

    fn set_active(&mut self, count: usize) {
        self.active = ActiveCount { version: self.active.version + 1, count };
    }

    /// Blocks that a request may come to need at any model: it is admitted only when all of them are free everywhere,
    /// so that no admitted request ever runs out of memory.
    fn reservation(&self, request: &Request) -> usize {
        self.kv.blocks_for(request.most_tokens())
    }

    /// Entry only: admits waiting requests in order while there is room.
    pub(super) fn admit(&mut self, now: Duration, actions: &mut Vec<Action>) {
        while let Some((_, request, _)) = self.queue.front() {
            let need = self.reservation(request);
            let possible = need <= self.config.admission_blocks;
            let room =
                self.active.count < self.config.max_active && self.reserved + need <= self.config.admission_blocks;
            if possible && !room {
                return;
            }
            let Some((id, request, arrived)) = self.queue.pop_front() else { return };
            if !possible {
                let (tokens, blocks) = (request.most_tokens(), self.config.admission_blocks);
                let message = format!(
                    "{id} may need {tokens} tokens of KV cache, which holds {}",
                    blocks * self.config.block_size
                );
                actions.push(Action::Finish(id, FinishReason::Error(message), RequestStats::default()));
                continue;
            }
            let mut sequence = Sequence::new(request, self.config.models, &self.kv, now);
            sequence.known[self.config.model] = sequence.log.len();
            sequence.stats.queue_wait = now.saturating_sub(arrived);
            sequence.reuse_prefix(&mut self.kv, &mut self.stats);
            self.sequences.insert(id, sequence);
            self.reserved += need;
            self.set_active(self.active.count + 1);
            self.ready.push_back(id);
            actions.push(Action::Admit(id));
        }
    }
}
