//! Throughput model of token-level LLM routing.
//!
//! `M` models serve `N` requests in a closed loop; a model launches a batch when it is idle and at least `B_i` requests
//! wait for it. This crate computes what that does in the long run: it explores the exact Markov chain, solves it, and
//! searches the thresholds. Start at [`Model::builder`], then [`solve`] or [`optimize`].

mod chain;
mod error;
mod estimate;
mod export;
mod measures;
mod model;
mod quantum;
mod search;
mod simulate;
mod smdp;
mod solve;
mod stationary;
mod thresholds;
mod uncertainty;

pub use chain::{Chain, Classes, StateView, TransitionMatrix, classes, estimate_size, period};
pub use error::Error;
pub use estimate::SizeEstimate;
pub use export::{ExportFormat, PrismFile, export, export_prism};
pub use measures::{Measures, ModelMeasures};
pub use model::{Latency, MAX_CONCURRENCY, MAX_MODELS, MAX_QUANTA, MAX_ROUTING_STATES, Model, ModelBuilder};
pub use quantum::{Coarse, Evaluation, QuantumRow, QuantumStudy, evaluate, quantum_study};
pub use search::{
    Answer, Candidate, Progress, SearchOptions, SearchResult, Strategy, TableRow, best_within_time_per_token, optimize,
    optimize_with_progress, threshold_table, threshold_table_row, threshold_table_rows,
};
pub use simulate::{Estimate, Simulation, SimulationOptions, paired_difference, simulate};
pub use smdp::{Certificate, Departure, certify};
pub use solve::{Solution, SolveOptions, solve, solve_chain, stationary};
pub use stationary::{CutSetKrylov, Gth, Method, Power, SparseLu, Stationary, StationarySolver, Sweeps, Tolerance};
pub use thresholds::{Thresholds, count_feasible, enumerate_feasible, is_feasible};
pub use uncertainty::{Spread, Uncertainty, propagate};
