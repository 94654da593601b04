//! The closed loop: a fixed number of sessions in flight until the items are used up. The turns of a session follow each
//! other: one starts when the one before has ended.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokenrouter_engine::SamplingParams;

use super::backend::{Backend, Reply};
use super::{RunArgs, progress};
use crate::dataset::Item;
use crate::grade;
use crate::trace::RequestTrace;

/// One row of `result.csv`. Times in milliseconds; empty where there is no value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Number of the request in the run.
    pub id: u64,
    /// The dataset's name of the item, or of its session.
    pub item: String,
    /// Which repeat of the item, from 0.
    pub repeat: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u64>,
    /// Tokens of the answer.
    pub completion_tokens: u64,
    /// From sending to the first token.
    pub ttft_ms: Option<f64>,
    /// Mean time between tokens after the first: `(e2el - ttft) / (completion_tokens - 1)`.
    pub tpot_ms: Option<f64>,
    /// From sending to the end.
    pub e2el_ms: Option<f64>,
    /// `completion_tokens` over `e2el`.
    pub tokens_per_s: Option<f64>,
    /// Share of the tokens that were not written by the entry model.
    pub llm_ratio: Option<f64>,
    /// Moves from one model to another.
    pub handoffs: Option<u64>,
    /// Time spent ready in the buffers of the models, waiting for batches to be launched.
    pub admission_wait_ms: Option<f64>,
    /// `stop`, `length`, `cancelled` or `error`.
    pub finish_reason: String,
    /// What went wrong.
    pub error: Option<String>,
    /// The integer found in the answer.
    pub answer: Option<i64>,
    /// Whether it is the right one; empty when the item has no answer.
    pub correct: Option<bool>,
    /// Which turn of its session, from 1.
    #[serde(default)]
    pub turn: usize,
}

/// Everything that a run measured.
#[derive(Debug)]
pub struct Outcome {
    /// One per request that was sent, in order of their ids.
    pub records: Vec<Record>,
    /// The steps of those requests, if they were asked for.
    pub traces: Vec<RequestTrace>,
    /// From the first send to the last end.
    pub duration: Duration,
    /// Ctrl-C came first.
    pub interrupted: bool,
}

/// How often the rate in the progress bar is refreshed.
const TICK: Duration = Duration::from_millis(250);

/// What the workers of one loop share; all run on one thread.
struct Shared<'a> {
    backend: &'a Backend,
    items: &'a [Item],
    args: &'a RunArgs,
    sessions: Vec<Range<usize>>,
    /// Number of the next session to start; counts on through the repeats.
    next: Cell<usize>,
    tokens: Rc<Cell<u64>>,
    stop: tokio::sync::watch::Receiver<bool>,
    records: RefCell<Vec<Record>>,
    traces: RefCell<Vec<RequestTrace>>,
    bar: indicatif::ProgressBar,
    start: Instant,
}

/// Sends every item `repeats` times with `concurrency` requests in flight.
pub(super) async fn closed_loop(backend: &Backend, items: &[Item], args: &RunArgs, concurrency: usize) -> Outcome {
    let total = (items.len() * args.repeats) as u64;
    let (stopper, stop) = tokio::sync::watch::channel(false);
    let shared = Shared {
        backend,
        items,
        args,
        sessions: sessions(items),
        next: Cell::new(0),
        tokens: Rc::default(),
        stop,
        records: RefCell::default(),
        traces: RefCell::default(),
        bar: progress::requests(total, &format!("concurrency {concurrency}")),
        start: Instant::now(),
    };
    let workers = futures_util::future::join_all((0..concurrency).map(|_| worker(&shared)));
    let signal = async {
        if tokio::signal::ctrl_c().await.is_ok() {
            let _all_done = stopper.send(true);
        }
        // Workers end by themselves once they see the flag.
        std::future::pending::<()>().await;
    };
    let ticker = async {
        loop {
            tokio::time::sleep(TICK).await;
            let rate = shared.tokens.get() as f64 / shared.start.elapsed().as_secs_f64();
            shared.bar.set_message(format!("{rate:.0} tokens/s"));
        }
    };
    tokio::select! {
        _ = workers => {}
        () = signal => {}
        () = ticker => {}
    }
    let interrupted = *shared.stop.borrow();
    shared.bar.finish_and_clear();
    let mut records = shared.records.into_inner();
    records.sort_unstable_by_key(|record| record.id);
    let mut traces = shared.traces.into_inner();
    traces.sort_unstable_by_key(|trace| trace.id);
    Outcome { records, traces, duration: shared.start.elapsed(), interrupted }
}

