//! Routing, commit matrices and step times, from what the models did lately.

use std::collections::BTreeMap;

use tokenrouter_core::scheduler::ModelStats;

/// Transitions of a model without which nothing is said of it.
const LEAST_TRANSITIONS: f64 = 100.0;
/// Steps of one batch size over which its time is estimated.
const LATENCY_MEMORY: f64 = 200.0;
/// Steps of one batch size that make its mean more than noise.
const ENOUGH_STEPS: f64 = 20.0;
/// Standard deviations by which the last period must differ for what came before to be dropped. Steps of one request
/// depend on each other, so that a true deviation is larger than that of independent draws.
const CONTRADICTION: f64 = 6.0;
/// Standard deviations, and the least differences, that count as drift.
const DRIFT: f64 = 3.0;
const ROUTING_DRIFT: f64 = 0.01;
const LATENCY_DRIFT: f64 = 0.05;

/// What is known of one model. It is forgotten by newer evidence and not by time: a quiet hour changes nothing, and the time
/// of a batch size that the present thresholds avoid stays known.
#[derive(Debug, Clone, Default)]
struct Memory {
    /// Steps by where the request went on, and the tokens they committed.
    transitions: Vec<f64>,
    committed: Vec<f64>,
    /// Milliseconds of a step by batch size.
    step_ms: BTreeMap<usize, RecentMean>,
    /// Milliseconds of scheduling per step.
    scheduling_ms: RecentMean,
}

/// A mean over about the last [`LATENCY_MEMORY`] steps.
#[derive(Debug, Clone, Copy, Default)]
struct RecentMean {
    steps: f64,
    mean: f64,
}

impl RecentMean {
    /// Takes in the mean of `steps` more.
    fn add(&mut self, steps: f64, mean: f64) {
        let old = self.steps.min((LATENCY_MEMORY - steps).max(0.0));
        self.mean = (self.mean * old + mean * steps) / (old + steps);
        self.steps = old + steps;
    }
}

/// The mean time of the steps of one batch size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepTime {
    /// Requests in the batch.
    pub batch: usize,
    /// Mean milliseconds.
    pub mean_ms: f64,
    /// Steps behind the mean.
    pub steps: f64,
}

impl Memory {
    fn fold(&mut self, delta: &ModelStats, memory_steps: f64) {
        let new: Vec<f64> = delta.transitions.iter().map(|count| *count as f64).collect();
        let committed: Vec<f64> = delta.committed.iter().map(|count| *count as f64).collect();
        if self.transitions.is_empty() || differs(&self.transitions, &new, CONTRADICTION, ROUTING_DRIFT) {
            (self.transitions, self.committed) = (new, committed);
        } else {
            add(&mut self.transitions, &new);
            add(&mut self.committed, &committed);
        }
        let total: f64 = self.transitions.iter().sum();
        if total > memory_steps {
            let keep = memory_steps / total;
            self.transitions.iter_mut().chain(&mut self.committed).for_each(|count| *count *= keep);
        }
        for (batch, (count, time)) in delta.step_time_by_batch.iter().enumerate().filter(|(_, step)| step.0 > 0) {
            let mean = time.as_secs_f64() * 1e3 / *count as f64;
            self.step_ms.entry(batch).or_default().add(*count as f64, mean);
        }
        if delta.steps > 0 {
            let steps = delta.steps as f64;
            self.scheduling_ms.add(steps, delta.scheduling.as_secs_f64() * 1e3 / steps);
        }
    }

    /// Milliseconds by batch size, and the sizes that were seen often.
    fn latency(&self, largest: usize) -> Option<(Vec<f64>, Vec<bool>)> {
        let time = |(batch, recent): (&usize, &RecentMean)| StepTime {
            batch: *batch,
            mean_ms: recent.mean,
            steps: recent.steps,
        };
        let seen: Vec<StepTime> = self.step_ms.iter().map(time).collect();
        let often = |batch: usize| self.step_ms.get(&batch).is_some_and(|recent| recent.steps >= ENOUGH_STEPS);
        let ms: Option<Vec<f64>> =
            (1..=largest).map(|batch| Some(interpolate(&seen, batch)? + self.scheduling_ms.mean)).collect();
        Some((ms?, (1..=largest).map(often).collect()))
    }
}

