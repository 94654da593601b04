//! Simulation of servers under arrivals: percentiles, and everything that the formula leaves out.

use super::balance::Balancer;
use super::lengths::Sampler;
use super::machine::{Asked, Machine, NEVER, Rules};
use super::records::{Percentiles, Points, Records};
use super::workload::{Arrivals, Workload};
use crate::random::{Generator, stream};
use crate::simulate::{Estimate, interval};
use crate::{Error, System, Thresholds};
use rand_distr::{Distribution, Exp1, Gamma, StandardUniform};
use rayon::prelude::*;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Ticks of a quantum: arrivals are rounded to ticks, steps last whole quanta.
const TICKS: f64 = 256.0;
/// Streams of random numbers of one replication.
const STREAMS: u64 = 1 << 16;
/// Longest time that is simulated, in ticks.
const LONGEST: f64 = 1e17;
/// Most requests that a replication records.
const MOST_REQUESTS: f64 = 5e6;

/// A server: a system, how many requests it serves at once, thresholds by active count.
#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    /// The system.
    pub system: System,
    /// Most active requests.
    pub most: u32,
    /// Thresholds for `n = 1, 2, ...` active requests; the last is used beyond its end.
    pub thresholds: Vec<Thresholds>,
}

/// Options of [`simulate_serving`].
#[derive(Debug, Clone, PartialEq)]
pub struct ServingOptions {
    /// Time from which requests are recorded, in milliseconds.
    pub warmup_ms: f64,
    /// Time in which requests that arrive are recorded, in milliseconds.
    pub duration_ms: f64,
    /// Independent runs, which give the intervals.
    pub replications: u32,
    /// Seed of all draws.
    pub seed: u64,
    /// Confidence of the intervals, in `(0, 1)`.
    pub confidence: f64,
    /// A percentile beside 50, 90 and 99, in `(0, 100)`.
    pub percentile: f64,
    /// Request steps after which a run stops.
    pub max_steps: u64,
}

impl Default for ServingOptions {
    fn default() -> Self {
        Self {
            warmup_ms: 60_000.0,
            duration_ms: 600_000.0,
            replications: 10,
            seed: 1,
            confidence: 0.95,
            percentile: 90.0,
            max_steps: 100_000_000,
        }
    }
}

/// A simulated load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServingSimulation {
    /// Milliseconds from arrival to the first token.
    pub ttft_ms: Percentiles,
    /// Milliseconds between two tokens after the first, a mean per request; `None` where every answer has one token.
    pub tpot_ms: Option<Percentiles>,
    /// Milliseconds from arrival to admission.
    pub wait_ms: Percentiles,
    /// Milliseconds from arrival to the end.
    pub e2e_ms: Percentiles,
    /// Requests per second.
    pub rate_per_s: Estimate,
    /// Tokens per second.
    pub tok_s: Estimate,
    /// Mean number of active requests of a server.
    pub active: Estimate,
    /// Mean number of waiting requests of a server.
    pub queued: Estimate,
    /// Share of time with `n` active requests, over all servers.
    pub share_of_time: Vec<f64>,
    /// Share of time in which each model of each server runs.
    pub utilisation: Vec<Vec<f64>>,
    /// Recorded requests.
    pub requests: usize,
    /// Request steps simulated.
    pub steps: u64,
    /// False when [`ServingOptions::max_steps`] ended a run before all its requests did.
    pub complete: bool,
    /// Replications and their seed.
    pub replications: u32,
    /// Seed used.
    pub seed: u64,
}

/// Simulates `servers` behind `balancer` under `workload`.
///
/// Requests of a model wait in one line, in the order in which they came; the other rules are those of
/// [`simulate`](crate::simulate). Every row brings the tokens that its model has not read.
///
/// # Errors
/// Systems, workloads, thresholds or options out of range, and windows in which no request ended.
pub fn simulate_serving(
    servers: &[Server],
    balancer: &Balancer,
    workload: &Workload,
    options: &ServingOptions,
) -> Result<ServingSimulation, Error> {
    workload.check()?;
    check(servers, balancer, options)?;
    let quantum = servers.iter().map(|server| server.system.quantum_ms).fold(f64::INFINITY, f64::min);
    let tick_ms = quantum / TICKS;
    if (options.warmup_ms + options.duration_ms) / tick_ms > LONGEST {
        let allowed = format!("at most {} ms with this quantum", LONGEST * tick_ms);
        return Err(Error::option("duration", format!("{} ms", options.duration_ms), allowed));
    }
    if workload.arrivals.rate_per_s().unwrap_or(0.0) * options.duration_ms / 1e3 > MOST_REQUESTS {
        let problem = format!("{} ms at this rate of arrivals", options.duration_ms);
        return Err(Error::option("duration", problem, format!("at most {MOST_REQUESTS} requests per replication")));
    }
    let rules: Vec<Rules> = servers
        .iter()
        .map(|server| {
            let system = server.system.closed(server.most)?;
            for n in 1..=server.most {
                let of_n = &server.thresholds[(n as usize).min(server.thresholds.len()) - 1];
                of_n.check(&system.with_concurrency(n)?)?;
            }
            Ok(Rules::new(&system, &server.thresholds, workload.step_tokens, tick_ms))
        })
        .collect::<Result<_, Error>>()?;
    let runs: Vec<Run> = (0..options.replications)
        .into_par_iter()
        .with_max_len(1)
        .map(|replication| {
            let mut cluster = Cluster::new(&rules, balancer, workload, options, tick_ms, replication);
            cluster.run();
            cluster.summary(options)
        })
        .collect();
    summarise(&runs, options)
}

