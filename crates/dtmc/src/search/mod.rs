//! The best thresholds: exhaustive where that is affordable, a search that says so where it is not.

mod local;
mod screen;
mod table;

pub use table::{TableRow, best_within_time_per_token, threshold_table, threshold_table_row, threshold_table_rows};

use crate::solve::Evaluator;
use crate::{
    ClosedSystem, Error, Limits, Prediction, Solution, SolveOptions, Thresholds, count_feasible, enumerate_feasible,
    estimate_size,
};
use rayon::prelude::*;
use serde::Serialize;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Vectors whose throughput differs by less than this share count as equal when choosing between them.
const EXACT_TIE: f64 = 1e-10;
/// Largest product of vectors and transitions of the eager chain that is enumerated exactly.
const EXACT_WORK: f64 = 3e9;

/// Most vectors that are ever listed.
const MOST_VECTORS: u64 = 2_000_000;

/// How to look for the best vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// Every vector exactly when affordable, else every vector by simulation with exact finals, else a local search.
    #[default]
    Auto,
    /// Every feasible vector, exactly.
    Exhaustive,
    /// Every feasible vector by simulation in rounds; those that can still be best are then solved exactly if they fit.
    Screening,
    /// Hill climbing from several starts. Can miss the best vector.
    Local,
}

/// Options of [`optimize`].
#[derive(Debug, Clone, PartialEq)]
pub struct SearchOptions {
    /// Limits of the prediction for each vector. The memory is shared by the worker threads.
    pub limits: Limits,
    /// How to look.
    pub strategy: Strategy,
    /// Vectors within this share of the best are near-ties.
    pub near_tie: f64,
    /// Most vectors that [`Strategy::Auto`] enumerates.
    pub max_vectors: u64,
    /// Only vectors whose mean buffer wait, at every model, is at most this many milliseconds.
    pub max_wait_ms: Option<f64>,
}

impl Default for SearchOptions {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            strategy: Strategy::Auto,
            near_tie: 0.001,
            max_vectors: 10_000,
            max_wait_ms: None,
        }
    }
}

/// What a search found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SearchResult {
    /// The best vector. Among equals the one with the smallest sum, then the first in lexicographic order.
    pub best: Prediction,
    /// Every vector that was evaluated to the end, best first; with a wait bound, those within it.
    pub candidates: Vec<Prediction>,
    /// How many of `candidates`, from the first, are within the near-tie band of the best.
    pub near_ties: usize,
    /// How the search went.
    pub strategy: Strategy,
    /// True when every feasible vector was looked at.
    pub exhaustive: bool,
    /// Vectors evaluated, exactly or by simulation.
    pub evaluated: usize,
    /// Feasible vectors.
    pub feasible: u64,
}

/// Progress of a search: steps done and steps known so far.
pub type Progress<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// Finds the threshold vector with the highest throughput.
///
/// ```
/// use tokenrouter_dtmc::{SearchOptions, System, optimize};
/// let routing = vec![vec![0.35, 0.65], vec![1.0, 0.0]];
/// let system = System { commits: Some(vec![vec![1.0, 0.0]; 2]), ..System::new([6.0, 27.9], routing) }.closed(8)?;
/// let found = optimize(&system, &SearchOptions::default())?;
/// assert_eq!(found.best.thresholds().as_slice(), [1, 7]);
/// # Ok::<(), tokenrouter_dtmc::Error>(())
/// ```
///
/// # Errors
/// As [`crate::solve`] for [`Strategy::Exhaustive`]; [`Error::NoneWithinBound`] when a wait bound excludes everything.
pub fn optimize(system: &ClosedSystem, options: &SearchOptions) -> Result<SearchResult, Error> {
    optimize_with_progress(system, options, &|_, _| ())
}

/// As [`optimize`], reporting progress.
///
/// # Errors
/// As [`optimize`].
pub fn optimize_with_progress(
    system: &ClosedSystem,
    options: &SearchOptions,
    progress: Progress<'_>,
) -> Result<SearchResult, Error> {
    if !(options.near_tie >= 0.0 && options.near_tie < 1.0) {
        return Err(Error::option("near tie", options.near_tie.to_string(), "0 or above and below 1"));
    }
    let feasible = count_feasible(system);
    let strategy = match options.strategy {
        Strategy::Auto => choose(system, feasible, options)?,
        given => given,
    };
    if strategy != Strategy::Local && feasible > MOST_VECTORS {
        let allowed = format!("at most {MOST_VECTORS}, or the local strategy");
        return Err(Error::option("strategy", format!("{feasible} feasible vectors to list"), allowed));
    }
    let candidates = match strategy {
        Strategy::Local => local::climb(system, options, progress)?,
        Strategy::Screening => screen::screen(system, enumerate_feasible(system), options, progress)?,
        Strategy::Auto | Strategy::Exhaustive => exhaustive(system, &enumerate_feasible(system), options, progress)?,
    };
    rank(candidates, strategy, feasible, options)
}

