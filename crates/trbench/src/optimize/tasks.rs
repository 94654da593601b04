//! What was asked for, computed.

use super::args::OptimizeArgs;
use super::explain::{Card, card};
use super::input::{Inputs, uncertainty};
use super::sensitivity::{Sensitivity, study as sensitivity_study};
use crate::terminal::{Spinner, counted};
use tokenrouter_dtmc::{
    Certificate, Chain, ClosedSystem, Coarse, Limits, Prediction, QuantumStudy, SearchOptions, SearchResult, Spread,
    Strategy, TableRow, Thresholds, best_within_time_per_token, certify, optimize_with_progress, propagate,
    quantum_study, solve, threshold_table_rows,
};

/// Largest relative error for which a coarser quantum answers instead of the simulator.
const COARSE_TOLERANCE: f64 = 1e-3;
/// Halvings of a quantum study.
const HALVINGS: usize = 12;
/// Most near-ties whose uncertainty is compared.
const COMPARED: usize = 12;

/// A request that contradicts itself or the system.
#[derive(Debug)]
pub(super) struct BadRequest(pub(super) String);

impl std::fmt::Display for BadRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadRequest {}

/// Everything that is printed.
pub(super) struct Answers {
    pub(super) system: ClosedSystem,
    pub(super) notes: Vec<String>,
    /// Best first; a single one when a vector was given.
    pub(super) candidates: Vec<Prediction>,
    pub(super) search: Option<SearchResult>,
    pub(super) coarse: Option<Coarse>,
    pub(super) table: Option<Vec<TableRow>>,
    pub(super) within_latency: Option<TableRow>,
    pub(super) certificate: Option<Certificate>,
    pub(super) study: Option<QuantumStudy>,
    pub(super) spreads: Option<Vec<Spread>>,
    /// What small changes of latencies do to the answer, where that is affordable.
    pub(super) sensitivity: Option<Sensitivity>,
    pub(super) card: Option<Card>,
    pub(super) chain: Option<Chain>,
}

impl Answers {
    pub(super) fn best(&self) -> &Prediction {
        &self.candidates[0]
    }
}

pub(super) fn run(args: &OptimizeArgs, inputs: Inputs) -> anyhow::Result<Answers> {
    let Inputs { system, thresholds, search: options, mut notes } = inputs;
    check_plot(args, &system, thresholds.is_some())?;
    let (mut search, mut coarse) = (None, None);
    let candidates = match &thresholds {
        Some(thresholds) => {
            let (candidate, from) = one(args, &system, thresholds, &options, &mut notes)?;
            coarse = from;
            vec![candidate]
        }
        None => {
            let bar = Bar::new("thresholds");
            let mut found = optimize_with_progress(&system, &options, &|done, total| bar.set(done, total))?;
            if !found.exhaustive {
                notes.push(format!(
                    "{} of {} feasible vectors were looked at: this is a search and can miss the best",
                    found.evaluated, found.feasible
                ));
            }
            if found.strategy == Strategy::Screening {
                notes.push(
                    "vectors were screened by simulation; those that can be near the best were then solved exactly where \
                     their chains are small; `--strategy exhaustive` solves all exactly"
                        .to_owned(),
                );
            }
            let candidates = std::mem::take(&mut found.candidates);
            search = Some(found);
            candidates
        }
    };
    check_tokens(&candidates[0])?;
    let best = candidates[0].thresholds().clone();
    let sensitivity = sensitivity_study(&system, &candidates, search.is_some(), &options);
    let spreads = spreads(args, &system, search.as_ref(), &candidates, &options)?;
    let (table, within_latency) = table(args, &system, &options)?;
    let certificate = if args.certify { Some(certify(&system, &best, &options.limits.solve)?) } else { None };
    let study = match args.delta_study {
        Some(tolerance) => Some(quantum_study(&system, &best, tolerance, HALVINGS, &options.limits.solve)?),
        None => None,
    };
    let card = if args.explain { Some(card(&system, &best, &options.limits.solve)?) } else { None };
    let chain = if args.export.is_some() { Some(Chain::build(&system, &best, &options.limits.solve)?) } else { None };
    notes.extend(system.notes().iter().cloned());
    Ok(Answers {
        system,
        notes,
        candidates,
        search,
        coarse,
        table,
        within_latency,
        certificate,
        study,
        spreads,
        sensitivity,
        card,
        chain,
    })
}

