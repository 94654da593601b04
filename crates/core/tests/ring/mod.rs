//! Scheduler cores in a ring without runners, clocks or threads: what is left is scheduling, routing and handoff.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokenrouter_core::routing::registry::{self, SystemView};
use tokenrouter_core::routing::{RoutingConfig, RoutingPolicy};
use tokenrouter_core::scheduler::{Action, Core, CoreConfig, Event, Next, PeerMessage, ThresholdTable};
use tokenrouter_core::step::{Softmax, StepOutput};
use tokenrouter_core::{Request, RequestId, SamplingParams};

/// Two cores with requests that go on for ever.
pub(crate) struct Ring {
    cores: Vec<Core>,
    output: StepOutput,
    actions: Vec<Action>,
    messages: VecDeque<(usize, PeerMessage)>,
    now: Duration,
    /// Rows of all steps so far.
    pub(crate) rows: u64,
}

impl Ring {
    /// `requests` requests under a method with half of the tokens borrowed.
    pub(crate) fn new(requests: usize, max_tokens: usize) -> Self {
        let options = json!({"semantics": "borrow", "probability": 0.5});
        let view = SystemView::emulated(&["small", "large"], 1000);
        let policy = registry::build(&RoutingConfig::new("random", options), &view).expect("valid routing");
        let policy: Arc<dyn RoutingPolicy> = Arc::from(policy);
        let blocks = requests * (max_tokens / 16 + 2);
        let config = |model| CoreConfig {
            model,
            models: 2,
            entry: 0,
            max_active: requests,
            max_batch: requests,
            max_step_tokens: 4096,
            max_wait: Duration::from_secs(3600),
            thresholds: Arc::new(ThresholdTable::eager(2)),
            kv_blocks: blocks,
            admission_blocks: blocks,
            block_size: 16,
            prefix_cache: true,
            handoff_resume: true,
            alone: false,
            eos: vec![2],
            texts: None,
        };
        let mut ring = Self {
            cores: (0..2).map(|model| Core::new(config(model), Arc::clone(&policy))).collect(),
            output: StepOutput::default(),
            actions: Vec::new(),
            messages: VecDeque::new(),
            now: Duration::ZERO,
            rows: 0,
        };
        for key in 0..requests as u64 {
            let sampling = SamplingParams { max_tokens, ..SamplingParams::default() };
            let request = Arc::new(Request::new(vec![key as u32; 8], sampling, key));
            let event = Event::ClientRequest(RequestId(key), request);
            ring.cores[0].handle(Duration::ZERO, event, &mut ring.actions);
        }
        ring
    }

    /// One step of every core that can launch.
    pub(crate) fn round(&mut self) {
        for model in 0..self.cores.len() {
            self.now += Duration::from_micros(1);
            let core = &mut self.cores[model];
            if core.poll(self.now) == Next::Launch {
                self.rows += core.batch().rows().len() as u64;
                self.output.clear();
                for row in core.batch().rows().iter().filter(|row| row.sample) {
                    self.output.tokens.push(7 + row.position() as u32 % 900);
                    self.output.softmax.push(Softmax { entropy: 0.5, log_sum_exp: 1.0 });
                }
                core.step_done(self.now, Duration::from_micros(1), &self.output, &mut self.actions);
            }
            for action in self.actions.drain(..) {
                if let Action::Send(to, message) = action {
                    self.messages.push_back((to, message));
                }
            }
            while let Some((to, message)) = self.messages.pop_front() {
                self.cores[to].handle(self.now, Event::Peer(message), &mut self.actions);
            }
        }
    }
}
