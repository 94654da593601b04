//! When the sessions of an open loop arrive.

use std::time::Duration;

use statrs::distribution::{ContinuousCDF, Gamma};
use tokenrouter_core::keyed::{Purpose, draw_unit};

/// The distribution of the gaps between arrivals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// Exponential gaps.
    Poisson,
    /// Gamma gaps with this coefficient of variation.
    Gamma(f64),
}

impl std::str::FromStr for Arrivals {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "poisson" {
            return Ok(Self::Poisson);
        }
        let cv = text.strip_prefix("gamma:").and_then(|cv| cv.parse::<f64>().ok());
        cv.filter(|cv| (0.05..=10.0).contains(cv))
            .map(Self::Gamma)
            .ok_or_else(|| "expected `poisson`, or `gamma:CV` with a CV from 0.05 to 10".into())
    }
}

impl std::fmt::Display for Arrivals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Poisson => f.write_str("poisson"),
            Self::Gamma(cv) => write!(f, "gamma:{cv}"),
        }
    }
}

impl Arrivals {
    /// Times of `count` arrivals at `rate` per second: a function of the seed alone.
    pub(crate) fn times(self, rate: f64, count: usize, seed: u64) -> Vec<Duration> {
        let gamma = match self {
            Self::Poisson => None,
            // Shape 1/CV^2, and the rate that gives gaps of mean 1.
            Self::Gamma(cv) => Gamma::new(1.0 / (cv * cv), 1.0 / (cv * cv)).ok(),
        };
        let mut time = 0.0;
        let draws = (0..count as u64).map(|number| draw_unit(seed, number, 0, Purpose::Arrival));
        draws
            .map(|unit| {
                time += gamma.as_ref().map_or_else(|| -(1.0 - unit).ln(), |gamma| inverse_cdf(gamma, unit)) / rate;
                Duration::from_secs_f64(time)
            })
            .collect()
    }
}

/// The gap with this share of gaps below it. By bisection over the logarithm: the general inverse of the library gives NaN
/// for small shapes, whose gaps span hundreds of orders of magnitude; gaps below 1e-14 of the mean count as that.
fn inverse_cdf(gamma: &Gamma, unit: f64) -> f64 {
    const HALVINGS: usize = 60;
    let (mut low, mut high) = (1e-14_f64.ln(), 1e6_f64.ln());
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if gamma.cdf(middle.exp()) < unit {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_have_their_mean_and_variation() {
        const COUNT: usize = 20_000;
        for (name, cv) in [("poisson", 1.0), ("gamma:0.5", 0.5), ("gamma:2", 2.0), ("gamma:0.05", 0.05)] {
            let arrivals: Arrivals = name.parse().expect("valid");
            assert_eq!(arrivals.to_string(), name);
            let times = arrivals.times(4.0, COUNT, 7);
            assert_eq!(times, arrivals.times(4.0, COUNT, 7));
            let ends = times.iter().map(Duration::as_secs_f64);
            let starts = [0.0].into_iter().chain(ends.clone());
            let gaps: Vec<f64> = ends.zip(starts).map(|(end, start)| end - start).collect();
            let mean = gaps.iter().sum::<f64>() / COUNT as f64;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / COUNT as f64;
            // Five standard errors of the mean; the deviation's own error grows with the kurtosis.
            assert!((mean - 0.25).abs() < 5.0 * 0.25 * cv / (COUNT as f64).sqrt(), "{name}: mean {mean}");
            assert!((variance.sqrt() / mean / cv - 1.0).abs() < 0.1, "{name}: {}", variance.sqrt() / mean);
        }
        for bad in ["gamma", "gamma:0", "gamma:x", "uniform"] {
            assert!(bad.parse::<Arrivals>().expect_err("refused").contains("`gamma:CV`"));
        }
    }
}
