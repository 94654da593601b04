//! The plan: everything that is printed.

use super::args::PlanArgs;
use super::evaluate::{Agreement, Fleet, Loaded, Times, options};
use super::input::{self, Inputs, MOST};
use super::objective::{self, Needed, Objective};
use crate::terminal::counted;
use serde::Serialize;
use tokenrouter_dtmc::serving::{Balancer, OpenLoop, RateOptions, Rates, Server, Workload, simulate_serving};
use tokenrouter_dtmc::{Error, System, Thresholds, propagate};

/// What a system does under the load; nothing but the limit where the load is not stable.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Answer {
    /// Whether the queue stays bounded.
    pub(super) stable: bool,
    /// Requests that arrive per second, over all replicas; for users, those that come in the end.
    pub(super) rate_per_s: f64,
    /// The rate from which on the queue grows without bound, over all replicas.
    pub(super) max_rate_per_s: f64,
    /// Tokens per second at that rate.
    pub(super) max_tok_s: f64,
    /// One over the other.
    pub(super) load: f64,
    pub(super) active: Option<f64>,
    pub(super) queued: Option<f64>,
    pub(super) ttft_ms: Option<Times>,
    pub(super) tpot_ms: Option<Times>,
    pub(super) wait_ms: Option<Times>,
    pub(super) e2e_ms: Option<Times>,
    pub(super) utilisation: Option<Vec<f64>>,
    pub(super) share_of_time: Option<Vec<f64>>,
    pub(super) replicas_needed: Vec<Needed>,
    /// Cost of a million tokens at this rate, on the hardware that was asked for.
    pub(super) cost_per_million_tokens: Option<f64>,
    /// The same where every replica works at its limit.
    pub(super) cost_per_million_tokens_at_limit: Option<f64>,
    pub(super) agreement: Vec<Agreement>,
}

/// What uncertain measurements leave of the limit.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Margin {
    pub(super) confidence: f64,
    pub(super) max_rate_low_per_s: f64,
    pub(super) max_rate_high_per_s: f64,
    /// The lower end over the rate, minus 1; below 0 the load may be too much.
    pub(super) margin: Option<f64>,
}

/// A system to compare with.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Alternative {
    /// What it is, in words.
    pub(super) system: String,
    #[serde(flatten)]
    pub(super) answer: Answer,
}

/// The whole plan.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Plan {
    #[serde(flatten)]
    pub(super) answer: Answer,
    pub(super) nmax: u32,
    /// By active count, from one on.
    pub(super) thresholds: Vec<Thresholds>,
    /// Tokens per second by active count.
    pub(super) tok_s: Vec<f64>,
    pub(super) replicas: u32,
    pub(super) balancer: &'static str,
    pub(super) slo: Option<Objective>,
    pub(super) margin: Option<Margin>,
    pub(super) single_large: Alternative,
    pub(super) whole_request: Alternative,
    pub(super) curve: Vec<OpenLoop>,
    pub(super) workload: Workload,
    pub(super) system: System,
    pub(super) notes: Vec<String>,
}

/// Makes the plan.
pub(super) fn plan(args: &PlanArgs) -> anyhow::Result<Plan> {
    let Inputs { system, workload, mut notes } = input::read(args)?;
    let bar = counted(u64::from(args.max_active.unwrap_or(MOST)), "active counts");
    let most = args.max_active.unwrap_or(MOST);
    let all = Rates::new(&system, &workload, most, &RateOptions::default(), &|done| bar.set_position(u64::from(done)))?;
    bar.finish_and_clear();
    notes.extend(all.notes.iter().cloned());
    let nmax = if args.max_active.is_some() { most } else { objective::most_active(&all, &workload, args)? };
    let rates = all.limited(nmax);
    let fleet = Fleet { rates: &rates, copies: args.replicas, balancer: args.balancer.rule() };
    let mut answer = answer(&fleet, &workload, args, f64::from(args.replicas))?;
    let slo = if objective::asked(args) {
        let (objective, needed) = objective::judge(&fleet, &workload, args)?;
        answer.replicas_needed = needed;
        Some(objective)
    } else {
        None
    };
    let margin = margin(args, &rates, answer.max_rate_per_s, answer.rate_per_s)?;
    let large = large_model(&system);
    let curve = match args.curve {
        Some(count) => objective::curve(&fleet, &workload, count)?,
        None if args.plot.is_some() => objective::curve(&fleet, &workload, 100)?,
        None => Vec::new(),
    };
    Ok(Plan {
        nmax,
        thresholds: rates.thresholds(),
        tok_s: rates.rows.iter().map(|row| row.measures.throughput_tok_s).collect(),
        replicas: args.replicas,
        balancer: args.balancer.name(),
        slo,
        margin,
        single_large: single_large(&system, large, &workload, args, nmax)?,
        whole_request: whole_request(&system, &rates.token_shares(), &workload, args, nmax)?,
        curve,
        workload,
        system,
        notes,
        answer,
    })
}

