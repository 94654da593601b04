//! The scheduler core of one subserver.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::message::{Action, ActiveCount, Event, Next, PeerBody, PeerMessage};
use super::peers::Peers;
use super::sequence::{Place, Sequence};
use super::stats::{ModelStats, Occupancy, Snapshot, StepKind};
use super::threshold::ThresholdTable;
use crate::kv::BlockPool;
use crate::request::{FinishReason, ModelIndex, Request, RequestId, StepRecord};
use crate::routing::{BatchView, Candidate, Decision, RoutingPolicy, Row};
use crate::step::{Batch, BatchRow, StepOutput};
use crate::token_texts::TokenTexts;

/// What a core needs to know once.
#[derive(Debug, Clone)]
pub struct CoreConfig {
    /// This model.
    pub model: ModelIndex,
    /// Number of models.
    pub models: usize,
    /// The model at which requests enter and are accounted for.
    pub entry: ModelIndex,
    /// Most requests decoded at the same time, over all models.
    pub max_active: usize,
    /// Most rows in a step.
    pub max_batch: usize,
    /// Most new tokens in a step.
    pub max_step_tokens: usize,
    /// Longest wait below the threshold.
    pub max_wait: Duration,
    /// Thresholds by number of active requests.
    pub thresholds: Arc<ThresholdTable>,
    /// KV blocks of this model. The smallest number over all models bounds admission at the entry.
    pub kv_blocks: usize,
    /// Smallest number of KV blocks over all models.
    pub admission_blocks: usize,
    /// Positions per block, the same for all models.
    pub block_size: usize,
    /// Whether prefixes of ended requests are kept for later ones.
    pub prefix_cache: bool,
    /// Whether a request that goes to a peer keeps its blocks here for the return.
    pub handoff_resume: bool,
    /// Whether this model knows nothing of the others: a request that switches ends here
    /// ([`FinishReason::Moved`]), and its client takes it on. This model is then its own `entry`.
    pub alone: bool,
    /// Token ids that end a sequence.
    pub eos: Vec<u32>,
    /// Text of every token, for stop texts; absent when the models are emulated.
    pub texts: Option<Arc<TokenTexts>>,
}

/// Steps without a commit after which a request is ended: a policy that drops every candidate would go on for ever.
pub const MAX_STEPS_WITHOUT_COMMIT: u32 = 32;

/// The scheduler of one subserver: handoff-resume, delayed batching and admission as a state machine.
///
/// It never sleeps, locks or reads a clock. A driver feeds it events with the time, asks [`Core::poll`] what to do, runs
/// the batch, and carries out the actions.
#[derive(Debug)]
pub struct Core {
    pub(super) config: CoreConfig,
    pub(super) policy: Arc<dyn RoutingPolicy>,
    pub(super) sequences: HashMap<RequestId, Sequence>,
    pub(super) ready: VecDeque<RequestId>,
    pub(super) kv: BlockPool,
    pub(super) active: ActiveCount,
    /// Entry only: requests waiting for admission, with their arrival times.
    pub(super) queue: VecDeque<(RequestId, Arc<Request>, Duration)>,
    /// Entry only: blocks reserved by admitted requests.
    pub(super) reserved: usize,
    batch: Batch,
    pub(super) running: bool,
    /// Ids popped from `ready` that could not join the batch; kept to avoid an allocation per step.
    passed_over: Vec<RequestId>,
    /// Rows of the step that is being finished; kept to avoid an allocation per step.
    views: Vec<Row>,
    pub(super) stats: ModelStats,
    pub(super) peers: Peers,
}

impl Core {
    /// An idle core.
    pub fn new(config: CoreConfig, policy: Arc<dyn RoutingPolicy>) -> Self {
        assert!(config.model < config.models && config.entry < config.models && config.max_batch > 0);
        let kv = BlockPool::new(config.kv_blocks, config.block_size, config.prefix_cache);
        let stats = ModelStats::new(config.models);
        Self {
            peers: Peers::new(config.models),
            config,
            policy,
            sequences: HashMap::new(),
            ready: VecDeque::new(),
            kv,
            active: ActiveCount::default(),
            queue: VecDeque::new(),
            reserved: 0,
            batch: Batch::default(),
            running: false,
            passed_over: Vec::new(),
            views: Vec::new(),
            stats,
        }
    }

    /// The batch to run after [`Next::Launch`].
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Counters so far.
    pub fn stats(&self) -> &ModelStats {
        &self.stats
    }

