//! Throughput model of token-level LLM routing.
//!
//! `M` models serve `N` requests in a closed loop; a model launches a batch when it is idle and at least `B_i` requests
//! wait for it. This crate computes what that does in the long run: it explores the exact Markov chain, solves it, and
//! searches the thresholds. Describe a [`System`], then [`predict`] what it does under given thresholds, or put its requests
//! in ([`System::closed`]) and [`optimize`].

mod chain;
mod error;
mod estimate;
mod export;
mod measures;
mod predict;
mod quantum;
mod random;
pub mod runs;
mod search;
pub mod serving;
mod simulate;
mod smdp;
mod solve;
mod stationary;
mod system;
mod thresholds;
mod uncertainty;

pub use chain::{Chain, Classes, StateView, TransitionMatrix, classes, estimate_size, period};
pub use error::Error;
pub use estimate::SizeEstimate;
pub use export::{ExportFormat, PrismFile, export, export_prism};
pub use measures::{Measures, ModelMeasures};
pub use predict::{Coarse, Limits, Prediction, predict};
pub use quantum::{QuantumRow, QuantumStudy, quantum_study};
pub use search::{
    Progress, SearchOptions, SearchResult, Strategy, TableRow, best_within_time_per_token, optimize,
    optimize_with_progress, threshold_table, threshold_table_row, threshold_table_rows,
};
pub use simulate::{Estimate, Simulation, SimulationOptions, paired_difference, simulate};
pub use smdp::{Certificate, Departure, certify};
pub use solve::{Solution, SolveOptions, solve, solve_chain, stationary};
pub use stationary::{CutSetKrylov, Gth, Method, Power, SparseLu, Stationary, StationarySolver, Sweeps, Tolerance};
pub use system::{
    ClosedSystem, DEFAULT_QUANTUM_MS, Latency, MAX_CONCURRENCY, MAX_MODELS, MAX_QUANTA, MAX_ROUTING_STATES, System,
    TokenCost,
};
pub use thresholds::{Thresholds, count_feasible, enumerate_feasible, is_feasible};
pub use uncertainty::{Spread, Uncertainty, propagate};
