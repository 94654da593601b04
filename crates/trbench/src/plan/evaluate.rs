//! One system under one load: the formula, the simulation, and which of them answers for what.

use super::args::PlanArgs;
use serde::Serialize;
use tokenrouter_dtmc::Error;
use tokenrouter_dtmc::serving::{
    Arrivals, Balancer, OpenLoop, Percentiles, Rates, Server, ServingOptions, ServingSimulation, Workload,
    simulate_serving,
};

/// Largest load at which means come from the formula.
const FORMULA_LOAD: f64 = 0.9;
/// Part of a simulation that is not recorded, as a share of what is.
const WARM_UP: f64 = 0.3;
/// Most request steps of a replication.
const MOST_STEPS: u64 = 200_000_000;

/// Where a number comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Source {
    /// The formula.
    Analytic,
    /// The simulation.
    Simulated,
}

/// A value for each of mean and percentiles.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Each<T> {
    pub(super) mean: T,
    pub(super) p50: T,
    pub(super) p90: T,
    pub(super) p99: T,
}

/// A time over requests, in milliseconds.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Times {
    #[serde(flatten)]
    pub(super) value: Each<Option<f64>>,
    /// The percentile of the objectives.
    pub(super) at_percentile: Option<f64>,
    /// Where each number comes from.
    pub(super) method: Each<Source>,
    /// Half width of the interval of each simulated number.
    pub(super) half_width: Each<Option<f64>>,
}

/// A mean by formula and by simulation.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Agreement {
    pub(super) what: &'static str,
    pub(super) analytic: f64,
    pub(super) simulated: f64,
    /// Half width of the simulated mean.
    pub(super) half_width: f64,
}

/// Everything about a stable load.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Loaded {
    pub(super) ttft_ms: Times,
    pub(super) tpot_ms: Option<Times>,
    pub(super) wait_ms: Times,
    pub(super) e2e_ms: Times,
    /// Mean active requests of a replica.
    pub(super) active: f64,
    /// Mean waiting requests of a replica.
    pub(super) queued: f64,
    /// Requests per second over all replicas.
    pub(super) rate_per_s: f64,
    /// Share of time with 0, 1, ... active requests.
    pub(super) share_of_time: Vec<f64>,
    /// Share of time in which each model runs.
    pub(super) utilisation: Vec<f64>,
    pub(super) agreement: Vec<Agreement>,
    /// Whether the simulation ended before all its requests did.
    pub(super) cut_short: bool,
}

/// Equal replicas behind a balancer, or unequal servers that share the requests by weights.
pub(super) struct Fleet<'a> {
    pub(super) rates: &'a Rates,
    pub(super) copies: u32,
    pub(super) balancer: Balancer,
}

impl Fleet<'_> {
    /// The highest rate that it holds, requests per second.
    pub(super) fn max_rate_per_s(&self) -> f64 {
        self.rates.max_rate_per_s() * f64::from(self.copies)
    }

    pub(super) fn is_stable(&self, arrivals: &Arrivals) -> bool {
        arrivals.rate_per_s().is_none_or(|rate| rate < self.max_rate_per_s())
    }

    pub(super) fn formula(&self, workload: &Workload) -> Result<OpenLoop, Error> {
        OpenLoop::new(self.rates, workload, self.copies, &self.balancer)
    }

    pub(super) fn simulate(
        &self,
        workload: &Workload,
        formula: &OpenLoop,
        args: &PlanArgs,
    ) -> Result<ServingSimulation, Error> {
        let server = Server {
            system: self.rates.system().clone(),
            most: self.rates.most(),
            thresholds: self.rates.thresholds(),
        };
        let servers = vec![server; self.copies as usize];
        let rate = formula.rate_per_s * f64::from(self.copies);
        simulate_serving(&servers, &self.balancer, workload, &options(args, rate))
    }

    /// Both, and what each answers for.
    pub(super) fn load(&self, workload: &Workload, args: &PlanArgs) -> Result<Loaded, Error> {
        let formula = self.formula(workload)?;
        let simulation = if args.no_simulation { None } else { Some(self.simulate(workload, &formula, args)?) };
        Ok(Loaded::of(&formula, simulation.as_ref(), workload, self.copies))
    }
}

