//! From a model and thresholds to a number with its evidence.

use crate::chain::{Limits, Stop, Workspace};
use crate::measures::{Measures, measure};
use crate::{Chain, Classes, Error, Method, Model, Stationary, Thresholds, Tolerance, TransitionMatrix, classes};
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

    pub(crate) fn limits(&self) -> Limits {
        Limits { states: self.max_states, bytes: self.memory_bytes() }
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

/// Builds the exact chain of `model` under `thresholds` and solves it.
///
/// ```
/// use tokenrouter_dtmc::{Model, SolveOptions, Thresholds, solve};
/// let model = Model::builder()
///     .latencies_ms([6.0, 27.9])
///     .routing(vec![vec![0.35, 0.65], vec![1.0, 0.0]])
///     .commits(vec![vec![1.0, 0.0], vec![1.0, 0.0]])
///     .concurrency(8)
///     .build()?;
/// let solution = solve(&model, &Thresholds::new([1, 7]), &SolveOptions::default())?;
/// assert!((solution.throughput_tok_s() - 281.8128134192).abs() < 1e-8);
/// assert_eq!((solution.states, solution.nonzeros), (18, 58));
/// # Ok::<(), tokenrouter_dtmc::Error>(())
/// ```
///
/// # Errors
/// Thresholds that don't suit the model or can deadlock; a chain over the limits, with an estimate of its size; several
/// recurrent classes; a stationary method that doesn't reach the tolerance.
pub fn solve(model: &Model, thresholds: &Thresholds, options: &SolveOptions) -> Result<Solution, Error> {
    let chain = Chain::build(model, thresholds, options)?;
    solve_chain(model, thresholds, &chain, options)
}

/// As [`solve`], for a chain that was built before.
///
/// # Errors
/// Several recurrent classes, or a stationary method that doesn't reach the tolerance.
pub fn solve_chain(
    model: &Model,
    thresholds: &Thresholds,
    chain: &Chain,
    options: &SolveOptions,
) -> Result<Solution, Error> {
    let (stationary, transient) = stationary(chain, options)?;
    Ok(Solution {
        thresholds: thresholds.clone(),
        measures: measure(model, chain, &stationary.pi),
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

/// Solves many vectors of one model, sharing routing distributions and buffers between them.
pub(crate) struct Evaluator {
    workspace: Workspace,
}

impl Evaluator {
    pub(crate) fn new(model: &Model) -> Result<Self, Error> {
        Ok(Self { workspace: Workspace::new(model)? })
    }

    pub(crate) fn solve(
        &mut self,
        model: &Model,
        thresholds: &Thresholds,
        options: &SolveOptions,
    ) -> Result<Solution, Error> {
        let chain = self.workspace.build(model, thresholds, options)?;
        solve_chain(model, thresholds, &chain, options)
    }

    /// `None` when the chain breaks the limits of `options`; no estimate is made then.
    pub(crate) fn solve_if_small(
        &mut self,
        model: &Model,
        thresholds: &Thresholds,
        options: &SolveOptions,
    ) -> Option<Result<Solution, Error>> {
        match self.workspace.explore(model, thresholds, options.start, options.limits()) {
            Ok(chain) => Some(solve_chain(model, thresholds, &chain, options)),
            Err(Stop::Bad(error)) => Some(Err(error)),
            Err(Stop::Limit { .. }) => None,
        }
    }
}
