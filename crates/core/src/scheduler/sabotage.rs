//! Wrong states of a scheduler core, made on purpose for mutations of the simulation.

use std::time::Duration;

use super::core::Core;
use super::message::ActiveCount;
use super::sequence::Place;
use crate::kv::Table;
use crate::request::{ModelIndex, RequestId};

impl Core {
    /// Takes a KV block that nobody will give back.
    pub(crate) fn leak_block(&mut self) {
        self.kv.grow(&mut Table::default(), 1);
    }

    /// Takes a request out of the buffer.
    pub(crate) fn forget_ready(&mut self, id: RequestId) {
        self.ready.retain(|ready| *ready != id);
    }

    /// Puts a request into the buffer, wherever it is.
    pub(crate) fn force_ready(&mut self, id: RequestId) {
        if self.sequences.contains_key(&id) {
            self.make_ready(Duration::ZERO, id);
        }
    }

    /// Counts a request as active that is not.
    pub(crate) fn inflate_active(&mut self) {
        self.active = ActiveCount { version: self.active.version + 1, count: self.active.count + 1 };
    }

    /// Makes the last handoff of a request from `peer` look as if it had not arrived yet.
    pub(crate) fn forget_arrival(&mut self, id: RequestId, peer: ModelIndex) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            (sequence.place, sequence.hop) = (Place::Pending(peer), sequence.hop - 1);
        }
    }
}
