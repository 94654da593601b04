//! The threshold table of an engine: given, or found by the throughput model.

use tokenrouter_dtmc::{DEFAULT_QUANTUM_MS, SearchOptions, System, threshold_table};

use super::EngineError;
use crate::adaptation::{batch_caps, latency};
use crate::config::{Config, ThresholdConfig};
use tokenrouter_core::emulated::LatencyProfile;
use tokenrouter_core::routing::RoutingPolicy;
use tokenrouter_core::scheduler::ThresholdTable;

pub(super) fn table(config: &Config, policy: &dyn RoutingPolicy) -> Result<ThresholdTable, EngineError> {
    let models = config.models.len();
    match &config.batching.thresholds {
        ThresholdConfig::Eager => Ok(ThresholdTable::eager(models)),
        ThresholdConfig::Fixed(vector) => Ok(ThresholdTable::from_vector(vector, config.system.max_active)),
        // What is not known yet is measured soon.
        ThresholdConfig::Adaptive => Ok(optimise(config, policy).unwrap_or_else(|why| {
            tracing::info!(target: "tokenrouter", "thresholds are eager until enough is measured: {why}");
            ThresholdTable::eager(models)
        })),
        ThresholdConfig::Auto => optimise(config, policy)
            .map_err(|why| EngineError::Unusable(format!("`batching.thresholds: auto` cannot be computed: {why}"))),
    }
}

/// The best vector for every number of active requests.
fn optimise(config: &Config, policy: &dyn RoutingPolicy) -> Result<ThresholdTable, String> {
    let models = config.models.len();
    if models == 1 {
        return Ok(ThresholdTable::eager(models));
    }
    let closed = system(config, policy)?.closed(config.system.max_active as u32).map_err(|error| error.to_string())?;
    let rows = threshold_table(&closed, &SearchOptions::default()).map_err(|error| error.to_string())?;
    let rows: Vec<Vec<u32>> = rows.iter().map(|thresholds| thresholds.as_slice().to_vec()).collect();
    Ok(ThresholdTable::from_rows(models, &rows))
}

/// The system to predict, from `batching.profile`, the emulated models and the routing method.
fn system(config: &Config, policy: &dyn RoutingPolicy) -> Result<System, String> {
    let models = config.models.len();
    let profile = config.batching.profile.as_ref();
    let own: Option<Vec<LatencyProfile>> =
        config.models.values().map(|model| model.emulated.as_ref().map(|e| e.latency_ms.clone())).collect();
    let latencies = profile
        .and_then(|profile| profile.latencies_ms.clone())
        .or(own)
        .ok_or("the step times are not known, give `batching.profile.latencies_ms`")?;
    let known = policy.transition_model();
    let routing = profile.and_then(|profile| profile.routing.clone());
    let commits = profile.and_then(|profile| profile.commit.clone());
    let (routing, commits) = match (routing, known) {
        (Some(routing), _) => (routing, commits.unwrap_or_else(|| vec![vec![1.0; models]; models])),
        (None, Some((routing, own_commits))) => (routing, commits.unwrap_or(own_commits)),
        (None, None) => {
            let method = &config.routing.method;
            return Err(format!("method `{method}` does not know its routing matrix, give `batching.profile.routing`"));
        }
    };
    Ok(System {
        commits: Some(commits),
        quantum_ms: profile.map_or(DEFAULT_QUANTUM_MS, |profile| profile.quantum_ms),
        max_batch: Some(batch_caps(config)),
        ..System::new(latencies.iter().map(|profile| latency(profile, config.system.max_active)), routing)
    })
}
