//! Random routing, in both semantics of the literature (`algorithms.md` calls them borrow and mixture).
//!
//! *borrow*: the small model's candidate is dropped with probability `p`, the large model writes that one token and the
//! request returns: `P = [[1-p, p], [1, 0]]`, `C = [[1, 0], [1, 0]]`. *mixture*: every step is committed and the next
//! model is drawn from weights: every row of `P` is the weights, `C` is all ones.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::registry::{Options, SystemView};
use super::{Candidate, Decision, Matrix, RoutingPolicy, RowView};
use crate::config::RoutingConfig;
use crate::keyed::{Purpose, draw_unit};
use crate::request::ModelIndex;

/// Options of `random`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RandomOptions {
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

impl Default for RandomOptions {
    fn default() -> Self {
        Self { semantics: Semantics::Borrow, probability: 0.5, weights: None }
    }
}

impl Options for RandomOptions {
    fn check(&self) -> Result<(), String> {
        if !(0.0..=1.0).contains(&self.probability) {
            return Err(format!("`routing.probability` is {}, allowed is 0 to 1", self.probability));
        }
        let Some(weights) = &self.weights else { return Ok(()) };
        let finite = weights.iter().all(|weight| weight.is_finite() && *weight >= 0.0);
        if !finite || weights.iter().sum::<f64>() <= 0.0 {
            return Err(format!("`routing.weights` is {weights:?}, weights must be 0 or more with a positive sum"));
        }
        Ok(())
    }
}

#[derive(Debug)]
enum Random {
    Borrow { small: ModelIndex, large: ModelIndex, probability: f64 },
    Mixture { cumulative: Vec<f64> },
}

pub(super) fn build(config: &RoutingConfig, system: &SystemView) -> Result<Box<dyn RoutingPolicy>, String> {
    let options: RandomOptions = config.parse()?;
    options.check()?;
    if options.semantics == Semantics::Borrow {
        let (small, large) = system.pair("random")?;
        return Ok(Box::new(Random::Borrow { small, large, probability: options.probability }));
    }
    let models = system.models.len();
    let weights = options.weights.unwrap_or_else(|| vec![1.0; models]);
    if weights.len() != models {
        return Err(format!("`routing.weights` has {} entries, the configuration has {models} models", weights.len()));
    }
    let total: f64 = weights.iter().sum();
    let mut sum = 0.0;
    let cumulative = weights.iter().map(|weight| {
        sum += weight / total;
        sum
    });
    Ok(Box::new(Random::Mixture { cumulative: cumulative.collect() }))
}

impl RoutingPolicy for Random {
    fn route(&self, rows: &[RowView<'_>], decisions: &mut Vec<Decision>) {
        decisions.extend(rows.iter().map(|row| {
            let unit = draw_unit(row.seed, row.key, row.position as u64, Purpose::Route);
            let to = match self {
                Self::Borrow { small, large, probability } => {
                    if row.model == *small && unit < *probability {
                        *large
                    } else {
                        *small
                    }
                }
                Self::Mixture { cumulative } => {
                    cumulative.iter().position(|bound| unit < *bound).unwrap_or(cumulative.len() - 1)
                }
            };
            if to == row.model { Decision::Stay } else { Decision::Switch(to) }
        }));
    }

    fn transition_model(&self) -> Option<(Matrix, Matrix)> {
        match self {
            Self::Borrow { small, large, probability } => {
                let (mut routing, mut commits) = (vec![vec![0.0; 2]; 2], vec![vec![0.0; 2]; 2]);
                routing[*small][*small] = 1.0 - probability;
                routing[*small][*large] = *probability;
                routing[*large][*small] = 1.0;
                commits[*small][*small] = 1.0;
                commits[*large][*small] = 1.0;
                Some((routing, commits))
            }
            Self::Mixture { cumulative } => {
                let models = cumulative.len();
                let mut before = 0.0;
                let row: Vec<f64> =
                    cumulative.iter().map(|bound| bound - std::mem::replace(&mut before, *bound)).collect();
                Some((vec![row; models], vec![vec![1.0; models]; models]))
            }
        }
    }

    fn send(&self, row: &RowView<'_>, _to: ModelIndex) -> Candidate {
        match self {
            Self::Borrow { small, .. } if row.model == *small => Candidate::Drop,
            _ => Candidate::Commit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Signals;
    use super::*;
    use crate::request::RequestId;

    fn shares(options: serde_json::Value, models: usize, from: ModelIndex) -> Vec<f64> {
        let names = (0..models).map(|i| format!("m{i}")).collect();
        let system = SystemView { models: names, entry: 0, vocab: 10 };
        let policy = build(&RoutingConfig::new("random", options), &system).expect("valid options");
        let signals = Signals::default();
        let rows: Vec<_> = (0..100_000)
            .map(|position| RowView {
                request: RequestId(1),
                seed: 42,
                key: 9,
                model: from,
                position,
                candidate: 0,
                signals: &signals,
            })
            .collect();
        let mut decisions = Vec::new();
        policy.route(&rows, &mut decisions);
        let mut counts = vec![0u32; models];
        for decision in decisions {
            counts[match decision {
                Decision::Stay => from,
                Decision::Switch(to) => to,
            }] += 1;
        }
        counts.iter().map(|n| f64::from(*n) / 100_000.0).collect()
    }

    #[test]
    fn borrow_leaves_with_probability_p_and_always_returns() {
        let options = serde_json::json!({"semantics": "borrow", "probability": 0.65});
        // Five standard deviations of a binomial share over 100,000 draws.
        assert!((shares(options.clone(), 2, 0)[1] - 0.65).abs() < 0.0076);
        assert_eq!(shares(options, 2, 1), [1.0, 0.0]);
    }

    #[test]
    fn mixture_draws_by_weight_from_every_model() {
        let options = serde_json::json!({"semantics": "mixture", "weights": [3, 2, 1]});
        for from in 0..3 {
            let got = shares(options.clone(), 3, from);
            for (share, want) in got.iter().zip([0.5, 1.0 / 3.0, 1.0 / 6.0]) {
                assert!((share - want).abs() < 0.008, "{got:?}");
            }
        }
    }
}