fn check(servers: &[Server], balancer: &Balancer, options: &ServingOptions) -> Result<(), Error> {
    if servers.is_empty() || servers.len() > 1000 {
        return Err(Error::option("servers", servers.len().to_string(), "1 to 1000"));
    }
    if servers.iter().any(|server| server.thresholds.is_empty()) {
        return Err(Error::option("thresholds", "an empty table", "a vector for every active count"));
    }
    if let Balancer::Weighted(weights) = balancer
        && (weights.len() != servers.len()
            || weights.iter().any(|w| !(w.is_finite() && *w >= 0.0))
            || weights.iter().sum::<f64>() <= 0.0)
    {
        let allowed = format!("{} numbers of 0 or above, not all 0", servers.len());
        return Err(Error::option("weights", format!("{weights:?}"), allowed));
    }
    let finite = |name: &str, value: f64, least: f64| {
        if value.is_finite() && value >= least {
            Ok(())
        } else {
            Err(Error::option(name, format!("{value} ms"), format!("{least} ms or above")))
        }
    };
    finite("warm-up", options.warmup_ms, 0.0)?;
    finite("duration", options.duration_ms, 1.0)?;
    if options.replications == 0 || options.replications > 10_000 {
        return Err(Error::option("replications", options.replications.to_string(), "1 to 10000"));
    }
    if !(options.confidence > 0.0 && options.confidence < 1.0) {
        return Err(Error::option("confidence", options.confidence.to_string(), "above 0 and below 1"));
    }
    if !(options.percentile > 0.0 && options.percentile < 100.0) {
        return Err(Error::option("percentile", options.percentile.to_string(), "above 0 and below 100"));
    }
    Ok(())
}

/// Gaps between arrivals, or users who think.
enum Source {
    Open { next: f64, gap: f64, law: Option<Gamma<f64>> },
    Users { back: BinaryHeap<Reverse<u64>>, think: f64 },
}

/// Servers, balancer and source of one replication.
struct Cluster<'a> {
    machines: Vec<Machine<'a>>,
    balancer: &'a Balancer,
    source: Source,
    arrivals: Generator,
    lengths: Generator,
    choices: Generator,
    prompt: Sampler,
    output: Sampler,
    window: (u64, u64),
    tick_ms: f64,
    max_steps: u64,
    complete: bool,
    /// Arrivals from this time on are left out: infinitely late unless a test drains the servers.
    closes: u64,
    records: Records,
}

impl<'a> Cluster<'a> {
    fn new(
        rules: &'a [Rules],
        balancer: &'a Balancer,
        workload: &Workload,
        options: &ServingOptions,
        tick_ms: f64,
        replication: u32,
    ) -> Self {
        let draws = |purpose: u64| stream(options.seed, u64::from(replication) * STREAMS + purpose);
        let from = (options.warmup_ms / tick_ms).round() as u64;
        let window = (from, from + (options.duration_ms / tick_ms).round() as u64);
        let mut arrivals = draws(0);
        let source = match workload.arrivals {
            Arrivals::Poisson { rate_per_s } | Arrivals::Gamma { rate_per_s, .. } => {
                let cv = workload.arrivals.cv();
                let shape = 1.0 / (cv * cv);
                // A clock where the gaps do not vary.
                let law = if cv == 1.0 { None } else { Gamma::new(shape.min(1e9), 1.0 / shape.min(1e9)).ok() };
                let mut source = Source::Open { next: 0.0, gap: 1e3 / rate_per_s / tick_ms, law };
                source.advance(&mut arrivals);
                source
            }
            Arrivals::Users { users, think_ms } => {
                let think = think_ms / tick_ms;
                let back = (0..users).map(|_| {
                    let exponential: f64 = Exp1.sample(&mut arrivals);
                    Reverse((exponential * think) as u64)
                });
                Source::Users { back: back.collect(), think }
            }
        };
        let machines = rules.iter().enumerate();
        Self {
            machines: machines.map(|(index, rules)| Machine::new(rules, draws(8 + index as u64), window)).collect(),
            balancer,
            source,
            arrivals,
            lengths: draws(1),
            choices: draws(2),
            prompt: Sampler::new(&workload.prompt),
            output: Sampler::new(&workload.output),
            window,
            tick_ms,
            max_steps: options.max_steps,
            complete: true,
            closes: NEVER,
            records: Records::new(tick_ms, 1024),
        }
    }

