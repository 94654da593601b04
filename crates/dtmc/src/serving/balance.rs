//! Several equal servers behind a balancer, each as a birth-death process coupled to the others by the rule.

use super::queue::{BirthDeath, Births};
use super::workload::Arrivals;
use crate::Error;
use serde::Serialize;

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balancer {
    /// Any server, all equally likely.
    Random,
    /// The one with fewer requests of two drawn at random.
    LeastOfTwo,
    /// The one with the fewest requests of all.
    LeastLoaded,
    /// Server `i` with a probability in proportion to entry `i`: routing of whole requests.
    Weighted(Vec<f64>),
}

/// Bisections of a fixed point: every one adds a bit.
const HALVINGS: usize = 200;
/// Most servers behind a balancer.
const MOST_SERVERS: u32 = 10_000;
/// Logarithm of the smallest share of servers that is told from 0.
const SMALLEST: f64 = -500.0;
/// Longest queue of a server that is told apart, beyond those that are active.
const LONGEST: usize = 4000;

/// The law of one of `servers` equal servers whose `deaths[n - 1]` requests per second end with `n` active ones, under all
/// arrivals together.
///
/// - random: the server alone with its share of the arrivals, exact;
/// - least of two: the mean-field equations, exact for many servers;
/// - least loaded: all servers pooled, their requests spread evenly, which they nearly are.
///
/// # Errors
/// As [`BirthDeath::new`]; [`Balancer::Weighted`], which is for unequal servers.
pub fn balanced(arrivals: &Arrivals, servers: u32, balancer: &Balancer, deaths: &[f64]) -> Result<BirthDeath, Error> {
    if servers == 0 || servers > MOST_SERVERS {
        return Err(Error::option("replicas", servers.to_string(), format!("1 to {MOST_SERVERS}")));
    }
    let births = |share: f64| match arrivals.part(share) {
        Arrivals::Poisson { rate_per_s } | Arrivals::Gamma { rate_per_s, .. } => Births::Open(rate_per_s),
        Arrivals::Users { users, think_ms } => {
            // A think time of 0 is a closed system, whose arrivals follow the ends at once.
            Births::Sources { count: users, think_s: (1e-3 * think_ms).max(1e-9) }
        }
    };
    match balancer {
        _ if servers == 1 => BirthDeath::new(births(1.0), deaths),
        Balancer::Random => BirthDeath::new(births(1.0 / f64::from(servers)), deaths),
        Balancer::LeastLoaded => pooled(births(1.0), servers as usize, deaths),
        Balancer::LeastOfTwo => match births(1.0 / f64::from(servers)) {
            Births::Open(rate) => least_of_two(rate, deaths),
            Births::Sources { count, think_s } => least_of_two_sources(count, think_s, deaths),
        },
        Balancer::Weighted(_) => {
            Err(Error::option("balancer", "weights", "random, least of two or least loaded for equal servers"))
        }
    }
}

/// All servers as one, with their requests spread evenly.
fn pooled(births: Births, servers: usize, deaths: &[f64]) -> Result<BirthDeath, Error> {
    let most = deaths.len();
    let rate = |active: usize| if active == 0 { 0.0 } else { deaths[active - 1] };
    let spread = |total: usize| (total / servers, total % servers);
    let all: Vec<f64> = (1..=servers * most)
        .map(|total| {
            let (each, more) = spread(total);
            (servers - more) as f64 * rate(each) + if more > 0 { more as f64 * rate(each + 1) } else { 0.0 }
        })
        .collect();
    let law = BirthDeath::new(births, &all)?;
    let of_one = |shares: &[f64], arriving: bool| {
        let mut one = vec![0.0; most + 1];
        for (total, p) in shares.iter().enumerate() {
            let (each, more) = spread(total);
            let fuller = if arriving { 0.0 } else { more as f64 / servers as f64 };
            one[each] += p * (1.0 - fuller);
            one[(each + 1).min(most)] += p * fuller;
        }
        one
    };
    let part = 1.0 / servers as f64;
    Ok(BirthDeath {
        active_shares: of_one(&law.active_shares, false),
        throughput_per_s: law.throughput_per_s * part,
        active: law.active * part,
        queued: law.queued * part,
        waiting_share: law.waiting_share,
        found_shares: of_one(&law.found_shares, true),
    })
}

