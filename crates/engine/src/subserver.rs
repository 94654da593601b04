//! Drives one scheduler core in real time: a thread with a runner and an inbox.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::profile::{Activity, Recorder, Span};
use crate::request::{CommittedToken, FinishReason, ModelIndex, RequestId, RequestStats, StreamEvent};
use crate::runner::{ModelRunner, StepOutput};
use crate::scheduler::{Action, Core, Event, ModelStats, Next, PeerMessage};

/// What a subserver's inbox takes.
#[allow(clippy::large_enum_variant, reason = "a handoff is the common case, and boxing it would allocate at every one")]
#[derive(Debug)]
pub(crate) enum Inbound {
    /// For the scheduler core.
    Event(Event),
    /// End the thread; whatever is held ends with it.
    Stop,
}

/// Where committed tokens and ends of requests go: the streams of the clients.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    by_request: Mutex<HashMap<RequestId, mpsc::Sender<StreamEvent>>>,
    /// Notified when a stream ends.
    ended: Condvar,
}

impl Streams {
    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, mpsc::Sender<StreamEvent>>> {
        self.by_request.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no stream is open; false when the time is over first.
    pub(crate) fn wait_empty(&self, timeout: Duration) -> bool {
        let result = self.ended.wait_timeout_while(self.lock(), timeout, |streams| !streams.is_empty());
        result.unwrap_or_else(PoisonError::into_inner).0.is_empty()
    }

    /// Ends every stream with an error.
    pub(crate) fn fail_all(&self, message: &str) {
        for (_, stream) in self.lock().drain() {
            let reason = FinishReason::Error(message.to_owned());
            let _gone = stream.try_send(StreamEvent::Finished(reason, RequestStats::default()));
        }
        self.ended.notify_all();
    }

    pub(crate) fn insert(&self, id: RequestId, stream: mpsc::Sender<StreamEvent>) {
        self.lock().insert(id, stream);
    }

    pub(crate) fn remove(&self, id: RequestId) {
        self.lock().remove(&id);
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// The channel has room for every token the request may commit, so a full one means a client that is gone.
    fn emit(&self, id: RequestId, event: StreamEvent) {
        let mut streams = self.lock();
        let last = matches!(event, StreamEvent::Finished(..));
        if let Some(stream) = streams.get(&id) {
            let _gone = stream.try_send(event);
        }
        if last {
            streams.remove(&id);
            self.ended.notify_all();
        }
    }
}

/// Shared between the engine and one subserver thread.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// A copy of the core's counters, refreshed after every step.
    pub(crate) stats: Mutex<ModelStats>,
    /// KV blocks held.
    pub(crate) held_blocks: std::sync::atomic::AtomicUsize,
    /// What it did when, if that is wanted.
    pub(crate) recorder: Option<Recorder>,
}

/// The parts of a subserver's thread.
pub(crate) struct Subserver {
    pub(crate) model: ModelIndex,
    pub(crate) core: Core,
    pub(crate) runner: Box<dyn ModelRunner>,
    pub(crate) inbox: Receiver<Inbound>,
    /// Inboxes of all subservers, by model.
    pub(crate) peers: Vec<SyncSender<Inbound>>,
    pub(crate) streams: Arc<Streams>,
    pub(crate) shared: Arc<Shared>,
    /// Messages that did not fit into a peer's inbox, in order. A subserver must never block on another one, which may
    /// be blocked on it.
    pub(crate) outbox: Vec<VecDeque<PeerMessage>>,
    /// The engine's time zero.
    pub(crate) epoch: Instant,
}

/// How soon a full inbox is tried again.
const RETRY: Duration = Duration::from_millis(1);

impl Subserver {
    /// Runs until told to stop.
    pub(crate) fn run(mut self) {
        let mut output = StepOutput::default();
        let mut actions: Vec<Action> = Vec::new();
        let mut since = self.now();
        loop {
            while let Ok(inbound) = self.inbox.try_recv() {
                if self.take(inbound, &mut actions) {
                    return;
                }
            }
            let blocked = !self.flush();
            match self.core.poll(self.now()) {
                Next::Launch => since = self.step(since, &mut output, &mut actions),
                Next::Wait(until) => {
                    let idle = self.note(Activity::Scheduling, since);
                    let inbound = self.wait(if blocked { Some(self.now() + RETRY) } else { until });
                    since = self.note(Activity::Idle, idle);
                    if inbound.is_some_and(|inbound| self.take(inbound, &mut actions)) {
                        return;
                    }
                }
            }
        }
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn wait(&self, until: Option<Duration>) -> Option<Inbound> {
        let Some(until) = until else {
            // All senders gone means that the engine is gone.
            return Some(self.inbox.recv().unwrap_or(Inbound::Stop));
        };
        match self.inbox.recv_timeout(until.saturating_sub(self.now())) {
            Ok(inbound) => Some(inbound),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Inbound::Stop),
        }
    }

