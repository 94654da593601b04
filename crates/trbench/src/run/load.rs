//! The load of one trial. Closed loop: a fixed number of sessions in flight until the items are used up. Open loop:
//! sessions begin at their times of arrival, however many are in flight. The turns of a session follow each other: one
//! starts when the one before has ended.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokenrouter_core::SamplingParams;
use tokenrouter_engine::VirtualEngine;
use tokio::sync::watch;

use super::backend::Backend;
use super::clock::{self, Clock};
use super::judge::Transcript;
use super::log::RunLog;
use super::record::{Place, record};
use super::reply::Reply;
use crate::dataset::Item;
use crate::interrupt;
use crate::record::Record;
use crate::spec::{LatencyMetric, RunSpec};
use crate::terminal;
use crate::trace::RequestTrace;

/// What is sent in one trial.
pub(super) struct Load<'a> {
    pub(super) items: &'a [Item],
    pub(super) repeats: usize,
    /// Id of the first request.
    pub(super) first_id: u64,
    pub(super) trial: usize,
    /// Ids that are not sent: they were, before an interruption.
    pub(super) done: &'a HashSet<u64>,
    pub(super) pace: Pace,
    /// Where rows go as requests end.
    pub(super) log: Option<&'a RunLog>,
    /// The thresholds that rows name.
    pub(super) thresholds: &'a str,
    /// Whether a model other than the entry model of the configuration writes everything.
    pub(super) all_large: bool,
    /// Name in the progress bar.
    pub(super) label: String,
}

/// When sessions begin.
pub(super) enum Pace {
    /// When one of this many workers is free.
    Closed(usize),
    /// At these times, one for each session and repeat.
    Open(Vec<Duration>),
}

/// Everything that one trial measured.
#[derive(Debug)]
pub(super) struct Outcome {
    /// One per request that was sent, in order of their ids.
    pub records: Vec<Record>,
    /// The steps of those requests, if they were asked for.
    pub traces: Vec<RequestTrace>,
    /// Prompts and answers of those that are complete, if they are to be judged.
    pub answers: Vec<Transcript>,
    /// Milliseconds between one token and the next, if they are asked for.
    pub gaps: Vec<f64>,
    /// From the first send to the last end.
    pub duration: Duration,
    /// Time in which the client's thread was busy.
    pub client_busy: Duration,
    /// A signal came first.
    pub interrupted: bool,
}

/// How often the rate in the progress bar is refreshed.
const TICK: Duration = Duration::from_millis(250);
/// Jumps of a virtual clock between two looks at signals and the progress bar.
const LOOK_EVERY: u32 = 1024;

/// What the workers of one loop share; all run on one thread.
struct Shared<'a> {
    backend: &'a Backend,
    load: &'a Load<'a>,
    spec: &'a RunSpec,
    sessions: Vec<Range<usize>>,
    /// Number of the next session to start; counts on through the repeats.
    next: Cell<usize>,
    tokens: Rc<Cell<u64>>,
    stop: watch::Receiver<bool>,
    records: RefCell<Vec<Record>>,
    traces: RefCell<Vec<RequestTrace>>,
    answers: RefCell<Vec<(u64, Transcript)>>,
    gaps: RefCell<Vec<f64>>,
    bar: terminal::Requests,
    clock: Clock,
}

/// Number of sessions among the items.
pub(super) fn session_count(items: &[Item]) -> usize {
    sessions(items).len()
}

/// Number of the first session that is not done.
pub(super) fn first_open(items: &[Item], repeats: usize, done: &HashSet<u64>) -> Option<usize> {
    let sessions = sessions(items);
    let ids = |number: usize| {
        let first = (number / sessions.len() * items.len()) as u64;
        sessions[number % sessions.len()].clone().map(move |at| first + at as u64)
    };
    (0..sessions.len() * repeats).find(|number| ids(*number).any(|id| !done.contains(&id)))
}