/// Mean-field equations of the least of two. With `s_k` the share of servers with `k` requests or more, the flow up into
/// `k` is that down: `rate (s_{k-1}^2 - s_k^2) = mu_k (s_k - s_{k+1})`. Summed from `k` on, `rate s_{k-1}^2` is all that ends
/// in servers with `k` or more; where the death rate no longer rises this is `s_k = rho s_{k-1}^2`, and below it gives
/// `s_{k-1}` from the ones above. The start `s_{N-1}` is found so that `s_0 = 1`.
fn least_of_two(rate: f64, deaths: &[f64]) -> Result<BirthDeath, Error> {
    // The same bounds as those of one server alone.
    BirthDeath::new(Births::Open(rate), deaths)?;
    let most = deaths.len();
    // At low loads the shares at N - 1 are too small for a number: the start is then the largest level where they are not, and
    // those above follow from the first of their terms, which is all of them but for a part that is as small.
    let tails = |level: usize, start: f64| {
        let mut tails = vec![0.0; level];
        tails.push(start);
        while tails.len() < level + LONGEST && tails[tails.len() - 1] > 0.0 {
            let last = tails[tails.len() - 1];
            tails.push(rate / deaths[tails.len().min(most) - 1] * last * last);
        }
        tails.push(0.0);
        let ended = |k: usize, tails: &[f64]| deaths[k.min(most) - 1] * (tails[k] - tails[k + 1]);
        let mut ends: f64 = (level + 1..tails.len() - 1).map(|k| ended(k, &tails)).sum();
        for k in (1..=level).rev() {
            ends += ended(k, &tails);
            tails[k - 1] = (ends / rate).max(0.0).sqrt();
        }
        tails
    };
    let level = (1..most).rev().find(|&level| tails(level, SMALLEST.exp())[0] <= 1.0).unwrap_or(0);
    let (mut low, mut high) = (if level == 0 { 0.0 } else { SMALLEST }, 0.0);
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        if tails(level, middle.exp())[0] > 1.0 {
            high = middle;
        } else {
            low = middle;
        }
    }
    let mut tails = tails(level, low.exp());
    tails[0] = 1.0;
    let folded = |power: i32| {
        let mut shares = vec![0.0; most + 1];
        for (k, pair) in tails.windows(2).enumerate() {
            shares[k.min(most)] += pair[0].powi(power) - pair[1].powi(power);
        }
        shares
    };
    let (active_shares, found_shares) = (folded(1), folded(2));
    Ok(BirthDeath {
        throughput_per_s: rate,
        active: active_shares.iter().enumerate().map(|(n, p)| n as f64 * p).sum(),
        queued: tails.iter().skip(most + 1).sum(),
        waiting_share: found_shares[most],
        active_shares,
        found_shares,
    })
}

/// The same with users: the rate at which they come is that at which those who think do.
fn least_of_two_sources(count: u32, think_s: f64, deaths: &[f64]) -> Result<BirthDeath, Error> {
    let limit = deaths[deaths.len() - 1] * (1.0 - 1e-9);
    let most = (f64::from(count) / think_s).min(limit);
    let (mut low, mut high) = (0.0, most);
    for _ in 0..60 {
        let rate = 0.5 * (low + high);
        let law = least_of_two(rate, deaths)?;
        let thinking = (f64::from(count) - law.active - law.queued) / think_s;
        if thinking > rate { low = rate } else { high = rate }
    }
    least_of_two(0.5 * (low + high), deaths)
}
