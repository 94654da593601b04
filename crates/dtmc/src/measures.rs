//! Throughput and per-model measures from a stationary distribution.

use crate::{Chain, ClosedSystem};
use serde::Serialize;

/// What one model does in the long run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelMeasures {
    /// Share of time in which a batch runs, 0 to 1.
    pub utilisation: f64,
    /// Mean number of requests in a batch.
    pub mean_batch: f64,
    /// Batches (forward passes) per second.
    pub batches_per_s: f64,
    /// Request steps per second: batches times their sizes.
    pub steps_per_s: f64,
    /// Mean time from the arrival of a request in the buffer to its launch, in milliseconds (by Little's law).
    pub mean_wait_ms: f64,
    /// Mean number of requests in the buffer.
    pub mean_queue: f64,
    /// Tokens per second committed by steps of this model.
    pub tokens_per_s: f64,
    /// Its share of all committed tokens, 0 to 1.
    pub token_share: f64,
}

/// Long-run measures of the system.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measures {
    /// Committed tokens per second over all requests.
    pub throughput_tok_s: f64,
    /// Mean time between two tokens of one request, in milliseconds: `N / throughput` by Little's law.
    pub time_per_token_ms: f64,
    /// Per model.
    pub models: Vec<ModelMeasures>,
}

/// Time-weighted sums, in quanta and counts, from which all measures follow. Also filled by the simulator.
#[derive(Debug, Clone, Default)]
pub(crate) struct Totals {
    pub(crate) quanta: f64,
    pub(crate) busy: Vec<f64>,
    pub(crate) queue: Vec<f64>,
    pub(crate) batches: Vec<f64>,
    pub(crate) steps: Vec<f64>,
    pub(crate) tokens: Vec<f64>,
}

impl Totals {
    pub(crate) fn new(models: usize) -> Self {
        let zero = vec![0.0; models];
        Self {
            quanta: 0.0,
            busy: zero.clone(),
            queue: zero.clone(),
            batches: zero.clone(),
            steps: zero.clone(),
            tokens: zero,
        }
    }

    pub(crate) fn measures(&self, system: &ClosedSystem) -> Measures {
        let seconds = self.quanta * system.quantum_ms() / 1000.0;
        let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        let tokens: f64 = self.tokens.iter().sum();
        let throughput_tok_s = tokens / seconds;
        let models = (0..system.models())
            .map(|index| ModelMeasures {
                utilisation: self.busy[index] / self.quanta,
                mean_batch: ratio(self.steps[index], self.batches[index]),
                batches_per_s: self.batches[index] / seconds,
                steps_per_s: self.steps[index] / seconds,
                mean_wait_ms: ratio(self.queue[index] * system.quantum_ms(), self.steps[index]),
                mean_queue: self.queue[index] / self.quanta,
                tokens_per_s: self.tokens[index] / seconds,
                token_share: ratio(self.tokens[index], tokens),
            })
            .collect();
        Measures {
            throughput_tok_s,
            time_per_token_ms: ratio(f64::from(system.concurrency()) * 1000.0, throughput_tok_s),
            models,
        }
    }
}

/// Measures of a chain under the distribution `pi` over its states.
pub(crate) fn measure(system: &ClosedSystem, chain: &Chain, pi: &[f64]) -> Measures {
    let tokens_per_step: Vec<f64> = (0..system.routing_states()).map(|state| system.tokens_per_step(state)).collect();
    let mut totals = Totals::new(system.models());
    for (state, &mass) in pi.iter().enumerate().filter(|&(_, &mass)| mass > 0.0) {
        let elapsed = chain.elapsed(state);
        let weight = mass * f64::from(elapsed);
        totals.quanta += weight;
        for index in 0..system.models() {
            let remaining = chain.remaining(state, index);
            if remaining > 0 {
                totals.busy[index] += weight;
            }
            if remaining == elapsed {
                totals.batches[index] += mass;
            }
        }
        for (routing_state, &index) in system.state_models().iter().enumerate() {
            let (waiting, running) = chain.counts(state, routing_state);
            totals.queue[index] += weight * f64::from(waiting);
            if chain.remaining(state, index) == elapsed {
                totals.steps[index] += mass * f64::from(running);
                totals.tokens[index] += mass * f64::from(running) * tokens_per_step[routing_state];
            }
        }
    }
    totals.measures(system)
}
