//! Thresholds that follow the load: estimates of `P`, `C` and `L_i(b)` from the counters, and new thresholds from the
//! throughput model where they pay (`docs/concepts/online-adaptation.md`).
//!
//! [`Adapter`] is pure: counters in, a table out. `worker` runs it beside an engine; tests run it under virtual time.

mod estimate;
mod worker;

use std::sync::Arc;

use serde::Serialize;
use tokenrouter_dtmc::{
    Error, Latency, Limits, SearchOptions, SimulationOptions, SolveOptions, System, TableRow, Thresholds, is_feasible,
    threshold_table_row,
};

pub use estimate::{Estimates, StepTime, interpolate};
pub(crate) use worker::Worker;

use crate::config::{AdaptationConfig, Config};
use estimate::Estimator;
use tokenrouter_core::emulated::LatencyProfile;
use tokenrouter_core::scheduler::{ModelStats, ThresholdTable};

/// Quanta of the shortest step. Measured times differ at every batch size, and the chain grows with the number of quanta;
/// this many keep rounding within 2.5 %, which is noise beside the estimates.
const QUANTA: f64 = 20.0;

/// One row of a table that was replaced.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RowChange {
    /// Number of active requests.
    pub active: usize,
    /// Thresholds before.
    pub from: Vec<u32>,
    /// Thresholds from now on.
    pub to: Vec<u32>,
    /// Predicted throughput with `to` over that with `from`, minus 1.
    pub gain: f64,
}

/// A new table.
#[derive(Debug, Clone)]
pub struct Change {
    /// The table.
    pub table: Arc<ThresholdTable>,
    /// What is different, by rising number of active requests.
    pub rows: Vec<RowChange>,
    /// What it was computed from.
    pub estimates: Estimates,
}

/// Decides when thresholds change.
///
/// A row changes only when the estimates have drifted by more than chance since they were last used, and the predicted gain
/// is above the hysteresis. Under a stationary load the first fails, and what passes it by chance has nothing to gain.
#[derive(Debug)]
pub struct Adapter {
    max_active: usize,
    max_batch: Vec<Option<u32>>,
    quantum_ms: Option<f64>,
    settings: AdaptationConfig,
    estimator: Estimator,
    table: Arc<ThresholdTable>,
    /// The estimates that were last given to the throughput model.
    used: Option<Estimates>,
}

impl Adapter {
    /// For a system that begins with `table`.
    pub fn new(config: &Config, table: Arc<ThresholdTable>) -> Self {
        let batching = &config.batching;
        let max_active = config.system.max_active;
        Self {
            max_active,
            max_batch: batch_caps(config),
            quantum_ms: batching.profile.as_ref().map(|profile| profile.quantum_ms),
            settings: batching.adaptation.clone(),
            estimator: Estimator::new(config.models.len(), max_active, batching.adaptation.memory_steps),
            table,
            used: None,
        }
    }

    /// The table in use.
    pub fn table(&self) -> &Arc<ThresholdTable> {
        &self.table
    }

    /// Takes in the models' counters.
    pub fn observe(&mut self, stats: &[ModelStats]) {
        self.estimator.observe(stats);
    }

    /// A new table, if one pays. `stop` is asked between rows; nothing changes when it says yes.
    ///
    /// # Errors
    /// When the throughput model refuses the estimates; the table in use stays.
    pub fn reconsider(&mut self, stop: &dyn Fn() -> bool) -> Result<Option<Change>, Error> {
        let Some(estimates) = self.estimator.estimates() else { return Ok(None) };
        if self.used.as_ref().is_some_and(|used| !used.drifted(&estimates)) {
            return Ok(None);
        }
        let Some(rows) = self.better_rows(&self.system(&estimates), stop)? else { return Ok(None) };
        self.used = Some(estimates.clone());
        if rows.is_empty() {
            return Ok(None);
        }
        let mut vectors: Vec<Vec<u32>> = (1..=self.max_active).map(|active| self.table.row(active)).collect();
        for row in &rows {
            vectors[row.active - 1].clone_from(&row.to);
        }
        self.table = Arc::new(ThresholdTable::from_rows(self.max_batch.len(), &vectors));
        Ok(Some(Change { table: Arc::clone(&self.table), rows, estimates }))
    }

