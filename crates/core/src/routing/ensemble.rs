//! ME, the mixture-model-like ensemble (arXiv 2605.00419): every step is committed and the next model is drawn by
//! weight, for two or more models.
//!
//! The committed stream is a sample of the weighted mixture of the models' distributions at temperature 1 without
//! truncation. Every row of `P` is the weights, `C` is all ones.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::registry::{BuiltPolicy, Method, MethodFacts, SystemView};
use super::{BatchView, Decision, Matrix, RoutingPolicy};

/// Options of `ensemble`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Ensemble {
    /// Weight of each model, in the order of `models`; equal when absent.
    weights: Option<Vec<f64>>,
}

impl Method for Ensemble {
    const FACTS: MethodFacts = MethodFacts {
        name: "ensemble",
        summary: "ME, the mixture-model-like ensemble: the model of every token is drawn by weight, for two or more models.",
        signal: "a keyed draw, at any model",
        unit: "0 to 1",
        rule: "next model drawn by weight",
        dropped: "none",
        p: "every row is the weights",
        c: "all ones",
        source: "ME, arXiv 2605.00419",
        sweep: None,
    };

    fn check(&self) -> Result<(), String> {
        check_weights(self.weights.as_deref())
    }

    fn build(self, system: &SystemView) -> BuiltPolicy {
        Ok(Box::new(Mixture::new(self.weights, system)?))
    }
}

pub(super) fn check_weights(weights: Option<&[f64]>) -> Result<(), String> {
    let Some(weights) = weights else { return Ok(()) };
    let valid = weights.iter().all(|weight| weight.is_finite() && *weight >= 0.0);
    if valid && weights.iter().sum::<f64>() > 0.0 {
        return Ok(());
    }
    Err(format!("`routing.weights` is {weights:?}, weights must be 0 or more with a positive sum"))
}

/// Draws the next model by weight after every committed token.
#[derive(Debug)]
pub(super) struct Mixture {
    cumulative: Vec<f64>,
}

impl Mixture {
    pub(super) fn new(weights: Option<Vec<f64>>, system: &SystemView) -> Result<Self, String> {
        let models = system.models.len();
        let weights = weights.unwrap_or_else(|| vec![1.0; models]);
        if weights.len() != models {
            return Err(format!(
                "`routing.weights` has {} entries, the configuration has {models} models",
                weights.len()
            ));
        }
        let total: f64 = weights.iter().sum();
        let mut sum = 0.0;
        let cumulative = weights.iter().map(|weight| {
            sum += weight / total;
            sum
        });
        Ok(Self { cumulative: cumulative.collect() })
    }
}

impl RoutingPolicy for Mixture {
    fn route(&self, batch: &mut BatchView<'_>) {
        batch.decide(|row, _| {
            let draw = row.draw();
            let to = self.cumulative.iter().position(|bound| draw < *bound).unwrap_or(self.cumulative.len() - 1);
            if to == row.model { Decision::Stay } else { Decision::Switch(to) }
        });
    }

    fn transition_model(&self) -> Option<(Matrix, Matrix)> {
        let models = self.cumulative.len();
        let mut before = 0.0;
        let row: Vec<f64> =
            self.cumulative.iter().map(|bound| bound - std::mem::replace(&mut before, *bound)).collect();
        Some((vec![row; models], vec![vec![1.0; models]; models]))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{decide, row};
    use super::*;
    use crate::step::StepOutput;

    #[test]
    fn the_next_model_is_drawn_by_weight_from_every_model() {
        let options = Ensemble { weights: Some(vec![3.0, 2.0, 1.0]) };
        let policy = options.build(&SystemView::emulated(&["a", "b", "c"], 10)).expect("valid options");
        let output = StepOutput { tokens: vec![5], ..StepOutput::default() };
        for from in 0..3 {
            let mut counts = [0f64; 3];
            for position in 0..100_000 {
                counts[match decide(&*policy, &mut row(from, position), &output).0 {
                    Decision::Switch(to) => to,
                    _ => from,
                }] += 1.0;
            }
            let expected = [0.5, 1.0 / 3.0, 1.0 / 6.0].map(|share| share * 1e5);
            let chi2: f64 = counts.iter().zip(expected).map(|(n, e)| (n - e).powi(2) / e).sum();
            // The 0.9999 quantile for 2 degrees of freedom.
            assert!(chi2 < 18.42, "chi-square {chi2}: {counts:?}");
        }
    }

    #[test]
    fn weights_are_checked() {
        for weights in [vec![], vec![0.0, 0.0], vec![1.0, -1.0], vec![f64::NAN, 1.0]] {
            assert!(check_weights(Some(&weights)).is_err(), "{weights:?}");
        }
        let view = SystemView::emulated(&["a", "b"], 10);
        let message = Mixture::new(Some(vec![1.0; 3]), &view).expect_err("three weights for two models");
        assert!(message.contains("3 entries") && message.contains("2 models"), "{message}");
    }
}
