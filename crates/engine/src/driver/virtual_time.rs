//! No time at all: the scheduler cores of emulated models under a clock that jumps from one event to the next.
//!
//! The cores, the policy and the rounds of lockstep are those of the threads in real time; only waiting is left out.
//! Whatever happens at one instant has arrived before any model looks at its buffer, as in the throughput model, so a
//! run is a function of its inputs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::profile::{Activity, Recorder, Span};
use tokenrouter_core::emulated::EmulatedModel;
use tokenrouter_core::request::{CommittedToken, ModelIndex, Request, RequestId, StreamEvent};
use tokenrouter_core::scheduler::{Action, Core, Event, ModelStats, Next, PeerMessage, ThresholdTable};
use tokenrouter_core::simulation::EventQueue;
use tokenrouter_core::step::StepOutput;

/// What costs time beside the steps.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Costs {
    /// The model's thread before every step.
    pub(crate) step: Duration,
    /// The model's thread for every token that is looked up in its prefix tree, in nanoseconds.
    pub(crate) prefix_ns_per_token: f64,
}

/// A scheduler core with its emulated model.
pub(crate) struct VirtualModel {
    core: Core,
    runner: EmulatedModel,
    costs: Costs,
    output: StepOutput,
    /// Work of the thread that delays the next step.
    owed: Duration,
    /// Since when nothing runs.
    free_since: Duration,
    /// The wake-up that is already scheduled.
    wake: Option<Duration>,
    recorder: Option<Recorder>,
}

impl VirtualModel {
    pub(crate) fn new(core: Core, runner: EmulatedModel, costs: Costs, recorder: Option<Recorder>) -> Self {
        Self {
            core,
            runner,
            costs,
            output: StepOutput::default(),
            owed: Duration::ZERO,
            free_since: Duration::ZERO,
            wake: None,
            recorder,
        }
    }

    fn handle(&mut self, now: Duration, event: Event, actions: &mut Vec<Action>) {
        let before = self.core.stats().prefix_tokens;
        self.core.handle(now, event, actions);
        let tokens = self.core.stats().prefix_tokens - before;
        self.owed += Duration::from_nanos((self.costs.prefix_ns_per_token * tokens as f64) as u64);
    }

    /// Begins the launched step: the work of the thread before it, and its own time.
    fn begin(&mut self, now: Duration) -> (Duration, Duration) {
        let (rows, tokens) = (self.core.batch().rows().len(), self.core.batch().total_tokens());
        let took = self.runner.latency(self.core.batch());
        self.runner.compute(self.core.batch(), &mut self.output);
        let work = self.costs.step + std::mem::take(&mut self.owed);
        self.settle(now);
        self.core.record_driver(Duration::ZERO, work, Duration::ZERO);
        self.note(Span { activity: Activity::Scheduling, start: now, took: work, rows: 0, tokens: 0 });
        self.note(Span { activity: Activity::Forward, start: now + work, took, rows, tokens });
        (work, took)
    }

    /// Counts the time in which nothing ran.
    fn settle(&mut self, now: Duration) {
        let idle = now.saturating_sub(self.free_since);
        self.core.record_driver(Duration::ZERO, Duration::ZERO, idle);
        self.note(Span { activity: Activity::Idle, start: self.free_since, took: idle, rows: 0, tokens: 0 });
        self.free_since = now;
    }

    fn note(&self, span: Span) {
        if let Some(recorder) = self.recorder.as_ref().filter(|_| !span.took.is_zero()) {
            recorder.push(span);
        }
    }
}

/// Who steps the models.
#[derive(Debug)]
pub(crate) enum Stepping {
    /// Each by itself.
    Each,
    /// One thread, all of them in rounds.
    Rounds(Round),
}

/// Where a round of lockstep is.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// Requests that came since the round began.
    inbox: VecDeque<(RequestId, Arc<Request>)>,
    /// Models that had their turn.
    turn: usize,
    /// Requests that the model held when its turn began, and rows that it has stepped.
    held: Option<usize>,
    stepped: usize,
    /// Rows of the whole round.
    rows: usize,
    running: bool,
}

