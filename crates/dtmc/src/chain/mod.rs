//! The exact chain of a system under a threshold vector.

mod classes;
mod explore;
mod key;
mod matrix;
mod outcomes;
mod table;

pub use classes::{Classes, classes, period};
pub use key::StateView;
pub use matrix::TransitionMatrix;

pub(crate) use explore::{ChainLimits, Explored, Explorer, Start, Stop};
pub(crate) use key::{Key, Layout};
pub(crate) use outcomes::compositions;
pub(crate) use table::StateTable;

use crate::{ClosedSystem, Error, SizeEstimate, SolveOptions, Thresholds, estimate};

/// Bytes that building a chain of this size takes at its peak, the state table included.
pub(crate) const fn estimate_bytes(states: usize, nonzeros: usize, key_bytes: usize) -> usize {
    // The hash table holds (key, number) slots, at most 60 % full; while it grows, old and new coexist.
    let slot = if key_bytes == 16 { 32 } else { 16 };
    let table = (states * 5 / 3 + 1).next_power_of_two() * slot;
    let per_state = 2 * key_bytes + 4 * 8 + 8 * 3;
    table + states * per_state + nonzeros * 8
}

/// States and bytes that are explored without an estimate.
const SHORT_STATES: usize = 60_000;
const SHORT_BYTES: usize = 64 << 20;

enum Keys {
    Narrow(Vec<u64>),
    Wide(Vec<u128>),
}

/// A chain: states in time order, transition matrix, elapsed quanta per state.
pub struct Chain {
    layout: Layout,
    keys: Keys,
    matrix: TransitionMatrix,
    elapsed: Vec<u32>,
    initial: u32,
}

impl Chain {
    /// Explores everything reachable from `N` requests waiting in routing state `options.start`.
    ///
    /// # Errors
    /// Invalid or infeasible thresholds; [`Error::TooLarge`] with an estimate when the chain would break
    /// `options.max_states` or `options.memory_limit`.
    pub fn build(system: &ClosedSystem, thresholds: &Thresholds, options: &SolveOptions) -> Result<Self, Error> {
        thresholds.check(system)?;
        let mut workspace = Workspace::new(system)?;
        // A first, short exploration finishes small chains; only for larger ones is an estimate worth its time.
        let full = options.limits();
        let short = ChainLimits { states: full.states.min(SHORT_STATES), bytes: full.bytes.min(SHORT_BYTES) };
        match workspace.explore(system, thresholds, options.start, short) {
            Ok(chain) => Ok(chain),
            Err(Stop::Bad(error)) => Err(error),
            Err(Stop::Limit { found }) => {
                let estimate = estimate::estimate_from(system, thresholds, found);
                if estimate.fits(options) {
                    workspace.build(system, thresholds, options)
                } else {
                    Err(estimate.refuse(system, thresholds, options))
                }
            }
        }
    }

    /// Number of reachable states.
    #[must_use]
    pub fn len(&self) -> usize {
        self.elapsed.len()
    }