    /// The system to predict: the estimates, with what the configuration says.
    fn system(&self, estimates: &Estimates) -> System {
        let shortest = estimates.step_ms.iter().map(|ms| ms[0]).fold(f64::INFINITY, f64::min);
        System {
            commits: Some(estimates.commits.clone()),
            quantum_ms: self.quantum_ms.unwrap_or(shortest / QUANTA),
            max_batch: Some(self.max_batch.clone()),
            ..System::new(
                estimates.step_ms.iter().map(|ms| Latency::by_batch(ms.iter().copied())),
                estimates.routing.clone(),
            )
        }
    }

    /// The rows that gain more than the hysteresis; `None` when stopped.
    fn better_rows(&self, system: &System, stop: &dyn Fn() -> bool) -> Result<Option<Vec<RowChange>>, Error> {
        let options = search_options();
        let mut changes = Vec::new();
        let mut before: Option<TableRow> = None;
        for active in 1..=self.max_active {
            if stop() {
                return Ok(None);
            }
            let system = system.closed(active as u32)?;
            let row = threshold_table_row(&system, before.as_ref(), &options)?;
            let from = self.table.row(active);
            let to = self.bounded(row.best.thresholds());
            let throughput = |vector: &[u32]| match vector == row.best.thresholds().as_slice() {
                true => Ok(row.best.throughput_tok_s()),
                false => {
                    let prediction = system.predict(&Thresholds::new(vector), &options.limits)?;
                    Ok::<_, Error>(prediction.throughput_tok_s())
                }
            };
            if from != to {
                let gain = throughput(&to)? / throughput(&from)? - 1.0;
                if gain > self.settings.hysteresis {
                    debug_assert!(is_feasible(&to, active as u32));
                    changes.push(RowChange { active, from, to, gain });
                }
            }
            before = Some(row);
        }
        Ok(Some(changes))
    }

    /// Within the configured bound. Smaller thresholds stay feasible.
    fn bounded(&self, vector: &Thresholds) -> Vec<u32> {
        let most = match self.settings.max_threshold {
            0 => u32::MAX,
            bound => u32::try_from(bound).unwrap_or(u32::MAX),
        };
        vector.as_slice().iter().map(|b| (*b).min(most)).collect()
    }
}

/// Smaller limits than those of `auto`: this runs beside the models that it is for.
fn search_options() -> SearchOptions {
    SearchOptions {
        limits: Limits {
            solve: SolveOptions { max_states: 200_000, memory_limit: Some(256 << 20), ..SolveOptions::default() },
            simulation: SimulationOptions {
                max_steps: 1_000_000,
                relative_half_width: 0.002,
                ..SimulationOptions::default()
            },
            ..Limits::default()
        },
        ..SearchOptions::default()
    }
}

/// `max_batch` of every model, where it is set.
pub(crate) fn batch_caps(config: &Config) -> Vec<Option<u32>> {
    let caps = config.models.values().map(|model| match model.max_batch {
        0 => None,
        cap => u32::try_from(cap).ok(),
    });
    caps.collect()
}

/// A configured step time as the throughput model takes it. A list is written out up to `largest_batch`, continued along
/// its last two entries as the emulated runner does: a [`Latency`] itself ends at its last point.
#[must_use]
pub fn latency(profile: &LatencyProfile, largest_batch: usize) -> Latency {
    match profile {
        LatencyProfile::Constant(ms) => Latency::Constant(*ms),
        table @ LatencyProfile::Table(_) => Latency::by_batch((1..=largest_batch).map(|batch| table.at(batch))),
    }
}
