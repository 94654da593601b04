//! `X(n)`: tokens per second with `n` requests always in the system, and the best thresholds for that `n`.

use super::journey::{Journey, Serving, serving};
use super::workload::Workload;
use crate::{
    Error, Limits, Measures, Prediction, SearchOptions, SimulationOptions, SolveOptions, System, Thresholds,
    threshold_table_row,
};
use serde::Serialize;

/// Most states of a chain with prompts in it before the simulator answers.
const PROMPT_STATES: usize = 300_000;
/// Request steps of that simulation.
const PROMPT_SIMULATION: u64 = 3_000_000;

/// Active counts up to which thresholds are searched for every one; beyond, for every `n / PARTS`-th.
const EVERY: u32 = 32;
const PARTS: u32 = 16;

/// Options of [`Rates::new`].
#[derive(Debug, Clone, PartialEq)]
pub struct RateOptions {
    /// How thresholds are searched.
    pub search: SearchOptions,
    /// Thresholds by active count to use instead of searching; the last is used beyond its end.
    pub thresholds: Option<Vec<Thresholds>>,
}

impl Default for RateOptions {
    fn default() -> Self {
        let limits = Limits {
            solve: SolveOptions { max_states: 2_000_000, ..SolveOptions::default() },
            simulation: SimulationOptions { max_steps: 5_000_000, ..SimulationOptions::default() },
            coarse_tolerance: 0.0,
        };
        Self { search: SearchOptions { limits, ..SearchOptions::default() }, thresholds: None }
    }
}

/// One number of active requests.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rate {
    /// Active requests `n`.
    pub active: u32,
    /// The thresholds in force.
    pub thresholds: Thresholds,
    /// `X(n)` and what the models do, prompts and ends of requests included.
    #[serde(flatten)]
    pub measures: Measures,
    /// Half width of the interval of a simulated `X(n)`, tokens per second; 0 for an exact one.
    pub half_width_tok_s: f64,
    /// How [`Rate::thresholds`] were found: every vector was looked at.
    pub exhaustive: bool,
}

impl Rate {
    /// Milliseconds that a request spends on a step of `model`: the wait for its launch, and the step.
    fn step_ms(&self, model: usize) -> f64 {
        let model = &self.measures.models[model];
        if model.batches_per_s > 0.0 { model.mean_wait_ms + 1e3 * model.utilisation / model.batches_per_s } else { 0.0 }
    }

    /// Mean milliseconds of a running step of `model`.
    pub(super) fn running_ms(&self, model: usize) -> f64 {
        let model = &self.measures.models[model];
        if model.batches_per_s > 0.0 { 1e3 * model.utilisation / model.batches_per_s } else { 0.0 }
    }
}

/// What a server does at every number of active requests, `n = 1..=N`. Computed once; every rate of arrivals uses it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rates {
    /// By active count: entry `n - 1`.
    pub rows: Vec<Rate>,
    /// Remarks.
    pub notes: Vec<String>,
    #[serde(skip)]
    pub(super) journey: Journey,
    #[serde(skip)]
    pub(super) output_tokens: f64,
    #[serde(skip)]
    system: System,
}

impl Rates {
    /// Searches thresholds for `n = 1..=most` on `system` (for every number up to 32, for fewer and fewer beyond), and solves each with prompts and ends of requests as in
    /// `workload`; its arrivals do not matter here. `progress` gets the rows done.
    ///
    /// # Errors
    /// A system or workload that breaks a rule; as [`threshold_table_row`].
    pub fn new(
        system: &System,
        workload: &Workload,
        most: u32,
        options: &RateOptions,
        progress: &(dyn Fn(u32) + Sync),
    ) -> Result<Self, Error> {
        workload.check()?;
        let Serving { system: serving, journey, mut notes } = serving(system, workload)?;
        if most == 0 {
            return Err(Error::option("max active", "0", "1 or more"));
        }
        if options.thresholds.as_ref().is_some_and(Vec::is_empty) {
            return Err(Error::option("thresholds", "an empty table", "a vector for every active count"));
        }
        // Prompts add states to the chain but hardly move the best thresholds: these are searched without them.
        let same = serving.routing == system.routing && system.token_costs.is_none();
        let mut rows: Vec<Rate> = Vec::with_capacity(most as usize);
        let mut before = None;
        for active in 1..=most {
            let (prediction, exhaustive) = match &options.thresholds {
                Some(table) => {
                    let thresholds = &table[(active as usize - 1).min(table.len() - 1)];
                    (evaluate(&serving, active, thresholds, &options.search.limits)?, false)
                }
                None if active > EVERY && active % (active / PARTS) != 0 && active != most => {
                    // Feasible for fewer requests is feasible for more.
                    let last = rows.last().map_or_else(|| Thresholds::eager(1), |row| row.thresholds.clone());
                    (evaluate(&serving, active, &last, &options.search.limits)?, false)
                }
                None => {
                    let row = threshold_table_row(&system.closed(active)?, before.as_ref(), &options.search)?;
                    let found = if same {
                        row.best.clone()
                    } else {
                        evaluate(&serving, active, row.best.thresholds(), &options.search.limits)?
                    };
                    let exhaustive = row.exhaustive;
                    before = Some(row);
                    (found, exhaustive)
                }
            };
            rows.push(Rate {
                active,
                thresholds: prediction.thresholds().clone(),
                measures: prediction.measures().clone(),
                half_width_tok_s: prediction.half_width(),
                exhaustive,
            });
            progress(active);
        }
        if most > EVERY && options.thresholds.is_none() {
            notes.push(format!(
                "above {EVERY} active requests thresholds are searched for every (n / {PARTS})-th number, and kept between"
            ));
        }
        notes.extend(system.closed(most)?.notes().iter().cloned());
        Ok(Self { rows, notes, journey, output_tokens: workload.output.mean(), system: system.clone() })
    }

