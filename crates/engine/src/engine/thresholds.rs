//! The threshold table of an engine: given, or found by the throughput model.

use tokenrouter_dtmc::{SearchOptions, threshold_table};

use super::EngineError;
use crate::config::{Config, ThresholdConfig};
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
    let closed = config
        .system_to_predict(policy.transition_model())?
        .closed(config.system.max_active as u32)
        .map_err(|error| error.to_string())?;
    let rows = threshold_table(&closed, &SearchOptions::default()).map_err(|error| error.to_string())?;
    let rows: Vec<Vec<u32>> = rows.iter().map(|thresholds| thresholds.as_slice().to_vec()).collect();
    Ok(ThresholdTable::from_rows(models, &rows))
}
