//! What a system does under given thresholds, by the surest way that the limits allow.

use crate::chain::{ChainLimits, Stop, Workspace};
use crate::simulate::{Simulation, SimulationOptions, simulate};
use crate::solve::solve_chain;
use crate::{ClosedSystem, Error, Measures, Solution, SolveOptions, System, Thresholds, estimate_size, solve};
use serde::Serialize;

/// Limits up to which a chain is explored without estimating its size before: reaching them costs less than an estimate.
const UNESTIMATED: ChainLimits = ChainLimits { states: 400_000, bytes: 400 << 20 };

/// How much work a prediction may be.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Limits {
    /// How large an exact chain may be, and how it is solved.
    pub solve: SolveOptions,
    /// How long and how precisely a simulation runs that answers where the chain is too large.
    pub simulation: SimulationOptions,
    /// Where the chain is too large, the chain on a coarser quantum answers if its estimated relative error is at most this,
    /// before a simulation does. 0 (the default): never. Searches compare thresholds on one quantum and do not use it.
    pub coarse_tolerance: f64,
}

/// A predicted long run, by the method that its variant names.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "answered_by", rename_all = "kebab-case")]
pub enum Prediction {
    /// The exact chain, with the residual of its stationary distribution.
    Exact(Solution),
    /// The exact chain on a coarser quantum, with an estimate of the error that this makes.
    Coarse(Coarse),
    /// The simulator, with the standard error and the confidence interval of the throughput.
    Simulated(Simulation),
}

/// The exact chain on a coarser quantum, with an estimate of the error that this makes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Coarse {
    /// The quantum used, in milliseconds.
    pub quantum_ms: f64,
    /// Its exact answer.
    pub solution: Solution,
    /// Estimated relative error: the change from twice the quantum plus the rounding of latencies.
    pub relative_error: f64,
}

impl Prediction {
    /// The thresholds that the prediction is for.
    #[must_use]
    pub const fn thresholds(&self) -> &Thresholds {
        match self {
            Self::Exact(solution) | Self::Coarse(Coarse { solution, .. }) => &solution.thresholds,
            Self::Simulated(simulation) => &simulation.thresholds,
        }
    }

    /// The solved chain, on whatever quantum; `None` where the simulator answered.
    #[must_use]
    pub const fn solution(&self) -> Option<&Solution> {
        match self {
            Self::Exact(solution) | Self::Coarse(Coarse { solution, .. }) => Some(solution),
            Self::Simulated(_) => None,
        }
    }

    /// Throughput and per-model measures.
    #[must_use]
    pub const fn measures(&self) -> &Measures {
        match self {
            Self::Exact(solution) | Self::Coarse(Coarse { solution, .. }) => &solution.measures,
            Self::Simulated(simulation) => &simulation.measures,
        }
    }

    /// Tokens per second.
    #[must_use]
    pub const fn throughput_tok_s(&self) -> f64 {
        match self {
            Self::Exact(solution) | Self::Coarse(Coarse { solution, .. }) => solution.measures.throughput_tok_s,
            Self::Simulated(simulation) => simulation.throughput.mean,
        }
    }

    /// Standard error of the simulated throughput, in tokens per second; `None` where no simulation answered.
    #[must_use]
    pub const fn standard_error(&self) -> Option<f64> {
        match self {
            Self::Exact(_) | Self::Coarse(_) => None,
            Self::Simulated(simulation) => Some(simulation.throughput.standard_error),
        }
    }

    /// Half width of the confidence interval of a simulated throughput, in tokens per second; 0 otherwise.
    #[must_use]
    pub const fn half_width(&self) -> f64 {
        match self {
            Self::Exact(_) | Self::Coarse(_) => 0.0,
            Self::Simulated(simulation) => simulation.throughput.half_width,
        }
    }

    /// Largest mean buffer wait over the models, in milliseconds.
    #[must_use]
    pub fn longest_wait_ms(&self) -> f64 {
        self.measures().models.iter().map(|model| model.mean_wait_ms).fold(0.0, f64::max)
    }
}

impl From<Solution> for Prediction {
    fn from(solution: Solution) -> Self {
        Self::Exact(solution)
    }
}

impl From<Simulation> for Prediction {
    fn from(simulation: Simulation) -> Self {
        Self::Simulated(simulation)
    }
}

