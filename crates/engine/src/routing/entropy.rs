//! The entropy router of R2R (arXiv 2505.21600, `entropy` switching): the small model's candidate is dropped where its
//! entropy reaches the threshold, the large model writes that one token, and the request returns.
//!
//! `P = [[1-p, p], [1, 0]]`, `C = [[1, 0], [1, 0]]` with `p` the share of steps at or above the threshold.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::registry::{Options, SystemView};
use super::{Candidate, Decision, RoutingPolicy, RowView, SignalNeeds};
use crate::config::RoutingConfig;
use crate::request::ModelIndex;

/// Options of `entropy`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct EntropyOptions {
    /// Entropy in nats at or above which the large model writes the token.
    entropy_threshold: f64,
}

impl Default for EntropyOptions {
    fn default() -> Self {
        Self { entropy_threshold: 0.45 }
    }
}

impl Options for EntropyOptions {
    fn check(&self) -> Result<(), String> {
        let threshold = self.entropy_threshold;
        if threshold.is_finite() && threshold >= 0.0 {
            Ok(())
        } else {
            Err(format!("`routing.entropy_threshold` is {threshold}, it must be 0 or more"))
        }
    }
}

#[derive(Debug)]
struct Entropy {
    small: ModelIndex,
    large: ModelIndex,
    threshold: f32,
}

pub(super) fn build(config: &RoutingConfig, system: &SystemView) -> Result<Box<dyn RoutingPolicy>, String> {
    let options: EntropyOptions = config.parse()?;
    let (small, large) = system.pair("entropy")?;
    Ok(Box::new(Entropy { small, large, threshold: options.entropy_threshold as f32 }))
}

impl RoutingPolicy for Entropy {
    fn needs(&self) -> SignalNeeds {
        SignalNeeds { entropy: true }
    }

    fn route(&self, rows: &[RowView<'_>], decisions: &mut Vec<Decision>) {
        decisions.extend(rows.iter().map(|row| match row.model == self.small {
            true if row.signals.entropy >= self.threshold => Decision::Switch(self.large),
            true => Decision::Stay,
            false => Decision::Switch(self.small),
        }));
    }

    fn send(&self, row: &RowView<'_>, _to: ModelIndex) -> Candidate {
        if row.model == self.small { Candidate::Drop } else { Candidate::Commit }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Signals;
    use super::*;
    use crate::request::RequestId;

    #[test]
    fn equality_borrows_and_the_large_model_always_returns() {
        let view = SystemView { models: vec!["small".into(), "large".into()], entry: 0, vocab: 10 };
        let options = serde_json::json!({"entropy_threshold": 0.5});
        let policy = build(&RoutingConfig::new("entropy", options), &view).expect("valid options");
        for (model, entropy, want) in [
            (0, 0.499, (Decision::Stay, Candidate::Drop)),
            (0, 0.5, (Decision::Switch(1), Candidate::Drop)),
            (1, 9.0, (Decision::Switch(0), Candidate::Commit)),
            (1, 0.0, (Decision::Switch(0), Candidate::Commit)),
        ] {
            let signals = Signals { entropy };
            let (request, seed, key, position, candidate) = (RequestId(1), 0, 0, 3, 7);
            let row = RowView { request, seed, key, model, position, candidate, signals: &signals };
            let mut decisions = Vec::new();
            policy.route(&[row], &mut decisions);
            assert_eq!((decisions[0], policy.send(&row, 1 - model)), want, "model {model}, entropy {entropy}");
        }
    }
}
