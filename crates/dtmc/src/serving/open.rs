//! From `X(n)` and arrivals to how long requests take: the formula.

use super::balance::{Balancer, balanced};
use super::queue::BirthDeath;
use super::rates::Rates;
use super::workload::{Arrivals, Workload};
use crate::Error;
use serde::Serialize;

/// What one of several equal servers does under a load, by formula.
///
/// The number of requests moves slowly compared with steps, so that it is nearly a birth-death process that ends requests at
/// the rate `X(n) / m`, `m` tokens each. Active requests share the server, and the law of their lengths hardly matters there;
/// the wait of those in the queue is multiplied by half of one plus the square of the coefficient of variation (Allen and
/// Cunneen), of arrivals and of work.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OpenLoop {
    /// Requests per second that come to this server, and end.
    pub rate_per_s: f64,
    /// That over the rate from which on the queue grows without bound.
    pub load: f64,
    /// Mean number of active requests.
    pub active: f64,
    /// Mean number of waiting requests.
    pub queued: f64,
    /// Share of time with `n = 0..=N` active requests.
    pub share_of_time: Vec<f64>,
    /// Share of time in which each model runs.
    pub utilisation: Vec<f64>,
    /// Share of requests that wait.
    pub waiting_share: f64,
    /// Mean milliseconds from arrival to admission.
    pub wait_ms: f64,
    /// Mean milliseconds from arrival to the first token.
    pub ttft_ms: f64,
    /// Mean milliseconds between two tokens of a request after the first; `None` for answers of one token.
    pub tpot_ms: Option<f64>,
    /// Mean milliseconds from arrival to the end.
    pub e2e_ms: f64,
}

impl OpenLoop {
    /// The formula for `servers` equal servers behind a balancer, under the arrivals of `workload` together; `rates` is that
    /// of its prompts and outputs.
    ///
    /// # Errors
    /// Arrivals at which the queue grows without bound, or that are not allowed.
    pub fn new(rates: &Rates, workload: &Workload, servers: u32, balancer: &Balancer) -> Result<Self, Error> {
        workload.check()?;
        let queue = balanced(&workload.arrivals, servers, balancer, &rates.deaths())?;
        Ok(Self::from_queue(rates, workload, &queue))
    }

    fn from_queue(rates: &Rates, workload: &Workload, queue: &BirthDeath) -> Self {
        let correction = 0.5 * (workload.arrivals.cv().powi(2) + rates.work_cv(workload).powi(2));
        // With few users the queue is bounded, and the correction for an open one would be too much.
        let correction = if matches!(workload.arrivals, Arrivals::Users { .. }) { 1.0 } else { correction };
        let wait_ms = queue.wait_ms() * correction;
        // An arrival waits for the entry model's step that runs: half of it.
        let found = |n: usize| queue.found_shares.get(n).copied().unwrap_or(0.0);
        let most = rates.rows.len();
        let entry = rates.entry();
        let join_ms: f64 = (1..most)
            .map(|n| {
                let row = &rates.rows[n - 1];
                found(n) * row.measures.models[entry].utilisation * 0.5 * row.running_ms(entry)
            })
            .sum();
        let joining: f64 = (0..=most).map(|n| found(n) * rates.first_ms((n as u32 + 1).min(most as u32))).sum();
        let active_ms = queue.active_ms();
        // No more than the whole: with one token there is nothing after the first.
        let first_ms = joining.min(active_ms);
        let rest = workload.output.mean() - 1.0;
        let by_row = |value: &dyn Fn(usize) -> f64| -> f64 {
            queue.active_shares.iter().enumerate().skip(1).map(|(n, p)| p * value(n - 1)).sum()
        };
        let models = rates.token_shares().len();
        Self {
            rate_per_s: queue.throughput_per_s,
            load: queue.throughput_per_s / rates.max_rate_per_s(),
            active: queue.active,
            queued: wait_ms * queue.throughput_per_s / 1e3,
            share_of_time: queue.active_shares.clone(),
            utilisation: (0..models)
                .map(|model| by_row(&|row| rates.rows[row].measures.models[model].utilisation))
                .collect(),
            waiting_share: queue.waiting_share,
            wait_ms,
            ttft_ms: wait_ms + join_ms + first_ms,
            tpot_ms: (rest > 1e-9).then(|| (active_ms - first_ms) / rest),
            e2e_ms: wait_ms + join_ms + active_ms,
        }
    }
}
