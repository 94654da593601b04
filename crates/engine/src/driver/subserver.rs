//! A thread with one station and an inbox: the models run asynchronously.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::time::Duration;

use super::{Inbound, Station};
use crate::profile::Activity;
use crate::scheduler::{Event, Next};

/// The parts of a subserver's thread.
pub(crate) struct Subserver {
    pub(crate) station: Station,
    pub(crate) inbox: Receiver<Inbound>,
    /// Inboxes of all subservers, by model; empty when this one is alone.
    pub(crate) peers: Vec<SyncSender<Inbound>>,
}

/// How soon a full inbox is tried again.
const RETRY: Duration = Duration::from_millis(1);

impl Subserver {
    /// Runs until told to stop.
    pub(crate) fn run(mut self) {
        loop {
            while let Ok(inbound) = self.inbox.try_recv() {
                if self.take(inbound) {
                    return;
                }
            }
            let blocked = !self.flush();
            match self.station.poll() {
                Next::Launch => {
                    self.station.step();
                    self.flush();
                }
                Next::Wait(until) => {
                    self.station.note(Activity::Scheduling);
                    let inbound = self.wait(if blocked { Some(self.station.now() + RETRY) } else { until });
                    self.station.note(Activity::Idle);
                    if inbound.is_some_and(|inbound| self.take(inbound)) {
                        return;
                    }
                }
            }
        }
    }

    fn wait(&self, until: Option<Duration>) -> Option<Inbound> {
        let Some(until) = until else {
            // All senders gone means that the engine is gone.
            return Some(self.inbox.recv().unwrap_or(Inbound::Stop));
        };
        match self.inbox.recv_timeout(until.saturating_sub(self.station.now())) {
            Ok(inbound) => Some(inbound),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Inbound::Stop),
        }
    }

    /// Handles one inbound; true means stop.
    fn take(&mut self, inbound: Inbound) -> bool {
        let Inbound::Event(event) = inbound else { return true };
        self.station.handle(event);
        self.flush();
        false
    }

    /// Delivers what is in the outbox; false when something did not fit. A subserver must never block on another one,
    /// which may be blocked on it.
    fn flush(&mut self) -> bool {
        let mut delivered = true;
        for (inbox, outbox) in self.peers.iter().zip(&mut self.station.outbox) {
            while let Some(message) = outbox.pop_front() {
                if let Err(TrySendError::Full(Inbound::Event(Event::Peer(message)))) =
                    inbox.try_send(Inbound::Event(Event::Peer(message)))
                {
                    outbox.push_front(message);
                    delivered = false;
                    break;
                }
            }
        }
        delivered
    }
}
