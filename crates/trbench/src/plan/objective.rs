//! Objectives: whether a load meets them, up to which load it does, and how many replicas are needed.

use super::args::{BalancerArg, PlanArgs};
use super::evaluate::Fleet;
use serde::Serialize;
use tokenrouter_dtmc::Error;
use tokenrouter_dtmc::serving::{Arrivals, OpenLoop, Rates, Workload};

/// Halvings of the search for the highest load.
const HALVINGS: usize = 8;
/// Load that stands for no load.
const LOWEST: f64 = 0.02;
/// Highest load that is tried.
const HIGHEST: f64 = 0.98;
/// Most replicas that are simulated together.
const MOST_TOGETHER: u32 = 64;
/// Load of a replica that is planned with where no objective is given: above, times grow fast and predictions err.
pub(super) const PLANNED_LOAD: f64 = 0.8;

/// One objective.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Limit {
    pub(super) name: &'static str,
    pub(super) limit_ms: f64,
    /// The simulated percentile; none where the queue grows without bound.
    pub(super) at_percentile_ms: Option<f64>,
    pub(super) met: bool,
}

/// What became of the objectives.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Objective {
    pub(super) percentile: f64,
    pub(super) met: bool,
    pub(super) limits: Vec<Limit>,
    /// Highest rate of one replica that meets them, requests per second; none where no rate does.
    pub(super) max_rate_per_replica_per_s: Option<f64>,
    /// What would meet them, where they are not met.
    pub(super) advice: Option<String>,
}

/// Replicas by balancing rule; none where no number is enough, or too many to try.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Needed {
    pub(super) balancer: &'static str,
    pub(super) replicas: Option<u32>,
}

pub(super) const fn asked(args: &PlanArgs) -> bool {
    args.slo_ttft_ms.is_some() || args.slo_tpot_ms.is_some()
}

/// Percentiles of a load against the limits; limits without a value where the load is not stable.
fn limits(fleet: &Fleet<'_>, workload: &Workload, args: &PlanArgs) -> Result<Vec<Limit>, Error> {
    let run = if fleet.is_stable(&workload.arrivals) {
        let formula = fleet.formula(workload)?;
        Some(fleet.simulate(workload, &formula, args)?)
    } else {
        None
    };
    let ttft = run.as_ref().map(|run| run.ttft_ms.asked.mean);
    // Answers of one token have no time between two.
    let tpot = run.as_ref().map(|run| run.tpot_ms.map_or(0.0, |tpot| tpot.asked.mean));
    let limit = |name, limit: Option<f64>, value: Option<f64>| {
        limit.map(|limit_ms| Limit {
            name,
            limit_ms,
            at_percentile_ms: value,
            met: value.is_some_and(|ms| ms <= limit_ms),
        })
    };
    Ok([limit("ttft_ms", args.slo_ttft_ms, ttft), limit("tpot_ms", args.slo_tpot_ms, tpot)]
        .into_iter()
        .flatten()
        .collect())
}

fn meets(fleet: &Fleet<'_>, workload: &Workload, args: &PlanArgs) -> Result<bool, Error> {
    Ok(limits(fleet, workload, args)?.iter().all(|limit| limit.met))
}

/// Largest number of active requests whose time per token meets its limit at this load, or at nearly all that the number
/// holds where that is less; 1 where none does.
pub(super) fn most_active(rates: &Rates, workload: &Workload, args: &PlanArgs) -> Result<u32, Error> {
    if args.slo_tpot_ms.is_none() {
        return Ok(rates.most());
    }
    let only = PlanArgs { slo_ttft_ms: None, ..args.clone() };
    let fits = |most: u32| {
        let limited = rates.limited(most);
        let fleet = Fleet { rates: &limited, copies: 1, balancer: args.balancer.rule() };
        let mut workload = workload.clone();
        workload.arrivals = workload.arrivals.part(1.0 / f64::from(args.replicas));
        if let Some(rate) = workload.arrivals.rate_per_s() {
            let held = HIGHEST * fleet.max_rate_per_s();
            workload.arrivals = workload.arrivals.part((held / rate).min(1.0));
        }
        meets(&fleet, &workload, &only)
    };
    let (mut low, mut high) = (1, rates.most() + 1);
    while high - low > 1 {
        let middle = u32::midpoint(low, high);
        if fits(middle)? { low = middle } else { high = middle }
    }
    Ok(low)
}

/// The traffic at a load of one replica: a rate, or a number of users.
struct Scale {
    workload: Workload,
    /// Share of the traffic at which one replica holds no more.
    most: f64,
}

impl Scale {
    fn new(rates: &Rates, workload: &Workload) -> Self {
        let most = match workload.arrivals.rate_per_s() {
            Some(rate) => rates.max_rate_per_s() / rate,
            None => 1.0,
        };
        Self { workload: workload.clone(), most }
    }

    fn at(&self, load: f64) -> Workload {
        Workload { arrivals: self.workload.arrivals.part(load * self.most), ..self.workload.clone() }
    }
}