/// A simulation of so many requests at this rate.
pub(super) fn options(args: &PlanArgs, rate_per_s: f64) -> ServingOptions {
    let duration_ms = 1e3 * f64::from(args.requests) / rate_per_s.max(1e-9);
    ServingOptions {
        warmup_ms: WARM_UP * duration_ms,
        duration_ms,
        replications: args.replications,
        seed: args.seed,
        confidence: args.confidence,
        percentile: args.percentile,
        max_steps: MOST_STEPS,
    }
}

/// Whether the formula's means hold: independent arrivals, a load below the one where its error grows, and for users no
/// correction that they would need.
fn holds(formula: &OpenLoop, workload: &Workload) -> bool {
    match workload.arrivals {
        Arrivals::Poisson { .. } => formula.load <= FORMULA_LOAD,
        Arrivals::Gamma { .. } => false,
        Arrivals::Users { .. } => workload.output.cv() == 1.0,
    }
}

impl Loaded {
    fn of(formula: &OpenLoop, simulation: Option<&ServingSimulation>, workload: &Workload, copies: u32) -> Self {
        let analytic = simulation.is_none() || holds(formula, workload);
        // With prompts, the first token and those of short answers have steps in them that the formula knows by their mean
        // only.
        let first = simulation.is_none() || (analytic && workload.prompt.mean() == 0.0);
        let times = |analytic: bool, mean: f64, simulated: Option<&Percentiles>| times(analytic, mean, simulated);
        let mut agreement = Vec::new();
        if let Some(run) = simulation {
            let mut compare = |what, analytic: f64, simulated: tokenrouter_dtmc::Estimate| {
                let (simulated, half_width) = (simulated.mean, simulated.half_width);
                agreement.push(Agreement { what, analytic, simulated, half_width });
            };
            compare("ttft_ms", formula.ttft_ms, run.ttft_ms.mean);
            if let (Some(mean), Some(simulated)) = (formula.tpot_ms, &run.tpot_ms) {
                compare("tpot_ms", mean, simulated.mean);
            }
            compare("wait_ms", formula.wait_ms, run.wait_ms.mean);
            compare("e2e_ms", formula.e2e_ms, run.e2e_ms.mean);
            compare("active", formula.active, run.active);
        }
        let of_run = |run: &ServingSimulation| {
            let servers = run.utilisation.len() as f64;
            let models = run.utilisation[0].len();
            let mean = |model: usize| run.utilisation.iter().map(|server| server[model]).sum::<f64>() / servers;
            (
                run.active.mean,
                run.queued.mean,
                run.rate_per_s.mean,
                run.share_of_time.clone(),
                (0..models).map(mean).collect(),
            )
        };
        let (active, queued, rate_per_s, share_of_time, utilisation) = match simulation.filter(|_| !analytic) {
            Some(run) => of_run(run),
            None => (
                formula.active,
                formula.queued,
                formula.rate_per_s * f64::from(copies),
                formula.share_of_time.clone(),
                formula.utilisation.clone(),
            ),
        };
        Self {
            ttft_ms: times(first, formula.ttft_ms, simulation.map(|run| &run.ttft_ms)),
            tpot_ms: formula.tpot_ms.map(|mean| times(first, mean, simulation.and_then(|run| run.tpot_ms.as_ref()))),
            wait_ms: times(analytic, formula.wait_ms, simulation.map(|run| &run.wait_ms)),
            e2e_ms: times(analytic, formula.e2e_ms, simulation.map(|run| &run.e2e_ms)),
            active,
            queued,
            rate_per_s,
            share_of_time,
            utilisation,
            agreement,
            cut_short: simulation.is_some_and(|run| !run.complete),
        }
    }

