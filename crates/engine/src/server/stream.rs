//! Server-sent events: an opening, pieces, and an end. After an error event the stream ends.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;

use super::answer::Answer;

struct Streamed {
    /// Absent after the end.
    answer: Option<Answer>,
    ready: VecDeque<Event>,
}

/// The response that streams an answer.
pub(super) fn response(answer: Answer) -> Response {
    let ready = answer.format.opening(&answer).into();
    let events = unfold(Streamed { answer: Some(answer), ready }, |mut streamed| async move {
        let event = streamed.next().await?;
        Some((Ok::<_, Infallible>(event), streamed))
    });
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}

impl Streamed {
    async fn next(&mut self) -> Option<Event> {
        if let Some(event) = self.ready.pop_front() {
            return Some(event);
        }
        let answer = self.answer.as_mut()?;
        match answer.next_piece().await {
            Ok(Some(piece)) => return Some(answer.format.chunk(answer, &piece)),
            Ok(None) => self.ready = answer.format.closing(answer).into(),
            Err(error) => self.ready.push_back(Event::default().data(error.body().to_string())),
        }
        // The request is over, whenever the client reads the rest.
        self.answer = None;
        self.ready.pop_front()
    }
}
