//! Benchmark harness and throughput modelling for token-level LLM routing: everything behind the `trbench` command.
//!
//! # Layers
//!
//! A module imports modules of its own layer or of layers below it, and no modules import each other in a circle:
//! `scripts/check_layers.py` reads this drawing and checks both.
//!
//! ```text
//! edge        cli
//!   |
//! commands    figures optimize plan sweep serve nodes soak simulate draft generate train convert gpu plan_memory doctor
//!   |
//! measuring   run predict compare report trace offline
//!   |
//! results     results trials spec
//!   |
//! inputs      dataset fetch device grade record stats
//!   |
//! basics      error terminal files digest interrupt
//! ```

pub mod cli;
pub mod compare;
pub mod convert;
pub mod dataset;
pub mod device;
pub mod digest;
pub mod doctor;
pub mod draft;
pub mod error;
pub mod fetch;
pub mod figures;
pub mod files;
pub mod generate;
pub mod gpu;
pub mod grade;
mod interrupt;
pub mod nodes;
pub mod offline;
pub mod optimize;
pub mod plan;
pub mod plan_memory;
pub mod predict;
pub mod record;
pub mod report;
pub mod results;
pub mod run;
pub mod serve;
pub mod simulate;
pub mod soak;
pub mod spec;
pub mod stats;
pub mod sweep;
pub mod terminal;
pub mod trace;
pub mod train;
pub mod trials;
