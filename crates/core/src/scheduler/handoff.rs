//! Moves of a request from one model to another, and back.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::core::Core;
use super::message::{Action, Handoff, PeerBody};
use super::sequence::{Place, Sequence};
use crate::kv::BlockPool;
use crate::request::{FinishReason, ModelIndex, RequestId, RequestStats};

impl Core {
    /// The request leaves. Its log stays here for the return, and with handoff-resume its KV.
    pub(super) fn hand_off(&mut self, id: RequestId, to: ModelIndex, actions: &mut Vec<Action>) {
        let sequence = self.sequences.get_mut(&id).expect("a running request has state");
        sequence.stats.handoffs += 1;
        self.stats.record_run(sequence.visit_steps);
        sequence.hop += 1;
        sequence.place = Place::Pending(to);
        if !self.config.handoff_resume {
            sequence.give_back(&mut self.kv);
        }
        let start = sequence.known[to].max(sequence.request.prompt.len());
        let delta = SmallVec::from_slice(&sequence.log[start..]);
        sequence.known[to] = sequence.log.len();
        self.stats.record_handoff(to, delta.len());
        let handoff = Handoff {
            id,
            hop: sequence.hop,
            request: Arc::clone(&sequence.request),
            start,
            delta,
            known: sequence.known.clone(),
            stats: std::mem::take(&mut sequence.stats),
            state: std::mem::take(&mut sequence.state),
            steps_without_commit: sequence.steps_without_commit,
        };
        actions.push(self.send(to, PeerBody::Handoff(handoff)));
    }

    /// A request arrives: for the first time, or back from a peer (handoff-resume).
    pub(super) fn resume(&mut self, now: Duration, from: ModelIndex, handoff: Handoff, actions: &mut Vec<Action>) {
        let id = handoff.id;
        if !self.takes(from, &handoff, actions) {
            return;
        }
        let models = self.config.models;
        let first = !self.sequences.contains_key(&id);
        if first {
            self.sequences.insert(id, Sequence::new(Arc::clone(&handoff.request), models, &self.kv, now));
        }
        let sequence = self.sequences.get_mut(&id).expect("inserted above");
        // A sender that takes this model for restarted begins before what is known here: the rest is the same.
        let known = sequence.log.len() - handoff.start;
        self.policy.receive(&mut sequence.log, &handoff.delta[known.min(handoff.delta.len())..]);
        assert_eq!(sequence.log.len(), handoff.known[self.config.model], "{id}: received log has the wrong length");
        if first || !self.config.handoff_resume {
            sequence.reuse_prefix(&mut self.kv, &mut self.stats);
        }
        // When everybody dropped a candidate, the last token is fed once more for its logits.
        sequence.computed = sequence.computed.min(sequence.log.len() - 1);
        sequence.hop = handoff.hop;
        sequence.known = handoff.known;
        sequence.stats = handoff.stats;
        sequence.state = handoff.state;
        sequence.steps_without_commit = handoff.steps_without_commit;
        (sequence.visit_steps, sequence.visit_tokens) = (0, 0);
        if sequence.cancelled {
            self.finish(now, id, FinishReason::Cancelled, actions);
        } else {
            self.make_ready(now, id);
        }
    }

    /// Whether a request that arrives can go on here. After the loss of a peer some cannot: those that have ended
    /// meanwhile, and those whose beginning was lost.
    fn takes(&mut self, from: ModelIndex, handoff: &Handoff, actions: &mut Vec<Action>) -> bool {
        let id = handoff.id;
        if !self.peers.linked(self.config.entry) {
            // It could not end here, and the entry model takes everything here for lost.
            actions.push(self.give_up(from, handoff));
            return false;
        }
        let Some(sequence) = self.sequences.get(&id) else {
            if self.config.model == self.config.entry {
                actions.push(self.send(from, PeerBody::Close(id)));
                return false;
            }
            if self.peers.has_closed(id) {
                return false;
            }
            // On a first visit the log is the prompt.
            return handoff.start <= handoff.request.prompt.len() || self.misses_beginning(handoff, actions);
        };
        let returns = matches!(sequence.place, Place::Pending(_)) && handoff.hop > sequence.hop && !sequence.closed;
        returns && (handoff.start <= sequence.log.len() || self.misses_beginning(handoff, actions))
    }

    fn misses_beginning(&self, handoff: &Handoff, actions: &mut Vec<Action>) -> bool {
        actions.push(self.give_up(self.config.entry, handoff));
        false
    }

    /// Tells `to` that this model was lost, for this request.
    fn give_up(&self, to: ModelIndex, handoff: &Handoff) -> Action {
        let stats = RequestStats::for_models(self.config.models);
        let reason = FinishReason::Lost(self.config.model);
        self.send(to, PeerBody::Finish(handoff.id, handoff.hop, reason, stats))
    }
}

impl Sequence {
    /// Leaves what is computed to the prefix tree, as if the request had ended.
    fn give_back(&mut self, kv: &mut BlockPool) {
        kv.release(std::mem::take(&mut self.blocks), &self.log[..self.computed]);
        self.computed = 0;
        self.shared = false;
    }
}
