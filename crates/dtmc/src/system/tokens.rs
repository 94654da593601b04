//! What a step pays for tokens beyond one a row, and how many tokens rows bring.
//!
//! A request that comes back to a model brings every token that was committed since its last step there. Their number per
//! row follows from `P` and `C` alone; rows of a batch are taken as independent of each other.

use super::Latency;
use crate::Error;
use serde::{Deserialize, Serialize};

/// Largest [`TokenCost::free_tokens`].
const MAX_FREE: u32 = 4096;
/// Largest cost of a token, in milliseconds.
const MAX_MS: f64 = 1e6;
/// Mass of excursions that is no longer followed.
const LEFT: f64 = 1e-13;
/// Most steps of an excursion that are followed.
const LONGEST: usize = 20_000;

/// Cost of the tokens of a step beyond one a row: a step with `rows` requests that bring `tokens >= rows` tokens takes
/// `latency(rows) + ms_per_token * max(0, tokens - max(rows, free_tokens))` milliseconds.
///
/// With `latency(rows) = base + per_row * rows + per_token * max(0, rows - free)` this is
/// `base + per_row * rows + per_token * max(0, tokens - free)`.
///
/// ```
/// use tokenrouter_dtmc::{System, TokenCost};
/// // Borrowing one token of the large model in ten steps: a request that comes to it brings ten tokens on average.
/// let routing = vec![vec![0.9, 0.1], vec![1.0, 0.0]];
/// let cost = TokenCost { ms_per_token: 1.0, free_tokens: 0 };
/// let system = System {
///     commits: Some(vec![vec![1.0, 0.0]; 2]),
///     token_costs: Some(vec![cost; 2]),
///     ..System::new([6.0, 27.9], routing)
/// };
/// let system = system.closed(1)?;
/// assert!((system.step_ms(1, 1).unwrap() - (27.9 + 9.0)).abs() < 1e-9);
/// # Ok::<(), tokenrouter_dtmc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenCost {
    /// Milliseconds of a further token, 0 or above.
    pub ms_per_token: f64,
    /// Tokens of a step that cost nothing beyond its rows.
    #[serde(default)]
    pub free_tokens: u32,
}

impl TokenCost {
    /// Token counts that have to be told apart: those up to the free ones.
    pub(crate) const fn cells(&self) -> usize {
        self.free_tokens as usize + 2
    }

    /// Milliseconds beyond the latency of a step whose `rows` requests bring `tokens` tokens.
    #[must_use]
    pub fn extra_ms(&self, rows: u32, tokens: f64) -> f64 {
        self.ms_per_token * (tokens - f64::from(rows.max(self.free_tokens))).max(0.0)
    }

    /// `latency` with the mean cost of further tokens added, by batch size up to `largest` or the end of the table.
    pub(crate) fn added(&self, latency: &Latency, rows: &RowTokens, largest: u32) -> Latency {
        let free = self.free_tokens as usize;
        let mut sum = vec![0.0; free + 1];
        sum[0] = 1.0;
        let mut points = Vec::with_capacity(largest as usize);
        for batch in 1..=largest {
            let Some(ms) = latency.at(batch) else { break };
            let mean = f64::from(batch) * rows.mean;
            // E max(0, T - a) = E T - a + E max(0, a - T): only counts below `a` matter, and T is at least the batch.
            let most = free.max(batch as usize);
            let short: f64 = if free > batch as usize {
                sum = convolved(&sum, &rows.shares);
                sum.iter().enumerate().map(|(tokens, share)| share * (most - tokens) as f64).sum()
            } else {
                0.0
            };
            points.push((batch, ms + self.ms_per_token * (mean - most as f64 + short).max(0.0)));
        }
        Latency::Table(points)
    }
}

/// The sum of a count with one row's tokens, up to the length of `sum`; what is larger is cut off.
fn convolved(sum: &[f64], row: &[f64]) -> Vec<f64> {
    let mut next = vec![0.0; sum.len()];
    for (before, &share) in sum.iter().enumerate().filter(|&(_, &share)| share > 0.0) {
        for (&more, slot) in row.iter().zip(next[before..].iter_mut()) {
            *slot += share * more;
        }
    }
    next
}

/// How many tokens a row of a step brings, at least 1.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RowTokens {
    /// Share of rows with so many tokens; the last entry has all that bring more.
    pub(crate) shares: Vec<f64>,
    /// The mean.
    pub(crate) mean: f64,
}

impl RowTokens {
    /// A mixture: the share `part` of rows brings `tokens` tokens, the others are as here.
    pub(crate) fn mixed(mut self, part: f64, tokens: f64) -> Self {
        self.shares.iter_mut().for_each(|share| *share *= 1.0 - part);
        let last = self.shares.len() - 1;
        self.shares[(tokens.round() as usize).min(last)] += part;
        self.mean = (1.0 - part) * self.mean + part * tokens;
        self
    }
}

