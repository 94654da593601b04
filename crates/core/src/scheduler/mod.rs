//! The sans-IO core of a subserver: queues, handoff-resume, delayed batching, admission, active counts.
//!
//! The same [`Core`] runs in real time (`subserver`) and under a virtual clock (`simulation`).

mod core;
mod handoff;
mod lifecycle;
mod message;
mod peers;
#[cfg(any(test, feature = "mutations"))]
mod sabotage;
mod sequence;
mod stats;
mod threshold;

pub use core::{Core, CoreConfig, MAX_STEPS_WITHOUT_COMMIT};
pub use message::{Action, ActiveCount, Event, Handoff, Next, PeerBody, PeerMessage};
pub use stats::{ModelStats, Occupancy, Snapshot, StepKind, StepTimes};
pub use threshold::{ThresholdTable, check_thresholds};