/// Something that is still to happen.
#[derive(Debug)]
pub(crate) enum Due {
    /// A step of this model ends, which took so long.
    Step(ModelIndex, Duration),
    /// A request that has waited too long is to be launched.
    Wake,
    /// A request arrives at a model.
    Request(ModelIndex, RequestId, Arc<Request>),
    /// A client has slept long enough.
    Timer(u64),
}

/// All models of a system.
pub(crate) struct VirtualDriver {
    models: Vec<VirtualModel>,
    entry: ModelIndex,
    stepping: Stepping,
    now: Duration,
    queue: EventQueue<Due>,
    /// Messages between models, in order.
    mail: VecDeque<(ModelIndex, PeerMessage)>,
    actions: Vec<Action>,
    /// For clients, in order; whoever drives takes them.
    pub(crate) events: Vec<(RequestId, StreamEvent)>,
    /// Timers that have run out.
    pub(crate) rung: Vec<u64>,
}

impl VirtualDriver {
    pub(crate) fn new(models: Vec<VirtualModel>, entry: ModelIndex, stepping: Stepping) -> Self {
        Self {
            models,
            entry,
            stepping,
            now: Duration::ZERO,
            queue: EventQueue::default(),
            mail: VecDeque::new(),
            actions: Vec::new(),
            events: Vec::new(),
            rung: Vec::new(),
        }
    }

    /// The virtual time.
    pub(crate) fn now(&self) -> Duration {
        self.now
    }

    /// The time of the next event.
    pub(crate) fn next_time(&self) -> Option<Duration> {
        self.queue.next_time()
    }

    /// Lets something happen later; what is late happens now.
    pub(crate) fn schedule(&mut self, time: Duration, due: Due) {
        self.queue.push(time.max(self.now), due);
    }

    /// A request arrives now.
    pub(crate) fn arrive(&mut self, model: ModelIndex, id: RequestId, request: Arc<Request>) {
        match &mut self.stepping {
            Stepping::Rounds(round) => round.inbox.push_back((id, request)),
            Stepping::Each => {
                self.feed(model, Event::ClientRequest(id, request));
                self.deliver();
            }
        }
    }

    /// Gives all models another table of thresholds.
    pub(crate) fn set_thresholds(&mut self, table: &Arc<ThresholdTable>) {
        (0..self.models.len()).for_each(|model| self.feed(model, Event::Thresholds(Arc::clone(table))));
    }

    /// Moves the clock on, to a time before the next event.
    pub(crate) fn wait_until(&mut self, time: Duration) {
        self.now = time.max(self.now);
    }

    /// Launches everything that is due now. In rounds, the end of a turn may have something for clients: then it has to be
    /// called again once they have had their say.
    pub(crate) fn launch(&mut self) {
        match &self.stepping {
            Stepping::Rounds(_) => self.go_on_with_round(),
            Stepping::Each => (0..self.models.len()).for_each(|model| self.poll(model)),
        }
    }

    /// Lets everything of the next instant happen; false when nothing is left.
    pub(crate) fn advance(&mut self) -> bool {
        let Some(time) = self.queue.next_time() else { return false };
        self.now = time;
        while self.queue.next_time() == Some(time)
            && let Some((_, due)) = self.queue.pop()
        {
            match due {
                Due::Step(model, took) => self.step_done(model, took),
                Due::Request(model, id, request) => self.arrive(model, id, request),
                Due::Timer(key) => self.rung.push(key),
                // Every model is polled after an instant's last event.
                Due::Wake => {}
            }
        }
        true
    }

    /// Counters of every model, up to now.
    pub(crate) fn stats(&mut self) -> Vec<ModelStats> {
        let now = self.now;
        let stats = |model: &mut VirtualModel| {
            // The time of a running step counts at its end.
            if now > model.free_since {
                model.settle(now);
            }
            model.core.stats().clone()
        };
        self.models.iter_mut().map(stats).collect()
    }

