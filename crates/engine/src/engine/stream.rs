//! What a client holds of its request.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::Inner;
use tokenrouter_core::request::{
    CommittedToken, FinishReason, ModelIndex, Request, RequestId, RequestStats, StreamEvent,
};
use tokenrouter_core::scheduler::{Event, MAX_STEPS_WITHOUT_COMMIT};

/// The committed tokens of one request, in order, then its end. Dropping it cancels the request.
pub struct TokenStream {
    id: RequestId,
    receiver: mpsc::Receiver<StreamEvent>,
    admitted: Option<oneshot::Receiver<()>>,
    inner: Arc<Inner>,
    finished: bool,
    hops: Option<Hops>,
}

/// A request that its client takes from model to model.
pub(super) struct Hops {
    /// The request as it was, with the committed tokens appended to its prompt.
    request: Request,
    at: ModelIndex,
    stats: RequestStats,
    /// Hops since the last token.
    steps_without_commit: u32,
}

impl Hops {
    pub(super) fn new(request: &Request, entry: ModelIndex) -> Self {
        Self { request: request.clone(), at: entry, stats: RequestStats::default(), steps_without_commit: 0 }
    }

    /// Takes an event in; says what it is to the client.
    pub(super) fn note(&mut self, id: RequestId, event: StreamEvent) -> Hop {
        match event {
            StreamEvent::Token(token) => {
                self.request.prompt.push(token.id);
                self.request.resumed += 1;
                self.steps_without_commit = 0;
                Hop::Event(StreamEvent::Token(token))
            }
            event @ (StreamEvent::Step(_) | StreamEvent::Logprobs(_)) => Hop::Event(event),
            StreamEvent::Finished(FinishReason::Moved(to), stats) => {
                self.stats.add(&stats);
                self.stats.handoffs += 1;
                self.steps_without_commit += 1;
                if self.steps_without_commit > MAX_STEPS_WITHOUT_COMMIT {
                    let position = self.request.resumed;
                    let message =
                        format!("{id}: {MAX_STEPS_WITHOUT_COMMIT} handoffs without a token at position {position}");
                    return Hop::GivenUp(FinishReason::Error(message), self.stats.clone());
                }
                self.at = to;
                Hop::GoOn(to, Arc::new(self.request.clone()))
            }
            StreamEvent::Finished(reason, stats) => {
                self.stats.add(&stats);
                Hop::Event(StreamEvent::Finished(reason, self.stats.clone()))
            }
        }
    }
}

/// What an event is to a client that takes its request from model to model.
pub(super) enum Hop {
    /// Something for the client.
    Event(StreamEvent),
    /// The request goes on at this model, as a new one.
    GoOn(ModelIndex, Arc<Request>),
    /// It goes on nowhere.
    GivenUp(FinishReason, RequestStats),
}

impl std::fmt::Debug for TokenStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenStream").field("id", &self.id).finish_non_exhaustive()
    }
}

impl TokenStream {
    pub(super) fn new(
        id: RequestId,
        (receiver, admitted): (mpsc::Receiver<StreamEvent>, oneshot::Receiver<()>),
        inner: Arc<Inner>,
        hops: Option<Hops>,
    ) -> Self {
        Self { id, receiver, admitted: Some(admitted), inner, finished: false, hops }
    }

    /// The request's id, for [`super::Engine::abort`].
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Waits until the request leaves the admission queue, or ends in it. Takes no events.
    pub async fn admitted(&mut self) {
        if let Some(admitted) = &mut self.admitted {
            let _ended = admitted.await;
            self.admitted = None;
        }
    }

    /// The next event, or `None` after the end.
    pub async fn next(&mut self) -> Option<StreamEvent> {
        loop {
            let event = self.receiver.recv().await;
            if let Some(event) = self.note(event) {
                return event;
            }
        }
    }

    /// The next event, or `None` after the end. Not for use inside an async runtime.
    pub fn blocking_next(&mut self) -> Option<StreamEvent> {
        loop {
            let event = self.receiver.blocking_recv();
            if let Some(event) = self.note(event) {
                return event;
            }
        }
    }

    /// Takes an event in; `None` when it is not for the client.
    fn note(&mut self, event: Option<StreamEvent>) -> Option<Option<StreamEvent>> {
        let event = match (event, &mut self.hops) {
            (Some(event), Some(hops)) => match hops.note(self.id, event) {
                Hop::Event(event) => Some(event),
                Hop::GoOn(to, request) => {
                    self.inner.go_on(self.id, to, request);
                    return None;
                }
                Hop::GivenUp(reason, stats) => {
                    self.inner.streams.remove(self.id);
                    Some(StreamEvent::Finished(reason, stats))
                }
            },
            (event, _) => event,
        };
        self.finished |= matches!(event, None | Some(StreamEvent::Finished(..)));
        Some(event)
    }

    /// All tokens and the end. Not for use inside an async runtime.
    pub fn collect_blocking(mut self) -> (Vec<CommittedToken>, FinishReason, RequestStats) {
        let mut tokens = Vec::new();
        while let Some(event) = self.blocking_next() {
            match event {
                StreamEvent::Step(_) | StreamEvent::Logprobs(_) => {}
                StreamEvent::Token(token) => tokens.push(token),
                StreamEvent::Finished(reason, stats) => return (tokens, reason, stats),
            }
        }
        (tokens, FinishReason::Error("the engine has stopped".into()), RequestStats::default())
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        if !self.finished {
            let at = self.hops.as_ref().map_or(self.inner.entry, |hops| hops.at);
            self.inner.tell(at, Event::Cancel(self.id));
            if self.hops.is_some() {
                // It may have moved, and nobody will take it on.
                self.inner.streams.remove(self.id);
            }
        }
        if let Some(detached) = &self.inner.detached {
            detached.forget(self.id);
        }
    }
}
