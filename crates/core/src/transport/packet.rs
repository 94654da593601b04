//! What travels between the two ends of a link.

/// Version of packets and of the messages in them. Both ends must have the same.
pub const PROTOCOL_VERSION: u16 = 1;

/// The incarnations of both ends that a packet belongs to. Sequence numbers begin at 0 in every pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epochs {
    /// The sender's. Rises whenever the sender starts, or gives its peer up.
    pub from: u64,
    /// The receiver's, as the sender knows it; 0 before the first packet from it.
    pub to: u64,
}

/// One packet. It may be lost, repeated, delayed and overtaken.
#[derive(Debug, Clone)]
pub struct Packet<T> {
    /// [`PROTOCOL_VERSION`] of the sender.
    pub version: u16,
    /// The conversation that it belongs to.
    pub epochs: Epochs,
    /// All messages below this number have arrived at the sender of this packet.
    pub ack: u64,
    /// How many messages from `ack` on the sender of this packet has room for.
    pub credit: u32,
    /// The content.
    pub frame: Frame<T>,
}

/// Content of a [`Packet`].
#[derive(Debug, Clone)]
pub enum Frame<T> {
    /// Nothing but the header: an acknowledgement, a sign of life, or the first packet of a conversation.
    Header,
    /// A message.
    Data {
        /// Its number in this direction of the conversation.
        sequence: u64,
        /// The message.
        message: T,
    },
}