    /// Writes what this subserver says of itself into `snapshot`, and keeps its buffers.
    pub fn publish(&self, snapshot: &mut Snapshot) {
        snapshot.stats.clone_from(&self.stats);
        snapshot.occupancy = self.occupancy();
        snapshot.threshold = self.threshold();
        snapshot.kv_held = self.kv.held_blocks();
        snapshot.kv_cached = self.kv.cached_blocks();
        snapshot.kv_total = self.kv.capacity();
    }

    /// Notes where the driver's time went.
    pub fn record_driver(&mut self, sampling: Duration, scheduling: Duration, idle: Duration) {
        self.stats.sampling += sampling;
        self.stats.scheduling += scheduling;
        self.stats.idle += idle;
    }

    /// The KV book-keeping.
    pub fn kv(&self) -> &BlockPool {
        &self.kv
    }

    /// The number of active requests as this model knows it.
    pub fn active(&self) -> ActiveCount {
        self.active
    }

    /// Requests that this model holds any state for, and requests in the admission queue.
    pub fn len(&self) -> (usize, usize) {
        (self.sequences.len(), self.queue.len())
    }

    /// Whether nothing is held and nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == (0, 0)
    }

    /// Requests by state.
    pub fn occupancy(&self) -> Occupancy {
        let running = if self.running { self.batch.rows().len() } else { 0 };
        let pending = self.sequences.len().saturating_sub(self.ready.len() + running);
        Occupancy { queued: self.queue.len(), ready: self.ready.len(), running, pending }
    }

    /// The requests that are here: ready or running. (Pending ones are elsewhere.)
    pub fn owned(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.sequences.iter().filter(|(_, s)| !matches!(s.place, Place::Pending(_))).map(|(id, _)| *id)
    }

    /// Entry only: requests that wait for admission.
    pub fn queued(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.queue.iter().map(|(id, ..)| *id)
    }

    /// Committed tokens of a request that this model knows.
    pub fn committed(&self, id: RequestId) -> Option<usize> {
        self.sequences.get(&id).map(|sequence| sequence.log.len() - sequence.request.prompt_tokens())
    }

    /// Takes an event in.
    pub fn handle(&mut self, now: Duration, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::ClientRequest(id, request) => {
                assert_eq!(self.config.model, self.config.entry, "client requests enter at the entry model");
                self.queue.push_back((id, request, now));
                self.admit(now, actions);
            }
            Event::Cancel(id) => self.cancel(now, id, actions),
            Event::Peer(message) => {
                if message.active.version > self.active.version {
                    self.active = message.active;
                }
                match message.body {
                    PeerBody::Handoff(handoff) => self.resume(now, message.from, handoff, actions),
                    PeerBody::Finish(id, hop, reason, stats) => {
                        self.finished_at_peer(now, (id, hop), reason, stats, actions);
                    }
                    PeerBody::Close(id) => self.close(id),
                    PeerBody::Cancel(id) => self.cancel(now, id, actions),
                    PeerBody::Reach(model, up) => self.reach(now, model, up, actions),
                }
            }
            Event::PeerLost(peer) => self.peer_lost(now, peer, actions),
            Event::PeerUp(peer) => self.peer_up(peer, actions),
            Event::Thresholds(table) => {
                self.config.thresholds = table;
                self.stats.threshold_changes += 1;
            }
        }
    }

    /// Launches a batch if the threshold is reached or a request has waited too long.
    pub fn poll(&mut self, now: Duration) -> Next {
        if self.running {
            return Next::Wait(None);
        }
        let Some(oldest) = self.ready.front().and_then(|id| self.ready_since(*id)) else { return Next::Wait(None) };
        let full = self.ready.len() >= self.threshold();
        let deadline = oldest + self.config.max_wait;
        if !full && now < deadline {
            return Next::Wait(Some(deadline));
        }
        self.assemble(now);
        if self.batch.rows().is_empty() {
            // Every ready request waits for KV blocks that a `Close` on its way will free.
            return Next::Wait(None);
        }
        self.running = true;
        self.stats.record_launch(self.batch.rows().len(), self.batch.total_tokens());
        if full {
            self.stats.launches_full += 1;
        } else {
            self.stats.launches_timeout += 1;
        }
        Next::Launch
    }

    /// The running batch is done; `output` has one entry per row that asked for a token, in order. `took` is the time of
    /// the step.
    pub fn step_done(&mut self, now: Duration, took: Duration, output: &StepOutput, actions: &mut Vec<Action>) {
        assert!(std::mem::take(&mut self.running), "a step ended that was not launched");
        let batch = std::mem::take(&mut self.batch);
        let extending = batch.rows().iter().filter(|row| batch.tokens(row).len() > 1).count();
        self.stats.record_time(batch.rows().len(), extending, StepKind::of(&batch), took);
        self.stats.record_output(output);
        let mut views = std::mem::take(&mut self.views);
        for (row, token) in batch.rows().iter().filter(|row| row.sample).zip(&output.tokens) {
            views.push(self.view(row, *token));
        }
        self.policy.route(&mut BatchView::new(&mut views, output));
        let mut routed = views.drain(..);
        for row in batch.rows() {
            let view = if row.sample { routed.next() } else { None };
            let sequence = self.sequences.get_mut(&row.id).expect("a running request has state");
            sequence.computed = row.start + batch.tokens(row).len();
            sequence.share_prompt(&mut self.kv);
            match view {
                _ if sequence.closed => self.drop_sequence(row.id),
                _ if sequence.cancelled => self.finish(now, row.id, FinishReason::Cancelled, actions),
                Some(view) => self.apply(now, view, actions),
                None => self.make_ready(now, row.id),
            }
        }
        drop(routed);
        self.views = views;
        self.batch = batch;
        self.batch.clear();
        self.admit(now, actions);
    }

    /// The running batch failed: its requests end with an error.
    pub fn step_failed(&mut self, now: Duration, message: &str, actions: &mut Vec<Action>) {
        assert!(std::mem::take(&mut self.running), "a step failed that was not launched");
        let ids: Vec<RequestId> = self.batch.rows().iter().map(|row| row.id).collect();
        self.batch.clear();
        for id in ids {
            // What the step has written is unknown: nothing of it may be kept.
            if let Some(sequence) = self.sequences.get_mut(&id) {
                sequence.computed = 0;
                if sequence.closed {
                    self.drop_sequence(id);
                    continue;
                }
            }
            self.finish(now, id, FinishReason::Error(message.to_owned()), actions);
        }
        self.admit(now, actions);
    }

    fn view(&mut self, row: &BatchRow, token: u32) -> Row {
        let sequence = self.sequences.get_mut(&row.id).expect("a running request has state");
        Row {
            visit_steps: sequence.visit_steps,
            visit_tokens: sequence.visit_tokens,
            state: std::mem::take(&mut sequence.state),
            ..Row::new(row.id, &row.request, self.config.model, row.position(), token)
        }
    }

    /// Ready requests that launch a batch now.
    pub fn threshold(&self) -> usize {
        // A batch cannot be larger than `max_batch`, so waiting for more would be in vain.
        self.config.thresholds.get(self.config.model, self.active.count).min(self.config.max_batch)
    }

    fn ready_since(&self, id: RequestId) -> Option<Duration> {
        match self.sequences.get(&id)?.place {
            Place::Ready(since) => Some(since),
            _ => None,
        }
    }

    /// Fills the batch with everything that is ready, up to `max_batch` rows and `max_step_tokens` new tokens.
    /// Requests with one new token come first, so that a long prefill takes what decoding leaves.
    fn assemble(&mut self, now: Duration) {
        debug_assert!(self.batch.rows().is_empty() && self.passed_over.is_empty());
        let mut budget = self.config.max_step_tokens.max(self.config.max_batch);
        let mut decoding = self.ready.iter().filter(|id| self.is_single(**id)).count().min(self.config.max_batch);
        while self.batch.rows().len() < self.config.max_batch
            && let Some(id) = self.ready.pop_front()
        {
            let sequence = self.sequences.get_mut(&id).expect("a ready request has state");
            let missing = sequence.log.len() - sequence.computed;
            debug_assert!(missing > 0, "a ready request has something to compute");
            let reserve = if missing == 1 { 0 } else { decoding };
            let take = missing.min(budget.saturating_sub(reserve));
            if missing == 1 {
                decoding -= 1;
            }
            if take == 0 || !sequence.grow(&mut self.kv, take) {
                self.passed_over.push(id);
                continue;
            }
            budget -= take;
            if let Some((from, to)) = self.kv.pending_copy(&mut sequence.blocks) {
                self.batch.push_copy(from, to);
            }
            let end = sequence.computed + take;
            self.batch.push(id, &sequence.request, (&sequence.log, sequence.computed..end), sequence.blocks.blocks());
            if let Place::Ready(since) = sequence.place {
                let waited = now.saturating_sub(since);
                sequence.stats.buffer_wait += waited;
                self.stats.buffer_wait += waited;
            }
            sequence.place = Place::Running;
        }
        for id in self.passed_over.drain(..).rev() {
            self.ready.push_front(id);
        }
    }

    fn is_single(&self, id: RequestId) -> bool {
        self.sequences.get(&id).is_some_and(|sequence| sequence.log.len() - sequence.computed == 1)
    }

    /// Commits or drops the candidate and moves the request on.
    fn apply(&mut self, now: Duration, mut view: Row, actions: &mut Vec<Action>) {
        let (id, here) = (view.request, self.config.model);
        let (to, commit) = match std::mem::replace(&mut view.decision, Decision::Stay) {
            Decision::Switch(to) if to >= self.config.models => {
                let message = format!("{id}: the routing policy chose model {to}, there are {}", self.config.models);
                return self.finish(now, id, FinishReason::Error(message), actions);
            }
            Decision::Switch(to) if to != here && !self.peers.reachable(to) => {
                return self.finish(now, id, FinishReason::Lost(to), actions);
            }
            Decision::Switch(to) if to != here => (Some(to), self.policy.send(&mut view, to) == Candidate::Commit),
            Decision::Switch(_) | Decision::Stay => (Some(here), true),
            Decision::Retry => (Some(here), false),
            Decision::Finish => (None, true),
            Decision::Fail(message) => return self.finish(now, id, FinishReason::Error(message), actions),
        };
        let sequence = self.sequences.get_mut(&id).expect("a running request has state");
        sequence.state = std::mem::take(&mut view.state);
        sequence.visit_steps += 1;
        sequence.steps_without_commit = if commit { 0 } else { sequence.steps_without_commit + 1 };
        if sequence.steps_without_commit > MAX_STEPS_WITHOUT_COMMIT {
            let position = view.position;
            let message =
                format!("{id}: {MAX_STEPS_WITHOUT_COMMIT} candidates in a row were dropped at position {position}");
            return self.finish(now, id, FinishReason::Error(message), actions);
        }
        let end = if commit { self.commit(id, view.candidate) } else { None };
        let end = end.or_else(|| to.is_none().then_some(FinishReason::Length));
        self.report(&view, commit, to.filter(|_| end.is_none()), actions);
        match (end, to) {
            (Some(reason), _) => {
                self.stats.finished += 1;
                self.finish(now, id, reason, actions);
            }
            (None, Some(to)) => {
                self.stats.record_transition(to, commit);
                if to != here && self.config.alone {
                    self.stats.record_run(view.visit_steps + 1);
                    self.finish(now, id, FinishReason::Moved(to), actions);
                } else if to != here {
                    self.hand_off(id, to, actions);
                } else {
                    if !commit {
                        // The same position again: the last token is fed once more, over its own keys and values.
                        self.sequences.get_mut(&id).expect("a request here has state").computed -= 1;
                    }
                    self.make_ready(now, id);
                }
            }
            (None, None) => {}
        }
    }

    /// Tells the client what the step did.
    fn report(&mut self, view: &Row, committed: bool, to: Option<ModelIndex>, actions: &mut Vec<Action>) {
        let (id, token) = (view.request, view.candidate);
        if self.sequences.get(&id).is_some_and(|sequence| sequence.request.trace) {
            let score = (!view.score.is_nan()).then_some(view.score);
            let record = StepRecord { position: view.position, model: self.config.model, token, committed, to, score };
            actions.push(Action::Step(id, record));
        }
        if committed {
            self.stats.emitted += 1;
            actions.push(Action::Emit(id, token));
        }
    }

    /// Appends a token to the committed stream; says whether that ends the request.
    fn commit(&mut self, id: RequestId, token: u32) -> Option<FinishReason> {
        let sequence = self.sequences.get_mut(&id).expect("a running request has state");
        sequence.log.push(token);
        sequence.known[self.config.model] = sequence.log.len();
        sequence.stats.tokens_by_model[self.config.model] += 1;
        sequence.visit_tokens += 1;
        let request = &sequence.request;
        let committed = &sequence.log[request.prompt_tokens()..];
        request.sampling.finish_after(committed, &self.config.eos, self.config.texts.as_deref())
    }

    pub(super) fn make_ready(&mut self, now: Duration, id: RequestId) {
        let sequence = self.sequences.get_mut(&id).expect("a request here has state");
        sequence.place = Place::Ready(now);
        self.ready.push_back(id);
    }

    pub(super) fn send(&self, to: ModelIndex, body: PeerBody) -> Action {
        Action::Send(to, PeerMessage { from: self.config.model, active: self.active, body })
    }
}
