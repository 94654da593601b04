//! What can go wrong, each case with the place, the value seen and what is allowed.

use crate::estimate::SizeEstimate;

/// Errors of the throughput model.
///
/// [`Error::is_bad_input`] separates what a user can fix by changing the input from failures of the computation.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system whose description breaks a rule: wrong shape, bad number, impossible quantum.
    #[error("{place}: {problem}; allowed: {allowed}")]
    InvalidSystem {
        /// Where in the input, for example `P row 1`.
        place: String,
        /// What was found there.
        problem: String,
        /// What would be accepted.
        allowed: String,
    },
    /// Thresholds of the wrong length, or below one.
    #[error("thresholds {thresholds}: {problem}; allowed: {allowed}")]
    InvalidThresholds {
        /// The vector as given.
        thresholds: String,
        /// What is wrong with it.
        problem: String,
        /// What would be accepted.
        allowed: String,
    },
    /// Thresholds under which every model can end up idle below its threshold.
    #[error(
        "thresholds {thresholds} can deadlock with {concurrency} requests: every model idle with {deadlock} waiting, all \
         below their thresholds; allowed: sum(B_i - 1) < {concurrency}"
    )]
    Infeasible {
        /// The vector as given.
        thresholds: String,
        /// Number of requests `N`.
        concurrency: u32,
        /// Waiting requests per model in a state that no event can leave.
        deadlock: String,
    },
    /// The exact chain is larger than the state cap or the memory limit.
    #[error("the exact chain for thresholds {thresholds} is too large: {estimate}; {advice}")]
    TooLarge {
        /// The vector whose chain was asked for.
        thresholds: String,
        /// Estimated size, and the limit it breaks.
        estimate: SizeEstimate,
        /// What would fit.
        advice: String,
    },
    /// The reachable chain has several recurrent classes, so the long-run throughput depends on chance.
    #[error(
        "the chain has {classes} recurrent classes, so the long-run throughput depends on chance; one state of each of the \
         first two: {first} and {second}"
    )]
    SeveralClasses {
        /// How many recurrent classes were found.
        classes: usize,
        /// A state of the first class, readable.
        first: String,
        /// A state of the second class, readable.
        second: String,
    },
    /// An iterative method stopped before its residual met the tolerance. There is no number to return.
    #[error(
        "{method} did not converge: residual {residual:.3e} after {iterations} iterations, tolerance {tolerance:.1e}"
    )]
    NotConverged {
        /// Name of the method.
        method: String,
        /// Iterations (sweeps, products) spent.
        iterations: usize,
        /// Residual reached, `||pi P - pi||_1`.
        residual: f64,
        /// Residual asked for.
        tolerance: f64,
    },
    /// A direct method refused a chain that is too large for it.
    #[error("method `{method}` takes at most {limit} states, this chain has {states}")]
    MethodLimit {
        /// Name of the method.
        method: String,
        /// Largest number of states it accepts.
        limit: usize,
        /// States of the chain.
        states: usize,
    },
    /// An option outside its range.
    #[error("option `{option}`: {problem}; allowed: {allowed}")]
    InvalidOption {
        /// Name of the option.
        option: String,
        /// What is wrong with it.
        problem: String,
        /// What would be accepted.
        allowed: String,
    },
    /// No vector satisfies the bounds of a search.
    #[error("no feasible threshold vector satisfies {bound}; the closest, {closest}, has {value}")]
    NoneWithinBound {
        /// The bound as text.
        bound: String,
        /// The vector that comes nearest.
        closest: String,
        /// Its value of the bounded quantity.
        value: String,
    },
    /// Writing an export failed.
    #[error("writing {what} failed: {reason}")]
    Write {
        /// What was being written.
        what: String,
        /// The operating system's reason.
        reason: String,
    },
}

impl Error {
    /// True when the input, rather than the computation, is at fault.
    #[must_use]
    pub const fn is_bad_input(&self) -> bool {
        !matches!(self, Self::NotConverged { .. } | Self::Write { .. })
    }

    pub(crate) fn system(place: impl Into<String>, problem: impl Into<String>, allowed: impl Into<String>) -> Self {
        Self::InvalidSystem { place: place.into(), problem: problem.into(), allowed: allowed.into() }
    }

    pub(crate) fn option(option: &str, problem: impl Into<String>, allowed: impl Into<String>) -> Self {
        Self::InvalidOption { option: option.to_owned(), problem: problem.into(), allowed: allowed.into() }
    }
}
