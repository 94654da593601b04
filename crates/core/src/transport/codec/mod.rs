//! Packets between nodes as bytes: a version, then fields in a fixed order. Nothing in them is executed or names a type; every
//! length has a bound, and what a scheduler relies on is checked before it sees a message.

mod request;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::{Arc, LazyLock};

use smallvec::SmallVec;

pub use wire::CodecError;

use self::request::{put_reason, put_request, put_stats, take_reason, take_request, take_stats};
use self::wire::{Put, Take, bad};
use super::{Epochs, Frame, PROTOCOL_VERSION, Packet};
use crate::request::{
    CommittedToken, ModelIndex, Request, RequestId, SamplingParams, StepRecord, StreamEvent, TokenLogprobs,
};
use crate::routing::RequestState;
use crate::scheduler::{ActiveCount, Handoff, PeerBody, PeerMessage};

/// Largest packet, in bytes. A handoff has a prompt and the committed tokens at most.
pub const MAX_PACKET: usize = 16 << 20;
/// Most stop texts and stop tokens of a request.
const MAX_TEXTS: usize = 4096;
/// Longest stop text.
const MAX_TEXT: usize = 1 << 16;
/// Largest state of a routing method.
const MAX_STATE: usize = 1 << 20;

/// What one node says to another.
#[allow(clippy::large_enum_variant, reason = "as for `PeerBody`")]
#[derive(Debug, Clone)]
pub enum NodeMessage {
    /// From scheduler to scheduler.
    Peer(PeerMessage),
    /// For the client of a request, which the entry model's node has.
    Stream(RequestId, StreamEvent),
}

/// What messages of one direction of a link can hold.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// The sender.
    pub from: ModelIndex,
    /// The receiver.
    pub to: ModelIndex,
    /// The entry model.
    pub entry: ModelIndex,
    /// Number of models.
    pub models: usize,
    /// Size of the common vocabulary.
    pub vocab: usize,
    /// Most tokens of a request, prompt and output.
    pub token_limit: usize,
}

/// In place of a request that the receiver has.
static KNOWN: LazyLock<Arc<Request>> =
    LazyLock::new(|| Arc::new(Request::new(Vec::new(), SamplingParams::default(), 0)));

/// Appends a packet to `out`. `bounds` are those of its direction.
pub fn encode(packet: &Packet<NodeMessage>, bounds: &Bounds, out: &mut Vec<u8>) {
    out.extend_from_slice(&packet.version.to_le_bytes());
    out.number(packet.epochs.from);
    out.number(packet.epochs.to);
    out.number(packet.ack);
    out.number(u64::from(packet.credit));
    match &packet.frame {
        Frame::Header => out.byte(0),
        Frame::Data { sequence, message } => {
            out.byte(1);
            out.number(*sequence);
            put_message(out, message, bounds);
        }
    }
}

/// Reads a packet that is all of `bytes`.
pub fn decode(bytes: &[u8], bounds: &Bounds) -> Result<Packet<NodeMessage>, CodecError> {
    if bytes.len() > MAX_PACKET {
        return Err(bad("the length of a packet", bytes.len() as u64, format!("up to {MAX_PACKET}")));
    }
    let mut bytes = Take(bytes);
    let version = bytes.short("the version")?;
    if version != PROTOCOL_VERSION {
        return Err(CodecError::Version { ours: PROTOCOL_VERSION, theirs: version });
    }
    let epochs = Epochs { from: bytes.number("an epoch")?, to: bytes.number("an epoch")? };
    let ack = bytes.number("the acknowledgement")?;
    let credit = bytes.upto(u64::from(u32::MAX), "the credit")? as u32;
    let frame = match bytes.byte("the kind of a packet")? {
        0 => Frame::Header,
        1 => {
            let sequence = bytes.number("the sequence number")?;
            Frame::Data { sequence, message: take_message(&mut bytes, bounds)? }
        }
        other => return Err(bad("the kind of a packet", u64::from(other), "0 or 1")),
    };
    bytes.end()?;
    Ok(Packet { version, epochs, ack, credit, frame })
}

