//! The sans-IO core of token-level LLM routing: what decides, without anything that waits, computes tensors or reads a
//! clock.
//!
//! The modules build on each other from top to bottom:
//!
//! - [`names`], [`keyed`], [`token_texts`], [`request`]: words for error messages, keyed draws, texts of tokens, requests.
//! - [`kv`]: who holds which block of a KV cache; how many tokens several models can hold on their devices.
//! - [`step`]: the contract between a scheduler and what computes a step: [`step::Batch`] in, [`step::StepOutput`] out.
//! - [`routing`]: [`routing::RoutingPolicy`], its registry, one file per method.
//! - [`scheduler`]: the scheduler of one model as a state machine.
//! - [`emulated`], [`mod@reference`]: a model without weights; the one-request loop that every schedule must reproduce.
//! - [`transport`]: reliable links over a lossy path, and their packets as bytes.
//! - [`simulation`]: scheduler cores and links under a virtual clock, with faults.
//!
//! `docs/architecture.md` is the map of the whole system.

pub mod emulated;
pub mod keyed;
pub mod kv;
pub mod names;
pub mod reference;
pub mod request;
pub mod routing;
pub mod scheduler;
pub mod simulation;
pub mod step;
pub mod token_texts;
pub mod transport;

pub use request::{
    CommittedToken, FinishReason, ModelIndex, Request, RequestId, RequestStats, RoutingOverrides, SamplingParams,
    StepRecord, StreamEvent, TokenLogprobs,
};
