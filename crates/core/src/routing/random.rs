//! Random routing, in both semantics of the literature.
//!
//! *borrow*: the small model's candidate is dropped with probability `p`, the large model writes that one token and the
//! request returns: `P = [[1-p, p], [1, 0]]`, `C = [[1, 0], [1, 0]]`. *mixture*: every step is committed and the next
//! model is drawn from weights: every row of `P` is the weights, `C` is all ones ([`super::ensemble`]).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ensemble::{Mixture, check_weights};
use super::registry::{BuiltPolicy, Method, MethodFacts, SystemView, check_unit};
use super::{BatchView, Candidate, Decision, Matrix, RoutingPolicy, Row};
use crate::request::ModelIndex;

/// Options of `random`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Random {
    /// What a draw means.
    semantics: Semantics,
    /// `borrow`: probability that the large model writes a token.
    probability: f64,
    /// `mixture`: weight of each model, in the order of `models`; equal when absent.
    weights: Option<Vec<f64>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Semantics {
    /// The large model is borrowed for one token at a time.
    Borrow,
    /// Every model writes; the next one is drawn.
    Mixture,
}

impl Default for Random {
    fn default() -> Self {
        Self { semantics: Semantics::Borrow, probability: 0.5, weights: None }
    }
}

impl Method for Random {
    const FACTS: MethodFacts = MethodFacts {
        name: "random",
        summary: "Random routing, keyed by (seed, request, position): a load whose P and C are known exactly.",
        signal: "a keyed draw",
        unit: "0 to 1",
        rule: "borrow: draw < probability; mixture: drawn by weight",
        dropped: "borrow: the small model's; mixture: none",
        p: "borrow: [[1-p, p], [1, 0]]; mixture: every row is the weights",
        c: "borrow: [[1, 0], [1, 0]]; mixture: all ones",
        source: "R2R's random switching; ME",
        sweep: None,
    };

    fn check(&self) -> Result<(), String> {
        check_unit("probability", self.probability)?;
        check_weights(self.weights.as_deref())
    }

    fn build(self, system: &SystemView) -> BuiltPolicy {
        if self.semantics == Semantics::Mixture {
            return Ok(Box::new(Mixture::new(self.weights, system)?));
        }
        let (small, large) = system.pair("random")?;
        Ok(Box::new(Borrow { small, large, probability: self.probability }))
    }
}

#[derive(Debug)]
struct Borrow {
    small: ModelIndex,
    large: ModelIndex,
    probability: f64,
}

impl RoutingPolicy for Borrow {
    fn route(&self, batch: &mut BatchView<'_>) {
        batch.decide(|row, _| match row.model == self.small {
            true if row.draw() < self.probability => Decision::Switch(self.large),
            true => Decision::Stay,
            false => Decision::Switch(self.small),
        });
    }

    fn transition_model(&self) -> Option<(Matrix, Matrix)> {
        let (small, large) = (self.small, self.large);
        let (mut routing, mut commits) = (vec![vec![0.0; 2]; 2], vec![vec![0.0; 2]; 2]);
        routing[small][small] = 1.0 - self.probability;
        routing[small][large] = self.probability;
        routing[large][small] = 1.0;
        commits[small][small] = 1.0;
        commits[large][small] = 1.0;
        Some((routing, commits))
    }

    fn send(&self, row: &mut Row, _to: ModelIndex) -> Candidate {
        if row.model == self.small { Candidate::Drop } else { Candidate::Commit }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{decide, row};
    use super::*;
    use crate::step::StepOutput;

    #[test]
    fn borrow_leaves_with_probability_p_and_always_returns() {
        let options = Random { probability: 0.65, ..Random::default() };
        let policy = options.build(&SystemView::emulated(&["small", "large"], 10)).expect("valid options");
        let output = StepOutput { tokens: vec![5], ..StepOutput::default() };
        let leaves = |model| {
            let left = |position: &usize| decide(&*policy, &mut row(model, *position), &output).0 != Decision::Stay;
            (0..100_000).filter(left).count() as f64 / 1e5
        };
        // Five standard deviations of a binomial share over 100,000 draws.
        assert!((leaves(0) - 0.65).abs() < 0.0076);
        assert_eq!(leaves(1), 1.0);
    }
}