/// An answer for equal replicas; `machines` of the hardware of one replica are paid for.
fn answer(fleet: &Fleet<'_>, workload: &Workload, args: &PlanArgs, machines: f64) -> Result<Answer, Error> {
    let loaded = if fleet.is_stable(&workload.arrivals) { Some(fleet.load(workload, args)?) } else { None };
    let max_rate_per_s = fleet.max_rate_per_s();
    let needed = objective::planned(fleet.rates, &workload.arrivals);
    Ok(fill(loaded, max_rate_per_s, workload, needed, args, machines))
}

fn fill(
    loaded: Option<Loaded>,
    max_rate_per_s: f64,
    workload: &Workload,
    replicas_needed: Vec<Needed>,
    args: &PlanArgs,
    machines: f64,
) -> Answer {
    let tokens = workload.output.mean();
    let rate_per_s =
        workload.arrivals.rate_per_s().or_else(|| loaded.as_ref().map(|one| one.rate_per_s)).unwrap_or(max_rate_per_s);
    let cost = |rate: f64| args.price_per_hour.map(|price| price * machines / (3600.0 * rate * tokens) * 1e6);
    let part = |pick: fn(&Loaded) -> Times| loaded.as_ref().map(pick);
    Answer {
        stable: loaded.is_some(),
        rate_per_s,
        max_rate_per_s,
        max_tok_s: max_rate_per_s * tokens,
        load: rate_per_s / max_rate_per_s,
        active: loaded.as_ref().map(|one| one.active),
        queued: loaded.as_ref().map(|one| one.queued),
        ttft_ms: part(|one| one.ttft_ms.clone()),
        tpot_ms: loaded.as_ref().and_then(|one| one.tpot_ms.clone()),
        wait_ms: part(|one| one.wait_ms.clone()),
        e2e_ms: part(|one| one.e2e_ms.clone()),
        utilisation: loaded.as_ref().map(|one| one.utilisation.clone()),
        share_of_time: loaded.as_ref().map(|one| one.share_of_time.clone()),
        replicas_needed,
        cost_per_million_tokens: loaded.as_ref().and_then(|_| cost(rate_per_s)),
        cost_per_million_tokens_at_limit: cost(max_rate_per_s),
        agreement: loaded.map(|one| one.agreement).unwrap_or_default(),
    }
}

fn margin(args: &PlanArgs, rates: &Rates, limit: f64, rate: f64) -> anyhow::Result<Option<Margin>> {
    let Some(uncertainty) = input::uncertainty(args, rates.system()) else { return Ok(None) };
    let system = rates.system().closed(rates.most())?;
    let thresholds = rates.thresholds().pop().unwrap_or_else(|| Thresholds::eager(system.models()));
    let spread = propagate(&system, &[thresholds], &uncertainty, &RateOptions::default().search.limits.solve)?;
    let spread = &spread[0];
    // Prompts and ends scale with the same steps.
    let scaled = |tok_s: f64| limit * tok_s / spread.nominal_tok_s;
    let low = scaled(spread.low_tok_s);
    Ok(Some(Margin {
        confidence: args.confidence,
        max_rate_low_per_s: low,
        max_rate_high_per_s: scaled(spread.high_tok_s),
        margin: args.rate.map(|_| low / rate - 1.0),
    }))
}

/// The model whose step of one request is the longest.
fn large_model(system: &System) -> usize {
    let step = |index: &usize| system.latencies_ms[*index].at(1).unwrap_or(0.0);
    (0..system.latencies_ms.len()).max_by(|a, b| step(a).total_cmp(&step(b))).unwrap_or(0)
}

/// One model of the system by itself.
fn alone(system: &System, model: usize) -> System {
    System {
        quantum_ms: system.quantum_ms,
        max_batch: system.max_batch.as_ref().map(|caps| vec![caps[model]]),
        token_costs: system.token_costs.as_ref().map(|costs| vec![costs[model]]),
        ..System::new([system.latencies_ms[model].clone()], vec![vec![1.0]])
    }
}

