//! One model's scheduler core with its runner: what every driver is made of.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::{Inbound, Streams};
use crate::profile::{Activity, Recorder, Span};
use tokenrouter_core::request::{CommittedToken, ModelIndex, RequestId, StreamEvent};
use tokenrouter_core::scheduler::{Action, Core, Event, Next, Snapshot};
use tokenrouter_core::step::{ModelRunner, StepOutput};

/// What the driver of a model publishes.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    snapshot: Mutex<Snapshot>,
    /// What it did when, if that is wanted.
    pub(crate) recorder: Option<Recorder>,
}

impl Shared {
    pub(crate) fn new(recorder: Option<Recorder>) -> Self {
        Self { recorder, ..Self::default() }
    }

    /// The state as of the last event or step.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Snapshot> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the clients of requests are.
#[derive(Debug)]
pub(crate) enum Clients {
    /// In this process.
    Here(Arc<Streams>),
    /// At the node of the entry model.
    At(ModelIndex),
}

/// A scheduler core, its runner, and the clock.
pub(crate) struct ModelWorker {
    model: ModelIndex,
    core: Core,
    runner: Box<dyn ModelRunner>,
    clients: Clients,
    shared: Arc<Shared>,
    /// Messages for the other models, in order; the driver delivers them.
    pub(super) outbox: Vec<VecDeque<Inbound>>,
    /// The engine's time zero.
    epoch: Instant,
    /// Time up to which activities are noted.
    since: Duration,
    /// Whether the published snapshot is behind.
    stale: bool,
    output: StepOutput,
    actions: Vec<Action>,
}

impl ModelWorker {
    /// An idle worker of `model`, one of `models`.
    pub(crate) fn new(
        (model, models): (ModelIndex, usize),
        core: Core,
        runner: Box<dyn ModelRunner>,
        (clients, shared): (Clients, Arc<Shared>),
        epoch: Instant,
    ) -> Self {
        Self {
            model,
            core,
            runner,
            clients,
            shared,
            outbox: (0..models).map(|_| VecDeque::new()).collect(),
            epoch,
            since: Duration::ZERO,
            stale: false,
            output: StepOutput::default(),
            actions: Vec::new(),
        }
    }

    /// Time since the engine's start.
    pub(super) fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Requests that are here, ready or running.
    pub(super) fn held(&self) -> usize {
        self.core.owned().count()
    }

    pub(super) fn handle(&mut self, event: Event) {
        self.core.handle(self.now(), event, &mut self.actions);
        self.carry_out();
        self.publish();
    }

    pub(super) fn poll(&mut self) -> Next {
        self.core.poll(self.now())
    }

    /// Notes what the time since the last note went into.
    pub(super) fn note(&mut self, activity: Activity) {
        let (start, now) = (self.since, self.now());
        let took = now.saturating_sub(start);
        match activity {
            Activity::Idle => self.core.record_driver(Duration::ZERO, Duration::ZERO, took),
            _ => self.core.record_driver(Duration::ZERO, took, Duration::ZERO),
        }
        if let Some(recorder) = &self.shared.recorder {
            recorder.push(Span { activity, start, took, rows: 0, tokens: 0 });
        }
        self.since = now;
    }

    /// Runs the batch that was launched; returns its rows.
    pub(super) fn step(&mut self) -> usize {
        self.note(Activity::Scheduling);
        let start = self.since;
        self.publish();
        // A panic in a forward pass must end its requests with an error, not hang their clients.
        let result = catch_unwind(AssertUnwindSafe(|| self.runner.forward(self.core.batch(), &mut self.output)));
        let now = self.now();
        let took = now.saturating_sub(start);
        let sampling = if matches!(result, Ok(Ok(()))) { self.output.sampling } else { Duration::ZERO };
        self.core.record_driver(sampling, Duration::ZERO, Duration::ZERO);
        let (rows, tokens) = (self.core.batch().rows().len(), self.core.batch().total_tokens());
        if let Some(recorder) = &self.shared.recorder {
            let forward = took.saturating_sub(sampling);
            recorder.push(Span { activity: Activity::Forward, start, took: forward, rows, tokens });
            recorder.push(Span { activity: Activity::Sampling, start: start + forward, took: sampling, rows, tokens });
        }
        match result {
            Ok(Ok(())) => self.core.step_done(now, took, &self.output, &mut self.actions),
            Ok(Err(error)) => self.core.step_failed(now, &error.to_string(), &mut self.actions),
            Err(_) => self.core.step_failed(now, "the forward pass panicked", &mut self.actions),
        }
        self.since = now;
        self.carry_out();
        self.publish();
        rows
    }

    fn carry_out(&mut self) {
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            match action {
                Action::Send(to, message) => self.outbox[to].push_back(Inbound::Event(Event::Peer(message))),
                Action::Admit(id) => {
                    if let Clients::Here(streams) = &self.clients {
                        streams.admit(id);
                    }
                }
                Action::Step(id, record) => self.emit(id, StreamEvent::Step(record)),
                Action::Emit(id, token) => {
                    if let Some(at) = self.output.logprobs.iter().position(|(of, _)| *of == id) {
                        let (_, logprobs) = self.output.logprobs.swap_remove(at);
                        self.emit(id, StreamEvent::Logprobs(logprobs));
                    }
                    self.emit(id, StreamEvent::Token(CommittedToken { id: token, origin: self.model }));
                }
                Action::Finish(id, reason, stats) => self.emit(id, StreamEvent::Finished(reason, stats)),
            }
        }
        self.actions = actions;
    }

    /// Gives an event to a client. What travels to the entry model's node stays before the message that follows it.
    pub(super) fn emit(&mut self, id: RequestId, event: StreamEvent) {
        match &self.clients {
            Clients::Here(streams) => streams.emit(id, event),
            Clients::At(entry) => self.outbox[*entry].push_back(Inbound::Stream(id, event)),
        }
    }

    /// Whoever reads right now gets the previous state: a step never waits for a reader.
    fn publish(&mut self) {
        self.stale = match self.shared.snapshot.try_lock() {
            Ok(mut snapshot) => {
                self.core.publish(&mut snapshot);
                false
            }
            Err(TryLockError::Poisoned(poisoned)) => {
                self.core.publish(&mut poisoned.into_inner());
                false
            }
            Err(TryLockError::WouldBlock) => true,
        };
    }

    /// Publishes what a reader has held up. Before a wait, of which nobody knows how long it is.
    pub(super) fn settle(&mut self) {
        if std::mem::take(&mut self.stale) {
            self.core.publish(&mut self.shared.lock());
        }
    }
}
