//! What a forward pass says about its own certainty.

/// Signals that a policy wants of one model. Nothing else is computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SignalNeeds {
    /// Entropy and normaliser of the next-token distribution.
    pub softmax: bool,
    /// This many of the largest logits.
    pub top_logits: usize,
    /// The hidden state that the head is given (after the final norm).
    pub hidden: bool,
    /// The input embedding of the candidate.
    pub embedding: bool,
    /// A row of the head that is no token: its logit is a signal, and it is never sampled.
    pub extra_row: Option<u32>,
}

/// Signals of one row: of the raw logits (temperature 1, before penalties, whole vocabulary), in f32. What was not asked
/// for is empty or NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Signals<'a> {
    /// Entropy of the softmax in nats.
    pub entropy: f32,
    /// Logarithm of the sum of the exponentials of all logits.
    pub log_sum_exp: f32,
    /// The largest logits with their token ids, falling.
    pub top: &'a [(f32, u32)],
    /// Hidden state `[d_model]`.
    pub hidden: &'a [f32],
    /// Input embedding of the candidate `[d_model]`.
    pub embedding: &'a [f32],
    /// Raw logit of the extra row.
    pub extra: f32,
}

impl Signals<'_> {
    fn probability(&self, rank: usize) -> f32 {
        self.top.get(rank).map_or(f32::NAN, |(logit, _)| (logit - self.log_sum_exp).exp())
    }

    /// Probability of the most likely token. Needs `softmax` and `top_logits` of 1.
    pub fn max_prob(&self) -> f32 {
        self.probability(0)
    }

    /// Difference of the two largest probabilities. Needs `softmax` and `top_logits` of 2.
    pub fn margin(&self) -> f32 {
        self.probability(0) - self.probability(1)
    }

    /// Entropy in nats over the `k` most likely tokens, renormalised: at most `ln k`, and never above the full entropy.
    /// Needs `top_logits` of `k`.
    pub fn top_entropy(&self, k: usize) -> f32 {
        let top = &self.top[..k.min(self.top.len())];
        let Some((max, _)) = top.first() else { return f32::NAN };
        let (mut z, mut weighted) = (0f64, 0f64);
        for (logit, _) in top {
            let shifted = f64::from(logit - max);
            z += shifted.exp();
            if shifted > f64::NEG_INFINITY {
                weighted += shifted.exp() * shifted;
            }
        }
        (z.ln() - weighted / z).max(0.0) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn signals(top: &[(f32, u32)], log_sum_exp: f32) -> Signals<'_> {
        Signals { entropy: f32::NAN, log_sum_exp, top, hidden: &[], embedding: &[], extra: f32::NAN }
    }

    #[test]
    fn probabilities_of_a_known_distribution() {
        let top: Vec<_> = [0.5f32, 0.3, 0.2].iter().zip(0..).map(|(p, id)| (p.ln() + 3.0, id)).collect();
        let signals = signals(&top, 3.0);
        assert!((signals.max_prob() - 0.5).abs() < 1e-6);
        assert!((signals.margin() - 0.2).abs() < 1e-6);
        let want: f32 = [0.5f32, 0.3, 0.2].iter().map(|p| -p * p.ln()).sum();
        assert!((signals.top_entropy(20) - want).abs() < 1e-6);
        // Renormalised over the two largest: 5/8 and 3/8.
        let want: f32 = [0.625f32, 0.375].iter().map(|p| -p * p.ln()).sum();
        assert!((signals.top_entropy(2) - want).abs() < 1e-6);
        assert_eq!(signals.top_entropy(1), 0.0);
    }

    proptest! {
        /// The renormalised entropy over fewer tokens is never above that over more (majorisation).
        #[test]
        fn top_entropy_rises_with_k(mut logits in prop::collection::vec(-20f32..20.0, 2..40), k in 1usize..40) {
            logits.sort_by(|a, b| b.total_cmp(a));
            let top: Vec<_> = logits.into_iter().zip(0..).collect();
            let signals = signals(&top, 0.0);
            let (few, all) = (signals.top_entropy(k), signals.top_entropy(top.len()));
            prop_assert!(few <= all + 1e-5 && few <= (k as f32).ln() + 1e-5);
        }
    }
}
