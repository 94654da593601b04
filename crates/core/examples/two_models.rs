//! Eight requests on an emulated pair of models under virtual time: eager launches against delayed batching.
//!
//!     cargo run --release -p tokenrouter-core --example two_models

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokenrouter_core::emulated::{EmulatedModel, LatencyProfile};
use tokenrouter_core::routing::RoutingConfig;
use tokenrouter_core::routing::registry::{self, SystemView};
use tokenrouter_core::scheduler::{CoreConfig, ThresholdTable};
use tokenrouter_core::simulation::{LinkDelay, Simulator};
use tokenrouter_core::{Request, RequestId, SamplingParams};

const REQUESTS: usize = 8;
const TOKENS: usize = 400;
const BLOCKS: usize = 1024;

/// Tokens per second with these thresholds of the small and the large model.
fn tokens_per_s(thresholds: &[u32]) -> Result<f64, String> {
    let view = SystemView::emulated(&["small", "large"], 1000);
    let routing = RoutingConfig::new("random", json!({"semantics": "borrow", "probability": 0.65}));
    let policy = Arc::from(registry::build(&routing, &view)?);
    let core = |model| CoreConfig {
        model,
        models: 2,
        entry: 0,
        max_active: REQUESTS,
        max_batch: REQUESTS,
        max_step_tokens: 64,
        max_wait: Duration::from_secs(3600),
        thresholds: Arc::new(ThresholdTable::from_vector(thresholds, REQUESTS)),
        kv_blocks: BLOCKS,
        admission_blocks: BLOCKS,
        block_size: 16,
        prefix_cache: false,
        handoff_resume: true,
        alone: false,
        eos: Vec::new(),
        texts: None,
    };
    let model = |latency_ms: f64| EmulatedModel::new(LatencyProfile::Constant(latency_ms), 1000, BLOCKS, 16);
    let models = vec![model(6.0), model(27.9)];
    let mut simulator = Simulator::new(vec![core(0), core(1)], models, &policy, LinkDelay::NONE);
    for key in 0..REQUESTS as u64 {
        let sampling = SamplingParams { max_tokens: TOKENS, ..SamplingParams::default() };
        simulator.submit(Duration::ZERO, RequestId(key), Request::new(vec![1, 2, 3], sampling, key));
    }
    simulator.run(u64::MAX);
    let tokens: usize = simulator.outcomes().values().map(|outcome| outcome.tokens.len()).sum();
    Ok(tokens as f64 / simulator.now().as_secs_f64())
}

#[allow(clippy::print_stdout, reason = "the output of this program")]
fn main() -> Result<(), String> {
    let (eager, delayed) = (tokens_per_s(&[1, 1])?, tokens_per_s(&[1, 4])?);
    println!("emulated: eager {eager:.1} tokens/s, delayed {delayed:.1} tokens/s, {:.2} times", delayed / eager);
    Ok(())
}