/// Predicts the long run of `system` with `concurrency` requests under `thresholds`: exactly where the chain fits
/// `limits`, otherwise by simulation (or on a coarser quantum, see [`Limits::coarse_tolerance`]).
///
/// ```
/// use tokenrouter_dtmc::{Limits, Prediction, System, Thresholds, predict};
/// let routing = vec![vec![0.35, 0.65], vec![1.0, 0.0]];
/// let system = System { commits: Some(vec![vec![1.0, 0.0]; 2]), ..System::new([6.0, 27.9], routing) };
/// let prediction = predict(&system, 8, &Thresholds::new([1, 7]), &Limits::default())?;
/// let Prediction::Exact(solution) = prediction else { panic!("18 states fit") };
/// assert!((solution.throughput_tok_s() - 281.8128134192).abs() < 1e-8);
/// assert!(solution.residual <= 1e-12);
/// # Ok::<(), tokenrouter_dtmc::Error>(())
/// ```
///
/// # Errors
/// A system that breaks a rule, thresholds that don't suit it or can deadlock, several recurrent classes, a stationary
/// method that doesn't reach the tolerance. A chain over the limits is no error.
pub fn predict(
    system: &System,
    concurrency: u32,
    thresholds: &Thresholds,
    limits: &Limits,
) -> Result<Prediction, Error> {
    system.closed(concurrency)?.predict(thresholds, limits)
}

impl ClosedSystem {
    /// As [`predict`], for a system that was checked before.
    ///
    /// # Errors
    /// As [`predict`], without those of the system.
    pub fn predict(&self, thresholds: &Thresholds, limits: &Limits) -> Result<Prediction, Error> {
        if let Some(solution) = exact(self, thresholds, &limits.solve)? {
            return Ok(Prediction::Exact(solution));
        }
        if let Some(coarse) = coarse(self, thresholds, limits) {
            return Ok(Prediction::Coarse(coarse));
        }
        Ok(Prediction::Simulated(simulate(self, thresholds, &limits.simulation)?))
    }
}

/// The exact answer; `None` when the chain is over the limits.
fn exact(system: &ClosedSystem, thresholds: &Thresholds, options: &SolveOptions) -> Result<Option<Solution>, Error> {
    let limits = options.limits();
    if limits.states > UNESTIMATED.states || limits.bytes > UNESTIMATED.bytes {
        return match solve(system, thresholds, options) {
            Err(Error::TooLarge { .. }) => Ok(None),
            solved => solved.map(Some),
        };
    }
    thresholds.check(system)?;
    match Workspace::new(system)?.explore(system, thresholds, options.start, limits) {
        Ok(chain) => solve_chain(system, thresholds, &chain, options).map(Some),
        Err(Stop::Bad(error)) => Err(error),
        Err(Stop::Limit { .. }) => Ok(None),
    }
}

/// The finest coarser quantum that fits, chosen for small rounding of the latencies; `None` when the estimated error breaks
/// the tolerance.
fn coarse(system: &ClosedSystem, thresholds: &Thresholds, limits: &Limits) -> Option<Coarse> {
    let (options, tolerance) = (&limits.solve, limits.coarse_tolerance);
    if tolerance.is_nan() || tolerance <= 0.0 {
        return None;
    }
    let estimate = estimate_size(system, thresholds).ok()?;
    let excess = (estimate.states / options.max_states as f64).max(estimate.bytes / options.memory_bytes() as f64);
    let fitting = system.quantum_ms() * excess.powf(1.0 / estimate.exponent.max(0.1));
    // Among quanta up to half as much again, the one that rounds the latencies least, also when doubled.
    let candidates = (0..40).map(|k| fitting * (1.02 + 0.0125 * f64::from(k)));
    let chosen = candidates
        .filter_map(|quantum| {
            let finer = system.with_quantum_ms(quantum).ok()?;
            let coarser = system.with_quantum_ms(2.0 * quantum).ok()?;
            Some((rounding(system, &finer).max(0.5 * rounding(system, &coarser)), finer, coarser))
        })
        .min_by(|a, b| a.0.total_cmp(&b.0));
    let (error, finer, coarser) = chosen?;
    if error > tolerance {
        return None;
    }
    let solution = solve(&finer, thresholds, options).ok()?;
    let twice = solve(&coarser, thresholds, options).ok()?;
    let change = (solution.throughput_tok_s() / twice.throughput_tok_s() - 1.0).abs();
    let relative_error = change + rounding(system, &finer);
    let coarse = Coarse { quantum_ms: finer.quantum_ms(), solution, relative_error };
    (coarse.relative_error <= tolerance).then_some(coarse)
}

/// Largest relative difference between a latency of `system` and what `other` makes of it.
fn rounding(system: &ClosedSystem, other: &ClosedSystem) -> f64 {
    let mut worst = 0.0_f64;
    for index in 0..system.models() {
        for batch in 1..=system.largest_batch(index) {
            let exact = system.step_ms(index, batch).unwrap_or(f64::NAN);
            worst = worst.max((f64::from(other.quanta(index, batch)) * other.quantum_ms() / exact - 1.0).abs());
        }
    }
    worst
}
