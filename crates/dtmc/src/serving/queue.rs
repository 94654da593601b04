//! The number of requests in a server as a birth-death process.

use crate::Error;
use serde::Serialize;

/// Arrivals into a birth-death process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Births {
    /// Poisson, requests per second.
    Open(f64),
    /// A number of sources, each of which sends a request after an exponential time of mean `think_s` seconds.
    Sources {
        /// How many.
        count: u32,
        /// Mean seconds from an end to the next arrival of the same source, above 0.
        think_s: f64,
    },
}

/// Stationary law of a birth-death process whose death rate stops rising at `N` requests: those beyond wait.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BirthDeath {
    /// Probability of `n = 0..=N` active requests; the last has all states in which requests wait.
    pub active_shares: Vec<f64>,
    /// Requests per second that come, and end.
    pub throughput_per_s: f64,
    /// Mean number of active requests.
    pub active: f64,
    /// Mean number of waiting requests.
    pub queued: f64,
    /// Share of arrivals that have to wait.
    pub waiting_share: f64,
    /// Probability of `n = 0..=N` active requests as an arrival finds them.
    pub found_shares: Vec<f64>,
}

impl BirthDeath {
    /// `deaths[n - 1]`: requests per second that end with `n` active ones, `n = 1..=N`.
    ///
    /// M/M/1 is `deaths = [mu]`, M/M/c has `deaths[n - 1] = n mu`.
    ///
    /// ```
    /// use tokenrouter_dtmc::serving::{BirthDeath, Births};
    /// let queue = BirthDeath::new(Births::Open(0.5), &[1.0])?;
    /// assert!((queue.active + queue.queued - 1.0).abs() < 1e-12);
    /// # Ok::<(), tokenrouter_dtmc::Error>(())
    /// ```
    ///
    /// # Errors
    /// Rates that are not above 0, and open arrivals at the last death rate or above: the queue grows without bound.
    pub fn new(births: Births, deaths: &[f64]) -> Result<Self, Error> {
        let last = deaths.last().copied().unwrap_or(0.0);
        if let Some(bad) = deaths.iter().find(|&&rate| !(rate.is_finite() && rate > 0.0)).copied() {
            return Err(Error::option("death rate", format!("{bad} per second"), "finite numbers above 0"));
        }
        match births {
            _ if deaths.is_empty() => Err(Error::option("death rates", "none", "at least one")),
            Births::Open(rate) if !(rate > 0.0 && rate < last) => {
                let allowed = format!("above 0 and below {last:.6} requests per second, what the server can end");
                Err(Error::option("rate", format!("{rate} requests per second"), allowed))
            }
            Births::Open(rate) => Ok(Self::open(rate, deaths)),
            Births::Sources { count, think_s } if count > 0 && think_s > 0.0 && think_s.is_finite() => {
                Ok(Self::sources(count, think_s, deaths))
            }
            Births::Sources { count, think_s } => {
                let problem = format!("{count} sources with {think_s} s between requests");
                Err(Error::option("sources", problem, "1 or more, and a finite time above 0"))
            }
        }
    }

    fn open(rate: f64, deaths: &[f64]) -> Self {
        let most = deaths.len();
        let mut weights = vec![1.0];
        for &death in deaths {
            let next = weights[weights.len() - 1] * rate / death;
            weights.push(next);
            rescale(&mut weights);
        }
        // From N on the weights fall by the same factor each.
        let ratio = rate / deaths[most - 1];
        let at_most = weights[most];
        weights[most] = at_most / (1.0 - ratio);
        let total: f64 = weights.iter().sum();
        let queued = at_most * ratio / (1.0 - ratio).powi(2) / total;
        let active_shares: Vec<f64> = weights.iter().map(|weight| weight / total).collect();
        Self {
            throughput_per_s: rate,
            active: mean(&active_shares),
            queued,
            waiting_share: active_shares[most],
            found_shares: active_shares.clone(),
            active_shares,
        }
    }

    fn sources(count: u32, think_s: f64, deaths: &[f64]) -> Self {
        let most = deaths.len().min(count as usize);
        let law = |count: u32| {
            let mut weights = vec![1.0];
            for n in 0..count {
                let birth = f64::from(count - n) / think_s;
                let death = deaths[(n as usize).min(deaths.len() - 1)];
                let next = weights[n as usize] * birth / death;
                weights.push(next);
                rescale(&mut weights);
            }
            let total: f64 = weights.iter().sum();
            weights.into_iter().map(move |weight| weight / total).collect::<Vec<f64>>()
        };
        let folded = |law: &[f64]| {
            let mut shares = vec![0.0; deaths.len() + 1];
            law.iter().enumerate().for_each(|(n, p)| shares[n.min(deaths.len())] += p);
            shares
        };
        let all = law(count);
        let in_system: f64 = mean(&all);
        let queued: f64 = all.iter().enumerate().skip(most + 1).map(|(n, p)| (n - most) as f64 * p).sum();
        // An arrival finds what the others would leave without it.
        let found_shares = folded(&law(count - 1));
        let active_shares = folded(&all);
        Self {
            throughput_per_s: (f64::from(count) - in_system) / think_s,
            active: mean(&active_shares),
            queued,
            waiting_share: if count as usize > deaths.len() { found_shares[deaths.len()] } else { 0.0 },
            found_shares,
            active_shares,
        }
    }

    /// Mean milliseconds from arrival to admission, by Little's law.
    #[must_use]
    pub fn wait_ms(&self) -> f64 {
        1e3 * self.queued / self.throughput_per_s
    }

    /// Mean milliseconds from admission to end, by Little's law.
    #[must_use]
    pub fn active_ms(&self) -> f64 {
        1e3 * self.active / self.throughput_per_s
    }
}

/// Keeps weights within range: only their ratios matter.
fn rescale(weights: &mut [f64]) {
    if weights.last().is_some_and(|&last| last > 1e200) {
        weights.iter_mut().for_each(|weight| *weight *= 1e-200);
    }
}

fn mean(shares: &[f64]) -> f64 {
    shares.iter().enumerate().map(|(n, p)| n as f64 * p).sum()
}