fn add(into: &mut [f64], from: &[f64]) {
    into.iter_mut().zip(from).for_each(|(into, from)| *into += from);
}

/// Whether two sets of counts are of different distributions: some share differs by `deviations` and by `least`.
fn differs(a: &[f64], b: &[f64], deviations: f64, least: f64) -> bool {
    let (na, nb) = (a.iter().sum::<f64>(), b.iter().sum::<f64>());
    if na < LEAST_TRANSITIONS || nb < LEAST_TRANSITIONS {
        return false;
    }
    a.iter().zip(b).any(|(a, b)| {
        let pooled = (a + b) / (na + nb);
        let sigma = (pooled * (1.0 - pooled) * (1.0 / na + 1.0 / nb)).sqrt();
        let difference = (a / na - b / nb).abs();
        difference > least && difference > deviations * sigma
    })
}

/// Mean milliseconds at `batch`, linear between the batch sizes that were seen often (`seen` is by rising batch size) and
/// along the nearest two beyond them; never below the shortest seen. `None` when nothing was seen.
#[must_use]
pub fn interpolate(seen: &[StepTime], batch: usize) -> Option<f64> {
    let point = |time: &StepTime| (time.batch as f64, time.mean_ms);
    // Means of a few steps are noise; but something must be said where there is nothing better.
    let mut points: Vec<(f64, f64)> = seen.iter().filter(|time| time.steps >= ENOUGH_STEPS).map(point).collect();
    if points.is_empty() {
        points = seen.iter().map(point).collect();
    }
    let x = batch as f64;
    let after = points.partition_point(|point| point.0 < x).clamp(1, points.len().max(2) - 1);
    match points.as_slice() {
        [] => None,
        [only] => Some(only.1),
        points => {
            let ((x0, y0), (x1, y1)) = (points[after - 1], points[after]);
            let least = points.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
            Some((y0 + (y1 - y0) * (x - x0) / (x1 - x0)).max(least))
        }
    }
}

/// What the throughput model is given, with the evidence behind it.
#[derive(Debug, Clone)]
pub struct Estimates {
    /// Milliseconds of a step of each model: entry `b - 1` is for batch size `b`, up to the most active requests.
    pub step_ms: Vec<Vec<f64>>,
    /// Routing matrix.
    pub routing: Vec<Vec<f64>>,
    /// Commit matrix.
    pub commits: Vec<Vec<f64>>,
    transitions: Vec<Vec<f64>>,
    seen: Vec<Vec<bool>>,
}

impl Estimates {
    /// Whether `newer` differs from these by more than chance.
    pub(super) fn drifted(&self, newer: &Self) -> bool {
        let routing = self.transitions.iter().zip(&newer.transitions);
        let mut step_ms = self.step_ms.iter().zip(&newer.step_ms).zip(&newer.seen);
        routing.into_iter().any(|(old, new)| differs(old, new, DRIFT, ROUTING_DRIFT))
            || step_ms.any(|((old, new), seen)| {
                let mut often = old.iter().zip(new).zip(seen).filter(|(_, seen)| **seen);
                often.any(|((old, new), _)| (new / old - 1.0).abs() > LATENCY_DRIFT)
            })
    }
}

/// Follows the counters of all models.
#[derive(Debug, Clone)]
pub(super) struct Estimator {
    memory_steps: f64,
    largest: usize,
    last: Vec<ModelStats>,
    memories: Vec<Memory>,
}

impl Estimator {
    /// Nothing is known yet of `models` models, whose batches have up to `largest` rows.
    pub(super) fn new(models: usize, largest: usize, memory_steps: usize) -> Self {
        Self {
            memory_steps: memory_steps as f64,
            largest,
            last: vec![ModelStats::default(); models],
            memories: vec![Memory::default(); models],
        }
    }

    /// Takes in what happened since the last call. `stats` are the models' counters.
    pub(super) fn observe(&mut self, stats: &[ModelStats]) {
        for ((memory, last), stats) in self.memories.iter_mut().zip(&mut self.last).zip(stats) {
            memory.fold(&stats.since(last), self.memory_steps);
            last.clone_from(stats);
        }
    }