/// Without tokens there is nothing to compare, whatever `C` says of steps that are made once at most.
fn check_tokens(best: &Prediction) -> anyhow::Result<()> {
    if best.throughput_tok_s() > 0.0 {
        return Ok(());
    }
    let message = "`--C`: no token is ever committed: every entry is 0 for the steps that are made again and again";
    Err(BadRequest(message.to_owned()).into())
}

fn check_plot(args: &OptimizeArgs, system: &ClosedSystem, single: bool) -> anyhow::Result<()> {
    if args.plot.is_some() && single {
        return Err(BadRequest("`--plot` draws a search; leave out `--thresholds`".to_owned()).into());
    }
    if args.plot_over.len() > 2 || args.plot_over.iter().any(|&index| index >= system.models()) {
        let last = system.models() - 1;
        return Err(BadRequest(format!("`--plot-over` takes one or two models from 0 to {last}")).into());
    }
    Ok(())
}

/// One vector by the surest affordable way, with a note when that is not the exact chain.
fn one(
    args: &OptimizeArgs,
    system: &ClosedSystem,
    thresholds: &Thresholds,
    options: &SearchOptions,
    notes: &mut Vec<String>,
) -> anyhow::Result<(Prediction, Option<Coarse>)> {
    if args.exact {
        return Ok((solve(system, thresholds, &options.limits.solve)?.into(), None));
    }
    let limits = Limits { coarse_tolerance: COARSE_TOLERANCE, ..options.limits.clone() };
    match system.predict(thresholds, &limits)? {
        Prediction::Simulated(simulation) => {
            notes.push(format!(
                "the exact chain is too large, so the simulator answered ({} request steps, {} % confidence); `--exact` refuses \
                 with the size instead",
                simulation.steps,
                100.0 * simulation.confidence
            ));
            Ok((simulation.into(), None))
        }
        Prediction::Coarse(coarse) => {
            notes.push(format!(
                "the exact chain is too large, so the chain with a quantum of {:.4} ms answered; estimated error {:.3} %",
                coarse.quantum_ms,
                100.0 * coarse.relative_error
            ));
            Ok((coarse.solution.clone().into(), Some(coarse)))
        }
        Prediction::Exact(solution) => Ok((solution.into(), None)),
    }
}

fn spreads(
    args: &OptimizeArgs,
    system: &ClosedSystem,
    search: Option<&SearchResult>,
    candidates: &[Prediction],
    options: &SearchOptions,
) -> anyhow::Result<Option<Vec<Spread>>> {
    let known = (args.latency_error.as_slice(), args.routing_samples.as_slice());
    let sizes = (system.models(), system.routing_states());
    let Some(uncertainty) = uncertainty(known, sizes, (args.draws, args.seed, args.confidence)) else {
        return Ok(None);
    };
    // The near-ties, and at least the runner-up.
    let compared = search.map_or(1, |found| found.near_ties.max(5)).min(COMPARED).min(candidates.len());
    let vectors: Vec<Thresholds> =
        candidates[..compared].iter().map(|candidate| candidate.thresholds().clone()).collect();
    Ok(Some(propagate(system, &vectors, &uncertainty, &options.limits.solve)?))
}

/// The table for every active count, and its best row within a latency bound.
fn table(
    args: &OptimizeArgs,
    system: &ClosedSystem,
    options: &SearchOptions,
) -> anyhow::Result<(Option<Vec<TableRow>>, Option<TableRow>)> {
    if !args.table && args.max_time_per_token_ms.is_none() {
        return Ok((None, None));
    }
    let bar = Bar::new("active counts");
    let rows = threshold_table_rows(system, options, &|done, total| bar.set(done, total))?;
    let within = match args.max_time_per_token_ms {
        Some(bound) => Some(best_within_time_per_token(&rows, bound)?.clone()),
        None => None,
    };
    Ok((args.table.then_some(rows), within))
}

/// Progress over candidates.
struct Bar(Spinner);

impl Bar {
    fn new(what: &str) -> Self {
        Self(counted(0, what))
    }

    fn set(&self, done: usize, total: usize) {
        self.0.set_length(total as u64);
        self.0.set_position(done as u64);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
