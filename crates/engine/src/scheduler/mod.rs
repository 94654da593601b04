//! The sans-IO core of a subserver: queues, handoff-resume, delayed batching, admission, active counts.
//!
//! The same [`Core`] runs in real time (`subserver`) and under a virtual clock (`simulation`).

mod batch;
mod core;
mod handoff;
mod lifecycle;
mod message;
mod mutation;
mod peers;
mod sequence;
mod stats;
mod threshold;

pub use batch::{Batch, Row};
pub(crate) use core::MAX_FRUITLESS;
pub use core::{Core, CoreConfig};
pub use message::{Action, ActiveCount, Event, Handoff, Next, PeerBody, PeerMessage};
pub use mutation::Mutation;
pub use stats::ModelStats;
pub use threshold::{ThresholdTable, check_thresholds};
