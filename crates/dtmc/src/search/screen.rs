//! Simulation of every vector in rounds of growing length; what can't be near the best any more drops out.

use super::{Progress, SearchOptions, shared_options};
use crate::simulate::{Simulation, SimulationOptions, simulate};
use crate::{ClosedSystem, Error, Limits, Prediction, SolveOptions, Thresholds};
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Request steps per vector in the first round; each later round has four times as many.
const FIRST_STEPS: u64 = 80_000;
/// Rounds before the finals.
const ROUNDS: u32 = 5;
/// Vectors that go straight to the finals.
const FINALISTS: usize = 8;
/// Vectors that can reach the finals at most.
const MOST_FINALISTS: usize = 24;
/// States of a chain in the finals that is still solved exactly.
pub(super) const FINAL_STATES: usize = 400_000;
/// Bytes that a chain may take which is solved exactly within a search.
const SMALL_BYTES: usize = 400 << 20;

/// Evaluates every vector, most of them roughly. The confidence of the early rounds is 99.9 %, so that dropping the
/// best vector is very unlikely.
pub(super) fn screen(
    system: &ClosedSystem,
    mut vectors: Vec<Thresholds>,
    options: &SearchOptions,
    progress: Progress<'_>,
) -> Result<Vec<Prediction>, Error> {
    let done = AtomicUsize::new(0);
    let mut dropped: Vec<Prediction> = Vec::new();
    let mut steps = FIRST_STEPS;
    for _ in 0..ROUNDS {
        if vectors.len() <= FINALISTS {
            break;
        }
        let total = done.load(Ordering::Relaxed) + vectors.len() + FINALISTS;
        let round = SimulationOptions {
            confidence: 0.999,
            relative_half_width: 0.0,
            max_steps: steps,
            ..options.limits.simulation.clone()
        };
        let runs = run_all(system, &vectors, &round, &|| progress(done.fetch_add(1, Ordering::Relaxed) + 1, total))?;
        let bound = options.max_wait_ms;
        let within = |run: &Simulation| {
            bound.is_none_or(|bound| run.measures.models.iter().all(|m| m.mean_wait_ms <= 1.05 * bound))
        };
        let floor = runs.iter().filter(|run| within(run)).map(|run| run.throughput.low()).fold(0.0, f64::max);
        let floor = floor * (1.0 - options.near_tie);
        vectors.clear();
        for run in runs {
            if run.throughput.high() >= floor && within(&run) {
                vectors.push(run.thresholds.clone());
            } else {
                dropped.push(run.into());
            }
        }
        steps *= 4;
    }
    if vectors.is_empty() {
        return Ok(dropped);
    }
    dropped.extend(finals(system, vectors, options, &|| {
        let now = done.fetch_add(1, Ordering::Relaxed) + 1;
        progress(now, now.max(1));
    })?);
    Ok(dropped)
}

fn run_all(
    system: &ClosedSystem,
    vectors: &[Thresholds],
    round: &SimulationOptions,
    tick: &(dyn Fn() + Sync),
) -> Result<Vec<Simulation>, Error> {
    vectors
        .par_iter()
        .with_max_len(4)
        .map(|thresholds| {
            let run = simulate(system, thresholds, round);
            tick();
            run
        })
        .collect()
}

/// Exact answers for those that can still be best where the chain fits, long simulations otherwise.
fn finals(
    system: &ClosedSystem,
    mut vectors: Vec<Thresholds>,
    options: &SearchOptions,
    tick: &(dyn Fn() + Sync),
) -> Result<Vec<Prediction>, Error> {
    let mut rest = Vec::new();
    if vectors.len() > MOST_FINALISTS {
        // Still too many to tell apart: keep those that look best, report the others as they stand.
        let last =
            SimulationOptions { relative_half_width: 0.0, max_steps: 1_500_000, ..options.limits.simulation.clone() };
        let mut runs = run_all(system, &vectors, &last, &|| ())?;
        runs.sort_by(|a, b| b.throughput.mean.total_cmp(&a.throughput.mean));
        rest = runs.split_off(MOST_FINALISTS).into_iter().map(Prediction::from).collect();
        vectors = runs.into_iter().map(|run| run.thresholds).collect();
    }
    let limits = small_chains(&options.limits, vectors.len(), FINAL_STATES);
    let mut candidates: Vec<Prediction> = vectors
        .par_iter()
        .with_max_len(1)
        .map(|thresholds| {
            let candidate = system.predict(thresholds, &limits);
            tick();
            candidate
        })
        .collect::<Result<_, _>>()?;
    candidates.append(&mut rest);
    Ok(candidates)
}

/// Limits of one of `tasks` predictions at a time whose chain is solved exactly up to `states`.
pub(super) fn small_chains(limits: &Limits, tasks: usize, states: usize) -> Limits {
    let shared = shared_options(&limits.solve, tasks);
    let solve = SolveOptions {
        max_states: shared.max_states.min(states),
        memory_limit: Some(shared.memory_bytes().min(SMALL_BYTES)),
        ..shared
    };
    Limits { solve, simulation: limits.simulation.clone(), coarse_tolerance: 0.0 }
}
