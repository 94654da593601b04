//! `--replay`: the recorded decisions that a run repeats.

use std::collections::HashMap;
use std::path::Path;

use tokenrouter_core::StepRecord;
use tokenrouter_core::routing::replay::Replay;
use tokenrouter_engine::Config;

use crate::error::usage;
use crate::trace;

/// Reads decisions for the models of all cells, for requests with ids from 0.
pub(super) fn read<'a>(
    path: &Path,
    configs: impl Iterator<Item = &'a Config> + Clone,
    requests: usize,
) -> anyhow::Result<Replay> {
    let (path, traces) = trace::read(path)?;
    let refuse = |why: String| usage(format!("--replay `{}`: {why}", path.display()));
    let names = configs.map(Config::model_names);
    if let Some(names) = names.clone().find(|names| traces.iter().any(|trace| trace.models != *names)) {
        let recorded = traces[0].models.join(", ");
        return Err(refuse(format!("recorded with the models {recorded}, this run has {}", names.join(", "))));
    }
    let recorded: HashMap<u64, Vec<StepRecord>> =
        traces.into_iter().map(|trace| (trace.id, trace.steps.into_iter().map(|step| step.record).collect())).collect();
    if let Some(id) = (0..requests as u64).find(|id| !recorded.contains_key(id)) {
        return Err(refuse(format!("request {id} of {requests} was not recorded")));
    }
    let models = names.map(|names| names.len()).max().unwrap_or_default();
    Replay::new(models, recorded).map_err(refuse)
}
