//! Drives the real scheduler cores under a virtual clock.
//!
//! Events are ordered by (time, sequence number), so a run is a function of its inputs. After every event the
//! invariants of `docs/architecture.md` are checked; a violation panics with the event that caused it.
//!
//! A [`Simulator`] can put a faulty [`Network`] between the models and let them crash. [`campaign`] makes random
//! scenarios from seeds, and a failing one smaller.

pub mod campaign;
mod crash;
mod invariants;
#[cfg(any(test, feature = "mutations"))]
mod mutation;
mod network;
mod queue;
mod scenario;
mod trace;

#[cfg(any(test, feature = "mutations"))]
pub use mutation::Mutation;
pub use network::{Network, Partition, PathFaults};
pub use queue::EventQueue;
pub use scenario::{Fault, PingPong, Scenario};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::emulated::EmulatedModel;
use crate::keyed::{Purpose, draw_unit};
use crate::request::{CommittedToken, FinishReason, ModelIndex, Request, RequestId, RequestStats, StepRecord};
use crate::routing::RoutingPolicy;
use crate::scheduler::{Action, Core, CoreConfig, Event, Next, PeerMessage, ThresholdTable};
use crate::step::StepOutput;
use crate::transport::Packet;

/// Delay of messages between subservers. Messages of one link stay in order.
#[derive(Debug, Clone, Copy)]
pub struct LinkDelay {
    /// Smallest delay.
    pub base: Duration,
    /// Random addition, uniform between 0 and this.
    pub jitter: Duration,
    /// Seed of the additions.
    pub seed: u64,
}

impl LinkDelay {
    /// No delay at all, as in process.
    pub const NONE: Self = Self { base: Duration::ZERO, jitter: Duration::ZERO, seed: 0 };
}

/// What a request produced.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// Committed tokens with the time of their commit.
    pub tokens: Vec<(Duration, CommittedToken)>,
    /// All steps, if the request asked for a trace.
    pub steps: Vec<StepRecord>,
    /// The end, when it has come.
    pub finish: Option<(Duration, FinishReason, RequestStats)>,
}

#[allow(clippy::large_enum_variant, reason = "a handoff is the common case, and boxing it would allocate at every one")]
#[derive(Debug)]
enum SimEvent {
    Submit(RequestId, Arc<Request>),
    Cancel(RequestId),
    Deliver(ModelIndex, PeerMessage),
    /// A packet arrives: from, to.
    Packet(ModelIndex, ModelIndex, Packet<PeerMessage>),
    LinkTimer(ModelIndex),
    /// The end of a step, in an incarnation of a model, and the time it took.
    StepDone(ModelIndex, u32, Duration),
    Wake,
    Crash(ModelIndex),
    Restart(ModelIndex),
    Thresholds(ModelIndex, Arc<ThresholdTable>),
}

/// What a core is given.
#[allow(clippy::large_enum_variant, reason = "a handoff is the common case, and boxing it would allocate at every one")]
#[derive(Debug)]
enum Input {
    Event(Event),
    /// The end of the running step, and the time it took.
    StepDone(Duration),
}

/// Virtual time without any progress after which a run is stuck.
const STUCK: Duration = Duration::from_secs(20);

/// A simulated system of emulated models.
#[derive(Debug)]
pub struct Simulator {
    cores: Vec<Core>,
    models: Vec<EmulatedModel>,
    outputs: Vec<StepOutput>,
    /// The wake-up that is already scheduled for each model.
    wakes: Vec<Option<Duration>>,
    entry: ModelIndex,
    delay: LinkDelay,
    /// Latest delivery time per link, so that jitter does not reorder.
    links: BTreeMap<(ModelIndex, ModelIndex), Duration>,
    queue: EventQueue<SimEvent>,
    /// Draws that had no event behind them.
    skipped: u64,
    now: Duration,
    /// Requests on a link: from, to.
    in_flight: BTreeMap<RequestId, (ModelIndex, ModelIndex)>,
    outcomes: BTreeMap<RequestId, Outcome>,
    /// Requests without an end.
    open: BTreeSet<RequestId>,
    /// Requests that came before the models had found each other.
    early: BTreeSet<RequestId>,
    /// What the one-request loop makes of a request, where it is known.
    expected: BTreeMap<RequestId, (Vec<CommittedToken>, FinishReason)>,
    configs: Vec<CoreConfig>,
    policy: Arc<dyn RoutingPolicy>,
    network: Option<Network>,
    /// Largest part by which a step takes longer than its model says.
    step_jitter: f64,
    /// Incarnation of each model, and whether it runs.
    incarnations: Vec<(u32, bool)>,
    /// Crashes, and losses of peers that were noticed.
    losses: u64,
    /// Arrivals, cancellations and crashes that are still to come.
    inputs: usize,
    progress: Duration,
    trace: Option<Vec<String>>,
    #[cfg(any(test, feature = "mutations"))]
    mutant: Option<mutation::Mutant>,
}

