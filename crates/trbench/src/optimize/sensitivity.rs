//! Whether the answer stands on a knife's edge. Latencies of which one is a multiple of the other lock in phase: models
//! launch at the same instants, and which of two events comes first decides the throughput. A small change of a latency
//! then moves the answer by far more than its own size.

use serde::Serialize;
use tokenrouter_dtmc::{ClosedSystem, Latency, Prediction, SearchOptions, Thresholds, optimize_with_progress, solve};

/// Relative change of a latency that is tried; a quantum where that is longer, because latencies are rounded to quanta.
const CHANGE: f64 = 1e-3;
/// Relative move of the answer that is worth a remark.
const MOVE: f64 = 0.02;
/// Scaling one latency moves a smooth answer by no more than its own change. Beyond this multiple it is no such answer.
const MULTIPLE: f64 = 2.0;
/// Vectors of the search that are solved again after a change; eager launches are as well.
const PROBES: usize = 3;
/// Most states of all chains that are solved again: about a second of work.
const MOST_STATES: usize = 2_000_000;

/// An answer after a change of one latency.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Moved {
    model: usize,
    /// The change, as a share of the latency.
    latency_change: f64,
    thresholds: Thresholds,
    throughput_tok_s: f64,
    /// The move of the answer, as a share of it.
    throughput_change: f64,
}

/// What small changes of latencies do to the answer.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Sensitivity {
    /// Every change that was tried.
    tried: Vec<Moved>,
    /// Whether one of them moves the answer by more than 2 %, and by more than twice its own size.
    phase_locked: bool,
}

impl Sensitivity {
    /// The remark for people, where there is something to say.
    pub(super) fn note(&self) -> Option<String> {
        let worst = self.worst().filter(|_| self.phase_locked)?;
        Some(format!(
            "the answer hangs on the exact latencies: with that of model {} changed by {:+.2} %, the best is {:.1} tok/s at {} \
             ({:+.1} %). Latencies whose ratio is simple lock in phase, and real step times vary too much for that",
            worst.model,
            100.0 * worst.latency_change,
            worst.throughput_tok_s,
            worst.thresholds,
            100.0 * worst.throughput_change
        ))
    }

    fn worst(&self) -> Option<&Moved> {
        self.tried.iter().max_by(|a, b| a.excess().total_cmp(&b.excess()))
    }
}

impl Moved {
    /// The move beyond that of a smooth answer.
    fn excess(&self) -> f64 {
        self.throughput_change.abs() - MULTIPLE * self.latency_change.abs()
    }

    fn is_locked(&self) -> bool {
        self.throughput_change.abs() > MOVE && self.excess() > 0.0
    }
}

/// Answers again with each latency a little shorter and a little longer: for the best vectors of a search, or the one vector
/// otherwise. `None` where chains are too large to be solved so often, or were not solved exactly.
pub(super) fn study(
    system: &ClosedSystem,
    candidates: &[Prediction],
    searched: bool,
    options: &SearchOptions,
) -> Option<Sensitivity> {
    let states: Option<Vec<usize>> = candidates.iter().map(|one| Some(one.solution()?.states)).collect();
    if states?.iter().sum::<usize>() * 2 * system.models() > MOST_STATES {
        return None;
    }
    let best = candidates.first()?;
    let eager = candidates.iter().find(|one| one.thresholds().as_slice().iter().all(|threshold| *threshold == 1));
    let probes: Vec<&Prediction> =
        if searched { candidates.iter().take(PROBES).chain(eager).collect() } else { vec![best] };
    let mut tried = Vec::new();
    for model in 0..system.models() {
        for sign in [-1.0, 1.0] {
            let Some((changed, latency_change)) = with_latency(system, model, sign) else { continue };
            let moved = |thresholds: &Thresholds, throughput_tok_s: f64| Moved {
                model,
                latency_change,
                thresholds: thresholds.clone(),
                throughput_tok_s,
                throughput_change: throughput_tok_s / best.throughput_tok_s() - 1.0,
            };
            let solved = |one: &&Prediction| {
                let solution = solve(&changed, one.thresholds(), &options.limits.solve).ok()?;
                Some(moved(one.thresholds(), solution.throughput_tok_s()))
            };
            let of_probes: Vec<Moved> = probes.iter().map(solved).collect::<Option<_>>()?;
            let mut answer = of_probes.into_iter().max_by(|a, b| a.throughput_tok_s.total_cmp(&b.throughput_tok_s))?;
            // The best few vectors tell whether the answer moves; only then it is worth a search to tell whereto.
            if searched && answer.is_locked() {
                let found = optimize_with_progress(&changed, options, &|_, _| ()).ok()?;
                let best = found.candidates.first()?;
                answer = moved(best.thresholds(), best.throughput_tok_s());
            }
            tried.push(answer);
        }
    }
    let phase_locked = tried.iter().any(Moved::is_locked);
    Some(Sensitivity { tried, phase_locked })
}

/// The system with all latencies of a model changed by one in a thousand, or by a quantum, and the largest relative change.
fn with_latency(system: &ClosedSystem, model: usize, sign: f64) -> Option<(ClosedSystem, f64)> {
    let mut changed = system.to_system();
    let mut largest: f64 = 0.0;
    let quantum = system.quantum_ms();
    let mut change = |ms: f64| {
        let step = sign * (CHANGE * ms).max(quantum);
        largest = if (step / ms).abs() > largest.abs() { step / ms } else { largest };
        ms + step
    };
    changed.latencies_ms[model] = match &system.latencies_ms()[model] {
        Latency::Constant(ms) => Latency::Constant(change(*ms)),
        Latency::Table(points) => Latency::Table(points.iter().map(|(batch, ms)| (*batch, change(*ms))).collect()),
    };
    // A latency of one quantum cannot be shorter by one.
    Some((changed.closed(system.concurrency()).ok()?, largest))
}
