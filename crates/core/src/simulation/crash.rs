//! Models that stop and come back, with nothing of what they knew.

use std::sync::Arc;
use std::time::Duration;

use super::{SimEvent, Simulator};
use crate::request::{FinishReason, ModelIndex, RequestId, RequestStats};
use crate::scheduler::Core;

impl Simulator {
    /// Model `model` stops at `time` and starts again after `down`. Needs a network.
    pub fn crash(&mut self, time: Duration, model: ModelIndex, down: Duration) {
        assert!(self.network.is_some(), "in process, models stop together");
        self.schedule(time, SimEvent::Crash(model));
        self.schedule(time + down, SimEvent::Restart(model));
    }

    pub(super) fn crash_now(&mut self, model: ModelIndex) {
        self.losses += 1;
        self.incarnations[model].1 = false;
        self.cores[model] = self.new_core(model);
        self.in_flight.retain(|_, (from, to)| *from != model && *to != model);
        if let Some(network) = &mut self.network {
            network.stop(model);
        }
        if model == self.entry {
            // Clients are connected to the entry model.
            for id in self.open.clone() {
                self.fail(id, "the entry model stopped");
            }
        }
    }

    pub(super) fn restart(&mut self, model: ModelIndex) {
        let (incarnation, up) = &mut self.incarnations[model];
        assert!(!std::mem::replace(up, true), "it runs already");
        *incarnation += 1;
        let epoch = *incarnation;
        self.cores[model].begin_over_network(u64::from(epoch));
        self.wakes[model] = None;
        if let Some(network) = &mut self.network {
            network.start(model, epoch, self.now);
        }
    }

    fn new_core(&self, model: ModelIndex) -> Core {
        Core::new(self.configs[model].clone(), Arc::clone(&self.policy))
    }

    pub(super) fn fail(&mut self, id: RequestId, message: &str) {
        self.finish(id, FinishReason::Error(message.to_owned()), RequestStats::default());
    }
}
