//! Hill climbing over threshold vectors, for numbers of vectors that can't be enumerated.

use super::screen::{FINAL_STATES, small_chains};
use super::{Progress, SearchOptions};
use crate::{ClosedSystem, Error, Prediction, Thresholds, is_feasible};
use rayon::prelude::*;
use std::collections::HashMap;

/// States up to which a vector on the way is solved exactly.
const CLIMB_STATES: usize = 30_000;
/// Request steps of a simulation on the way.
const CLIMB_STEPS: u64 = 2_000_000;
/// Simulated vectors near the best that are evaluated again, as finals.
const REFINED: usize = 8;

/// Moves from one vector are steps of these sizes in each coordinate, and shifts between two coordinates.
fn neighbours(system: &ClosedSystem, from: &[u32], step: u32) -> Vec<Vec<u32>> {
    let mut found = Vec::new();
    let mut push = |vector: Vec<u32>| {
        let capped = vector.iter().enumerate().all(|(index, &b)| b <= system.largest_batch(index));
        if capped && is_feasible(&vector, system.concurrency()) {
            found.push(vector);
        }
    };
    for raised in 0..from.len() {
        let mut up = from.to_vec();
        up[raised] += step;
        push(up);
        let mut down = from.to_vec();
        down[raised] = down[raised].saturating_sub(step).max(1);
        push(down);
        for lowered in (0..from.len()).filter(|&lowered| lowered != raised && from[lowered] > step) {
            let mut shifted = from.to_vec();
            shifted[raised] += step;
            shifted[lowered] -= step;
            push(shifted);
        }
    }
    found
}

/// Starts: eager, all slack on one model, and slack shared out.
pub(super) fn starts(system: &ClosedSystem) -> Vec<Vec<u32>> {
    let models = system.models();
    let slack = system.concurrency() - 1;
    let mut found = vec![vec![1; models]];
    for index in 0..models {
        for share in [slack, slack * 3 / 4, slack / 2] {
            let mut vector = vec![1; models];
            vector[index] = (1 + share).min(system.largest_batch(index));
            found.push(vector);
        }
    }
    found.push((0..models).map(|index| (1 + slack / models as u32).min(system.largest_batch(index))).collect());
    found.retain(|vector| is_feasible(vector, system.concurrency()));
    found
}

/// Evaluations so far, and a way to add to them.
struct Climber<'a> {
    system: &'a ClosedSystem,
    options: &'a SearchOptions,
    progress: Progress<'a>,
    seen: HashMap<Vec<u32>, Prediction>,
}

impl Climber<'_> {
    /// Evaluates what is new, in parallel.
    fn evaluate(&mut self, vectors: Vec<Vec<u32>>) -> Result<(), Error> {
        let mut fresh: Vec<Vec<u32>> = vectors.into_iter().filter(|vector| !self.seen.contains_key(vector)).collect();
        fresh.sort_unstable();
        fresh.dedup();
        let mut limits = small_chains(&self.options.limits, fresh.len(), CLIMB_STATES);
        limits.simulation.max_steps = limits.simulation.max_steps.min(CLIMB_STEPS);
        let results: Vec<(Vec<u32>, Prediction)> = fresh
            .into_par_iter()
            .with_max_len(1)
            .map(|vector| {
                let prediction = self.system.predict(&Thresholds::new(vector.clone()), &limits)?;
                Ok((vector, prediction))
            })
            .collect::<Result<_, Error>>()?;
        self.seen.extend(results);
        (self.progress)(self.seen.len(), self.seen.len());
        Ok(())
    }

    /// Evaluates simulated vectors that may be near the best again, exactly where they fit.
    fn refine(&mut self) -> Result<(), Error> {
        let high = self.seen.keys().map(|vector| self.score(vector)).fold(0.0, f64::max);
        let floor = high * (1.0 - self.options.near_tie);
        let near = |vector: &Vec<u32>, candidate: &Prediction| {
            matches!(candidate, Prediction::Simulated(_)) && self.score(vector) + candidate.half_width() >= floor
        };
        let mut again: Vec<Vec<u32>> = self
            .seen
            .iter()
            .filter(|(vector, candidate)| near(vector, candidate))
            .map(|(vector, _)| vector.clone())
            .collect();
        again.sort_by(|a, b| self.score(b).total_cmp(&self.score(a)).then_with(|| a.cmp(b)));
        again.truncate(REFINED);
        let limits = small_chains(&self.options.limits, again.len(), FINAL_STATES);
        let system = self.system;
        let results: Vec<(Vec<u32>, Prediction)> = again
            .into_par_iter()
            .with_max_len(1)
            .map(|vector| {
                let prediction = system.predict(&Thresholds::new(vector.clone()), &limits)?;
                Ok((vector, prediction))
            })
            .collect::<Result<_, Error>>()?;
        self.seen.extend(results);
        Ok(())
    }

    /// What the search maximises: throughput, with vectors over the wait bound below all others.
    fn score(&self, vector: &[u32]) -> f64 {
        self.seen.get(vector).map_or(f64::NEG_INFINITY, |candidate| {
            let over = self.options.max_wait_ms.map_or(0.0, |bound| (candidate.longest_wait_ms() - bound).max(0.0));
            if over > 0.0 { -over } else { candidate.throughput_tok_s() }
        })
    }

    fn climb_from(&mut self, mut at: Vec<u32>) -> Result<(), Error> {
        let mut step = (self.system.concurrency() / 4).max(1);
        loop {
            let around = neighbours(self.system, &at, step);
            self.evaluate(around.clone())?;
            let best = around.into_iter().max_by(|a, b| self.score(a).total_cmp(&self.score(b)));
            match best {
                Some(next) if self.score(&next) > self.score(&at) => at = next,
                _ if step > 1 => step /= 2,
                _ => return Ok(()),
            }
        }
    }
}

/// Climbs from the best few of a set of starts, with steps that halve from `N / 4` to one.
pub(super) fn climb(
    system: &ClosedSystem,
    options: &SearchOptions,
    progress: Progress<'_>,
) -> Result<Vec<Prediction>, Error> {
    climb_from(system, options, progress, starts(system), 3)
}

/// Climbs from the best `climbs` of `starts`.
pub(super) fn climb_from(
    system: &ClosedSystem,
    options: &SearchOptions,
    progress: Progress<'_>,
    mut starts: Vec<Vec<u32>>,
    climbs: usize,
) -> Result<Vec<Prediction>, Error> {
    let mut climber = Climber { system, options, progress, seen: HashMap::new() };
    climber.evaluate(starts.clone())?;
    starts.sort_by(|a, b| climber.score(b).total_cmp(&climber.score(a)));
    starts.dedup();
    for start in starts.into_iter().take(climbs) {
        climber.climb_from(start)?;
    }
    climber.refine()?;
    Ok(climber.seen.into_values().collect())
}
