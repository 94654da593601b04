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
//! A scheduler core never waits: events and the time go in, actions come out.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//!
//! use tokenrouter_core::emulated::{EmulatedModel, LatencyProfile};
//! use tokenrouter_core::routing::registry::{self, SystemView};
//! use tokenrouter_core::routing::RoutingConfig;
//! use tokenrouter_core::scheduler::{Action, Core, CoreConfig, Event, Next, ThresholdTable};
//! use tokenrouter_core::step::{ModelRunner as _, StepOutput};
//! use tokenrouter_core::{Request, RequestId, SamplingParams};
//!
//! let view = SystemView::emulated(&["only"], 1000);
//! let policy = registry::build(&RoutingConfig::new("ensemble", serde_json::json!({})), &view).expect("a policy");
//! let config = CoreConfig {
//!     model: 0, models: 1, entry: 0, max_active: 1, max_batch: 1, max_step_tokens: 16,
//!     max_wait: Duration::from_millis(5), thresholds: Arc::new(ThresholdTable::eager(1)),
//!     kv_blocks: 8, admission_blocks: 8, block_size: 16, prefix_cache: false, handoff_resume: true, alone: false,
//!     eos: Vec::new(), texts: None,
//! };
//! let mut core = Core::new(config, Arc::from(policy));
//! let mut model = EmulatedModel::new(LatencyProfile::Constant(2.0), 1000, 8, 16);
//! let (mut now, mut actions, mut output) = (Duration::ZERO, Vec::new(), StepOutput::default());
//! let sampling = SamplingParams { max_tokens: 3, ..SamplingParams::default() };
//! let request = Arc::new(Request::new(vec![7, 8], sampling, 0));
//! core.handle(now, Event::ClientRequest(RequestId(1), request), &mut actions);
//! while core.poll(now) == Next::Launch {
//!     model.forward(core.batch(), &mut output).expect("a step");
//!     now += Duration::from_millis(2);
//!     core.step_done(now, Duration::from_millis(2), &output, &mut actions);
//! }
//! let tokens = actions.iter().filter(|action| matches!(action, Action::Emit(..))).count();
//! assert_eq!((tokens, core.stats().steps), (3, 3));
//! ```
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
