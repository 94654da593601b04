//! R-Stitch (arXiv 2507.17307): entropy decides in both directions.
//!
//! Small model: entropy above the threshold drops the candidate and hands over; otherwise it is committed. Large model:
//! its token is always committed; entropy at or below the threshold hands back. Entropy is that of the raw logits at
//! temperature 1.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::registry::{BuiltPolicy, Keeps, Method, MethodFacts, Sweep, SystemView, check_not_negative};
use super::{BatchView, Candidate, Decision, RoutingPolicy, Row, SignalNeeds};
use crate::request::ModelIndex;

/// Options of `rstitch`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RStitch {
    /// Entropy above which the small model hands over.
    entropy_threshold: f64,
    /// Entropy at or below which the large model hands back; the same as `entropy_threshold` when absent.
    return_threshold: Option<f64>,
    /// Unit of both thresholds.
    entropy_norm: EntropyNorm,
}

/// Unit of an entropy threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum EntropyNorm {
    /// Nats.
    Nats,
    /// Nats divided by the logarithm of the vocabulary size: between 0 and 1.
    Vocab,
}

impl Default for RStitch {
    fn default() -> Self {
        Self { entropy_threshold: 0.45, return_threshold: None, entropy_norm: EntropyNorm::Nats }
    }
}

impl Method for RStitch {
    const FACTS: MethodFacts = MethodFacts {
        name: "rstitch",
        summary: "R-Stitch: the small model hands over when its entropy is high, the large one hands back when its own is \
                  low.",
        signal: "entropy of the model that holds the request",
        unit: "nats, or 0 to 1 with `entropy_norm: vocab`",
        rule: "small: H > entropy_threshold; large: back at H <= return_threshold",
        dropped: "the small model's; the large model's are kept",
        p: "[[1-a, a], [b, 1-b]]",
        c: "[[1, 0], [1, 1]]",
        source: "R-Stitch, arXiv 2507.17307",
        sweep: Some(Sweep { option: "entropy_threshold", high_is_hard: true, span: Keeps::UntilEasy }),
    };

    fn check(&self) -> Result<(), String> {
        check_not_negative("entropy_threshold", self.entropy_threshold)?;
        self.return_threshold.map_or(Ok(()), |value| check_not_negative("return_threshold", value))
    }

    fn build(self, system: &SystemView) -> BuiltPolicy {
        let (small, large) = system.pair("rstitch")?;
        let unit = match self.entropy_norm {
            EntropyNorm::Nats => 1.0,
            EntropyNorm::Vocab => (system.vocab as f64).ln(),
        };
        let up = self.entropy_threshold;
        Ok(Box::new(Policy { small, large, unit, up, down: self.return_threshold.unwrap_or(up) }))
    }
}

#[derive(Debug)]
struct Policy {
    small: ModelIndex,
    large: ModelIndex,
    /// Nats of one unit of the thresholds.
    unit: f64,
    up: f64,
    down: f64,
}

impl RoutingPolicy for Policy {
    fn needs(&self, _model: ModelIndex) -> SignalNeeds {
        SignalNeeds { softmax: true, ..SignalNeeds::default() }
    }

    fn takes_threshold(&self) -> bool {
        true
    }

    fn route(&self, batch: &mut BatchView<'_>) {
        batch.decide(|row, signals| {
            let entropy = f64::from(signals.entropy) / self.unit;
            row.score = entropy as f32;
            match row.model == self.small {
                true if entropy > row.threshold.unwrap_or(self.up) => Decision::Switch(self.large),
                false if entropy <= row.threshold.unwrap_or(self.down) => Decision::Switch(self.small),
                _ => Decision::Stay,
            }
        });
    }

    fn send(&self, row: &mut Row, _to: ModelIndex) -> Candidate {
        if row.model == self.small { Candidate::Drop } else { Candidate::Commit }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{decide, row, with_entropy};
    use super::*;

    fn policy(options: RStitch) -> Box<dyn RoutingPolicy> {
        options.build(&SystemView::emulated(&["small", "large"], 49152)).expect("valid options")
    }

    #[test]
    fn equality_stays_at_small_and_returns_from_large() {
        let policy = policy(RStitch { entropy_threshold: 0.5, ..RStitch::default() });
        let decide = |model, entropy| decide(&*policy, &mut row(model, 0), &with_entropy(entropy));
        assert_eq!(decide(0, 0.5).0, Decision::Stay);
        assert_eq!(decide(0, 0.500_01), (Decision::Switch(1), Candidate::Drop));
        assert_eq!(decide(1, 0.5), (Decision::Switch(0), Candidate::Commit));
        assert_eq!(decide(1, 0.500_01).0, Decision::Stay);
    }

    #[test]
    fn thresholds_can_differ_and_be_normalised() {
        let policy =
            policy(RStitch { entropy_threshold: 0.1, return_threshold: Some(0.05), entropy_norm: EntropyNorm::Vocab });
        let ln_vocab = 49152f32.ln();
        let decide = |model, entropy| decide(&*policy, &mut row(model, 0), &with_entropy(entropy)).0;
        assert_eq!(decide(0, 0.11 * ln_vocab), Decision::Switch(1));
        assert_eq!(decide(0, 0.09 * ln_vocab), Decision::Stay);
        assert_eq!(decide(1, 0.06 * ln_vocab), Decision::Stay);
        assert_eq!(decide(1, 0.04 * ln_vocab), Decision::Switch(0));
    }
}