    /// The system behind it.
    #[must_use]
    pub const fn system(&self) -> &System {
        &self.system
    }

    /// Largest number of active requests `N`.
    #[must_use]
    pub fn most(&self) -> u32 {
        self.rows.len() as u32
    }

    /// The same server with at most `most` active requests.
    #[must_use]
    pub fn limited(&self, most: u32) -> Self {
        let mut limited = self.clone();
        limited.rows.truncate(most.max(1) as usize);
        limited
    }

    /// Thresholds by active count.
    #[must_use]
    pub fn thresholds(&self) -> Vec<Thresholds> {
        self.rows.iter().map(|row| row.thresholds.clone()).collect()
    }

    /// Requests per second that end with `n = 1..=N` active ones.
    #[must_use]
    pub fn deaths(&self) -> Vec<f64> {
        self.rows.iter().map(|row| row.measures.throughput_tok_s / self.output_tokens).collect()
    }

    /// The rate of arrivals from which on the queue grows without bound, requests per second.
    #[must_use]
    pub fn max_rate_per_s(&self) -> f64 {
        self.deaths().last().copied().unwrap_or(0.0)
    }

    /// Share of the tokens that each model writes.
    #[must_use]
    pub fn token_shares(&self) -> Vec<f64> {
        self.journey.tokens.iter().map(|tokens| tokens / self.output_tokens).collect()
    }

    /// The model at which requests begin.
    pub(super) fn entry(&self) -> usize {
        self.system.state_models.as_ref().map_or(0, |models| models[0])
    }

    /// Coefficient of variation of the work of a request: prompts, taken as equal, steady it.
    pub(super) fn work_cv(&self, workload: &Workload) -> f64 {
        let Some(last) = self.rows.last() else { return workload.output.cv() };
        let work = |steps: &[f64]| -> f64 { steps.iter().enumerate().map(|(model, n)| n * last.step_ms(model)).sum() };
        let (prompts, all) = (work(&self.journey.prompt_steps), work(&self.journey.steps));
        workload.output.cv() * if all > 0.0 { 1.0 - prompts / all } else { 1.0 }
    }

    /// Mean milliseconds from admission to the first token with `n` active requests, arrivals in step with launches.
    pub(super) fn first_ms(&self, active: u32) -> f64 {
        let row = &self.rows[(active.max(1) as usize - 1).min(self.rows.len() - 1)];
        let steps = self.journey.first_steps.iter().enumerate().map(|(model, steps)| steps * row.step_ms(model));
        steps.sum::<f64>() + self.first_extra_ms()
    }

    /// What the prompt's own tokens cost before the first token beyond what a mean step has.
    fn first_extra_ms(&self) -> f64 {
        let Some(costs) = &self.system.token_costs else { return 0.0 };
        let tokens = self.journey.first_tokens.iter().zip(&self.journey.first_steps).zip(costs);
        tokens
            .map(|((tokens, steps), cost)| {
                cost.ms_per_token * (tokens - steps.max(1.0) * f64::from(cost.free_tokens.max(1))).max(0.0)
            })
            .sum()
    }
}

fn evaluate(system: &System, active: u32, thresholds: &Thresholds, limits: &Limits) -> Result<Prediction, Error> {
    let limits = Limits {
        solve: SolveOptions { max_states: limits.solve.max_states.min(PROMPT_STATES), ..limits.solve.clone() },
        simulation: SimulationOptions {
            max_steps: limits.simulation.max_steps.min(PROMPT_SIMULATION),
            ..limits.simulation.clone()
        },
        ..limits.clone()
    };
    system.closed(active)?.predict(thresholds, &limits)
}