/// Tokens of a row of `model` in the long run: those committed since the request's step there before, at least one (a
/// dropped candidate's position is computed again). The last of `cells` counts holds all that are larger.
pub(crate) fn row_tokens(
    routing: &[Vec<f64>],
    commits: &[Vec<f64>],
    state_models: &[usize],
    model: usize,
    cells: usize,
) -> RowTokens {
    let states = routing.len();
    let frequency = step_shares(routing);
    let here: f64 = (0..states).filter(|&s| state_models[s] == model).map(|s| frequency[s]).sum();
    let mut shares = vec![0.0; cells.max(2)];
    if here <= 0.0 {
        shares[1] = 1.0;
        return RowTokens { shares, mean: 1.0 };
    }
    // at[s][d]: mass of requests in state s with d tokens since their last step at the model.
    let last = shares.len() - 1;
    let mut at = vec![vec![0.0; last + 1]; states];
    let mut next = at.clone();
    for state in (0..states).filter(|&s| state_models[s] == model) {
        at[state][0] = frequency[state] / here;
    }
    for _ in 0..LONGEST {
        next.iter_mut().for_each(|row| row.fill(0.0));
        for from in 0..states {
            for (to, &p) in routing[from].iter().enumerate().filter(|&(_, &p)| p > 0.0) {
                let (whole, part) = (commits[from][to].floor(), commits[from][to].fract());
                let target = if state_models[to] == model { &mut shares } else { &mut next[to] };
                for (tokens, &mass) in at[from].iter().enumerate().filter(|&(_, &mass)| mass > 0.0) {
                    let sum = tokens.saturating_add(whole as usize);
                    target[sum.min(last)] += mass * p * (1.0 - part);
                    target[(sum + 1).min(last)] += mass * p * part;
                }
            }
        }
        std::mem::swap(&mut at, &mut next);
        if at.iter().flatten().sum::<f64>() < LEFT {
            break;
        }
    }
    let tokens: f64 =
        (0..states).map(|s| frequency[s] * routing[s].iter().zip(&commits[s]).map(|(p, c)| p * c).sum::<f64>()).sum();
    let again = std::mem::take(&mut shares[0]);
    shares[1] += again;
    RowTokens { shares, mean: (tokens / here + again).max(1.0) }
}

/// Long-run shares of the steps over routing states, from state 0.
pub(crate) fn step_shares(routing: &[Vec<f64>]) -> Vec<f64> {
    let states = routing.len();
    // Staying put with probability 1/2 removes periods and moves no share.
    let mut at = vec![0.0; states];
    at[0] = 1.0;
    for _ in 0..LONGEST {
        let mut next: Vec<f64> = at.iter().map(|mass| 0.5 * mass).collect();
        for (row, &mass) in routing.iter().zip(&at).filter(|&(_, &mass)| mass > 0.0) {
            row.iter().zip(next.iter_mut()).for_each(|(p, slot)| *slot += 0.5 * mass * p);
        }
        let moved: f64 = next.iter().zip(&at).map(|(a, b)| (a - b).abs()).sum();
        at = next;
        if moved < LEFT {
            break;
        }
    }
    at
}

/// Checks shapes and numbers.
pub(super) fn check(costs: Option<&[TokenCost]>, models: usize) -> Result<(), Error> {
    let Some(costs) = costs else { return Ok(()) };
    if costs.len() != models {
        let problem = format!("{} values for {models} models", costs.len());
        return Err(Error::system("token costs", problem, format!("{models} values")));
    }
    for (model, cost) in costs.iter().enumerate() {
        if !(0.0..=MAX_MS).contains(&cost.ms_per_token) {
            let place = format!("cost of a further token at model {model}");
            return Err(Error::system(place, format!("{} ms", cost.ms_per_token), format!("0 to {MAX_MS} ms")));
        }
        if cost.free_tokens > MAX_FREE {
            let place = format!("free tokens of model {model}");
            return Err(Error::system(place, cost.free_tokens.to_string(), format!("0 to {MAX_FREE}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Borrowing: between two steps of the large model lie as many tokens as a geometric law says.
    #[test]
    fn tokens_of_a_row_are_geometric_under_borrowing() {
        let p = 0.2;
        let rows = row_tokens(&[vec![1.0 - p, p], vec![1.0, 0.0]], &[vec![1.0, 0.0], vec![1.0, 0.0]], &[0, 1], 1, 40);
        assert!((rows.mean - 1.0 / p).abs() < 1e-9, "{}", rows.mean);
        for (tokens, share) in rows.shares.iter().enumerate().take(39).skip(1) {
            assert!((share - p * (1.0 - p).powi(tokens as i32 - 1)).abs() < 1e-12, "{tokens}: {share}");
        }
        assert!((rows.shares.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        let small = row_tokens(&[vec![1.0 - p, p], vec![1.0, 0.0]], &[vec![1.0, 0.0], vec![1.0, 0.0]], &[0, 1], 0, 4);
        assert!((small.mean - 1.0).abs() < 1e-12);
        assert!((small.shares[1] - 1.0).abs() < 1e-12);
    }

    /// With free tokens, against the sum over all pairs of counts.
    #[test]
    fn free_tokens_are_taken_off_batch_by_batch() {
        let shares = vec![0.0, 0.5, 0.3, 0.2];
        let rows = RowTokens { mean: 0.5 + 0.6 + 0.6, shares: shares.clone() };
        let cost = TokenCost { ms_per_token: 2.0, free_tokens: 4 };
        let table = cost.added(&Latency::Constant(10.0), &rows, 2);
        let mut expected = 10.0;
        for (a, x) in shares.iter().enumerate() {
            for (b, y) in shares.iter().enumerate() {
                expected += x * y * cost.extra_ms(2, (a + b) as f64);
            }
        }
        assert!((table.at(2).expect("there") - expected).abs() < 1e-12);
        assert!((table.at(1).expect("there") - 10.0).abs() < 1e-12);
    }
}
