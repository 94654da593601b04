//! R-Stitch (arXiv 2507.17307): entropy decides in both directions.
//!
//! Small model: entropy above the threshold drops the candidate and hands over; otherwise it is committed. Large model:
//! its token is always committed; entropy at or below the threshold hands back. Entropy is that of the raw logits at
//! temperature 1.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::registry::{Options, SystemView};
use super::{Candidate, Decision, RoutingPolicy, RowView, SignalNeeds};
use crate::config::RoutingConfig;
use crate::request::ModelIndex;

/// Options of `rstitch`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RStitchOptions {
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

impl Default for RStitchOptions {
    fn default() -> Self {
        Self { entropy_threshold: 0.45, return_threshold: None, entropy_norm: EntropyNorm::Nats }
    }
}

impl Options for RStitchOptions {
    fn check(&self) -> Result<(), String> {
        for (name, value) in
            [("entropy_threshold", Some(self.entropy_threshold)), ("return_threshold", self.return_threshold)]
        {
            if let Some(value) = value
                && !(value.is_finite() && value >= 0.0)
            {
                return Err(format!("`routing.{name}` is {value}, it must be 0 or more"));
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct RStitch {
    small: ModelIndex,
    large: ModelIndex,
    /// In nats.
    up: f32,
    /// In nats.
    down: f32,
}

pub(super) fn build(config: &RoutingConfig, system: &SystemView) -> Result<Box<dyn RoutingPolicy>, String> {
    let options: RStitchOptions = config.parse()?;
    let (small, large) = system.pair("rstitch")?;
    let scale = match options.entropy_norm {
        EntropyNorm::Nats => 1.0,
        EntropyNorm::Vocab => (system.vocab as f64).ln(),
    };
    let up = options.entropy_threshold * scale;
    let down = options.return_threshold.map_or(up, |value| value * scale);
    Ok(Box::new(RStitch { small, large, up: up as f32, down: down as f32 }))
}

impl RoutingPolicy for RStitch {
    fn needs(&self) -> SignalNeeds {
        SignalNeeds { entropy: true }
    }

    fn route(&self, rows: &[RowView<'_>], decisions: &mut Vec<Decision>) {
        decisions.extend(rows.iter().map(|row| match (row.model == self.small, row.signals.entropy) {
            (true, entropy) if entropy > self.up => Decision::Switch(self.large),
            (false, entropy) if entropy <= self.down => Decision::Switch(self.small),
            _ => Decision::Stay,
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

    fn decide(policy: &dyn RoutingPolicy, model: ModelIndex, entropy: f32) -> (Decision, Candidate) {
        let signals = Signals { entropy };
        let row =
            RowView { request: RequestId(1), seed: 0, key: 0, model, position: 0, candidate: 5, signals: &signals };
        let mut decisions = Vec::new();
        policy.route(&[row], &mut decisions);
        (decisions[0], policy.send(&row, 1 - model))
    }

    fn policy(options: serde_json::Value) -> Box<dyn RoutingPolicy> {
        let system = SystemView { models: vec!["small".into(), "large".into()], entry: 0, vocab: 49152 };
        build(&RoutingConfig::new("rstitch", options), &system).expect("valid options")
    }

    #[test]
    fn equality_stays_at_small_and_returns_from_large() {
        let policy = policy(serde_json::json!({"entropy_threshold": 0.5}));
        assert_eq!(decide(&*policy, 0, 0.5).0, Decision::Stay);
        assert_eq!(decide(&*policy, 0, 0.500_01), (Decision::Switch(1), Candidate::Drop));
        assert_eq!(decide(&*policy, 1, 0.5), (Decision::Switch(0), Candidate::Commit));
        assert_eq!(decide(&*policy, 1, 0.500_01).0, Decision::Stay);
    }

    #[test]
    fn thresholds_can_differ_and_be_normalised() {
        let policy =
            policy(serde_json::json!({"entropy_threshold": 0.1, "return_threshold": 0.05, "entropy_norm": "vocab"}));
        let ln_vocab = 49152f32.ln();
        assert_eq!(decide(&*policy, 0, 0.11 * ln_vocab).0, Decision::Switch(1));
        assert_eq!(decide(&*policy, 0, 0.09 * ln_vocab).0, Decision::Stay);
        assert_eq!(decide(&*policy, 1, 0.06 * ln_vocab).0, Decision::Stay);
        assert_eq!(decide(&*policy, 1, 0.04 * ln_vocab).0, Decision::Switch(0));
    }
}