    /// Only a simulation: for servers that are not equal.
    pub(super) fn simulated(run: &ServingSimulation, formula: &[OpenLoop], shares: &[f64]) -> Self {
        let weighted =
            |of: &dyn Fn(&OpenLoop) -> f64| formula.iter().zip(shares).map(|(one, share)| share * of(one)).sum();
        let mean: f64 = weighted(&|one| one.e2e_ms);
        let (simulated, half_width) = (run.e2e_ms.mean.mean, run.e2e_ms.mean.half_width);
        Self {
            ttft_ms: times(false, 0.0, Some(&run.ttft_ms)),
            tpot_ms: run.tpot_ms.as_ref().map(|tpot| times(false, 0.0, Some(tpot))),
            wait_ms: times(false, 0.0, Some(&run.wait_ms)),
            e2e_ms: times(false, 0.0, Some(&run.e2e_ms)),
            active: run.active.mean,
            queued: run.queued.mean,
            rate_per_s: run.rate_per_s.mean,
            share_of_time: run.share_of_time.clone(),
            utilisation: run.utilisation.iter().map(|server| server[0]).collect(),
            agreement: vec![Agreement { what: "e2e_ms", analytic: mean, simulated, half_width }],
            cut_short: !run.complete,
        }
    }

    /// Only the formula: for servers that are not equal.
    pub(super) fn analytic(formula: &[OpenLoop], shares: &[f64]) -> Self {
        let weighted =
            |of: &dyn Fn(&OpenLoop) -> f64| formula.iter().zip(shares).map(|(one, share)| share * of(one)).sum::<f64>();
        let mean = |of: &dyn Fn(&OpenLoop) -> f64| times(true, weighted(of), None);
        let servers = formula.len() as f64;
        Self {
            ttft_ms: mean(&|one| one.ttft_ms),
            tpot_ms: formula.iter().all(|one| one.tpot_ms.is_some()).then(|| mean(&|one| one.tpot_ms.unwrap_or(0.0))),
            wait_ms: mean(&|one| one.wait_ms),
            e2e_ms: mean(&|one| one.e2e_ms),
            active: formula.iter().map(|one| one.active).sum::<f64>() / servers,
            queued: formula.iter().map(|one| one.queued).sum::<f64>() / servers,
            rate_per_s: formula.iter().map(|one| one.rate_per_s).sum(),
            share_of_time: Vec::new(),
            utilisation: formula.iter().map(|one| one.utilisation[0]).collect(),
            agreement: Vec::new(),
            cut_short: false,
        }
    }
}

fn times(analytic: bool, mean: f64, simulated: Option<&Percentiles>) -> Times {
    let source = |analytic: bool| if analytic { Source::Analytic } else { Source::Simulated };
    let of = |pick: fn(&Percentiles) -> tokenrouter_dtmc::Estimate| simulated.map(pick);
    let (p50, p90, p99) = (of(|p| p.p50), of(|p| p.p90), of(|p| p.p99));
    let simulated_mean = of(|p| p.mean).filter(|_| !analytic);
    let value = |estimate: Option<tokenrouter_dtmc::Estimate>| estimate.map(|one| one.mean);
    let half = |estimate: Option<tokenrouter_dtmc::Estimate>| estimate.map(|one| one.half_width);
    Times {
        value: Each {
            mean: Some(simulated_mean.map_or(mean, |one| one.mean)),
            p50: value(p50),
            p90: value(p90),
            p99: value(p99),
        },
        at_percentile: value(of(|p| p.asked)),
        method: Each {
            mean: source(simulated_mean.is_none()),
            p50: Source::Simulated,
            p90: Source::Simulated,
            p99: Source::Simulated,
        },
        half_width: Each { mean: half(simulated_mean), p50: half(p50), p90: half(p90), p99: half(p99) },
    }
}
