//! Messages between models that do not share a process: what a network connection needs on top of a path that loses,
//! repeats and reorders packets, and whose other end can stop and come back.
//!
//! [`Link`] is a state machine without I/O, like the scheduler core: packets, messages and the time go in, packets and
//! [`LinkEvent`]s come out. The simulator drives it through faults; a connection drives it with bytes,
//! which [`codec`] makes of packets.

pub mod codec;
mod link;
mod packet;

pub use link::{Link, LinkConfig, LinkCounters, LinkEvent, LinkState, SendError};
pub use packet::{Epochs, Frame, PROTOCOL_VERSION, Packet};
