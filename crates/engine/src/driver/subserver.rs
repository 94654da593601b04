//! A thread with one model worker and an inbox: the models run asynchronously.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::time::Duration;

use super::{Inbound, ModelWorker};
use crate::profile::Activity;
use tokenrouter_core::scheduler::Next;

/// Where messages for another model go.
#[derive(Debug, Clone)]
pub(crate) enum Outlet {
    /// To its inbox.
    Inbox(SyncSender<Inbound>),
    /// To another node.
    Node(Arc<dyn Carrier>),
}

/// Carries messages to another node.
pub(crate) trait Carrier: Send + Sync + Debug {
    /// Takes a message without waiting, or gives it back when there is no room. One that nobody takes any more is void.
    #[allow(clippy::result_large_err, reason = "the message comes back as it was")]
    fn try_send(&self, message: Inbound) -> Result<(), Inbound>;
}

impl Outlet {
    /// Gives a message back that does not fit. One that nobody takes any more is void.
    #[allow(clippy::result_large_err, reason = "the message comes back as it was")]
    pub(crate) fn try_send(&self, message: Inbound) -> Result<(), Inbound> {
        match self {
            Self::Inbox(inbox) => match inbox.try_send(message) {
                Err(TrySendError::Full(message)) => Err(message),
                Ok(()) | Err(TrySendError::Disconnected(_)) => Ok(()),
            },
            Self::Node(carrier) => carrier.try_send(message),
        }
    }
}

/// The parts of a subserver's thread.
pub(crate) struct Subserver {
    pub(crate) worker: ModelWorker,
    pub(crate) inbox: Receiver<Inbound>,
    /// Of all subservers, by model; empty when this one is alone.
    pub(crate) peers: Vec<Outlet>,
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
            match self.worker.poll() {
                Next::Launch => {
                    self.worker.step();
                    self.flush();
                }
                Next::Wait(until) => {
                    self.worker.note(Activity::Scheduling);
                    self.worker.settle();
                    let inbound = self.wait(if blocked { Some(self.worker.now() + RETRY) } else { until });
                    self.worker.note(Activity::Idle);
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
        match self.inbox.recv_timeout(until.saturating_sub(self.worker.now())) {
            Ok(inbound) => Some(inbound),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Inbound::Stop),
        }
    }

    /// Handles one inbound; true means stop.
    fn take(&mut self, inbound: Inbound) -> bool {
        match inbound {
            Inbound::Event(event) => self.worker.handle(event),
            Inbound::Stream(id, event) => self.worker.emit(id, event),
            Inbound::Stop => return true,
        }
        self.flush();
        false
    }

    /// Delivers what is in the outbox; false when something did not fit. A subserver must never block on another one,
    /// which may be blocked on it.
    fn flush(&mut self) -> bool {
        let mut delivered = true;
        for (outlet, outbox) in self.peers.iter().zip(&mut self.worker.outbox) {
            while let Some(message) = outbox.pop_front() {
                if let Err(message) = outlet.try_send(message) {
                    outbox.push_front(message);
                    delivered = false;
                    break;
                }
            }
        }
        delivered
    }
}
