//! Predicted and measured throughput: calibration of the throughput model, and its validation.

mod adapt;
mod calibrate;
mod calibration;
mod steady;
mod validate;

pub use adapt::{AdaptArgs, run as run_adapt};
pub(crate) use calibrate::calibrate_document;
pub use calibrate::{CalibrateArgs, run as run_calibrate};
pub use calibration::{Calibration, ModelCalibration};
pub use validate::{Best, Point, ValidateArgs, Validation, ValidationTask, csv_of, run as run_validate};

use tokenrouter_dtmc::{Error, Latency, Model, SimulationOptions, SolveOptions, Thresholds, simulate, solve};
use tokenrouter_engine::Config;
use tokenrouter_engine::config::{
    BatchingConfig, EmulatedConfig, KvConfig, LatencyProfile, ModelConfig, RoutingConfig, ServerConfig, SystemConfig,
};
use tokenrouter_engine::routing::registry::{self, SystemView};

/// Quantum of the chain in milliseconds when nothing else is asked for.
const DEFAULT_QUANTUM_MS: f64 = 0.1;

/// What the throughput model is given.
#[derive(Debug, Clone, PartialEq)]
pub struct Inputs {
    /// Step time of each model.
    pub latencies: Vec<LatencyProfile>,
    /// Routing matrix.
    pub routing: Vec<Vec<f64>>,
    /// Commit matrix.
    pub commit: Vec<Vec<f64>>,
    /// Quantum of the chain in milliseconds.
    pub quantum_ms: f64,
}

impl Inputs {
    /// What is known without measuring: emulated models under a method that knows its matrices.
    pub fn known(config: &Config) -> Option<Self> {
        let latencies = config.models.values().map(|model| Some(model.emulated.as_ref()?.latency_ms.clone()));
        let names = config.model_names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut view = SystemView::emulated(&names, 1000);
        view.entry = config.entry_index();
        let (routing, commit) = registry::build(&config.routing, &view).ok()?.transition_model()?;
        Some(Self { latencies: latencies.collect::<Option<_>>()?, routing, commit, quantum_ms: DEFAULT_QUANTUM_MS })
    }

    /// The model for `requests` in flight.
    pub fn model(&self, requests: usize) -> Result<Model, Error> {
        let latencies = self.latencies.iter().map(|profile| match profile {
            LatencyProfile::Constant(ms) => Latency::Constant(*ms),
            table @ LatencyProfile::Table(_) => {
                Latency::Table((1..=requests).map(|batch| (batch as u32, table.at(batch))).collect())
            }
        });
        Model::builder()
            .latencies_ms(latencies)
            .routing(self.routing.clone())
            .commits(self.commit.clone())
            .concurrency(requests as u32)
            .quantum_ms(self.quantum_ms)
            .build()
    }

    /// The emulated system that these describe, under random borrow or mixture routing as the matrices say.
    fn emulated(&self) -> Config {
        let models = self.latencies.iter().enumerate().map(|(index, profile)| {
            let emulated = Some(EmulatedConfig { latency_ms: profile.clone(), prefill_ms_per_token: 0.0 });
            (format!("m{index}"), ModelConfig { emulated, ..ModelConfig::default() })
        });
        let options = serde_json::json!({"semantics": "borrow", "probability": self.routing[0][1]});
        Config {
            models: models.collect(),
            routing: RoutingConfig::new("random", options),
            system: SystemConfig::default(),
            batching: BatchingConfig::default(),
            kv: KvConfig::default(),
            server: ServerConfig::default(),
        }
    }

    /// Predicted tokens per second; by simulation where the chain is too large.
    pub fn throughput(&self, requests: usize, thresholds: &[u32]) -> Result<f64, Error> {
        let (model, thresholds) = (self.model(requests)?, Thresholds::new(thresholds));
        let limits = SolveOptions { max_states: 2_000_000, ..SolveOptions::default() };
        match solve(&model, &thresholds, &limits) {
            Err(Error::TooLarge { .. }) => {
                let options = SimulationOptions { max_steps: 5_000_000, ..SimulationOptions::default() };
                simulate(&model, &thresholds, &options).map(|simulation| simulation.measures.throughput_tok_s)
            }
            solved => solved.map(|solution| solution.throughput_tok_s()),
        }
    }
}

/// The gain of thresholds over eager launching, minus 1, of emulated models under borrow routing and the simulator's clock.
pub fn measured_gain(inputs: &Inputs, requests: usize, thresholds: &[u32]) -> anyhow::Result<f64> {
    let config = inputs.emulated();
    let window = calibrate::window(10.0, 4000, 1);
    let measure = |thresholds: &[u32]| steady::virtual_time(&config, requests, thresholds, &window).map(|s| s.tok_s);
    Ok(measure(thresholds)? / measure(&vec![1; thresholds.len()])? - 1.0)
}