    /// Runs until every recorded request has ended.
    fn run(&mut self) {
        let mut steps = 0;
        loop {
            let arrival = self.source.next().filter(|&at| at < self.closes).unwrap_or(NEVER);
            let soonest = self.machines.iter().enumerate().min_by_key(|(_, machine)| machine.next);
            let (which, end) = soonest.map_or((0, NEVER), |(index, machine)| (index, machine.next));
            let now = arrival.min(end);
            if now == NEVER || (now >= self.window.1 && self.records.open == 0) {
                break;
            }
            if end > arrival {
                self.source.advance(&mut self.arrivals);
                self.arrive(now);
                continue;
            }
            let machine = &mut self.machines[which];
            steps += 1;
            machine.step(now, &mut self.records);
            if self.records.just_ended > 0 {
                for _ in 0..std::mem::take(&mut self.records.just_ended) {
                    self.source.ended(now, &mut self.arrivals);
                }
            }
            // Looked at now and then: the bound is rough.
            if steps % 1024 == 0 && self.machines.iter().map(|machine| machine.steps).sum::<u64>() > self.max_steps {
                self.complete = false;
                break;
            }
        }
        let window = self.window;
        self.machines.iter_mut().for_each(|machine| machine.pass(window.1));
    }

    fn arrive(&mut self, now: u64) {
        let counted = now >= self.window.0 && now < self.window.1;
        self.records.open += usize::from(counted);
        let asked = Asked {
            arrived: now,
            prompt: self.prompt.draw(&mut self.lengths),
            output: self.output.draw(&mut self.lengths).max(1),
            counted,
        };
        let chosen = self.choose();
        self.machines[chosen].arrive(now, asked);
    }

    fn choose(&mut self) -> usize {
        let count = self.machines.len();
        if count == 1 {
            return 0;
        }
        let mut below = |bound: usize| {
            let draw: f64 = StandardUniform.sample(&mut self.choices);
            ((draw * bound as f64) as usize).min(bound - 1)
        };
        match self.balancer {
            Balancer::Random => below(count),
            Balancer::LeastOfTwo => {
                let first = below(count);
                let second = (first + 1 + below(count - 1)) % count;
                if self.machines[second].load() < self.machines[first].load() { second } else { first }
            }
            Balancer::LeastLoaded => {
                // From a random place on, so that equals are equally likely.
                let start = below(count);
                let order = (0..count).map(|offset| (start + offset) % count);
                order.min_by_key(|&index| self.machines[index].load()).unwrap_or(0)
            }
            Balancer::Weighted(weights) => {
                let draw: f64 = StandardUniform.sample(&mut self.choices);
                let mut left = draw * weights.iter().sum::<f64>();
                weights
                    .iter()
                    .position(|weight| {
                        left -= weight;
                        left < 0.0
                    })
                    .unwrap_or_else(|| weights.iter().rposition(|&weight| weight > 0.0).unwrap_or(0))
            }
        }
    }

    fn summary(mut self, options: &ServingOptions) -> Run {
        let ticks = (self.window.1 - self.window.0) as f64;
        let servers = self.machines.len() as f64;
        let longest = self.machines.iter().map(|machine| machine.sums.active.len()).max().unwrap_or(0);
        let mut share_of_time = vec![0.0; longest];
        let (mut active, mut queued) = (0.0, 0.0);
        for machine in &self.machines {
            for (n, &time) in machine.sums.active.iter().enumerate() {
                share_of_time[n] += time as f64 / ticks / servers;
                active += n as f64 * time as f64 / ticks / servers;
            }
            queued += machine.sums.queued as f64 / ticks / servers;
        }
        let busy = |machine: &Machine<'_>| machine.sums.busy.iter().map(|&time| time as f64 / ticks).collect();
        let seconds = ticks * self.tick_ms / 1e3;
        Run {
            requests: self.records.len(),
            rate_per_s: self.records.len() as f64 / seconds,
            tok_s: self.records.tokens as f64 / seconds,
            active,
            queued,
            share_of_time,
            utilisation: self.machines.iter().map(busy).collect(),
            steps: self.machines.iter().map(|machine| machine.steps).sum(),
            complete: self.complete,
            metrics: self.records.metrics(options.percentile),
        }
    }
}

