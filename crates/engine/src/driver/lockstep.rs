//! One thread for all models: in every round the entry model steps all requests that it holds, then the next model all
//! that it holds, and so on. Requests that were not routed wait for the large model, routed ones for the small one.

use std::sync::mpsc::Receiver;

use super::{Inbound, ModelWorker};
use crate::profile::Activity;
use tokenrouter_core::request::ModelIndex;
use tokenrouter_core::scheduler::Next;

/// The parts of the thread.
pub(crate) struct Lockstep {
    /// By model.
    pub(crate) workers: Vec<ModelWorker>,
    pub(crate) entry: ModelIndex,
    pub(crate) inbox: Receiver<Inbound>,
}

impl Lockstep {
    /// Runs until told to stop.
    pub(crate) fn run(mut self) {
        let models = self.workers.len();
        loop {
            while let Ok(inbound) = self.inbox.try_recv() {
                if self.take(inbound) {
                    return;
                }
            }
            let mut rows = 0;
            let entry = self.entry;
            for model in (0..models).map(|turn| (entry + turn) % models) {
                rows += self.turn(model);
            }
            if rows == 0 {
                self.workers.iter_mut().for_each(ModelWorker::settle);
                // All senders gone means that the engine is gone.
                let inbound = self.inbox.recv().unwrap_or(Inbound::Stop);
                self.workers.iter_mut().for_each(|worker| worker.note(Activity::Idle));
                if self.take(inbound) {
                    return;
                }
            }
        }
    }

    /// Handles one inbound; true means stop.
    fn take(&mut self, inbound: Inbound) -> bool {
        let Inbound::Event(event) = inbound else { return true };
        self.workers[self.entry].handle(event);
        self.deliver();
        false
    }

    /// Steps every request that a model holds once; returns the rows.
    fn turn(&mut self, model: ModelIndex) -> usize {
        let worker = &mut self.workers[model];
        let held = worker.held();
        if held == 0 {
            return 0;
        }
        // The others had their turns.
        worker.note(Activity::Idle);
        let mut rows = 0;
        // More than one batch where `max_batch` or `max_step_tokens` is smaller than what is held.
        while rows < held && worker.poll() == Next::Launch {
            rows += worker.step();
        }
        self.deliver();
        rows
    }

    /// Hands messages over until there are none.
    fn deliver(&mut self) {
        let models = self.workers.len();
        let mut pending = true;
        while std::mem::take(&mut pending) {
            for (from, to) in (0..models).flat_map(|from| (0..models).map(move |to| (from, to))) {
                while let Some(message) = self.workers[from].outbox[to].pop_front() {
                    if let Inbound::Event(event) = message {
                        self.workers[to].handle(event);
                    }
                    pending = true;
                }
            }
        }
    }
}