/// The most thorough strategy that is affordable.
fn choose(system: &ClosedSystem, feasible: u64, options: &SearchOptions) -> Result<Strategy, Error> {
    if feasible > options.max_vectors {
        return Ok(Strategy::Local);
    }
    let eager = estimate_size(system, &Thresholds::eager(system.models()))?;
    let shared = shared_options(&options.limits.solve, feasible as usize);
    let affordable = eager.nonzeros * feasible as f64 <= EXACT_WORK && eager.fits(&shared);
    Ok(if affordable { Strategy::Exhaustive } else { Strategy::Screening })
}

/// Options for one of several workers: the memory is shared between them.
pub(crate) fn shared_options(options: &SolveOptions, tasks: usize) -> SolveOptions {
    let workers = rayon::current_num_threads().min(tasks).max(1);
    SolveOptions { memory_limit: Some(options.memory_bytes() / workers), ..options.clone() }
}

fn exhaustive(
    system: &ClosedSystem,
    vectors: &[Thresholds],
    options: &SearchOptions,
    progress: Progress<'_>,
) -> Result<Vec<Prediction>, Error> {
    let shared = shared_options(&options.limits.solve, vectors.len());
    let done = AtomicUsize::new(0);
    let mut results: Vec<Result<Solution, Error>> = vectors
        .par_iter()
        .with_max_len(1)
        .map_init(
            || Evaluator::new(system),
            |evaluator, thresholds| {
                let solution = match evaluator {
                    Ok(evaluator) => evaluator.solve(system, thresholds, &shared),
                    Err(error) => Err(error.clone()),
                };
                progress(done.fetch_add(1, Ordering::Relaxed) + 1, vectors.len());
                solution
            },
        )
        .collect();
    // One class is all that most vectors have; a vector with several has no answer and can't be the best.
    let failed = results.iter().position(|result| matches!(result, Err(error) if !is_several(error)));
    if let Some(index) = failed {
        return results.swap_remove(index).map(|solution| vec![solution.into()]);
    }
    let mut candidates = Vec::with_capacity(results.len());
    let mut refused = None;
    for result in results {
        match result {
            Ok(solution) => candidates.push(solution.into()),
            Err(error) => refused = Some(error),
        }
    }
    match (candidates.is_empty(), refused) {
        (true, Some(error)) => Err(error),
        _ => Ok(candidates),
    }
}

const fn is_several(error: &Error) -> bool {
    matches!(error, Error::SeveralClasses { .. })
}

/// Sorts, applies the wait bound and counts near-ties.
fn rank(
    mut candidates: Vec<Prediction>,
    strategy: Strategy,
    feasible: u64,
    options: &SearchOptions,
) -> Result<SearchResult, Error> {
    let evaluated = candidates.len();
    if let Some(bound) = options.max_wait_ms {
        let closest = candidates.iter().min_by(|a, b| a.longest_wait_ms().total_cmp(&b.longest_wait_ms())).cloned();
        candidates.retain(|candidate| candidate.longest_wait_ms() <= bound);
        if let (true, Some(closest)) = (candidates.is_empty(), closest) {
            return Err(Error::NoneWithinBound {
                bound: format!("a mean buffer wait of at most {bound} ms"),
                closest: closest.thresholds().to_string(),
                value: format!("{:.4} ms", closest.longest_wait_ms()),
            });
        }
    }
    order(&mut candidates);
    let Some(best) = candidates.first().cloned() else {
        return Err(Error::option("vectors", "none to choose from", "at least one feasible vector"));
    };
    let floor = best.throughput_tok_s() * (1.0 - options.near_tie);
    let near_ties =
        candidates.iter().filter(|candidate| candidate.throughput_tok_s() + candidate.half_width() >= floor).count();
    let exhaustive = strategy != Strategy::Local;
    Ok(SearchResult { best, candidates, near_ties, strategy, exhaustive, evaluated, feasible })
}

/// Best first; numbers equal up to rounding are ordered by sum, then lexicographically.
fn order(candidates: &mut [Prediction]) {
    let sum = |candidate: &Prediction| candidate.thresholds().as_slice().iter().map(|&b| u64::from(b)).sum::<u64>();
    candidates.sort_by(|a, b| b.throughput_tok_s().total_cmp(&a.throughput_tok_s()));
    let mut start = 0;
    while start < candidates.len() {
        let floor = candidates[start].throughput_tok_s() * (1.0 - EXACT_TIE);
        let end =
            start + candidates[start..].iter().take_while(|candidate| candidate.throughput_tok_s() >= floor).count();
        candidates[start..end].sort_by(|a, b| sum(a).cmp(&sum(b)).then_with(|| a.thresholds().cmp(b.thresholds())));
        start = end;
    }
}