fn alone_rates(system: &System, model: usize, workload: &Workload, most: u32) -> Result<Rates, Error> {
    // Eager launches are the best of one model.
    let eager = RateOptions { thresholds: Some(vec![Thresholds::eager(1)]), ..RateOptions::default() };
    Rates::new(&alone(system, model), workload, most, &eager, &|_| ())
}

fn single_large(
    system: &System,
    large: usize,
    workload: &Workload,
    args: &PlanArgs,
    most: u32,
) -> Result<Alternative, Error> {
    let copies = args.large_copies.unwrap_or(system.latencies_ms.len() as u32);
    let rates = alone_rates(system, large, workload, most)?;
    let fleet = Fleet { rates: &rates, copies: copies * args.replicas, balancer: args.balancer.rule() };
    let mut answer = answer(&fleet, workload, args, f64::from(args.replicas))?;
    // In replicas of the routed system's hardware.
    answer.replicas_needed.iter_mut().for_each(|one| one.replicas = one.replicas.map(|count| count.div_ceil(copies)));
    let system = format!("model {large} alone, {copies} copies on the hardware of a replica");
    Ok(Alternative { system, answer })
}

/// Whole requests at one model each, in the shares in which the routed system's models write tokens.
fn whole_request(
    system: &System,
    shares: &[f64],
    workload: &Workload,
    args: &PlanArgs,
    most: u32,
) -> Result<Alternative, Error> {
    let used: Vec<(usize, f64)> = shares.iter().copied().enumerate().filter(|&(_, share)| share > 1e-9).collect();
    let rates: Vec<Rates> =
        used.iter().map(|&(model, _)| alone_rates(system, model, workload, most)).collect::<Result<_, _>>()?;
    let each: Vec<f64> = rates.iter().zip(&used).map(|(rates, &(_, share))| rates.max_rate_per_s() / share).collect();
    let one = each.iter().copied().fold(f64::INFINITY, f64::min);
    let limit = one * f64::from(args.replicas);
    let words: Vec<String> =
        used.iter().map(|(model, share)| format!("{:.1} % at model {model}", 100.0 * share)).collect();
    let stable = workload.arrivals.rate_per_s().is_none_or(|rate| rate < limit);
    let loaded = if stable { Some(split(&rates, &used, workload, args)?) } else { None };
    let needed = match workload.arrivals.rate_per_s() {
        Some(rate) => {
            let replicas = Some((rate / (objective::PLANNED_LOAD * one) - 1e-9).ceil().max(1.0) as u32);
            vec![Needed { balancer: "random", replicas }]
        }
        None => Vec::new(),
    };
    let answer = fill(loaded, limit, workload, needed, args, f64::from(args.replicas));
    Ok(Alternative { system: format!("whole requests: {}", words.join(", ")), answer })
}

/// All servers of whole requests under their parts of the traffic.
fn split(rates: &[Rates], used: &[(usize, f64)], workload: &Workload, args: &PlanArgs) -> Result<Loaded, Error> {
    let copies = args.replicas as usize;
    let shares: Vec<f64> = used.iter().map(|&(_, share)| share).collect();
    let formula: Vec<OpenLoop> = rates
        .iter()
        .zip(&shares)
        .map(|(rates, share)| {
            let part = workload.arrivals.part(share / copies as f64);
            OpenLoop::new(rates, &Workload { arrivals: part, ..workload.clone() }, 1, &Balancer::Random)
        })
        .collect::<Result<_, _>>()?;
    if args.no_simulation {
        return Ok(Loaded::analytic(&formula, &shares));
    }
    let mut servers = Vec::new();
    let mut weights = Vec::new();
    for (rates, share) in rates.iter().zip(&shares) {
        for _ in 0..copies {
            servers.push(Server { system: rates.system().clone(), most: rates.most(), thresholds: rates.thresholds() });
            weights.push(*share);
        }
    }
    let total: f64 = formula.iter().map(|one| one.rate_per_s).sum::<f64>() * copies as f64;
    let run = simulate_serving(&servers, &Balancer::Weighted(weights), workload, &options(args, total))?;
    let mut loaded = Loaded::simulated(&run, &formula, &shares);
    loaded.utilisation = loaded.utilisation.chunks(copies).map(|of| of.iter().sum::<f64>() / copies as f64).collect();
    Ok(loaded)
}
