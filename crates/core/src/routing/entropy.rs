//! The entropy router of R2R (arXiv 2505.21600, `entropy` switching): the small model's candidate is dropped where its
//! entropy reaches the threshold, the large model writes that one token, and the request returns.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::registry::{BuiltPolicy, Keeps, Method, MethodFacts, Sweep, SystemView, check_not_negative};
use super::{BatchView, Candidate, Decision, RoutingPolicy, Row, SignalNeeds};
use crate::request::ModelIndex;

/// Options of `entropy`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Entropy {
    /// Entropy in nats at or above which the large model writes the token.
    entropy_threshold: f64,
}

impl Default for Entropy {
    fn default() -> Self {
        Self { entropy_threshold: 0.45 }
    }
}

impl Method for Entropy {
    const FACTS: MethodFacts = MethodFacts {
        name: "entropy",
        summary: "Entropy router: the large model is borrowed for one token where the small model's entropy is high.",
        signal: "entropy of the small model",
        unit: "nats, full vocabulary",
        rule: "H >= entropy_threshold",
        dropped: "the small model's",
        p: "[[1-p, p], [1, 0]]",
        c: "[[1, 0], [1, 0]]",
        source: "R2R's `entropy` switching, arXiv 2505.21600",
        sweep: Some(Sweep { option: "entropy_threshold", high_is_hard: true, span: Keeps::Token }),
    };

    fn check(&self) -> Result<(), String> {
        check_not_negative("entropy_threshold", self.entropy_threshold)
    }

    fn build(self, system: &SystemView) -> BuiltPolicy {
        let (small, large) = system.pair("entropy")?;
        Ok(Box::new(Policy { small, large, threshold: self.entropy_threshold }))
    }
}

#[derive(Debug)]
struct Policy {
    small: ModelIndex,
    large: ModelIndex,
    threshold: f64,
}

impl RoutingPolicy for Policy {
    fn needs(&self, model: ModelIndex) -> SignalNeeds {
        SignalNeeds { softmax: model == self.small, ..SignalNeeds::default() }
    }

    fn takes_threshold(&self) -> bool {
        true
    }

    fn route(&self, batch: &mut BatchView<'_>) {
        batch.decide(|row, signals| {
            if row.model == self.large {
                return Decision::Switch(self.small);
            }
            row.score = signals.entropy;
            if f64::from(signals.entropy) >= row.threshold.unwrap_or(self.threshold) {
                Decision::Switch(self.large)
            } else {
                Decision::Stay
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

    #[test]
    fn equality_borrows_and_the_large_model_always_returns() {
        let view = SystemView::emulated(&["small", "large"], 10);
        let policy = Entropy { entropy_threshold: 0.5 }.build(&view).expect("valid options");
        for (model, entropy, want) in [
            (0, 0.499, (Decision::Stay, Candidate::Drop)),
            (0, 0.5, (Decision::Switch(1), Candidate::Drop)),
            (1, 9.0, (Decision::Switch(0), Candidate::Commit)),
            (1, 0.0, (Decision::Switch(0), Candidate::Commit)),
        ] {
            let got = decide(&*policy, &mut row(model, 3), &with_entropy(entropy));
            assert_eq!(got, want, "model {model}, entropy {entropy}");
        }
    }
}