    /// What is known, once there is enough of every model.
    pub(super) fn estimates(&self) -> Option<Estimates> {
        let total = |memory: &Memory| memory.transitions.iter().sum::<f64>();
        if self.memories.iter().any(|memory| total(memory) < LEAST_TRANSITIONS) {
            return None;
        }
        let latencies: Option<Vec<(Vec<f64>, Vec<bool>)>> =
            self.memories.iter().map(|memory| memory.latency(self.largest)).collect();
        let (step_ms, seen) = latencies?.into_iter().unzip();
        let shares = |memory: &Memory| memory.transitions.iter().map(|count| count / total(memory)).collect();
        let commits = |memory: &Memory| {
            let pairs = memory.committed.iter().zip(&memory.transitions);
            pairs.map(|(tokens, steps)| if *steps > 0.0 { tokens / steps } else { 0.0 }).collect()
        };
        Some(Estimates {
            step_ms,
            routing: self.memories.iter().map(shares).collect(),
            commits: self.memories.iter().map(commits).collect(),
            transitions: self.memories.iter().map(|memory| memory.transitions.clone()).collect(),
            seen,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn stats(stay: u64, leave: u64, steps: &[(usize, u64, u64)]) -> ModelStats {
        let mut stats =
            ModelStats { transitions: vec![stay, leave], committed: vec![stay, 0], ..ModelStats::default() };
        for (batch, count, ms) in steps {
            stats.step_time_by_batch.resize(stats.step_time_by_batch.len().max(batch + 1), Default::default());
            stats.step_time_by_batch[*batch] = (*count, Duration::from_millis(ms * count));
        }
        stats
    }

    fn sum(a: &ModelStats, b: &ModelStats) -> ModelStats {
        let mut sum = a.clone();
        sum.add(b);
        sum
    }

    #[test]
    fn times_are_interpolated_between_what_was_seen_often() {
        let time = |(batch, mean_ms, steps)| StepTime { batch, mean_ms, steps };
        let seen = [(1, 10.0, 100.0), (2, 99.0, 3.0), (4, 16.0, 100.0), (8, 20.0, 50.0)].map(time);
        let got: Vec<_> = [1, 2, 4, 6, 8, 12].iter().map(|batch| interpolate(&seen, *batch)).collect();
        assert_eq!(got, [10.0, 12.0, 16.0, 18.0, 20.0, 24.0].map(Some));
        assert_eq!(interpolate(&[time((3, 7.0, 100.0))], 1), Some(7.0));
        assert_eq!(
            interpolate(&[(2, 7.0, 100.0), (3, 9.0, 100.0)].map(time), 1),
            Some(7.0),
            "never below the shortest seen"
        );
        assert_eq!(interpolate(&[], 1), None);
    }

    #[test]
    fn a_jump_drops_what_came_before_and_noise_does_not() {
        let mut memory = Memory::default();
        memory.fold(&stats(900, 100, &[(1, 10, 6)]), 4096.0);
        memory.fold(&stats(880, 120, &[]), 4096.0);
        assert_eq!(memory.transitions, [1780.0, 220.0]);
        memory.fold(&stats(500, 500, &[]), 4096.0);
        assert_eq!(memory.transitions, [500.0, 500.0], "the old routing is gone");
        memory.fold(&stats(5000, 5000, &[]), 4096.0);
        assert!((memory.transitions.iter().sum::<f64>() - 4096.0).abs() < 1e-6, "bounded");
    }

    #[test]
    fn nothing_is_said_without_evidence_and_times_of_rare_sizes_stay() {
        let mut estimator = Estimator::new(2, 4, 4096);
        let (small, large) = (stats(300, 100, &[(1, 50, 6), (4, 50, 9)]), stats(90, 9, &[(2, 50, 20)]));
        estimator.observe(&[small.clone(), large.clone()]);
        assert!(estimator.estimates().is_none(), "99 transitions of the large model");
        let small = sum(&small, &stats(0, 0, &[(1, 5000, 6)]));
        let large = sum(&large, &stats(1, 0, &[]));
        estimator.observe(&[small, large]);
        let known = estimator.estimates().expect("enough");
        assert_eq!(known.routing[0], [0.75, 0.25]);
        assert_eq!(known.commits[0], [1.0, 0.0]);
        assert_eq!(known.step_ms[0], [6.0, 7.0, 8.0, 9.0]);
        assert_eq!(known.seen, [[true, false, false, true], [false, true, false, false]]);
        assert!(!known.drifted(&known));
    }
}
