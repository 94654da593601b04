//! What happened, for people.

use super::{SimEvent, Simulator};
use crate::request::ModelIndex;
use crate::scheduler::{Action, Event, PeerBody};
use crate::transport::Frame;

fn body(body: &PeerBody) -> String {
    match body {
        PeerBody::Handoff(handoff) => {
            format!("handoff of {} (hop {}, {} new tokens)", handoff.id, handoff.hop, handoff.delta.len())
        }
        PeerBody::Finish(id, hop, reason, _) => format!("finish of {id} (hop {hop}, {})", reason.as_str()),
        PeerBody::Close(id) => format!("close {id}"),
        PeerBody::Cancel(id) => format!("cancel {id}"),
        PeerBody::Reach(model, up) => format!("model {model} is {}", if *up { "reached" } else { "not reached" }),
    }
}

impl Simulator {
    /// Keeps a trace from now on.
    pub fn keep_trace(&mut self) {
        self.trace = Some(Vec::new());
    }

    /// The trace, a line for every event that matters.
    pub fn take_trace(&mut self) -> Vec<String> {
        self.trace.take().unwrap_or_default()
    }

    fn line(&mut self, text: &str) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>12.3} ms  {text}", self.now.as_secs_f64() * 1e3));
        }
    }

    pub(super) fn note_event(&mut self, event: &SimEvent) {
        if self.trace.is_none() {
            return;
        }
        let text = match event {
            SimEvent::Submit(id, request) => {
                format!("client: {id}, {} + {} tokens", request.prompt.len(), request.sampling.max_tokens)
            }
            SimEvent::Cancel(id) => format!("client: cancel {id}"),
            SimEvent::Deliver(to, message) => format!("model {to}: from {}: {}", message.from, body(&message.body)),
            SimEvent::Packet(from, to, packet) => match &packet.frame {
                Frame::Header => return,
                Frame::Data { sequence, message } => {
                    format!("model {to}: packet {sequence} of {from}: {}", body(&message.body))
                }
            },
            SimEvent::StepDone(model, ..) => format!("model {model}: step done"),
            SimEvent::Crash(model) => format!("model {model}: stops"),
            SimEvent::Restart(model) => format!("model {model}: starts again"),
            SimEvent::Thresholds(model, _) => format!("model {model}: other thresholds"),
            SimEvent::LinkTimer(_) | SimEvent::Wake => return,
        };
        self.line(&text);
    }

    pub(super) fn note_link_event(&mut self, at: ModelIndex, peer: ModelIndex, event: &Event) {
        match event {
            Event::PeerLost(_) => self.line(&format!("model {at}: has lost {peer}")),
            Event::PeerUp(_) => self.line(&format!("model {at}: {peer} is there")),
            _ => {}
        }
    }

    pub(super) fn note_action(&mut self, from: ModelIndex, action: &Action) {
        if self.trace.is_none() {
            return;
        }
        let text = match action {
            Action::Send(to, message) => format!("model {from}: to {to}: {}", body(&message.body)),
            Action::Emit(id, token) => format!("model {from}: {id}: token {token}"),
            Action::Finish(id, reason, _) => format!("model {from}: {id}: ends ({})", reason.as_str()),
            Action::Admit(id) => format!("model {from}: {id}: admitted"),
            Action::Step(..) => return,
        };
        self.line(&text);
    }
}