    /// Handles one inbound; true means stop.
    fn take(&mut self, inbound: Inbound, actions: &mut Vec<Action>) -> bool {
        match inbound {
            Inbound::Stop => return true,
            Inbound::Event(event) => self.core.handle(self.now(), event, actions),
        }
        self.carry_out(actions);
        self.publish();
        false
    }

    /// Notes an activity from `since` until now; returns the time now.
    fn note(&mut self, activity: Activity, since: Duration) -> Duration {
        let now = self.now();
        let took = now.saturating_sub(since);
        match activity {
            Activity::Idle => self.core.record_driver(Duration::ZERO, Duration::ZERO, took),
            _ => self.core.record_driver(Duration::ZERO, took, Duration::ZERO),
        }
        if let Some(recorder) = &self.shared.recorder {
            recorder.push(Span { activity, start: since, took, rows: 0, tokens: 0 });
        }
        now
    }

    /// Runs the launched batch; `since` is when its scheduling began. Returns the time at which the step ended.
    fn step(&mut self, since: Duration, output: &mut StepOutput, actions: &mut Vec<Action>) -> Duration {
        let start = self.note(Activity::Scheduling, since);
        // A panic in a forward pass must end its requests with an error, not hang their clients.
        let result = catch_unwind(AssertUnwindSafe(|| self.runner.forward(self.core.batch(), output)));
        let now = self.now();
        let took = now.saturating_sub(start);
        let sampling = if matches!(result, Ok(Ok(()))) { output.sampling } else { Duration::ZERO };
        self.core.record_driver(sampling, Duration::ZERO, Duration::ZERO);
        if let Some(recorder) = &self.shared.recorder {
            let (rows, tokens) = (self.core.batch().rows().len(), self.core.batch().total_tokens());
            let forward = took.saturating_sub(sampling);
            recorder.push(Span { activity: Activity::Forward, start, took: forward, rows, tokens });
            recorder.push(Span { activity: Activity::Sampling, start: start + forward, took: sampling, rows, tokens });
        }
        match result {
            Ok(Ok(())) => self.core.step_done(now, took, output, actions),
            Ok(Err(error)) => self.core.step_failed(now, &error.to_string(), actions),
            Err(_) => self.core.step_failed(now, "the forward pass panicked", actions),
        }
        self.carry_out(actions);
        self.publish();
        now
    }

    /// Delivers what is in the outbox; false when something is left.
    fn flush(&mut self) -> bool {
        for (inbox, outbox) in self.peers.iter().zip(&mut self.outbox) {
            while let Some(message) = outbox.pop_front() {
                if let Err(TrySendError::Full(Inbound::Event(Event::Peer(message)))) =
                    inbox.try_send(Inbound::Event(Event::Peer(message)))
                {
                    outbox.push_front(message);
                    break;
                }
            }
        }
        self.outbox.iter().all(VecDeque::is_empty)
    }

    fn carry_out(&mut self, actions: &mut Vec<Action>) {
        for action in actions.drain(..) {
            match action {
                Action::Send(to, message) => self.outbox[to].push_back(message),
                Action::Step(id, record) => self.streams.emit(id, StreamEvent::Step(record)),
                Action::Emit(id, token) => {
                    self.streams.emit(id, StreamEvent::Token(CommittedToken { id: token, origin: self.model }));
                }
                Action::Finish(id, reason, stats) => self.streams.emit(id, StreamEvent::Finished(reason, stats)),
            }
        }
        self.flush();
    }

    fn publish(&self) {
        use std::sync::atomic::Ordering::Relaxed;
        self.shared.held_blocks.store(self.core.kv().held_blocks(), Relaxed);
        // Whoever reads the counters right now gets the previous ones; the step never waits.
        if let Ok(mut stats) = self.shared.stats.try_lock() {
            stats.clone_from(self.core.stats());
        }
    }
}