impl Source {
    /// Time of the next arrival.
    fn next(&self) -> Option<u64> {
        match self {
            Self::Open { next, .. } => Some(*next as u64),
            Self::Users { back, .. } => back.peek().map(|Reverse(at)| *at),
        }
    }

    /// That arrival is taken.
    fn advance(&mut self, generator: &mut Generator) {
        match self {
            Self::Open { next, gap, law } => {
                let drawn: f64 = match law {
                    Some(law) => law.sample(generator),
                    None => Exp1.sample(generator),
                };
                *next += *gap * drawn;
            }
            Self::Users { back, .. } => {
                back.pop();
            }
        }
    }

    /// A request ended: its user thinks.
    fn ended(&mut self, now: u64, generator: &mut Generator) {
        if let Self::Users { back, think } = self {
            let exponential: f64 = Exp1.sample(generator);
            back.push(Reverse(now + (exponential * *think) as u64));
        }
    }
}

/// What one replication gave.
struct Run {
    requests: usize,
    rate_per_s: f64,
    tok_s: f64,
    active: f64,
    queued: f64,
    share_of_time: Vec<f64>,
    utilisation: Vec<Vec<f64>>,
    steps: u64,
    complete: bool,
    metrics: [Option<Points>; 4],
}

fn summarise(runs: &[Run], options: &ServingOptions) -> Result<ServingSimulation, Error> {
    let confidence = options.confidence;
    let estimate = |of: &dyn Fn(&Run) -> f64| interval(&runs.iter().map(of).collect::<Vec<_>>(), confidence);
    let metric = |index: usize| {
        let all: Vec<Option<Points>> = runs.iter().map(|run| run.metrics[index]).collect();
        Percentiles::over(&all, confidence)
    };
    let (Some(ttft_ms), Some(wait_ms), Some(e2e_ms)) = (metric(0), metric(2), metric(3)) else {
        let problem = format!("no request ended in {} ms", options.duration_ms);
        return Err(Error::option("duration", problem, "a time in which some requests arrive and end"));
    };
    let count = runs.len() as f64;
    let mean_of = |rows: &dyn Fn(&Run) -> Vec<f64>| {
        let mut sums = rows(&runs[0]);
        for run in &runs[1..] {
            sums.iter_mut().zip(rows(run)).for_each(|(sum, value)| *sum += value);
        }
        sums.iter_mut().for_each(|sum| *sum /= count);
        sums
    };
    let servers = runs[0].utilisation.len();
    Ok(ServingSimulation {
        ttft_ms,
        tpot_ms: metric(1),
        wait_ms,
        e2e_ms,
        rate_per_s: estimate(&|run| run.rate_per_s),
        tok_s: estimate(&|run| run.tok_s),
        active: estimate(&|run| run.active),
        queued: estimate(&|run| run.queued),
        share_of_time: mean_of(&|run| run.share_of_time.clone()),
        utilisation: (0..servers).map(|server| mean_of(&|run| run.utilisation[server].clone())).collect(),
        requests: runs.iter().map(|run| run.requests).sum(),
        steps: runs.iter().map(|run| run.steps).sum(),
        complete: runs.iter().all(|run| run.complete),
        replications: options.replications,
        seed: options.seed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From empty to empty, the area under the number of requests is the sum of their times in the system, to the tick.
    #[test]
    fn littles_law_holds_exactly() {
        let routing = vec![vec![0.35, 0.65], vec![1.0, 0.0]];
        let system = System { commits: Some(vec![vec![1.0, 0.0]; 2]), ..System::new([6.0, 27.9], routing) };
        let closed = system.closed(4).expect("valid");
        let tick_ms = system.quantum_ms / TICKS;
        let rules = [Rules::new(&closed, &[Thresholds::new([1, 1]), Thresholds::new([1, 2])], 64, tick_ms)];
        let mut workload = Workload::new(4.0, 30.0);
        workload.prompt = crate::serving::Lengths::Fixed(100.0);
        let options = ServingOptions { warmup_ms: 0.0, duration_ms: 400_000.0, ..ServingOptions::default() };
        for seed in 0..5 {
            let options = ServingOptions { seed, ..options.clone() };
            let mut cluster = Cluster::new(&rules, &Balancer::Random, &workload, &options, tick_ms, 0);
            cluster.closes = (100_000.0 / tick_ms) as u64;
            cluster.run();
            let machine = &cluster.machines[0];
            assert_eq!((machine.load(), cluster.records.open), (0, 0));
            assert!(cluster.records.len() > 300);
            let active: u128 = machine.sums.active.iter().enumerate().map(|(n, &t)| n as u128 * u128::from(t)).sum();
            assert_eq!(active + machine.sums.queued, cluster.records.sojourn, "seed {seed}");
        }
    }
}