impl Simulator {
    /// A system at time zero. One configuration and one emulated model per subserver.
    pub fn new(
        configs: Vec<CoreConfig>,
        models: Vec<EmulatedModel>,
        policy: &Arc<dyn RoutingPolicy>,
        delay: LinkDelay,
    ) -> Self {
        assert_eq!(configs.len(), models.len());
        let entry = configs[0].entry;
        let wakes = vec![None; models.len()];
        let outputs = models.iter().map(|_| StepOutput::default()).collect();
        let cores = configs.iter().map(|config| Core::new(config.clone(), Arc::clone(policy))).collect();
        Self {
            incarnations: vec![(1, true); configs.len()],
            open: BTreeSet::new(),
            early: BTreeSet::new(),
            expected: BTreeMap::new(),
            policy: Arc::clone(policy),
            configs,
            network: None,
            step_jitter: 0.0,
            losses: 0,
            inputs: 0,
            progress: Duration::ZERO,
            trace: None,
            #[cfg(any(test, feature = "mutations"))]
            mutant: None,
            cores,
            models,
            outputs,
            wakes,
            entry,
            delay,
            links: BTreeMap::new(),
            queue: EventQueue::default(),
            skipped: 0,
            now: Duration::ZERO,
            in_flight: BTreeMap::new(),
            outcomes: BTreeMap::new(),
        }
    }

    /// Steps take up to this part longer, at random.
    pub fn set_step_jitter(&mut self, part: f64) {
        self.step_jitter = part;
    }

    /// What request `id` must come to, unless it ends early.
    pub fn expect(&mut self, id: RequestId, tokens: Vec<CommittedToken>, reason: FinishReason) {
        self.expected.insert(id, (tokens, reason));
    }

    /// A client sends a request at `time`.
    pub fn submit(&mut self, time: Duration, id: RequestId, request: Request) {
        self.schedule(time, SimEvent::Submit(id, Arc::new(request)));
    }

    /// A client gives a request up at `time`.
    pub fn cancel(&mut self, time: Duration, id: RequestId) {
        self.schedule(time, SimEvent::Cancel(id));
    }

    /// Gives `model` another table of thresholds at `time`.
    pub fn set_thresholds(&mut self, time: Duration, model: ModelIndex, table: &Arc<ThresholdTable>) {
        self.schedule(time, SimEvent::Thresholds(model, Arc::clone(table)));
    }

    /// The cores, to look at their counters.
    pub fn cores(&self) -> &[Core] {
        &self.cores
    }

    /// The virtual time.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// What the requests produced so far.
    pub fn outcomes(&self) -> &BTreeMap<RequestId, Outcome> {
        &self.outcomes
    }

    fn schedule(&mut self, time: Duration, event: SimEvent) {
        assert!(time >= self.now, "the past cannot be changed");
        self.inputs += usize::from(event.is_input());
        self.queue.push(time, event);
    }

    /// Runs until nothing is left to happen, at most `limit` events. Returns the number of events.
    pub fn run(&mut self, limit: u64) -> u64 {
        let mut count = 0;
        while let Some((time, event)) = self.queue.pop() {
            assert!(count < limit, "still busy after {limit} events at {time:?}: no progress");
            count += 1;
            self.advance(time, event);
            // Signs of life never end.
            if self.network.is_some() {
                if self.is_settled() {
                    break;
                }
                let stuck = self.now > self.progress + STUCK;
                assert!(!stuck, "invariant 5 (no deadlock): nothing happens any more, {:?} are open", self.open);
            }
        }
        self.check_quiescent();
        count
    }

    /// Runs until `end`, for tests that look at a system in between.
    pub fn run_until(&mut self, end: Duration) {
        while self.queue.next_time().is_some_and(|time| time <= end)
            && let Some((time, event)) = self.queue.pop()
        {
            self.advance(time, event);
        }
    }

    /// Makes the next thing happen and checks the invariants.
    fn advance(&mut self, time: Duration, event: SimEvent) {
        self.now = time;
        self.note_event(&event);
        self.inputs -= usize::from(event.is_input());
        if event.is_input() {
            self.progress = time;
        }
        self.apply_event(event);
        // Subservers look at their buffers only when everything of this instant has arrived: the order in which
        // simultaneous events are handled must not matter, as in the throughput model.
        if self.queue.next_time().is_none_or(|next| next > time) {
            self.pump_links();
            (0..self.cores.len()).for_each(|model| self.poll(model));
        }
        self.check_invariants();
    }

