//! One client: it reads its stream, or gives up.

use std::time::{Duration, Instant};

use tokenrouter_core::{CommittedToken, FinishReason, StreamEvent};
use tokenrouter_engine::{Engine, TokenStream};

/// Longest silence of a stream after which its answer counts as lost.
const LOST: Duration = Duration::from_secs(120);

/// What a client will do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) give_up: Option<Duration>,
    /// It says so, and waits for the end; otherwise it goes away.
    pub(super) by_abort: bool,
    pub(super) queue_timeout: Duration,
}

impl Plan {
    pub(super) fn patient() -> Self {
        Self { give_up: None, by_abort: true, queue_timeout: LOST }
    }
}

/// How a request ended for its client.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum End {
    Finished(FinishReason),
    /// The client went away.
    Dropped,
    /// No end came.
    Lost,
}

/// What a client saw.
#[derive(Debug)]
pub(super) struct Visit {
    pub(super) end: End,
    pub(super) tokens: Vec<CommittedToken>,
    /// Whether the tokens are those of the same request alone, or their beginning.
    pub(super) as_expected: bool,
    /// Something came after the end.
    pub(super) after_end: bool,
    pub(super) timed_out: bool,
    pub(super) queue_wait: Duration,
    pub(super) latency: Duration,
}

/// Reads a stream to its end, or gives up as planned. `expected` is empty when nothing is known.
pub(super) async fn visit(engine: &Engine, mut stream: TokenStream, plan: Plan, expected: &[CommittedToken]) -> Visit {
    let start = Instant::now();
    let mut visit = Visit {
        end: End::Lost,
        tokens: Vec::new(),
        as_expected: true,
        after_end: false,
        timed_out: false,
        queue_wait: Duration::ZERO,
        latency: Duration::ZERO,
    };
    let mut aborted = false;
    loop {
        let first = visit.tokens.is_empty().then_some(plan.queue_timeout);
        let patience = [plan.give_up, first].into_iter().flatten().min().filter(|_| !aborted);
        let until = patience.map_or_else(|| Instant::now() + LOST, |patience| start + patience);
        match tokio::time::timeout_at(until.into(), stream.next()).await {
            Ok(Some(StreamEvent::Token(token))) => visit.tokens.push(token),
            Ok(Some(StreamEvent::Step(_) | StreamEvent::Logprobs(_))) => {}
            Ok(Some(StreamEvent::Finished(reason, stats))) => {
                let counted = stats.tokens() == visit.tokens.len() as u64;
                let whole = matches!(reason, FinishReason::Stop | FinishReason::Length);
                let same = if whole { visit.tokens == expected } else { expected.starts_with(&visit.tokens) };
                visit.as_expected = counted && (same || expected.is_empty());
                (visit.queue_wait, visit.latency) = (stats.queue_wait, start.elapsed());
                visit.end = End::Finished(reason);
                visit.after_end = stream.next().await.is_some();
                return visit;
            }
            Ok(None) => return visit,
            Err(_) if patience.is_none() => return visit,
            Err(_) if patience == plan.give_up && !plan.by_abort => {
                visit.end = End::Dropped;
                visit.as_expected = expected.starts_with(&visit.tokens);
                return visit;
            }
            Err(_) => {
                visit.timed_out = patience != plan.give_up;
                aborted = true;
                engine.abort(stream.id());
            }
        }
    }
}
