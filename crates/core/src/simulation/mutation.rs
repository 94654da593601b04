//! Mistakes on purpose. The simulation must notice each of them: a check that nothing can fail checks nothing.
//!
//! They are made from outside of the code that is tested: what a core is given and what it wants done passes through
//! [`Simulator::spoil_input`] and [`Simulator::spoil_actions`].

use std::str::FromStr;
use std::sync::Arc;

use super::{Input, Simulator};
use crate::names::list;
use crate::request::{FinishReason, ModelIndex, RequestId};
use crate::routing::{BatchView, Candidate, RoutingPolicy, Row, SignalNeeds};
use crate::scheduler::{Action, Core, Event, PeerBody, PeerMessage, ThresholdTable};

/// A mistake. Compiled in only for tests and with the feature `mutations`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// A request that is cancelled keeps its first KV block.
    LeakOnCancel,
    /// A request that comes back is not put into the buffer.
    ForgetReturn,
    /// A handoff leaves out its first new token.
    ShortDelta,
    /// The entry model does not tell the others that a request has ended.
    ForgetClose,
    /// The end of a request is reported twice.
    FinishTwice,
    /// A committed token is not sent to the client.
    SwallowToken,
    /// A request that goes to a peer is put into the buffer here as well.
    KeepAfterHandoff,
    /// Requests of a lost peer are not ended.
    IgnoreLoss,
    /// The number of active requests is not lowered when a request ends.
    StaleActiveCount,
    /// Thresholds stay as they are when fewer requests are active.
    UnclampedThresholds,
    /// A message that arrives twice is handled twice.
    AcceptDuplicates,
    /// Random routing depends on the row of the batch instead of the request.
    RouteByRow,
}

impl Mutation {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Self); 12] = [
        ("leak-on-cancel", Self::LeakOnCancel),
        ("forget-return", Self::ForgetReturn),
        ("short-delta", Self::ShortDelta),
        ("forget-close", Self::ForgetClose),
        ("finish-twice", Self::FinishTwice),
        ("swallow-token", Self::SwallowToken),
        ("keep-after-handoff", Self::KeepAfterHandoff),
        ("ignore-loss", Self::IgnoreLoss),
        ("stale-active-count", Self::StaleActiveCount),
        ("unclamped-thresholds", Self::UnclampedThresholds),
        ("accept-duplicates", Self::AcceptDuplicates),
        ("route-by-row", Self::RouteByRow),
    ];
}

impl FromStr for Mutation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|(name, _)| *name == text);
        known.map(|(_, mutation)| *mutation).ok_or_else(|| {
            format!("there is no mutation `{text}`; there are {}", list(&Self::ALL.map(|(name, _)| name)))
        })
    }
}

/// The mistake that a simulation makes, and what it has to remember for it.
#[derive(Debug)]
pub(super) struct Mutant {
    mutation: Mutation,
    /// Committed tokens so far.
    tokens: u64,
    /// A request that has just come back to a model.
    returned: Option<RequestId>,
}

impl Simulator {
    /// Makes a mistake from now on: call it before anything happens.
    pub fn mutate(&mut self, mutation: Mutation) {
        self.mutant = Some(Mutant { mutation, tokens: 0, returned: None });
        match mutation {
            Mutation::RouteByRow => self.policy = Arc::new(RouteByRow(Arc::clone(&self.policy))),
            Mutation::UnclampedThresholds => {
                for config in &mut self.configs {
                    let vector = config.thresholds.row(config.max_active);
                    config.thresholds = Arc::new(ThresholdTable::unclamped(&vector));
                }
            }
            _ => return,
        }
        self.cores = self.configs.iter().map(|config| Core::new(config.clone(), Arc::clone(&self.policy))).collect();
        if self.network.is_some() {
            self.cores.iter_mut().for_each(|core| core.begin_over_network(1));
        }
    }

