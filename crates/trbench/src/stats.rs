//! Summary statistics that say when a sample is too small.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ChiSquared, ContinuousCDF, StudentsT};

/// Probability with which at least one observation lies beyond a percentile for it to be reported.
const CONFIDENCE: f64 = 0.99;

/// Mean of a sample; `None` when it is empty.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Smallest sample in which, with 99 % confidence, some observation lies beyond the percentile: 7 for the median, 44
/// for p90, 459 for p99.
pub fn needed_for_percentile(q: f64) -> usize {
    ((1.0 - CONFIDENCE).ln() / q.ln()).ceil() as usize
}

/// Quantile `q` in [0, 1] of a sample in any order, by linear interpolation between neighbours: the seventh definition of
/// Hyndman and Fan (1996), as in NumPy and R; statrs has the eighth. `None` when the sample is empty.
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = q * sorted.len().checked_sub(1)? as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    Some(sorted[low] + (sorted[high] - sorted[low]) * (at - low as f64))
}

/// [`quantile`] `q` in (0, 1) of a sample that supports it; else `None`.
pub fn percentile(values: &[f64], q: f64) -> Option<f64> {
    quantile(values, q).filter(|_| values.len() >= needed_for_percentile(q))
}

/// 95 % Wilson interval of a probability seen `hits` times in `of` independent trials; `None` without trials.
pub fn wilson(hits: u64, of: u64) -> Option<[f64; 2]> {
    // The 0.975 quantile of the normal distribution.
    const Z: f64 = 1.959_963_984_540_054;
    if of == 0 {
        return None;
    }
    let (n, share) = (of as f64, hits as f64 / of as f64);
    let middle = (share + Z * Z / (2.0 * n)) / (1.0 + Z * Z / n);
    let half = Z / (1.0 + Z * Z / n) * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    Some([(middle - half).max(0.0), (middle + half).min(1.0)])
}

/// 95 % interval of the mean of independent values, by Student's t; `None` for fewer than two.
pub fn student_interval(values: &[f64]) -> Option<[f64; 2]> {
    let count = values.len() as f64;
    let student = StudentsT::new(0.0, 1.0, count - 1.0).ok().filter(|_| values.len() > 1)?;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let half = student.inverse_cdf(0.975) * (variance / count).sqrt();
    Some([mean - half, mean + half])
}

/// The difference of the means of two samples, by Welch's t.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Welch {
    /// Mean of the second minus mean of the first.
    pub difference: f64,
    /// Degrees of freedom (Welch and Satterthwaite).
    pub degrees: f64,
    /// Lower end of its 95 % interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Compares two samples whose variances may differ; `None` when one has fewer than two values.
pub fn welch(a: &[f64], b: &[f64]) -> Option<Welch> {
    let moments = |values: &[f64]| {
        let (count, mean) = (values.len() as f64, mean(values)?);
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        // Variance of the mean, and its degrees of freedom.
        (values.len() > 1).then(|| (mean, squares / (count - 1.0) / count, count - 1.0))
    };
    let ((mean_a, a, df_a), (mean_b, b, df_b)) = (moments(a)?, moments(b)?);
    let difference = mean_b - mean_a;
    if a + b == 0.0 {
        return Some(Welch { difference, degrees: df_a + df_b, low: difference, high: difference });
    }
    let degrees = (a + b).powi(2) / (a.powi(2) / df_a + b.powi(2) / df_b);
    let half = StudentsT::new(0.0, 1.0, degrees).ok()?.inverse_cdf(0.975) * (a + b).sqrt();
    Some(Welch { difference, degrees, low: difference - half, high: difference + half })
}

/// A ratio of sums over requests, with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// `sum(x) / sum(n)`.
    pub value: f64,
    /// Student's interval with the requests as independent units (the tokens of one request are not); absent for fewer
    /// than two requests.
    pub interval: Option<[f64; 2]>,
}

/// The ratio of `x` to `n` over requests `(x, n)`; `None` when all `n` are 0.
pub fn ratio(pairs: &[(f64, f64)]) -> Option<Ratio> {
    let total: f64 = pairs.iter().map(|(_, n)| n).sum();
    if total <= 0.0 {
        return None;
    }
    let value = pairs.iter().map(|(x, _)| x).sum::<f64>() / total;
    let count = pairs.len() as f64;
    let interval = StudentsT::new(0.0, 1.0, count - 1.0).ok().filter(|_| pairs.len() > 1).map(|student| {
        let squares: f64 = pairs.iter().map(|(x, n)| (x - value * n).powi(2)).sum();
        let error = (squares * count / (count - 1.0)).sqrt() / total;
        let half = student.inverse_cdf(0.975) * error;
        [value - half, value + half]
    });
    Some(Ratio { value, interval })
}

/// How well the lengths of visits follow the geometric distribution that the throughput model assumes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GeometricTest {
    /// Visits that ended with a move to another model.
    pub visits: u64,
    /// Their mean length in steps.
    pub mean: f64,
    /// Chi-square over lengths, merged so that at least 5 visits are expected in each cell.
    pub chi_square: f64,
    /// Degrees of freedom.
    pub degrees: usize,
    /// Probability of so large a chi-square under a geometric distribution.
    pub p_value: f64,
}

