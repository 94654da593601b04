//! Drives the real scheduler cores under a virtual clock.
//!
//! Events are ordered by (time, sequence number), so a run is a function of its inputs. After every event the
//! invariants of `docs/architecture.md` are checked; a violation panics with the event that caused it.

mod invariants;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use crate::keyed::{Purpose, draw_unit};
use crate::request::{CommittedToken, FinishReason, ModelIndex, Request, RequestId, RequestStats, StepRecord};
use crate::routing::RoutingPolicy;
use crate::runner::{EmulatedModel, StepOutput};
use crate::scheduler::{Action, Core, CoreConfig, Event, Next, PeerMessage};

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
enum Happening {
    Submit(RequestId, Arc<Request>),
    Cancel(RequestId),
    Deliver(ModelIndex, PeerMessage),
    StepDone(ModelIndex, Duration),
    Wake(ModelIndex),
}

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
    heap: BinaryHeap<Reverse<(Duration, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    sequence: u64,
    now: Duration,
    in_flight: BTreeMap<RequestId, usize>,
    outcomes: BTreeMap<RequestId, Outcome>,
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
        let cores = configs.into_iter().map(|config| Core::new(config, Arc::clone(policy))).collect();
        Self {
            cores,
            models,
            outputs,
            wakes,
            entry,
            delay,
            links: BTreeMap::new(),
            heap: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            sequence: 0,
            now: Duration::ZERO,
            in_flight: BTreeMap::new(),
            outcomes: BTreeMap::new(),
        }
    }

    /// A client sends a request at `time`.
    pub fn submit(&mut self, time: Duration, id: RequestId, request: Request) {
        self.schedule(time, Happening::Submit(id, Arc::new(request)));
    }

    /// A client gives a request up at `time`.
    pub fn cancel(&mut self, time: Duration, id: RequestId) {
        self.schedule(time, Happening::Cancel(id));
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

    fn schedule(&mut self, time: Duration, happening: Happening) {
        assert!(time >= self.now, "the past cannot be changed");
        self.heap.push(Reverse((time, self.sequence)));
        self.happenings.insert(self.sequence, happening);
        self.sequence += 1;
    }

    /// Runs until nothing is left to happen, at most `limit` events. Returns the number of events.
    pub fn run(&mut self, limit: u64) -> u64 {
        let mut count = 0;
        while let Some(Reverse((time, key))) = self.heap.pop() {
            assert!(count < limit, "still busy after {limit} events at {time:?}: no progress");
            count += 1;
            self.now = time;
            let happening = self.happenings.remove(&key).expect("every key has its happening");
            self.happen(happening);
            // Subservers look at their buffers only when everything of this instant has arrived: the order in which
            // simultaneous events are handled must not matter, as in the throughput model.
            if self.heap.peek().is_none_or(|Reverse((next, _))| *next > time) {
                (0..self.cores.len()).for_each(|model| self.poll(model));
            }
            self.check_invariants();
        }
        self.check_quiescent();
        count
    }

    fn happen(&mut self, happening: Happening) {
        let mut actions = Vec::new();
        let model = match happening {
            Happening::Submit(id, request) => {
                self.outcomes.insert(id, Outcome::default());
                self.cores[self.entry].handle(self.now, Event::ClientRequest(id, request), &mut actions);
                self.entry
            }
            Happening::Cancel(id) => {
                self.cores[self.entry].handle(self.now, Event::Cancel(id), &mut actions);
                self.entry
            }
            Happening::Deliver(model, message) => {
                self.note_delivery(&message);
                self.cores[model].handle(self.now, Event::Peer(message), &mut actions);
                model
            }
            Happening::StepDone(model, took) => {
                let outputs = std::mem::take(&mut self.outputs[model]);
                self.cores[model].step_done(self.now, took, &outputs, &mut actions);
                self.outputs[model] = outputs;
                model
            }
            Happening::Wake(model) => model,
        };
        self.carry_out(model, actions);
    }

    fn poll(&mut self, model: ModelIndex) {
        match self.cores[model].poll(self.now) {
            Next::Launch => {
                let took = self.models[model].latency(self.cores[model].batch());
                self.models[model].compute(self.cores[model].batch(), &mut self.outputs[model]);
                self.schedule(self.now + took, Happening::StepDone(model, took));
            }
            Next::Wait(Some(time)) if self.wakes[model] != Some(time) => {
                self.wakes[model] = Some(time);
                self.schedule(time, Happening::Wake(model));
            }
            Next::Wait(Some(_)) => {}
            Next::Wait(None) => {}
        }
    }

    fn carry_out(&mut self, from: ModelIndex, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(to, message) => {
                    let jitter = draw_unit(self.delay.seed, from as u64, self.sequence, Purpose::Route);
                    let arrival = self.now + self.delay.base + self.delay.jitter.mul_f64(jitter);
                    let link = self.links.entry((from, to)).or_default();
                    *link = arrival.max(*link);
                    let time = *link;
                    self.note_departure(&message);
                    self.schedule(time, Happening::Deliver(to, message));
                }
                Action::Admit(_) => {}
                Action::Step(id, record) => {
                    self.outcomes.get_mut(&id).expect("steps of a known request").steps.push(record);
                }
                Action::Emit(id, token) => {
                    let outcome = self.outcomes.get_mut(&id).expect("tokens of a known request");
                    assert!(outcome.finish.is_none(), "{id}: token after the end");
                    outcome.tokens.push((self.now, CommittedToken { id: token, origin: from }));
                }
                Action::Finish(id, reason, stats) => {
                    let outcome = self.outcomes.get_mut(&id).expect("end of a known request");
                    assert!(outcome.finish.is_none(), "{id} ended twice");
                    outcome.finish = Some((self.now, reason, stats));
                }
            }
        }
    }
}