    /// Mistakes in what a core is given; `None` when it is given nothing.
    pub(super) fn spoil_input(&mut self, model: ModelIndex, input: Input) -> Option<Input> {
        let Some(mutant) = &mut self.mutant else { return Some(input) };
        match (mutant.mutation, &input) {
            (Mutation::IgnoreLoss, Input::Event(Event::PeerLost(_))) => return None,
            (Mutation::ForgetReturn, Input::Event(Event::Peer(message))) => {
                let id = handed_over(message).map(|(id, _)| id);
                mutant.returned = id.filter(|id| self.cores[model].committed(*id).is_some());
            }
            (Mutation::AcceptDuplicates, Input::Event(Event::Peer(message))) => {
                if let Some((id, from)) = handed_over(message) {
                    let mut actions = Vec::new();
                    self.cores[model].handle(self.now, Event::Peer(message.clone()), &mut actions);
                    self.cores[model].forget_arrival(id, from);
                    self.carry_out(model, actions);
                }
            }
            _ => {}
        }
        Some(input)
    }

    /// Mistakes in what a core wants done, and in its state after that.
    pub(super) fn spoil_actions(&mut self, model: ModelIndex, actions: &mut Vec<Action>) {
        let Some(mutant) = &mut self.mutant else { return };
        let core = &mut self.cores[model];
        match mutant.mutation {
            Mutation::LeakOnCancel => {
                let cancelled = |action: &&Action| matches!(action, Action::Finish(_, FinishReason::Cancelled, _));
                actions.iter().filter(cancelled).for_each(|_| core.leak_block());
            }
            Mutation::ForgetReturn => {
                if let Some(id) = mutant.returned.take() {
                    core.forget_ready(id);
                }
            }
            Mutation::ShortDelta => {
                for action in actions {
                    if let Action::Send(_, PeerMessage { body: PeerBody::Handoff(handoff), .. }) = action
                        && !handoff.delta.is_empty()
                    {
                        handoff.delta.remove(0);
                    }
                }
            }
            Mutation::ForgetClose => actions
                .retain(|action| !matches!(action, Action::Send(_, PeerMessage { body: PeerBody::Close(_), .. }))),
            Mutation::FinishTwice => {
                let ends = |action: &Action| match action {
                    Action::Finish(id, reason, stats) => Some(Action::Finish(*id, reason.clone(), stats.clone())),
                    _ => None,
                };
                let again: Vec<Action> = actions.iter().filter_map(ends).collect();
                actions.extend(again);
            }
            Mutation::SwallowToken => actions.retain(|action| {
                let token = matches!(action, Action::Emit(..));
                mutant.tokens += u64::from(token);
                !(token && mutant.tokens.is_multiple_of(5))
            }),
            Mutation::KeepAfterHandoff => {
                for action in actions {
                    if let Action::Send(_, message) = action
                        && let Some((id, _)) = handed_over(message)
                    {
                        core.force_ready(id);
                    }
                }
            }
            Mutation::StaleActiveCount => {
                let ends = actions.iter().filter(|action| matches!(action, Action::Finish(..))).count();
                (0..ends).for_each(|_| core.inflate_active());
            }
            Mutation::IgnoreLoss | Mutation::AcceptDuplicates => {}
            Mutation::RouteByRow | Mutation::UnclampedThresholds => {}
        }
    }
}

/// The request that a message hands over, and who sends it.
fn handed_over(message: &PeerMessage) -> Option<(RequestId, ModelIndex)> {
    match &message.body {
        PeerBody::Handoff(handoff) => Some((handoff.id, message.from)),
        _ => None,
    }
}

/// A policy whose draws depend on the row of the batch instead of the request.
#[derive(Debug)]
struct RouteByRow(Arc<dyn RoutingPolicy>);

impl RoutingPolicy for RouteByRow {
    fn needs(&self, model: ModelIndex) -> SignalNeeds {
        self.0.needs(model)
    }

    fn route(&self, batch: &mut BatchView<'_>) {
        let keys: Vec<u64> = batch.rows_mut().iter().map(|row| row.key).collect();
        batch.rows_mut().iter_mut().zip(0..).for_each(|(row, index)| row.key = index);
        self.0.route(batch);
        batch.rows_mut().iter_mut().zip(keys).for_each(|(row, key)| row.key = key);
    }

    fn send(&self, row: &mut Row, to: ModelIndex) -> Candidate {
        self.0.send(row, to)
    }

    fn receive(&self, log: &mut Vec<u32>, delta: &[u32]) {
        self.0.receive(log, delta);
    }
}
