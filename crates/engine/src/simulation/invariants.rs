//! The invariants that hold after every event of a simulation.

use std::collections::BTreeMap;

use super::Simulator;
use crate::request::FinishReason;
use crate::scheduler::{PeerBody, PeerMessage};

impl Simulator {
    pub(super) fn note_departure(&mut self, message: &PeerMessage) {
        if let PeerBody::Handoff(handoff) = &message.body {
            *self.in_flight.entry(handoff.id).or_default() += 1;
        }
    }

    pub(super) fn note_delivery(&mut self, message: &PeerMessage) {
        if let PeerBody::Handoff(handoff) = &message.body {
            self.in_flight.remove(&handoff.id);
        }
    }

    /// Invariants 3 (one owner) and 4 (blocks conserved).
    pub(super) fn check_invariants(&self) {
        let mut owners: BTreeMap<_, usize> = self.in_flight.clone();
        for core in &self.cores {
            for id in core.owned() {
                *owners.entry(id).or_default() += 1;
            }
            let kv = core.kv();
            assert_eq!(kv.free_blocks() + kv.cached_blocks() + kv.held_blocks(), kv.capacity());
        }
        for (id, count) in owners {
            assert_eq!(count, 1, "{id} is owned by {count} places at {:?}", self.now);
        }
    }

    /// Invariants 1 (every request ends once), 2 (the stream agrees with the counters), 4 (nothing held) and 5 (nothing
    /// left waiting), when nothing is left to happen.
    pub(super) fn check_quiescent(&self) {
        for core in &self.cores {
            assert!(core.is_empty(), "requests are left over: {core:?}");
            assert_eq!(core.kv().held_blocks(), 0, "KV blocks are left over");
        }
        assert_eq!(self.cores[self.entry].active().count, 0, "the active count leaks");
        for (id, outcome) in &self.outcomes {
            let (_, reason, stats) = outcome.finish.as_ref().unwrap_or_else(|| panic!("{id} never ended"));
            if matches!(reason, FinishReason::Error(_)) {
                continue;
            }
            for (model, count) in stats.tokens_by_model.iter().enumerate() {
                let emitted = outcome.tokens.iter().filter(|(_, token)| token.origin == model).count();
                assert_eq!(emitted as u64, *count, "{id}: tokens of model {model}");
            }
        }
    }
}
