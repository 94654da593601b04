//! Summary statistics that say when a sample is too small.

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

/// Percentile `q` in (0, 1) by linear interpolation; `None` when the sample does not support it.
pub fn percentile(values: &[f64], q: f64) -> Option<f64> {
    if values.len() < needed_for_percentile(q) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = q * (sorted.len() - 1) as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    Some(sorted[low] + (sorted[high] - sorted[low]) * (at - low as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

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
