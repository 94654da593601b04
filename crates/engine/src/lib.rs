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
pub mod keyed;
pub mod kv;
pub mod meters;
pub mod model;
pub mod node;
pub mod profile;
pub mod reference;
pub mod request;
pub mod routing;
pub mod runner;
pub mod scheduler;
pub mod server;
pub mod simulation;
pub mod tokenizer;
pub mod transport;

pub use config::Config;
pub use engine::{Engine, EngineError, EngineStats, SubmitError, TokenStream};
pub use request::{
    CommittedToken, FinishReason, Request, RequestId, RequestStats, RoutingOverrides, SamplingParams, StepRecord,
    StreamEvent, TokenLogprobs,
};