    /// KV blocks held by each model, and whether it holds no request and none waits there.
    pub(crate) fn held(&self) -> impl Iterator<Item = (usize, bool)> + '_ {
        self.models.iter().map(|model| (model.core.kv().held_blocks(), model.core.is_empty()))
    }

    /// What each model did when.
    pub(crate) fn spans(&self) -> Vec<Vec<Span>> {
        let spans = |model: &VirtualModel| model.recorder.as_ref().map(Recorder::spans).unwrap_or_default();
        self.models.iter().map(spans).collect()
    }

    fn poll(&mut self, model: ModelIndex) {
        let this = &mut self.models[model];
        match this.core.poll(self.now) {
            Next::Launch => self.begin(model),
            Next::Wait(Some(time)) if this.wake != Some(time) => {
                this.wake = Some(time);
                self.queue.push(time, Due::Wake);
            }
            Next::Wait(_) => {}
        }
    }

    fn begin(&mut self, model: ModelIndex) {
        let this = &mut self.models[model];
        let (work, took) = this.begin(self.now);
        // Until then nothing is idle.
        this.free_since = self.now + work + took;
        self.queue.push(this.free_since, Due::Step(model, took));
    }

    fn step_done(&mut self, model: ModelIndex, took: Duration) {
        let VirtualModel { core, output, .. } = &mut self.models[model];
        core.step_done(self.now, took, output, &mut self.actions);
        self.carry_out(model);
        match &mut self.stepping {
            // Messages wait for the end of the model's turn.
            Stepping::Rounds(round) => round.running = false,
            Stepping::Each => self.deliver(),
        }
    }

    fn feed(&mut self, model: ModelIndex, event: Event) {
        self.models[model].handle(self.now, event, &mut self.actions);
        self.carry_out(model);
    }

    fn carry_out(&mut self, model: ModelIndex) {
        for action in self.actions.drain(..) {
            match action {
                Action::Send(to, message) => self.mail.push_back((to, message)),
                Action::Admit(_) => {}
                Action::Step(id, record) => self.events.push((id, StreamEvent::Step(record))),
                Action::Emit(id, token) => {
                    self.events.push((id, StreamEvent::Token(CommittedToken { id: token, origin: model })));
                }
                Action::Finish(id, reason, stats) => self.events.push((id, StreamEvent::Finished(reason, stats))),
            }
        }
    }

    /// Hands messages over until there are none.
    fn deliver(&mut self) {
        while let Some((to, message)) = self.mail.pop_front() {
            self.feed(to, Event::Peer(message));
        }
    }

    /// The rounds of `Lockstep`, up to the next step.
    fn go_on_with_round(&mut self) {
        let count = self.models.len();
        loop {
            let Stepping::Rounds(round) = &mut self.stepping else { return };
            if round.running {
                return;
            }
            if round.turn == 0 && round.held.is_none() {
                if !self.events.is_empty() {
                    // What clients make of it belongs to this round.
                    return;
                }
                let arrived = std::mem::take(&mut round.inbox);
                for (id, request) in arrived {
                    self.feed(self.entry, Event::ClientRequest(id, request));
                }
                self.deliver();
            }
            let Stepping::Rounds(round) = &mut self.stepping else { return };
            let model = (self.entry + round.turn) % count;
            let core = &mut self.models[model].core;
            let held = *round.held.get_or_insert_with(|| core.owned().count());
            // More than one batch where `max_batch` or `max_step_tokens` is smaller than what is held.
            if round.stepped < held && core.poll(self.now) == Next::Launch {
                let rows = core.batch().rows().len();
                round.stepped += rows;
                round.rows += rows;
                round.running = true;
                return self.begin(model);
            }
            (round.held, round.stepped, round.turn) = (None, 0, (round.turn + 1) % count);
            let over = round.turn == 0 && std::mem::take(&mut round.rows) == 0;
            self.deliver();
            if over {
                return;
            }
        }
    }
}
