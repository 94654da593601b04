//! The invariants that hold after every event of a simulation.

use std::collections::BTreeMap;

use super::Simulator;
use crate::request::{CommittedToken, FinishReason, ModelIndex, RequestId, RequestStats};
use crate::scheduler::{Handoff, PeerBody, PeerMessage};

impl Simulator {
    pub(super) fn note_departure(&mut self, to: ModelIndex, message: &PeerMessage) {
        // A model takes what was at another for lost.
        self.losses += u64::from(matches!(message.body, PeerBody::Reach(_, false)));
        let Some(id) = self.carries(message) else { return };
        let before = self.in_flight.insert(id, (message.from, to));
        assert!(before.is_none(), "invariant 3 (one owner): {id} is on two links");
    }

    pub(super) fn note_delivery(&mut self, message: &PeerMessage) {
        if let PeerBody::Handoff(Handoff { id, .. }) | PeerBody::Finish(id, ..) = &message.body {
            self.in_flight.remove(id);
        }
    }

    /// The request whose ownership travels with a message. After a loss, models report ends of requests that they do not
    /// own.
    fn carries(&self, message: &PeerMessage) -> Option<RequestId> {
        match &message.body {
            PeerBody::Handoff(handoff) => Some(handoff.id),
            PeerBody::Finish(id, ..) if self.losses == 0 => Some(*id),
            _ => None,
        }
    }

    /// A token for a client: invariants 1 (nothing after the end), 2 and 6 and 7 (it is the next one of the one-request
    /// loop, by the same model).
    pub(super) fn emit(&mut self, id: RequestId, token: CommittedToken) {
        let outcome = self.outcomes.get_mut(&id).expect("tokens of a known request");
        if outcome.finish.is_some() {
            // A client's stream is gone with its end. Without a loss nobody would go on.
            assert!(self.losses > 0, "invariant 1 (one end): {id}: token after the end");
            return;
        }
        if let Some((tokens, _)) = self.expected.get(&id) {
            let position = outcome.tokens.len();
            assert_eq!(
                Some(&token),
                tokens.get(position),
                "invariants 2, 6, 7 (stream): {id}, position {position}: not what the one-request loop commits"
            );
        }
        outcome.tokens.push((self.now, token));
        self.progress = self.now;
    }

    /// The end of a request, for its client: invariants 1 and 6.
    pub(super) fn finish(&mut self, id: RequestId, reason: FinishReason, stats: RequestStats) {
        let outcome = self.outcomes.get_mut(&id).expect("end of a known request");
        assert!(outcome.finish.is_none(), "invariant 1 (one end): {id} ended twice");
        match (self.expected.get(&id), &reason) {
            (Some((tokens, expected)), FinishReason::Stop | FinishReason::Length) => {
                assert_eq!(&reason, expected, "invariant 6 (reference): {id} ends for another reason");
                assert_eq!(outcome.tokens.len(), tokens.len(), "invariant 6 (reference): {id} ends early");
            }
            (Some((_, expected)), FinishReason::Error(message)) => {
                let excused = self.losses > 0 || self.early.contains(&id) || &reason == expected;
                assert!(excused, "invariant 1 (one end): {id} failed without a loss: {message}");
            }
            (_, FinishReason::Lost(model)) => {
                let excused = self.losses > 0 || self.early.contains(&id);
                assert!(excused, "invariant 1 (one end): {id} failed without a loss of model {model}");
            }
            _ => {}
        }
        outcome.finish = Some((self.now, reason, stats));
        self.open.remove(&id);
        self.progress = self.now;
    }

    /// Invariants 2 (the owner's log is the stream), 3 (one owner) and 4 (blocks conserved).
    pub(super) fn check_invariants(&self) {
        let mut owners: BTreeMap<_, usize> = self.in_flight.keys().map(|id| (*id, 1)).collect();
        for core in &self.cores {
            for id in core.owned() {
                *owners.entry(id).or_default() += 1;
                if self.open.contains(&id) {
                    let (known, sent) = (core.committed(id), self.outcomes[&id].tokens.len());
                    assert_eq!(known, Some(sent), "invariant 2 (stream): {id}: committed and sent tokens differ");
                }
            }
            let kv = core.kv();
            assert_eq!(
                kv.free_blocks() + kv.cached_blocks() + kv.held_blocks(),
                kv.capacity(),
                "invariant 4 (KV): blocks are not conserved"
            );
        }
        for (id, count) in &owners {
            assert_eq!(*count, 1, "invariant 3 (one owner): {id} has {count} at {:?}", self.now);
        }
        // A lost peer takes requests with it until the others notice.
        if self.losses == 0 {
            let queued: Vec<_> = self.cores[self.entry].queued().collect();
            let lost = self.open.iter().find(|id| !owners.contains_key(id) && !queued.contains(id));
            assert_eq!(lost, None, "invariant 3 (one owner): nobody has it at {:?}", self.now);
        }
    }

    /// Invariants 1 (every request ends once), 2 (the stream agrees with the counters), 4 (nothing held) and 5 (nothing
    /// left waiting), when nothing is left to happen.
    pub(super) fn check_quiescent(&self) {
        for (model, core) in self.cores.iter().enumerate() {
            assert!(core.is_empty(), "invariant 1 (one end): model {model} still has (held, queued) {:?}", core.len());
            assert_eq!(core.kv().held_blocks(), 0, "invariant 4 (KV): blocks are left over");
            assert_eq!(
                core.stats().launches_timeout,
                0,
                "invariant 5 (no deadlock): a launch had to wait for `max_wait`"
            );
        }
        assert_eq!(self.cores[self.entry].active().count, 0, "invariant 1 (one end): the active count leaks");
        for (id, outcome) in &self.outcomes {
            let end = outcome.finish.as_ref();
            let (_, reason, stats) = end.unwrap_or_else(|| panic!("invariant 1 (one end): {id} never ended"));
            let lost = self.losses > 0 && *reason == FinishReason::Cancelled;
            if lost || reason.error().is_some() {
                continue;
            }
            for (model, count) in stats.tokens_by_model.iter().enumerate() {
                let emitted = outcome.tokens.iter().filter(|(_, token)| token.origin == model).count();
                assert_eq!(emitted as u64, *count, "invariant 2 (stream): {id}: tokens of model {model}");
            }
        }
    }
}
