//! Serving engine for token-level LLM routing: one asynchronous subserver per model, handoff-resume, delayed batching.
//!
//! This crate waits, serves, loads files and computes; what decides is in `tokenrouter_core`. `docs/architecture.md` is the
//! map.

/// The code of the guide, compiled and run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/write-a-routing-method.md")]
pub struct WriteARoutingMethod;

pub mod adaptation;
pub mod config;
mod driver;
mod engine;
mod files;
pub mod heads;
mod keys;
pub mod memory;
pub mod model;
pub mod node;
pub mod profile;
pub mod runnable;
pub mod runner;
pub mod server;
pub mod tokenizer;

pub use config::Config;
pub use engine::{
    Capacity, Engine, EngineError, EngineStats, Plan, SubmitError, Timed, TokenStream, VirtualEngine, VirtualStream,
};