/// Sends every item `repeats` times.
pub(super) async fn drive(backend: &Backend, load: &Load<'_>, spec: &RunSpec) -> Outcome {
    let total = (load.items.len() * load.repeats - load.done.len()) as u64;
    let (stopper, stop) = watch::channel(false);
    let shared = Shared {
        backend,
        load,
        spec,
        sessions: sessions(load.items),
        next: Cell::new(0),
        tokens: Rc::default(),
        stop,
        records: RefCell::default(),
        traces: RefCell::default(),
        answers: RefCell::default(),
        gaps: RefCell::default(),
        bar: terminal::requests(total, &load.label),
        clock: backend.clock(),
    };
    let busy_before = busy();
    let work = async {
        match &load.pace {
            Pace::Closed(concurrency) => drop(join_all((0..*concurrency).map(|_| worker(&shared))).await),
            Pace::Open(times) => {
                drop(join_all(times.iter().enumerate().map(|(number, time)| arrival(&shared, number, *time))).await);
            }
        }
    };
    match &shared.clock {
        Clock::Real(_) => in_real_time(&shared, &stopper, work).await,
        Clock::Virtual(engine, _) => in_virtual_time(&shared, &stopper, engine, work),
    }
    let interrupted = *shared.stop.borrow();
    shared.bar.finish();
    let mut records = shared.records.into_inner();
    records.sort_unstable_by_key(|record| record.id);
    let mut traces = shared.traces.into_inner();
    traces.sort_unstable_by_key(|trace| trace.id);
    let mut answers = shared.answers.into_inner();
    answers.sort_unstable_by_key(|(id, _)| *id);
    let answers = answers.into_iter().map(|(_, answer)| answer).collect();
    let (gaps, duration) = (shared.gaps.into_inner(), shared.clock.now());
    let client_busy = match shared.clock {
        Clock::Real(_) => busy().saturating_sub(busy_before),
        Clock::Virtual(..) => Duration::ZERO,
    };
    Outcome { records, traces, answers, gaps, duration, client_busy, interrupted }
}

/// Waits for the clients, and for a signal that stops them.
async fn in_real_time(shared: &Shared<'_>, stopper: &watch::Sender<bool>, clients: impl Future<Output = ()>) {
    let signal = async {
        interrupt::asked().await;
        let _all_done = stopper.send(true);
        // Workers end by themselves once they see the flag.
        std::future::pending::<()>().await;
    };
    let ticker = async {
        loop {
            tokio::time::sleep(TICK).await;
            shared.show_rate();
        }
    };
    tokio::select! {
        () = clients => {}
        () = signal => {}
        () = ticker => {}
    }
}

/// The same where nobody waits.
fn in_virtual_time(
    shared: &Shared<'_>,
    stopper: &watch::Sender<bool>,
    engine: &VirtualEngine,
    clients: impl Future<Output = ()>,
) {
    let (mut jumps, mut shown) = (0u32, Instant::now());
    clock::run(engine, clients, || {
        jumps = (jumps + 1) % LOOK_EVERY;
        if jumps != 0 {
            return;
        }
        if interrupt::was_asked() {
            let _all_done = stopper.send(true);
        }
        if shown.elapsed() >= TICK {
            shown = Instant::now();
            shared.show_rate();
        }
    });
}

impl Shared<'_> {
    fn show_rate(&self) {
        self.bar.show(self.tokens.get() as f64 / self.clock.now().as_secs_f64());
    }
}

/// Time that the client's thread has spent working so far.
fn busy() -> Duration {
    tokio::runtime::Handle::current().metrics().worker_total_busy_duration(0)
}

/// Where each session's items are: a session begins with turn 1.
fn sessions(items: &[Item]) -> Vec<Range<usize>> {
    let begins = |at: &usize| *at == 0 || items[*at].turn == 1;
    let starts: Vec<_> = (0..items.len()).filter(begins).collect();
    let ends = starts.iter().skip(1).copied().chain([items.len()]);
    starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
}

