//! What subservers say to each other, and the events and actions of a scheduler core.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::threshold::ThresholdTable;
use crate::request::{FinishReason, ModelIndex, Request, RequestId, RequestStats, StepRecord};
use crate::routing::RequestState;

/// The number of active requests, as last told by the entry model. A larger version is newer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ActiveCount {
    /// Rises with every change.
    pub version: u64,
    /// Admitted requests that have not ended, over the whole system.
    pub count: usize,
}

/// A message from one subserver to another. The active count rides on every one.
#[derive(Debug, Clone)]
pub struct PeerMessage {
    /// Sender.
    pub from: ModelIndex,
    /// What the sender knows of the number of active requests.
    pub active: ActiveCount,
    /// The content.
    pub body: PeerBody,
}

/// Content of a [`PeerMessage`].
#[allow(clippy::large_enum_variant, reason = "a handoff is the common case, and boxing it would allocate at every one")]
#[derive(Debug, Clone)]
pub enum PeerBody {
    /// The request moves to the receiver.
    Handoff(Handoff),
    /// To the entry model, directly or over another: the request ended at the sender, which has freed its own state, or
    /// was lost after the handoff `hop`, the last that the sender knows of.
    Finish(RequestId, u64, FinishReason, RequestStats),
    /// From the entry model: the request has ended, free what you hold for it. Its active count is the new one.
    Close(RequestId),
    /// The request is to end; whoever holds it ends it. Follows the request from model to model.
    Cancel(RequestId),
    /// From the entry model: whether it reaches this model. What was handed to one that it does not reach is lost.
    Reach(ModelIndex, bool),
}

/// A request on its way to another model, with everything that model needs and does not have.
#[derive(Debug, Clone)]
pub struct Handoff {
    /// The request.
    pub id: RequestId,
    /// Counts the handoffs of this request; receivers assert that it rises.
    pub hop: u64,
    /// Prompt, sampling parameters and key (shared, not copied, in process).
    pub request: Arc<Request>,
    /// Absolute position (prompt included) of the first token of `delta`: the length of the receiver's log.
    pub start: usize,
    /// Committed tokens that the receiver has not seen. On a first visit the log starts as the prompt.
    pub delta: SmallVec<[u32; 16]>,
    /// Length of every model's log of this request; 0 where it was never visited.
    pub known: SmallVec<[usize; 4]>,
    /// Counters that travel with the request.
    pub stats: RequestStats,
    /// What the routing policy keeps of it.
    pub state: RequestState,
    /// Steps since the last commit.
    pub steps_without_commit: u32,
}

/// Something that happened to a scheduler core.
#[allow(clippy::large_enum_variant, reason = "as for `PeerBody`")]
#[derive(Debug)]
pub enum Event {
    /// A client's request, at the entry model.
    ClientRequest(RequestId, Arc<Request>),
    /// A peer's message.
    Peer(PeerMessage),
    /// A client does not want this request any more, at the entry model.
    Cancel(RequestId),
    /// The peer stopped, restarted, or cannot be reached: it has forgotten this model, which forgets it too.
    PeerLost(ModelIndex),
    /// The peer is there again.
    PeerUp(ModelIndex),
    /// Other thresholds from now on; every model of a system is given the same.
    Thresholds(Arc<ThresholdTable>),
}

/// Something that the driver of a scheduler core has to do.
#[allow(clippy::large_enum_variant, reason = "as for `PeerBody`")]
#[derive(Debug)]
pub enum Action {
    /// Deliver to a peer, in order per peer.
    Send(ModelIndex, PeerMessage),
    /// The request left the admission queue; sent by the entry model, once.
    Admit(RequestId),
    /// A step, for the client of a request with a trace; before the token that it committed.
    Step(RequestId, StepRecord),
    /// A committed token for the client.
    Emit(RequestId, u32),
    /// The request ended; sent by the entry model, once, after the last token.
    Finish(RequestId, FinishReason, RequestStats),
}

/// What a driver should do after [`super::Core::poll`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Run [`super::Core::batch`], then report with `step_done` or `step_failed`.
    Launch,
    /// Wait for an event, at most until this time when given.
    Wait(Option<Duration>),
}