/// Where each session's items are: a session begins with turn 1.
fn sessions(items: &[Item]) -> Vec<Range<usize>> {
    let begins = |at: &usize| *at == 0 || items[*at].turn == 1;
    let starts: Vec<_> = (0..items.len()).filter(begins).collect();
    let ends = starts.iter().skip(1).copied().chain([items.len()]);
    starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
}

async fn worker(shared: &Shared<'_>) {
    let mut stop = shared.stop.clone();
    let count = shared.sessions.len();
    while shared.next.get() < count * shared.args.repeats {
        let number = shared.next.replace(shared.next.get() + 1);
        let repeat = number / count;
        for at in shared.sessions[number % count].clone() {
            if *stop.borrow() {
                return;
            }
            request(shared, at, repeat, &mut stop).await;
        }
    }
}

/// Sends one item and records what became of it.
async fn request(shared: &Shared<'_>, at: usize, repeat: usize, stop: &mut tokio::sync::watch::Receiver<bool>) {
    // A function of the item and the repeat alone, so that draws do not depend on the order of the requests.
    let id = (repeat * shared.items.len() + at) as u64;
    let item = &shared.items[at];
    let sampling = SamplingParams {
        temperature: shared.args.temperature,
        seed: shared.args.seed,
        max_tokens: shared.args.max_tokens,
        ignore_eos: shared.args.ignore_eos,
        ..SamplingParams::default()
    };
    let start = Instant::now();
    let mut reply = Reply { live: Rc::clone(&shared.tokens), trace: shared.args.trace, ..Reply::default() };
    let ended = tokio::select! {
        result = shared.backend.ask(item.prompt.messages(), sampling, id, &mut reply) => Some(result),
        _ = stop.wait_for(|stop| *stop) => None,
    };
    let elapsed = start.elapsed();
    match ended {
        Some(Ok(())) => {}
        Some(Err(error)) => {
            reply.finish_reason = "error".into();
            reply.error = Some(format!("{error:#}"));
        }
        None => reply.finish_reason = "cancelled".into(),
    }
    shared.records.borrow_mut().push(record(id, repeat, item, &reply, elapsed));
    if let Some((models, entry)) = shared.backend.models().filter(|_| shared.args.trace) {
        let steps = std::mem::take(&mut reply.steps);
        shared.traces.borrow_mut().push(RequestTrace { id, item: item.id.clone(), models, entry, steps });
    }
    shared.bar.inc(1);
}

fn record(id: u64, repeat: usize, item: &Item, reply: &Reply, elapsed: Duration) -> Record {
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    let complete = matches!(reply.finish_reason.as_str(), "stop" | "length");
    let e2el = complete.then(|| ms(elapsed));
    let ttft = reply.first_token.map(ms);
    let answer = if complete { grade::extract_answer(&reply.text) } else { None };
    Record {
        id,
        item: item.id.clone(),
        repeat,
        prompt_tokens: reply.prompt_tokens,
        completion_tokens: reply.tokens,
        ttft_ms: ttft,
        tpot_ms: match (e2el, ttft) {
            (Some(e2el), Some(ttft)) if reply.tokens > 1 => Some((e2el - ttft) / (reply.tokens - 1) as f64),
            _ => None,
        },
        e2el_ms: e2el,
        tokens_per_s: e2el.map(|e2el| reply.tokens as f64 / e2el * 1e3),
        llm_ratio: reply.llm_ratio,
        handoffs: reply.handoffs,
        admission_wait_ms: reply.admission_wait.map(ms),
        finish_reason: reply.finish_reason.clone(),
        error: reply.error.clone(),
        answer,
        correct: item.prompt.answer.filter(|_| complete && reply.has_text).map(|right| answer == Some(right)),
        turn: item.turn,
    }
}
