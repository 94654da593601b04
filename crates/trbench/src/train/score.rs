//! How well scores tell positive from negative samples, and thresholds that give a wanted share.

use serde::Serialize;

/// Area under the ROC curve: the probability that a positive sample has the higher score, ties counting half. NaN when
/// one of the classes is empty.
pub(super) fn auc(scores: &[f32], positive: &[bool]) -> f64 {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_unstable_by(|a, b| scores[*a].total_cmp(&scores[*b]));
    let (mut rank, mut ranks) = (0usize, 0.0);
    for tied in order.chunk_by(|a, b| scores[*a] == scores[*b]) {
        // Ranks from 1, the same mean for all that are equal.
        let mean = rank as f64 + (tied.len() + 1) as f64 / 2.0;
        ranks += mean * tied.iter().filter(|index| positive[**index]).count() as f64;
        rank += tied.len();
    }
    let p = positive.iter().filter(|positive| **positive).count() as f64;
    let n = scores.len() as f64 - p;
    if p == 0.0 || n == 0.0 { f64::NAN } else { (ranks - p * (p + 1.0) / 2.0) / (p * n) }
}

/// What a threshold does.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct OperatingPoint {
    /// Tokens with a hardness above it go to the large model.
    pub(super) threshold: f64,
    /// Share of tokens that do.
    pub(super) share: f64,
    /// Share of divergent tokens that do.
    pub(super) recall: f64,
    /// Share of divergent tokens among those that do; NaN when none does.
    pub(super) precision: f64,
}

/// What a threshold on `hardness` does.
pub(super) fn operating_point(hardness: &[f32], divergent: &[bool], threshold: f64) -> OperatingPoint {
    let routed = hardness.iter().map(|score| f64::from(*score) > threshold);
    let (mut sent, mut caught) = (0usize, 0usize);
    for (routed, divergent) in routed.zip(divergent) {
        sent += usize::from(routed);
        caught += usize::from(routed && *divergent);
    }
    let all = divergent.iter().filter(|divergent| **divergent).count();
    let ratio = |a: usize, b: usize| if b == 0 { f64::NAN } else { a as f64 / b as f64 };
    let (share, recall) = (ratio(sent, hardness.len()), ratio(caught, all));
    OperatingPoint { threshold, share, recall, precision: ratio(caught, sent) }
}

/// The threshold with the share nearest to `share`: half way between two scores, so that equality does not matter.
pub(super) fn threshold_for_share(hardness: &[f32], share: f64) -> f64 {
    let mut sorted = hardness.to_vec();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    cut(&sorted, (share * sorted.len() as f64).round() as usize)
}

/// The highest threshold that sends at least this share of the divergent tokens to the large model.
pub(super) fn threshold_for_recall(hardness: &[f32], divergent: &[bool], recall: f64) -> f64 {
    let mut sorted: Vec<(f32, bool)> = hardness.iter().copied().zip(divergent.iter().copied()).collect();
    sorted.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    let all = divergent.iter().filter(|divergent| **divergent).count() as f64;
    let mut caught = 0.0;
    let count = sorted.iter().position(|(_, divergent)| {
        caught += f64::from(u8::from(*divergent));
        caught >= recall * all
    });
    let scores: Vec<f32> = sorted.iter().map(|(score, _)| *score).collect();
    cut(&scores, count.map_or(scores.len(), |index| index + 1))
}

/// Between the first `count` of falling scores and the others.
fn cut(falling: &[f32], count: usize) -> f64 {
    let at = |index: usize| falling.get(index).copied().map(f64::from);
    match (count.checked_sub(1).and_then(at), at(count)) {
        (Some(last), Some(next)) => f64::midpoint(last, next),
        (None, Some(first)) => first,
        (Some(last), None) => last - 1e-6,
        (None, None) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use tokenrouter_core::keyed::{Purpose, draw_u64};

    use super::*;

    #[test]
    fn the_area_is_the_share_of_ordered_pairs() {
        for seed in 0..20 {
            let draw = |purpose: u64, at: u64, below: u64| draw_u64(seed, purpose, at, Purpose::Sample) % below;
            let n = 3 + draw(0, 0, 60);
            // Few values, so that there are ties.
            let scores: Vec<f32> = (0..n).map(|at| draw(1, at, 9) as f32 / 8.0).collect();
            let positive: Vec<bool> = (0..n).map(|at| draw(2, at, 3) == 0).collect();
            let (mut ordered, mut pairs) = (0.0, 0.0);
            for (a, _) in scores.iter().zip(&positive).filter(|(_, positive)| **positive) {
                for (b, _) in scores.iter().zip(&positive).filter(|(_, positive)| !**positive) {
                    pairs += 1.0;
                    ordered += if a > b {
                        1.0
                    } else if a == b {
                        0.5
                    } else {
                        0.0
                    };
                }
            }
            let got = auc(&scores, &positive);
            assert!(if pairs == 0.0 { got.is_nan() } else { (got - ordered / pairs).abs() < 1e-12 }, "{seed}: {got}");
        }
    }

    #[test]
    fn thresholds_give_shares_and_recalls() {
        let hardness: Vec<f32> = (0..10).map(|i| i as f32).collect();
        let divergent: Vec<bool> = (0..10).map(|i| [3, 8, 9].contains(&i)).collect();
        let threshold = threshold_for_share(&hardness, 0.2);
        let wanted = OperatingPoint { threshold: 7.5, share: 0.2, recall: 2.0 / 3.0, precision: 1.0 };
        assert_eq!(operating_point(&hardness, &divergent, threshold), wanted);
        assert_eq!(threshold_for_recall(&hardness, &divergent, 0.6), 7.5);
        assert_eq!(operating_point(&hardness, &divergent, threshold_for_recall(&hardness, &divergent, 1.0)).share, 0.7);
        assert_eq!(operating_point(&hardness, &divergent, threshold_for_share(&hardness, 1.0)).recall, 1.0);
        assert_eq!(threshold_for_share(&hardness, 0.0), 9.0);
    }
}
