//! Where committed tokens and ends of requests go: the streams of the clients.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use tokenrouter_core::request::{FinishReason, RequestId, RequestStats, StreamEvent};

/// The open streams.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    by_request: Mutex<HashMap<RequestId, Open>>,
    /// Notified when a stream ends.
    ended: Condvar,
}

#[derive(Debug)]
struct Open {
    events: mpsc::Sender<StreamEvent>,
    /// Somebody wants it to end.
    aborted: bool,
    /// Told when the request leaves the admission queue, or ends in it.
    admitted: Option<oneshot::Sender<()>>,
}

impl Streams {
    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, Open>> {
        self.by_request.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no stream is open; false when the time is over first.
    pub(crate) fn wait_empty(&self, timeout: Duration) -> bool {
        let result = self.ended.wait_timeout_while(self.lock(), timeout, |streams| !streams.is_empty());
        result.unwrap_or_else(PoisonError::into_inner).0.is_empty()
    }

    /// Ends every stream with an error.
    pub(crate) fn fail_all(&self, message: &str) {
        for (_, stream) in self.lock().drain() {
            let reason = FinishReason::Error(message.to_owned());
            let _gone = stream.events.try_send(StreamEvent::Finished(reason, RequestStats::default()));
        }
        self.ended.notify_all();
    }

    /// Opens a stream; the receiver is told when the request is admitted, and closed when it ends before.
    pub(crate) fn insert(&self, id: RequestId, events: mpsc::Sender<StreamEvent>) -> oneshot::Receiver<()> {
        let (admitted, receiver) = oneshot::channel();
        self.lock().insert(id, Open { events, aborted: false, admitted: Some(admitted) });
        receiver
    }

    pub(crate) fn admit(&self, id: RequestId) {
        let admitted = self.lock().get_mut(&id).and_then(|stream| stream.admitted.take());
        if let Some(admitted) = admitted {
            let _gone = admitted.send(());
        }
    }

    pub(crate) fn remove(&self, id: RequestId) {
        self.lock().remove(&id);
        self.ended.notify_all();
    }

    /// Notes that a request is to end, for when it is between two models.
    pub(crate) fn abort(&self, id: RequestId) {
        if let Some(stream) = self.lock().get_mut(&id) {
            stream.aborted = true;
        }
    }

    pub(crate) fn is_aborted(&self, id: RequestId) -> bool {
        self.lock().get(&id).is_none_or(|stream| stream.aborted)
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// The channel has room for every token the request may commit, so a full one means a client that is gone.
    pub(crate) fn emit(&self, id: RequestId, event: StreamEvent) {
        let mut streams = self.lock();
        // A request that goes on elsewhere is still open.
        let last = matches!(&event, StreamEvent::Finished(reason, _) if !matches!(reason, FinishReason::Moved(_)));
        if let Some(stream) = streams.get(&id) {
            let _gone = stream.events.try_send(event);
        }
        if last {
            streams.remove(&id);
            self.ended.notify_all();
        }
    }
}
