//! Real time: threads that feed scheduler cores with events and run their batches.
//!
//! [`VirtualDriver`] does the same for emulated models without waiting.
//!
//! A [`ModelWorker`] is one model's core with its runner. A [`Subserver`] drives one of them by itself; [`Lockstep`] drives
//! all of them in rounds. [`DetachedStates`] lets subservers that know nothing of each other serve one request in turn.

mod detached;
mod lockstep;
mod streams;
mod subserver;
mod virtual_time;
mod worker;

pub(crate) use detached::DetachedStates;
pub(crate) use lockstep::Lockstep;
pub(crate) use streams::Streams;
pub(crate) use subserver::{Carrier, Outlet, Subserver};
pub(crate) use virtual_time::{Costs, Due, Round, Stepping, VirtualDriver, VirtualModel};
pub(crate) use worker::{Clients, ModelWorker, Shared};

use tokenrouter_core::request::{RequestId, StreamEvent};
use tokenrouter_core::scheduler::Event;

/// What an inbox takes, and what waits for the inbox of another model.
#[allow(clippy::large_enum_variant, reason = "a handoff is the common case, and boxing it would allocate at every one")]
#[derive(Debug)]
pub(crate) enum Inbound {
    /// For the scheduler core.
    Event(Event),
    /// For the client of a request, from a model on another node.
    Stream(RequestId, StreamEvent),
    /// End the thread; whatever is held ends with it.
    Stop,
}
