//! Benchmark harness and throughput modelling for token-level LLM routing: everything behind the `trbench` command.

pub mod cli;
pub mod compare;
pub mod convert;
pub mod dataset;
pub mod draft;
pub mod fetch;
pub mod figures;
pub mod gpu;
pub mod grade;
pub mod nodes;
pub mod offline;
pub mod optimize;
pub mod plan_memory;
pub mod predict;
pub mod report;
pub mod results;
pub mod run;
pub mod serve;
pub mod simulate;
pub mod soak;
pub mod stats;
pub mod sweep;
pub mod trace;
pub mod train;
pub mod trials;