fn put_message(out: &mut Vec<u8>, message: &NodeMessage, bounds: &Bounds) {
    let PeerMessage { active, body, .. } = match message {
        NodeMessage::Peer(message) => message,
        NodeMessage::Stream(id, event) => return put_event(out, *id, event),
    };
    let tag = match body {
        PeerBody::Handoff(_) => 0,
        PeerBody::Finish(..) => 1,
        PeerBody::Close(_) => 2,
        PeerBody::Cancel(_) => 3,
        PeerBody::Reach(..) => 4,
    };
    out.byte(tag);
    out.number(active.version);
    out.size(active.count);
    match body {
        PeerBody::Handoff(handoff) => put_handoff(out, handoff, bounds),
        PeerBody::Finish(id, hop, reason, stats) => {
            out.number(id.0);
            out.number(*hop);
            put_reason(out, reason);
            put_stats(out, stats);
        }
        PeerBody::Close(id) | PeerBody::Cancel(id) => out.number(id.0),
        PeerBody::Reach(model, up) => {
            out.size(*model);
            out.flag(*up);
        }
    }
}

fn take_message(bytes: &mut Take<'_>, bounds: &Bounds) -> Result<NodeMessage, CodecError> {
    let tag = bytes.byte("the kind of a message")?;
    if tag > 4 {
        let (id, event) = take_event(bytes, tag, bounds)?;
        return Ok(NodeMessage::Stream(id, event));
    }
    let active = ActiveCount {
        version: bytes.number("the version of the count")?,
        count: bytes.size(1 << 20, "the number of active requests")?,
    };
    let id = |bytes: &mut Take<'_>| bytes.number("a request").map(RequestId);
    let body = match tag {
        0 => PeerBody::Handoff(take_handoff(bytes, bounds)?),
        1 => PeerBody::Finish(
            id(bytes)?,
            bytes.number("a hop")?,
            take_reason(bytes, bounds)?,
            take_stats(bytes, bounds)?,
        ),
        2 => PeerBody::Close(id(bytes)?),
        3 => PeerBody::Cancel(id(bytes)?),
        _ => PeerBody::Reach(bytes.size(bounds.models - 1, "a model")?, bytes.flag("reach")?),
    };
    Ok(NodeMessage::Peer(PeerMessage { from: bounds.from, active, body }))
}

/// The prompt goes along on a first visit only: afterwards the receiver has it, and the entry model has it anyway.
fn put_handoff(out: &mut Vec<u8>, handoff: &Handoff, bounds: &Bounds) {
    let known = bounds.to == bounds.entry || handoff.start > handoff.request.prompt.len();
    out.number(handoff.id.0);
    out.number(handoff.hop);
    out.size(handoff.start);
    out.tokens(&handoff.delta);
    handoff.known.iter().for_each(|known| out.size(*known));
    put_stats(out, &handoff.stats);
    out.blob(&handoff.state.to_bytes());
    out.number(u64::from(handoff.steps_without_commit));
    out.flag(!known);
    if !known {
        put_request(out, &handoff.request);
    }
}

fn take_handoff(bytes: &mut Take<'_>, bounds: &Bounds) -> Result<Handoff, CodecError> {
    let limit = bounds.token_limit;
    let id = RequestId(bytes.number("a request")?);
    let hop = bytes.number("a hop")?;
    let start = bytes.size(limit, "the beginning of the new tokens")?;
    let delta = SmallVec::from_vec(bytes.tokens(limit, bounds.vocab, "the new tokens")?);
    let known: SmallVec<[usize; 4]> =
        (0..bounds.models).map(|_| bytes.size(limit, "known tokens")).collect::<Result<_, _>>()?;
    // The receiver's log ends with the new tokens.
    let end = start + delta.len();
    if start == 0 || known[bounds.to] != end || known.iter().any(|known| *known > end) {
        return Err(bad("known tokens", known[bounds.to] as u64, format!("the {end} of the log")));
    }
    let stats = take_stats(bytes, bounds)?;
    if stats.tokens_by_model.len() != bounds.models {
        return Err(bad("tokens by model", 0, format!("{} numbers", bounds.models)));
    }
    let state = RequestState::from_bytes(bytes.blob(MAX_STATE, "the routing state")?);
    let steps_without_commit = bytes.upto(u64::from(u32::MAX - 1), "steps without a token")? as u32;
    let request = match bytes.flag("a request")? {
        false => Arc::clone(&KNOWN),
        true if bounds.to == bounds.entry => return Err(bad("a request", 1, "0: the entry model has it")),
        true => {
            let request = take_request(bytes, bounds)?;
            // Without state for it the receiver begins with the prompt.
            if start > request.prompt.len() || end < request.prompt.len() {
                return Err(bad("the beginning of the new tokens", start as u64, "the end of the prompt"));
            }
            Arc::new(request)
        }
    };
    Ok(Handoff { id, hop, request, start, delta, known, stats, state, steps_without_commit })
}