    fn apply_event(&mut self, event: SimEvent) {
        match event {
            SimEvent::Submit(id, request) => {
                self.outcomes.insert(id, Outcome::default());
                self.open.insert(id);
                if !self.is_connected() {
                    self.early.insert(id);
                }
                if !self.incarnations[self.entry].1 {
                    return self.fail(id, "the entry model does not run");
                }
                self.feed(self.entry, Input::Event(Event::ClientRequest(id, request)));
            }
            SimEvent::Cancel(id) => self.feed(self.entry, Input::Event(Event::Cancel(id))),
            SimEvent::Deliver(model, message) => {
                self.note_delivery(&message);
                self.feed(model, Input::Event(Event::Peer(message)));
            }
            SimEvent::Packet(from, to, packet) => self.packet(from, to, packet),
            SimEvent::LinkTimer(model) => self.link_timer(model),
            SimEvent::StepDone(model, incarnation, took) => {
                if self.incarnations[model] == (incarnation, true) {
                    self.feed(model, Input::StepDone(took));
                }
            }
            // Every model is polled after an instant's last event.
            SimEvent::Wake => {}
            SimEvent::Crash(model) => self.crash_now(model),
            SimEvent::Restart(model) => self.restart(model),
            SimEvent::Thresholds(model, table) => self.feed(model, Input::Event(Event::Thresholds(table))),
        }
    }

    /// Gives a core what is for it, and carries out what it wants done. Mutations act here and nowhere else.
    fn feed(&mut self, model: ModelIndex, input: Input) {
        #[cfg(any(test, feature = "mutations"))]
        let Some(input) = self.spoil_input(model, input) else { return };
        let mut actions = Vec::new();
        match input {
            Input::Event(event) => self.cores[model].handle(self.now, event, &mut actions),
            Input::StepDone(took) => self.cores[model].step_done(self.now, took, &self.outputs[model], &mut actions),
        }
        #[cfg(any(test, feature = "mutations"))]
        self.spoil_actions(model, &mut actions);
        self.carry_out(model, actions);
    }

    fn poll(&mut self, model: ModelIndex) {
        if !self.incarnations[model].1 {
            return;
        }
        match self.cores[model].poll(self.now) {
            Next::Launch => {
                let took = self.models[model].latency(self.cores[model].batch());
                let took = took.mul_f64(1.0 + self.step_jitter * self.draw(model as u64));
                self.models[model].compute(self.cores[model].batch(), &mut self.outputs[model]);
                let incarnation = self.incarnations[model].0;
                self.schedule(self.now + took, SimEvent::StepDone(model, incarnation, took));
            }
            Next::Wait(Some(time)) if self.wakes[model] != Some(time) => {
                self.wakes[model] = Some(time);
                self.schedule(time, SimEvent::Wake);
            }
            Next::Wait(Some(_)) => {}
            Next::Wait(None) => {}
        }
    }

    /// A number between 0 and 1 that depends on everything before.
    fn draw(&self, what: u64) -> f64 {
        draw_unit(self.delay.seed, what, self.queue.pushed() + self.skipped, Purpose::Route)
    }

    fn carry_out(&mut self, from: ModelIndex, actions: Vec<Action>) {
        for action in actions {
            self.note_action(from, &action);
            match action {
                Action::Send(to, message) if self.network.is_some() => self.send_over_link(from, to, message),
                Action::Send(to, message) => {
                    let arrival = self.now + self.delay.base + self.delay.jitter.mul_f64(self.draw(from as u64));
                    let link = self.links.entry((from, to)).or_default();
                    *link = arrival.max(*link);
                    let time = *link;
                    self.note_departure(to, &message);
                    self.schedule(time, SimEvent::Deliver(to, message));
                }
                Action::Admit(_) => {}
                Action::Step(id, record) => {
                    let outcome = self.outcomes.get_mut(&id).expect("steps of a known request");
                    if outcome.finish.is_none() {
                        outcome.steps.push(record);
                    }
                }
                Action::Emit(id, token) => self.emit(id, CommittedToken { id: token, origin: from }),
                Action::Finish(id, reason, stats) => self.finish(id, reason, stats),
            }
        }
    }
}

impl SimEvent {
    /// Whether it comes from outside.
    fn is_input(&self) -> bool {
        matches!(self, Self::Submit(..) | Self::Cancel(_) | Self::Crash(_) | Self::Restart(_) | Self::Thresholds(..))
    }
}
