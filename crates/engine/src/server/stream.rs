//! Server-sent events: an opening, chunks, and an end. After an error event the stream ends.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;

use super::format::event;
use super::generation::Generation;

struct EventStream {
    /// Absent after the end.
    generation: Option<Generation>,
    ready: VecDeque<Event>,
}

/// The response that streams an answer.
pub(super) fn response(generation: Generation) -> Response {
    let ready = generation.format.opening(&generation).into();
    let events = unfold(EventStream { generation: Some(generation), ready }, |mut stream| async move {
        let event = stream.next().await?;
        Some((Ok::<_, Infallible>(event), stream))
    });
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}

impl EventStream {
    async fn next(&mut self) -> Option<Event> {
        if let Some(event) = self.ready.pop_front() {
            return Some(event);
        }
        let generation = self.generation.as_mut()?;
        match generation.next_chunk().await {
            Ok(Some(chunk)) => return Some(generation.format.chunk(generation, &chunk)),
            Ok(None) => self.ready = generation.format.closing(generation).into(),
            Err(error) => self.ready.push_back(event(&error.body())),
        }
        // The request is over, whenever the client reads the rest.
        self.generation = None;
        self.ready.pop_front()
    }
}