fn put_event(out: &mut Vec<u8>, id: RequestId, event: &StreamEvent) {
    let tag = match event {
        StreamEvent::Step(_) => 5,
        StreamEvent::Logprobs(_) => 6,
        StreamEvent::Token(_) => 7,
        StreamEvent::Finished(..) => 8,
    };
    out.byte(tag);
    out.number(id.0);
    match event {
        StreamEvent::Step(step) => {
            out.size(step.position);
            out.size(step.model);
            out.number(u64::from(step.token));
            out.flag(step.committed);
            out.option(step.to.map(|to| to as u64));
            out.option(step.score.map(|score| u64::from(score.to_bits())));
        }
        StreamEvent::Logprobs(logprobs) => {
            out.number(u64::from(logprobs.token));
            out.float(logprobs.logprob);
            out.size(logprobs.top.len());
            for (token, logprob) in &logprobs.top {
                out.number(u64::from(*token));
                out.float(*logprob);
            }
        }
        StreamEvent::Token(token) => {
            out.number(u64::from(token.id));
            out.size(token.origin);
        }
        StreamEvent::Finished(reason, stats) => {
            put_reason(out, reason);
            put_stats(out, stats);
        }
    }
}

fn take_event(bytes: &mut Take<'_>, tag: u8, bounds: &Bounds) -> Result<(RequestId, StreamEvent), CodecError> {
    if bounds.to != bounds.entry {
        return Err(bad("the kind of a message", u64::from(tag), "0 to 4: the entry model has the clients"));
    }
    let id = RequestId(bytes.number("a request")?);
    let (models, tokens) = (bounds.models as u64 - 1, bounds.vocab as u64 - 1);
    let event = match tag {
        5 => StreamEvent::Step(StepRecord {
            position: bytes.size(bounds.token_limit, "a position")?,
            model: bytes.upto(models, "a model")? as usize,
            token: bytes.upto(tokens, "a token")? as u32,
            committed: bytes.flag("committed")?,
            to: bytes.option(models, "a model")?.map(|to| to as usize),
            score: bytes.option(u64::from(u32::MAX), "a score")?.map(|bits| f32::from_bits(bits as u32)),
        }),
        6 => StreamEvent::Logprobs(TokenLogprobs {
            token: bytes.upto(tokens, "a token")? as u32,
            logprob: bytes.float("a log-probability")?,
            top: {
                let count = bytes.length(crate::request::MAX_TOP_LOGPROBS, "the most likely tokens")?;
                let pair = |bytes: &mut Take<'_>| {
                    Ok((bytes.upto(tokens, "a token")? as u32, bytes.float("a log-probability")?))
                };
                (0..count).map(|_| pair(bytes)).collect::<Result<_, CodecError>>()?
            },
        }),
        7 => StreamEvent::Token(CommittedToken {
            id: bytes.upto(tokens, "a token")? as u32,
            origin: bytes.upto(models, "a model")? as usize,
        }),
        // Ends are the entry model's to tell.
        other => return Err(bad("the kind of a message", u64::from(other), "0 to 7")),
    };
    Ok((id, event))
}
