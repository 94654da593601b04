//! Laws of token counts: of prompts and of outputs.

use crate::Error;
use crate::random::Generator;
use rand_distr::{Distribution, Exp1, Gamma, StandardUniform};
use serde::Serialize;

/// Largest mean, and largest count of a histogram.
const MOST_TOKENS: f64 = 1e7;
/// Largest coefficient of variation.
const MOST_CV: f64 = 20.0;

/// Law of a number of tokens.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Lengths {
    /// Always the same; a fraction is drawn between its two neighbours.
    Fixed(f64),
    /// Geometric on 1, 2, ... with this mean, 1 or above.
    Geometric(f64),
    /// Gamma with this mean and coefficient of variation, rounded at random so that the mean is kept; at least 1.
    Gamma {
        /// The mean, 1 or above.
        mean: f64,
        /// Standard deviation over mean.
        cv: f64,
    },
    /// Counts with their weights: a run's own histogram.
    Histogram(Vec<(u32, f64)>),
}

impl Lengths {
    /// The law that a mean and a coefficient of variation stand for: 0 is [`Lengths::Fixed`], 1 is [`Lengths::Geometric`].
    #[must_use]
    pub fn with_cv(mean: f64, cv: f64) -> Self {
        match cv {
            0.0 => Self::Fixed(mean),
            1.0 => Self::Geometric(mean),
            cv => Self::Gamma { mean, cv },
        }
    }

    /// Mean number of tokens.
    #[must_use]
    pub fn mean(&self) -> f64 {
        match self {
            Self::Fixed(mean) | Self::Geometric(mean) | Self::Gamma { mean, .. } => *mean,
            Self::Histogram(rows) => moment(rows, 1) / moment(rows, 0),
        }
    }

    /// Coefficient of variation. A geometric law counts as 1, the value of the exponential law that it stands for.
    #[must_use]
    pub fn cv(&self) -> f64 {
        match self {
            Self::Fixed(_) => 0.0,
            Self::Geometric(_) => 1.0,
            Self::Gamma { cv, .. } => *cv,
            Self::Histogram(rows) => {
                let (weight, mean) = (moment(rows, 0), self.mean());
                if mean > 0.0 { ((moment(rows, 2) / weight - mean * mean).max(0.0)).sqrt() / mean } else { 0.0 }
            }
        }
    }

    /// Checks numbers; `least` is the smallest count that is allowed.
    pub(super) fn check(&self, name: &str, least: f64) -> Result<(), Error> {
        let mean = |mean: f64, least: f64| {
            if (least..=MOST_TOKENS).contains(&mean) {
                return Ok(());
            }
            Err(Error::option(name, format!("{mean} tokens"), format!("{least} to {MOST_TOKENS} tokens on average")))
        };
        match self {
            Self::Fixed(value) => mean(*value, least),
            Self::Geometric(value) => mean(*value, 1.0),
            Self::Gamma { mean: value, cv } => {
                mean(*value, 1.0)?;
                if (0.0..=MOST_CV).contains(cv) {
                    return Ok(());
                }
                let problem = format!("a coefficient of variation of {cv}");
                Err(Error::option(name, problem, format!("0 (always the same) to {MOST_CV}; 1 is geometric")))
            }
            Self::Histogram(rows) => {
                let allowed = format!("counts from {least} to {MOST_TOKENS} with weights of 0 or above, not all 0");
                if let Some(&(tokens, weight)) = rows.iter().find(|&&(tokens, weight)| {
                    !((least..=MOST_TOKENS).contains(&f64::from(tokens)) && weight.is_finite() && weight >= 0.0)
                }) {
                    return Err(Error::option(name, format!("{tokens} tokens with weight {weight}"), allowed));
                }
                if moment(rows, 0) > 0.0 {
                    return Ok(());
                }
                Err(Error::option(name, "a histogram without weight", allowed))
            }
        }
    }
}