async fn worker(shared: &Shared<'_>) {
    while shared.next.get() < shared.sessions.len() * shared.load.repeats {
        let number = shared.next.replace(shared.next.get() + 1);
        if !session(shared, number, None).await {
            return;
        }
    }
}

async fn arrival(shared: &Shared<'_>, number: usize, time: Duration) {
    let mut stop = shared.stop.clone();
    tokio::select! {
        () = shared.clock.sleep_until(time) => {}
        _ = stop.wait_for(|stop| *stop) => return,
    }
    session(shared, number, Some(time)).await;
}

/// The turns of a session; false when the run was interrupted.
async fn session(shared: &Shared<'_>, number: usize, mut arrival: Option<Duration>) -> bool {
    let (count, load) = (shared.sessions.len(), shared.load);
    let repeat = number / count;
    for at in shared.sessions[number % count].clone() {
        // Nobody wants to wait for a measurement that cannot be stored.
        if *shared.stop.borrow() || load.log.is_some_and(RunLog::failed) {
            return false;
        }
        // A function of the item and the repeat alone, so that draws do not depend on the order of the requests.
        let id = load.first_id + (repeat * load.items.len() + at) as u64;
        let now = shared.clock.now();
        let start = arrival.take().unwrap_or(now);
        if !load.done.contains(&id) {
            let place = Place { id, repeat, trial: load.trial, start, lag: now.saturating_sub(start) };
            request(shared, place, &load.items[at]).await;
        }
    }
    true
}

/// Sends one item and records what became of it.
async fn request(shared: &Shared<'_>, place: Place, item: &Item) {
    let spec = shared.spec;
    let sampling = SamplingParams {
        temperature: spec.temperature,
        // Another sample of the draws for each trial; the same ones for every system.
        seed: spec.seed.wrapping_add(place.trial as u64),
        max_tokens: spec.max_tokens(),
        ignore_eos: spec.ignore_eos,
        ..SamplingParams::default()
    };
    let mut reply = Reply::new((shared.clock.clone(), place.start), Rc::clone(&shared.tokens), spec.trace);
    reply.transcript = spec.judge.is_some().then(Transcript::default);
    reply.gaps = spec.percentile_metrics.contains(&LatencyMetric::Itl).then(Vec::new);
    let mut stop = shared.stop.clone();
    let ended = tokio::select! {
        result = shared.backend.ask(item.prompt.messages(), sampling, place.id, &mut reply) => Some(result),
        _ = stop.wait_for(|stop| *stop) => None,
    };
    let elapsed = shared.clock.now().saturating_sub(place.start);
    match ended {
        Some(Ok(())) => {}
        Some(Err(error)) => {
            reply.finish_reason = "error".into();
            reply.error = Some(format!("{error:#}"));
        }
        None => reply.finish_reason = "cancelled".into(),
    }
    let mut record = record(place, item, (&reply, elapsed), shared.load.thresholds);
    if shared.load.all_large {
        // The engine takes its only model for the entry model.
        record.llm_ratio = record.llm_ratio.map(|_| 1.0);
    }
    if let Some(log) = shared.load.log {
        log.append(&record, item, &reply.text);
    }
    shared.gaps.borrow_mut().extend(reply.gaps.take().unwrap_or_default());
    let judged = reply.transcript.take().filter(|_| record.is_complete());
    shared.answers.borrow_mut().extend(judged.map(|answer| (place.id, answer)));
    shared.records.borrow_mut().push(record);
    if let Some((models, entry)) = shared.backend.models().filter(|_| spec.trace) {
        let steps = std::mem::take(&mut reply.steps);
        shared.traces.borrow_mut().push(RequestTrace { id: place.id, item: item.id.clone(), models, entry, steps });
    }
    shared.bar.one_ended();
}
