//! One model's scheduler core with its runner: what every driver is made of.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{Inbound, Streams};
use crate::meters::{Meters, StepKind};
use crate::profile::{Activity, Recorder, Span};
use crate::runner::{ModelRunner, StepOutput};
use tokenrouter_core::request::{CommittedToken, ModelIndex, RequestId, StreamEvent};
use tokenrouter_core::scheduler::{Action, Core, Event, ModelStats, Next, PeerBody};
use tokenrouter_core::step::Batch;

/// Shared between the engine and the driver of a station.
#[derive(Debug)]
pub(crate) struct Shared {
    /// A copy of the core's counters, refreshed after every step.
    pub(crate) stats: Mutex<ModelStats>,
    /// KV blocks held.
    pub(crate) held_blocks: std::sync::atomic::AtomicUsize,
    /// What it did when, if that is wanted.
    pub(crate) recorder: Option<Recorder>,
    /// Numbers for whoever watches.
    pub(crate) meters: Arc<Meters>,
}

impl Shared {
    /// For one of `models`.
    pub(crate) fn new(models: usize, recorder: Option<Recorder>) -> Self {
        let (stats, held_blocks) = Default::default();
        Self { stats, held_blocks, recorder, meters: Arc::new(Meters::new(models)) }
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
pub(crate) struct Station {
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
    output: StepOutput,
    actions: Vec<Action>,
}

impl Station {
    /// An idle station of `model`, one of `models`.
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
        if matches!(event, Event::Thresholds(_)) {
            self.shared.meters.threshold_changes.add(1);
        }
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
        self.shared.meters.set_occupancy(self.core.occupancy());
        let kind = step_kind(self.core.batch());
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
            Ok(Ok(())) => {
                self.shared.meters.generated.add(self.output.tokens.len() as u64);
                match self.output.graph {
                    Some(true) => self.shared.meters.graph_hits.add(1),
                    Some(false) => self.shared.meters.graph_misses.add(1),
                    None => {}
                }
                self.core.step_done(now, took, &self.output, &mut self.actions);
            }
            Ok(Err(error)) => self.core.step_failed(now, &error.to_string(), &mut self.actions),
            Err(_) => self.core.step_failed(now, "the forward pass panicked", &mut self.actions),
        }
        self.since = now;
        self.shared.meters.batch_size.observe(rows as f64);
        self.shared.meters.step_seconds[kind as usize].observe_time(took);
        self.carry_out();
        self.publish();
        rows
    }

    fn carry_out(&mut self) {
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            match action {
                Action::Send(to, message) => {
                    if let PeerBody::Handoff(handoff) = &message.body {
                        self.shared.meters.handoffs[to].add(1);
                        self.shared.meters.handoff_tokens[to].add(handoff.delta.len() as u64);
                    }
                    self.outbox[to].push_back(Inbound::Event(Event::Peer(message)));
                }
                Action::Admit(id) => {
                    if let Clients::Here(streams) = &self.clients {
                        streams.admit(id);
                    }
                }
                Action::Step(id, record) => self.emit(id, StreamEvent::Step(record)),
                Action::Emit(id, token) => {
                    self.shared.meters.committed.add(1);
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

    fn publish(&self) {
        self.publish_meters();
        use std::sync::atomic::Ordering::Relaxed;
        self.shared.held_blocks.store(self.core.kv().held_blocks(), Relaxed);
        // Whoever reads the counters right now gets the previous ones; the step never waits.
        if let Ok(mut stats) = self.shared.stats.try_lock() {
            stats.clone_from(self.core.stats());
        }
    }

    fn publish_meters(&self) {
        let (meters, stats, kv) = (&self.shared.meters, self.core.stats(), self.core.kv());
        meters.set_occupancy(self.core.occupancy());
        meters.threshold.set(self.core.threshold() as u64);
        meters.kv_used.set(kv.held_blocks() as u64);
        meters.kv_cached.set(kv.cached_blocks() as u64);
        meters.kv_total.set(kv.capacity() as u64);
        meters.launches_full.set(stats.launches_full);
        meters.launches_timeout.set(stats.launches_timeout);
        meters.prefix_lookups.set(stats.prefix_tokens);
        meters.prefix_hits.set(stats.prefix_hits);
        meters.rows.set(stats.rows);
        meters.buffer_wait_nanos.set(stats.buffer_wait.as_nanos() as u64);
    }
}

fn step_kind(batch: &Batch) -> StepKind {
    let rows = batch.rows();
    match () {
        () if rows.iter().any(|row| row.start < row.request.prompt.len()) => StepKind::Prefill,
        () if rows.iter().any(|row| batch.tokens(row).len() > 1) => StepKind::Extend,
        () => StepKind::Decode,
    }
}
