//! Predicted and measured throughput: calibration of the throughput model, and its validation.

mod adapt;
mod calibrate;
mod calibration;
mod measured;
mod steady;
mod validate;

pub use adapt::{AdaptArgs, run as run_adapt};
pub(crate) use calibrate::calibrate_document;
pub use calibrate::{CalibrateArgs, run as run_calibrate};
pub use calibration::{Calibration, ModelCalibration};
pub use validate::{Best, Point, ValidateArgs, Validation, ValidationTask, csv_of, run as run_validate};

use tokenrouter_core::emulated::LatencyProfile;
use tokenrouter_core::routing::RoutingConfig;
use tokenrouter_core::routing::registry::{self, SystemView};
use tokenrouter_dtmc::{
    Error, Latency, Limits, Prediction, SimulationOptions, SolveOptions, System, Thresholds, predict,
};
use tokenrouter_engine::Config;
use tokenrouter_engine::adaptation::latency;
use tokenrouter_engine::config::{BatchingConfig, EmulatedConfig, KvConfig, ModelConfig, ServerConfig, SystemConfig};

/// What is known of a configured system without measuring: emulated models under a method that knows its matrices. Step
/// times are written out up to batches of `largest_batch`.
pub fn known_system(config: &Config, largest_batch: usize) -> Option<System> {
    let latencies =
        config.models.values().map(|model| Some(latency(&model.emulated.as_ref()?.latency_ms, largest_batch)));
    let latencies = latencies.collect::<Option<Vec<Latency>>>()?;
    let names = config.model_names();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut view = SystemView::emulated(&names, 1000);
    view.entry = config.entry_index();
    let (routing, commits) = registry::build(&config.routing, &view).ok()?.transition_model()?;
    Some(System { commits: Some(commits), ..System::new(latencies, routing) })
}

/// The prediction for `requests` in flight: exact up to two million states, else by simulation.
pub fn prediction(system: &System, requests: usize, thresholds: &[u32]) -> Result<Prediction, Error> {
    let limits = Limits {
        solve: SolveOptions { max_states: 2_000_000, ..SolveOptions::default() },
        simulation: SimulationOptions { max_steps: 5_000_000, ..SimulationOptions::default() },
        ..Limits::default()
    };
    predict(system, requests as u32, &Thresholds::new(thresholds), &limits)
}

/// The emulated system with the step times of `system`, under random borrowing as its routing matrix says.
fn emulated(system: &System, requests: usize) -> Config {
    let models = system.latencies_ms.iter().enumerate().map(|(index, latency)| {
        let latency_ms = match latency {
            Latency::Constant(ms) => LatencyProfile::Constant(*ms),
            table @ Latency::Table(_) => {
                LatencyProfile::Table((1..=requests as u32).map_while(|batch| table.at(batch)).collect())
            }
        };
        let emulated = Some(EmulatedConfig::new(latency_ms));
        (format!("m{index}"), ModelConfig { emulated, ..ModelConfig::default() })
    });
    let options = serde_json::json!({"semantics": "borrow", "probability": system.routing[0][1]});
    Config {
        models: models.collect(),
        routing: RoutingConfig::new("random", options),
        system: SystemConfig::default(),
        batching: BatchingConfig::default(),
        kv: KvConfig::default(),
        server: ServerConfig::default(),
    }
}

/// The gain of thresholds over eager launching, minus 1, of emulated models under borrow routing and the simulator's clock.
pub fn measured_gain(system: &System, requests: usize, thresholds: &[u32]) -> anyhow::Result<f64> {
    let config = emulated(system, requests);
    let window = calibrate::window(10.0, 4000, 1);
    let measure = |thresholds: &[u32]| steady::virtual_time(&config, requests, thresholds, &window).map(|s| s.tok_s);
    Ok(measure(thresholds)? / measure(&vec![1; thresholds.len()])? - 1.0)
}