/// Highest load of one replica that meets the limits, as a share of the traffic; none where not even the lowest does.
fn highest(rates: &Rates, workload: &Workload, args: &PlanArgs) -> Result<Option<f64>, Error> {
    let scale = Scale::new(rates, workload);
    let fleet = Fleet { rates, copies: 1, balancer: BalancerArg::Random.rule() };
    let fits = |load: f64| meets(&fleet, &scale.at(load), args);
    let top = if workload.arrivals.rate_per_s().is_some() { HIGHEST } else { 1.0 };
    if fits(top)? {
        return Ok(Some(top * scale.most));
    }
    if !fits(LOWEST)? {
        return Ok(None);
    }
    let (mut low, mut high) = (LOWEST, top);
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        if fits(middle)? { low = middle } else { high = middle }
    }
    Ok(Some(low * scale.most))
}

/// Judges the load of `fleet`, and says what would meet the limits.
pub(super) fn judge(
    fleet: &Fleet<'_>,
    workload: &Workload,
    args: &PlanArgs,
) -> Result<(Objective, Vec<Needed>), Error> {
    let found = limits(fleet, workload, args)?;
    let met = found.iter().all(|limit| limit.met);
    let share = highest(fleet.rates, workload, args)?;
    let needed = needed(fleet.rates, workload, args, share)?;
    let advice = if met { None } else { Some(advice(fleet, workload, args, share, &needed)?) };
    let rate = workload.arrivals.rate_per_s();
    Ok((
        Objective {
            percentile: args.percentile,
            met,
            limits: found,
            max_rate_per_replica_per_s: share.and_then(|share| rate.map(|rate| share * rate)),
            advice,
        },
        needed,
    ))
}

/// Replicas that meet the limits under every rule. Under random balancing the traffic is split; under the others the number
/// is sought below that by simulation.
fn needed(rates: &Rates, workload: &Workload, args: &PlanArgs, share: Option<f64>) -> Result<Vec<Needed>, Error> {
    let random = share.map(|share| (1.0 / share - 1e-9).ceil().clamp(1.0, 1e6) as u32);
    let least = match workload.arrivals.rate_per_s() {
        Some(rate) => (rate / (HIGHEST * rates.max_rate_per_s())).ceil().max(1.0) as u32,
        None => 1,
    };
    let mut all = Vec::new();
    for rule in BalancerArg::ALL {
        let replicas = match random {
            Some(random) if rule != BalancerArg::Random && random > 1 && random <= MOST_TOGETHER => {
                let (mut low, mut high) = (least.saturating_sub(1), random);
                while high - low > 1 {
                    let middle = u32::midpoint(low, high);
                    let fleet = Fleet { rates, copies: middle, balancer: rule.rule() };
                    if meets(&fleet, workload, args)? { high = middle } else { low = middle }
                }
                Some(high)
            }
            Some(random) if rule != BalancerArg::Random && random > MOST_TOGETHER => None,
            other => other,
        };
        all.push(Needed { balancer: rule.name(), replicas });
    }
    Ok(all)
}

/// Replicas at the planned load where no limit is given.
pub(super) fn planned(rates: &Rates, arrivals: &Arrivals) -> Vec<Needed> {
    let Some(rate) = arrivals.rate_per_s() else { return Vec::new() };
    let replicas = Some((rate / (PLANNED_LOAD * rates.max_rate_per_s()) - 1e-9).ceil().max(1.0) as u32);
    BalancerArg::ALL.into_iter().map(|rule| Needed { balancer: rule.name(), replicas }).collect()
}

fn advice(
    fleet: &Fleet<'_>,
    workload: &Workload,
    args: &PlanArgs,
    share: Option<f64>,
    needed: &[Needed],
) -> Result<String, Error> {
    let Some(share) = share else {
        let one = Fleet { rates: fleet.rates, copies: 1, balancer: BalancerArg::Random.rule() };
        let alone = limits(&one, &Scale::new(fleet.rates, workload).at(LOWEST), args)?;
        let flags = alone.iter().filter(|limit| !limit.met).map(|limit| {
            let flag = if limit.name == "ttft_ms" { "--slo-ttft-ms" } else { "--slo-tpot-ms" };
            format!("`{flag}` {} can be met from {:.4} on", limit.limit_ms, limit.at_percentile_ms.unwrap_or(f64::NAN))
        });
        return Ok(format!(
            "no number of replicas meets it, not even with hardly any load: {} (p{})",
            flags.collect::<Vec<_>>().join(", "),
            args.percentile
        ));
    };
    let own = args.balancer.name();
    let replicas = needed.iter().find(|one| one.balancer == own).and_then(|one| one.replicas);
    let holds = match workload.arrivals.rate_per_s() {
        Some(rate) => format!("a replica meets it up to {:.4} requests per second", share * rate),
        None => format!("a replica meets it up to a share of {share:.4} of the users"),
    };
    Ok(match replicas {
        Some(replicas) => format!("{holds}; `--replicas {replicas}` would do"),
        None => holds,
    })
}

/// Rates up to the limit, by formula.
pub(super) fn curve(fleet: &Fleet<'_>, workload: &Workload, count: u32) -> Result<Vec<OpenLoop>, Error> {
    (1..=count)
        .map(|index| {
            let rate_per_s = fleet.max_rate_per_s() * f64::from(index) / f64::from(count + 1);
            let arrivals = match workload.arrivals {
                Arrivals::Gamma { cv, .. } => Arrivals::Gamma { rate_per_s, cv },
                _ => Arrivals::Poisson { rate_per_s },
            };
            fleet.formula(&Workload { arrivals, ..workload.clone() })
        })
        .collect()
}
