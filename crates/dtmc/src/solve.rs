//! From a system and thresholds to a number with its evidence.

use crate::chain::{ChainLimits, Workspace};
use crate::measures::{Measures, measure};
use crate::{
    Chain, Classes, ClosedSystem, Error, Method, Stationary, Thresholds, Tolerance, TransitionMatrix, classes,
};
use serde::Serialize;

/// Options of [`solve`] and of every exact evaluation in a search.
#[derive(Debug, Clone, PartialEq)]
pub struct SolveOptions {
    /// Stationary method.
    pub method: Method,
    /// Residual to reach, and iterations allowed.
    pub tolerance: Tolerance,
    /// Most states of a chain.
    pub max_states: usize,
    /// Most bytes for a chain; `None` for half of the machine's available memory.
    pub memory_limit: Option<usize>,
    /// Routing state in which all requests wait at the start.
    pub start: usize,
}

impl Default for SolveOptions {
    fn default() -> Self {
        Self {
            method: Method::Auto,
            tolerance: Tolerance::default(),
            max_states: 20_000_000,
            memory_limit: None,
            start: 0,
        }
    }
}

impl SolveOptions {
    /// The memory limit in force, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.memory_limit.unwrap_or_else(crate::estimate::default_memory_limit)
    }

    pub(crate) fn limits(&self) -> ChainLimits {
        ChainLimits { states: self.max_states, bytes: self.memory_bytes() }
    }
}

/// An exact answer for one threshold vector.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Solution {
    /// The vector.
    pub thresholds: Thresholds,
    /// Throughput and per-model measures.
    #[serde(flatten)]
    pub measures: Measures,
    /// Reachable states.
    pub states: usize,
    /// Transitions between them.
    pub nonzeros: usize,
    /// Transient states among them.
    pub transient: usize,
    /// Stationary method that answered.
    pub method: String,
    /// Products with the matrix that it took.
    pub iterations: usize,
    /// `||pi P - pi||_1` of the distribution behind the answer.
    pub residual: f64,
}

impl Solution {
    /// Committed tokens per second over all requests.
    #[must_use]
    pub const fn throughput_tok_s(&self) -> f64 {
        self.measures.throughput_tok_s
    }
}

/// Builds the exact chain of `system` under `thresholds` and solves it.
///
/// ```
/// use tokenrouter_dtmc::{SolveOptions, System, Thresholds, solve};
/// let routing = vec![vec![0.35, 0.65], vec![1.0, 0.0]];
/// let system = System { commits: Some(vec![vec![1.0, 0.0]; 2]), ..System::new([6.0, 27.9], routing) }.closed(8)?;
/// let solution = solve(&system, &Thresholds::new([1, 7]), &SolveOptions::default())?;
/// assert!((solution.throughput_tok_s() - 281.8128134192).abs() < 1e-8);
/// assert_eq!((solution.states, solution.nonzeros), (18, 58));
/// # Ok::<(), tokenrouter_dtmc::Error>(())
/// ```
///
/// # Errors
/// Thresholds that don't suit the system or can deadlock; a chain over the limits, with an estimate of its size; several
/// recurrent classes; a stationary method that doesn't reach the tolerance.
pub fn solve(system: &ClosedSystem, thresholds: &Thresholds, options: &SolveOptions) -> Result<Solution, Error> {
    let chain = Chain::build(system, thresholds, options)?;
    solve_chain(system, thresholds, &chain, options)
}

/// As [`solve`], for a chain that was built before.
///
/// # Errors
/// Several recurrent classes, or a stationary method that doesn't reach the tolerance.
pub fn solve_chain(
    system: &ClosedSystem,
    thresholds: &Thresholds,
    chain: &Chain,
    options: &SolveOptions,
) -> Result<Solution, Error> {
    let (stationary, transient) = stationary(chain, options)?;
    Ok(Solution {
        thresholds: thresholds.clone(),
        measures: measure(system, chain, &stationary.pi),
        states: chain.len(),
        nonzeros: chain.matrix().nonzeros(),
        transient,
        method: stationary.method.to_owned(),
        iterations: stationary.iterations,
        residual: stationary.residual,
    })
}

/// Stationary distribution over all states of a chain (zero on transient ones), and the number of transient states.
///
/// # Errors
/// As [`solve_chain`].
pub fn stationary(chain: &Chain, options: &SolveOptions) -> Result<(Stationary, usize), Error> {
    let matrix = chain.matrix();
    let found = classes(matrix);
    let [class] = found.recurrent.as_slice() else {
        return Err(several(chain, &found));
    };
    if class.len() == matrix.len() {
        return Ok((run(matrix, options)?, 0));
    }
    let restricted = matrix.restrict(class);
    let mut answer = run(&restricted, options)?;
    let mut pi = vec![0.0; matrix.len()];
    for (&state, &mass) in class.iter().zip(&answer.pi) {
        pi[state as usize] = mass;
    }
    answer.pi = pi;
    Ok((answer, found.transient))
}

fn run(matrix: &TransitionMatrix, options: &SolveOptions) -> Result<Stationary, Error> {
    options.method.solver(matrix.len()).solve(matrix, options.tolerance)
}

fn several(chain: &Chain, found: &Classes) -> Error {
    let example = |index: usize| {
        let class = found.recurrent.get(index).and_then(|class| class.first());
        class.map_or_else(String::new, |&state| format!("[{}]", chain.state(state as usize)))
    };
    Error::SeveralClasses { classes: found.recurrent.len(), first: example(0), second: example(1) }
}

/// Solves many vectors of one system, sharing routing distributions and buffers between them.
pub(crate) struct Evaluator {
    workspace: Workspace,
}

impl Evaluator {
    pub(crate) fn new(system: &ClosedSystem) -> Result<Self, Error> {
        Ok(Self { workspace: Workspace::new(system)? })
    }

    pub(crate) fn solve(
        &mut self,
        system: &ClosedSystem,
        thresholds: &Thresholds,
        options: &SolveOptions,
    ) -> Result<Solution, Error> {
        let chain = self.workspace.build(system, thresholds, options)?;
        solve_chain(system, thresholds, &chain, options)
    }
}