fn moment(rows: &[(u32, f64)], power: i32) -> f64 {
    rows.iter().map(|&(tokens, weight)| weight * f64::from(tokens).powi(power)).sum()
}

/// A law ready to be drawn from.
pub(super) enum Sampler {
    Fixed(f64),
    Geometric { log_stay: f64 },
    Gamma { law: Gamma<f64> },
    Histogram { counts: Vec<u32>, cumulative: Vec<f64> },
}

impl Sampler {
    pub(super) fn new(law: &Lengths) -> Self {
        match law {
            Lengths::Fixed(mean) => Self::Fixed(*mean),
            Lengths::Geometric(mean) => Self::Geometric { log_stay: (-1.0 / mean).ln_1p() },
            Lengths::Gamma { mean, cv } => {
                // One token is always there: the rest has the mean and the deviation that are left.
                let (rest, deviation) = (mean - 1.0, cv * mean);
                let shape = (rest / deviation).powi(2);
                match Gamma::new(shape, deviation * deviation / rest) {
                    Ok(law) => Self::Gamma { law },
                    Err(_) => Self::Fixed(*mean),
                }
            }
            Lengths::Histogram(rows) => {
                let mut sum = 0.0;
                let cumulative = rows.iter().map(|&(_, weight)| {
                    sum += weight;
                    sum
                });
                let cumulative = cumulative.collect();
                Self::Histogram { counts: rows.iter().map(|&(tokens, _)| tokens).collect(), cumulative }
            }
        }
    }

    /// A number of tokens.
    pub(super) fn draw(&self, generator: &mut Generator) -> u32 {
        let mut rounded = |value: f64| {
            let up: f64 = StandardUniform.sample(generator);
            (value.floor() + f64::from(u8::from(up < value.fract()))) as u32
        };
        match self {
            Self::Fixed(mean) if mean.fract() == 0.0 => *mean as u32,
            Self::Fixed(mean) => rounded(*mean),
            Self::Geometric { log_stay } => {
                let exponential: f64 = Exp1.sample(generator);
                1 + (exponential / -log_stay).min(1e9) as u32
            }
            Self::Gamma { law } => {
                let value = law.sample(generator).min(1e9);
                let up: f64 = StandardUniform.sample(generator);
                1 + (value.floor() + f64::from(u8::from(up < value.fract()))) as u32
            }
            Self::Histogram { counts, cumulative } => {
                let total = cumulative.last().copied().unwrap_or(0.0);
                let draw: f64 = StandardUniform.sample(generator);
                let at = cumulative.partition_point(|&sum| sum <= draw * total);
                counts[at.min(counts.len() - 1)]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::stream;

    #[test]
    fn draws_have_their_mean_and_variation() {
        let histogram = Lengths::Histogram(vec![(3, 1.0), (10, 2.0), (40, 1.0)]);
        for law in [
            Lengths::Fixed(17.0),
            Lengths::Fixed(4.25),
            Lengths::Geometric(30.0),
            Lengths::Geometric(1.0),
            Lengths::with_cv(50.0, 0.4),
            Lengths::with_cv(50.0, 2.0),
            histogram,
        ] {
            let (sampler, mut generator) = (Sampler::new(&law), stream(11, 0));
            let draws: Vec<f64> = (0..200_000).map(|_| f64::from(sampler.draw(&mut generator))).collect();
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            let variance = draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / draws.len() as f64;
            let error = variance.sqrt() / (draws.len() as f64).sqrt();
            assert!((mean - law.mean()).abs() <= 5.0 * error + 1e-12, "{law:?}: {mean}");
            let expected = match &law {
                Lengths::Geometric(mean) => (1.0 - 1.0 / mean).sqrt(),
                // A fraction is drawn between its neighbours.
                Lengths::Fixed(mean) => (mean.fract() * (1.0 - mean.fract())).sqrt() / mean,
                law => law.cv(),
            };
            assert!((variance.sqrt() / mean - expected).abs() < 0.03 * expected + 1e-9, "{law:?}");
        }
    }
}
