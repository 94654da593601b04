//! Serving engine for token-level LLM routing: one asynchronous subserver per model, handoff-resume, delayed batching.
//!
//! The modules follow the path of a request: [`server`] or library call, [`Engine`], [`scheduler`] of the entry model,
//! [`runner`], [`routing`], and on to the scheduler of another model. `docs/architecture.md` is the map.

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
pub mod memory;
pub mod meters;
pub mod model;
pub mod node;
pub mod profile;
pub mod runner;
pub mod server;
pub mod tokenizer;

pub use config::Config;
pub use engine::{Capacity, Engine, EngineError, EngineStats, SubmitError, TokenStream};
pub use tokenrouter_core::{
    CommittedToken, FinishReason, Request, RequestId, RequestStats, RoutingOverrides, SamplingParams, StepRecord,
    StreamEvent, TokenLogprobs,
};
pub use tokenrouter_core::{keyed, kv, reference, request, routing, scheduler, simulation, step, transport};