    /// True for a chain without states (which [`Chain::build`] never makes).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.elapsed.is_empty()
    }

    /// The transition matrix `P` of the chain embedded at events, `states x states`, rows summing to 1, as a matrix of
    /// `sprs`.
    ///
    /// ```
    /// use tokenrouter_dtmc::{Chain, SolveOptions, System, Thresholds, stationary};
    /// let system = System::new([6.0, 27.9], vec![vec![0.35, 0.65], vec![1.0, 0.0]]).closed(4)?;
    /// let chain = Chain::build(&system, &Thresholds::new([1, 4]), &SolveOptions::default())?;
    /// let (solved, _transient) = stationary(&chain, &SolveOptions::default())?;
    /// let transposed = chain.transition_matrix().transpose_into();
    /// let product = &transposed * &sprs::CsVec::new(chain.len(), (0..chain.len()).collect(), solved.pi.clone());
    /// assert!(product.iter().all(|(state, mass)| (mass - solved.pi[state]).abs() < 1e-12));
    /// # Ok::<(), tokenrouter_dtmc::Error>(())
    /// ```
    #[must_use]
    pub fn transition_matrix(&self) -> sprs::CsMat<f64> {
        self.matrix.to_sprs()
    }

    /// The same matrix in the form that the solvers of this crate use, without a copy.
    #[must_use]
    pub const fn matrix(&self) -> &TransitionMatrix {
        &self.matrix
    }

    /// The state right after the first launch (one of them when a capped batch branches).
    #[must_use]
    pub const fn initial(&self) -> usize {
        self.initial as usize
    }

    /// Bits of a packed state.
    #[must_use]
    pub const fn state_bits(&self) -> u32 {
        self.layout.bits
    }

    /// Quanta from a state to the next event.
    #[must_use]
    pub fn elapsed(&self, state: usize) -> u32 {
        self.elapsed[state]
    }

    /// Counts and remaining times of a state.
    #[must_use]
    pub fn state(&self, state: usize) -> StateView {
        match &self.keys {
            Keys::Narrow(keys) => self.layout.decode(keys[state]),
            Keys::Wide(keys) => self.layout.decode(keys[state]),
        }
    }

    /// Waiting and running count of a routing state, and remaining quanta of a model, without allocation.
    #[inline]
    pub(crate) fn counts(&self, state: usize, routing_state: usize) -> (u32, u32) {
        let (waiting, running) = (self.layout.waiting[routing_state], self.layout.running[routing_state]);
        match &self.keys {
            Keys::Narrow(keys) => (waiting.get(keys[state]), running.get(keys[state])),
            Keys::Wide(keys) => (waiting.get(keys[state]), running.get(keys[state])),
        }
    }

    #[inline]
    pub(crate) fn remaining(&self, state: usize, model: usize) -> u32 {
        let clock = self.layout.clock[model];
        self.layout.idle[model]
            - match &self.keys {
                Keys::Narrow(keys) => clock.get(keys[state]),
                Keys::Wide(keys) => clock.get(keys[state]),
            }
    }

    /// Expected tokens committed by the event that ends a stay in `state`.
    #[must_use]
    pub fn tokens(&self, system: &ClosedSystem, state: usize) -> f64 {
        let elapsed = self.elapsed[state];
        (0..system.routing_states())
            .filter(|&s| self.remaining(state, system.state_models()[s]) == elapsed)
            .map(|s| f64::from(self.counts(state, s).1) * system.tokens_per_step(s))
            .sum()
    }

    /// Bytes held by the finished chain.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let key = match &self.keys {
            Keys::Narrow(keys) => 8 * keys.len(),
            Keys::Wide(keys) => 16 * keys.len(),
        };
        key + 4 * self.elapsed.len() + self.matrix.bytes()
    }
}

enum AnyExplorer {
    Narrow(Explorer<u64>),
    Wide(Explorer<u128>),
}

/// What can be reused between threshold vectors of one system: routing distributions and the state table.
pub(crate) struct Workspace {
    layout: Layout,
    explorer: AnyExplorer,
}

impl Workspace {
    pub(crate) fn new(system: &ClosedSystem) -> Result<Self, Error> {
        let layout = Layout::new(system)?;
        let explorer = if layout.bits <= 64 {
            AnyExplorer::Narrow(Explorer::new(system, layout.clone()))
        } else {
            AnyExplorer::Wide(Explorer::new(system, layout.clone()))
        };
        Ok(Self { layout, explorer })
    }

    pub(crate) fn build(
        &mut self,
        system: &ClosedSystem,
        thresholds: &Thresholds,
        options: &SolveOptions,
    ) -> Result<Chain, Error> {
        thresholds.check(system)?;
        let limits = options.limits();
        match self.explore(system, thresholds, options.start, limits) {
            Ok(chain) => Ok(chain),
            Err(Stop::Bad(error)) => Err(error),
            Err(Stop::Limit { found }) => {
                let estimate = estimate::estimate_from(system, thresholds, found);
                Err(estimate.refuse(system, thresholds, options))
            }
        }
    }

    /// As [`Workspace::build`], without checks and estimates.
    pub(crate) fn explore(
        &mut self,
        system: &ClosedSystem,
        thresholds: &Thresholds,
        start: usize,
        limits: ChainLimits,
    ) -> Result<Chain, Stop> {
        if start >= system.routing_states() {
            let allowed = format!("a routing state from 0 to {}", system.routing_states() - 1);
            return Err(Stop::Bad(Error::option("start", format!("routing state {start}"), allowed)));
        }
        let start = Start { routing_state: start, requests: system.concurrency() };
        let layout = self.layout.clone();
        Ok(match &mut self.explorer {
            AnyExplorer::Narrow(explorer) => {
                let Explored { keys, matrix, elapsed, initial } =
                    explorer.explore(thresholds.as_slice(), start, limits)?;
                Chain { layout, keys: Keys::Narrow(keys), matrix, elapsed, initial }
            }
            AnyExplorer::Wide(explorer) => {
                let Explored { keys, matrix, elapsed, initial } =
                    explorer.explore(thresholds.as_slice(), start, limits)?;
                Chain { layout, keys: Keys::Wide(keys), matrix, elapsed, initial }
            }
        })
    }
}

/// Estimated size of a chain, for callers that want it before building.
///
/// # Errors
/// When the thresholds don't suit the system.
pub fn estimate_size(system: &ClosedSystem, thresholds: &Thresholds) -> Result<SizeEstimate, Error> {
    thresholds.check(system)?;
    Ok(estimate::estimate_from(system, thresholds, 0))
}
