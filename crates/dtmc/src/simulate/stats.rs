//! Means with confidence intervals.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// A mean with its standard error and confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Its standard error.
    pub standard_error: f64,
    /// Half the width of the interval around it.
    pub half_width: f64,
}

impl Estimate {
    /// Lower end of the interval.
    #[must_use]
    pub fn low(&self) -> f64 {
        self.mean - self.half_width
    }

    /// Upper end of the interval.
    #[must_use]
    pub fn high(&self) -> f64 {
        self.mean + self.half_width
    }
}

/// Student interval for the mean of (nearly) independent values, at `confidence` in `(0, 1)`.
pub(crate) fn interval(values: &[f64], confidence: f64) -> Estimate {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    if values.len() < 2 {
        return Estimate { mean, standard_error: f64::INFINITY, half_width: f64::INFINITY };
    }
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let quantile = student_quantile(0.5 + 0.5 * confidence, count - 1.0);
    let standard_error = (variance / count).sqrt();
    Estimate { mean, standard_error, half_width: quantile * standard_error }
}

/// Quantile of Student's distribution; `p` in `(0, 1)`, `freedom` above 0.
fn student_quantile(p: f64, freedom: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom).map_or(f64::NAN, |student| student.inverse_cdf(p))
}

/// Quantile of ascending values, at least one, with linear interpolation between order statistics.
pub(crate) fn quantile(sorted: &[f64], p: f64) -> f64 {
    let at = p * (sorted.len() - 1) as f64;
    let low = at.floor() as usize;
    let high = (low + 1).min(sorted.len() - 1);
    sorted[low] + (at - low as f64) * (sorted[high] - sorted[low])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_use_student_quantiles() {
        // NIST/SEMATECH e-Handbook, table of critical values of Student's t: 2.228 for 10 degrees of freedom at 95 %.
        let values: Vec<f64> = (0..11).map(f64::from).collect();
        let estimate = interval(&values, 0.95);
        let standard_error = (11.0_f64 / 11.0).sqrt();
        assert!((estimate.mean - 5.0).abs() < 1e-12 && (estimate.standard_error - standard_error).abs() < 1e-12);
        assert!((estimate.half_width / estimate.standard_error - 2.228).abs() < 6e-4, "{estimate:?}");
        assert_eq!(interval(&[1.0], 0.95).half_width, f64::INFINITY);
    }
}