/// Tests visit lengths (`runs[n]` visits of `n` steps) against the geometric distribution of the same mean. `None` when
/// there are too few visits for two degrees of comparison, or all have one length.
pub fn geometric_test(runs: &[u64]) -> Option<GeometricTest> {
    const LEAST_EXPECTED: f64 = 5.0;
    let visits: u64 = runs.iter().sum();
    let steps: u64 = runs.iter().zip(0u64..).map(|(count, length)| count * length).sum();
    if visits == 0 || steps == visits {
        return None;
    }
    let (total, leave) = (visits as f64, visits as f64 / steps as f64);
    let mut cells = Vec::new();
    let (mut seen, mut expected, mut rest) = (0.0, 0.0, 1.0);
    for length in 1.. {
        seen += runs.get(length).copied().unwrap_or(0) as f64;
        expected += total * rest * leave;
        rest *= 1.0 - leave;
        if total * rest < LEAST_EXPECTED {
            // The last cell takes everything that is longer.
            seen += runs.iter().skip(length + 1).sum::<u64>() as f64;
            cells.push((seen, expected + total * rest));
            break;
        }
        if expected >= LEAST_EXPECTED {
            cells.push((std::mem::take(&mut seen), std::mem::take(&mut expected)));
        }
    }
    // One degree is used up by the total and one by the mean.
    let degrees = cells.len().checked_sub(2).filter(|degrees| *degrees > 0)?;
    let chi_square = cells.iter().map(|(seen, expected)| (seen - expected).powi(2) / expected).sum();
    let p_value = ChiSquared::new(degrees as f64).ok()?.sf(chi_square);
    Some(GeometricTest { visits, mean: steps as f64 / total, chi_square, degrees, p_value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wilson_intervals_have_their_known_values() {
        // Newcombe 1998, table I: 81 of 263 gives 0.2553 to 0.3662, 0 of 20 gives 0 to 0.1611.
        let close = |got: Option<[f64; 2]>, want: [f64; 2]| {
            let got = got.expect("trials");
            assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}");
        };
        close(wilson(81, 263), [0.2553, 0.3662]);
        close(wilson(0, 20), [0.0, 0.1611]);
        assert_eq!(wilson(0, 0), None);
    }

    #[test]
    fn welch_intervals_have_known_values() {
        // The quantile of t by Simpson's rule over its density, the rest by hand.
        let a = [27.5, 21.0, 19.0, 23.6, 17.0];
        let b = [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8];
        let test = welch(&a, &b).expect("two samples");
        let got = [test.difference, test.degrees, test.low, test.high];
        let want = [2.094_285_71, 5.571_778_64, -2.897_710_04, 7.086_281_47];
        assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-6), "{test:?}");
        assert_eq!(welch(&a[..1], &b), None);
        assert_eq!(welch(&[2.0, 2.0], &[3.0, 3.0]).map(|test| (test.low, test.high)), Some((1.0, 1.0)));
    }

    #[test]
    fn equal_weights_give_the_ordinary_t_interval() {
        let ratio = ratio(&[(1.0, 10.0), (2.0, 10.0), (3.0, 10.0)]).expect("tokens");
        // Mean 0.2, standard deviation 0.1, t(0.975, 2) = 4.30265.
        let half = 4.302_652_73 * 0.1 / 3f64.sqrt();
        assert!((ratio.value - 0.2).abs() < 1e-12);
        let interval = ratio.interval.expect("three requests");
        assert!((interval[0] - (0.2 - half)).abs() < 1e-6 && (interval[1] - (0.2 + half)).abs() < 1e-6, "{interval:?}");
    }

    #[test]
    fn geometric_lengths_pass_and_fixed_ones_fail() {
        use tokenrouter_core::keyed::{Purpose, draw_unit};
        let lengths = |of: &dyn Fn(u64) -> usize| {
            let mut runs = vec![0u64; 200];
            (0..20_000).for_each(|i| runs[of(i).min(199)] += 1);
            runs
        };
        // Inverse of the geometric distribution with p = 0.2.
        let geometric = lengths(&|i| {
            let unit = 1.0 - draw_unit(5, 0, i, Purpose::Route);
            1 + (unit.ln() / 0.8f64.ln()) as usize
        });
        let test = geometric_test(&geometric).expect("a test");
        assert!(test.p_value > 1e-3 && (test.mean - 5.0).abs() < 0.2, "{test:?}");
        let fixed = lengths(&|i| 3 + (i % 3) as usize);
        assert!(geometric_test(&fixed).expect("a test").p_value < 1e-6);
        assert_eq!(geometric_test(&[0, 500]), None);
        assert_eq!(geometric_test(&[]), None);
    }

    #[test]
    fn quantiles_interpolate() {
        // As `numpy.quantile` gives them.
        let values = [7.0, 1.0, 4.0, 2.0];
        let got = [0.0, 0.25, 0.5, 0.9, 1.0].map(|q| quantile(&values, q).expect("values"));
        assert!(got.iter().zip([1.0, 1.75, 3.0, 6.1, 7.0]).all(|(got, want)| (got - want).abs() < 1e-12), "{got:?}");
        assert_eq!(quantile(&[3.0], 0.9), Some(3.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn percentiles_need_their_sample() {
        assert_eq!([0.5, 0.9, 0.95, 0.99].map(needed_for_percentile), [7, 44, 90, 459]);
        let values: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&values, 0.9), Some(90.0));
        assert_eq!(percentile(&values, 0.5), Some(50.0));
        assert_eq!(percentile(&values, 0.99), None);
        assert_eq!(mean(&[]), None);
    }
}
