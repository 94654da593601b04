//! Query-level routing: the entry model decides once, on its first candidate, and the request then stays where it is.
//!
//! `P = C = I` after the choice. The candidate of a request that moves is dropped: the large model writes everything.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::registry::{Options, SystemView};
use super::{Candidate, Decision, RoutingPolicy, RowView, SignalNeeds};
use crate::config::RoutingConfig;
use crate::keyed::{Purpose, draw_unit};
use crate::request::ModelIndex;

/// Options of `query`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct QueryOptions {
    /// Share of the requests that go to the large model, chosen by a keyed draw. Ignored when `entropy_threshold` is
    /// given.
    large_fraction: f64,
    /// Entropy in nats of the small model's first token at or above which a request goes to the large model.
    entropy_threshold: Option<f64>,
}

impl Default for QueryOptions {
    fn default() -> Self {
        Self { large_fraction: 0.4, entropy_threshold: None }
    }
}

impl Options for QueryOptions {
    fn check(&self) -> Result<(), String> {
        if !(0.0..=1.0).contains(&self.large_fraction) {
            return Err(format!("`routing.large_fraction` is {}, allowed is 0 to 1", self.large_fraction));
        }
        match self.entropy_threshold {
            Some(value) if !(value.is_finite() && value >= 0.0) => {
                Err(format!("`routing.entropy_threshold` is {value}, it must be 0 or more"))
            }
            _ => Ok(()),
        }
    }
}

#[derive(Debug)]
struct Query {
    small: ModelIndex,
    large: ModelIndex,
    fraction: f64,
    threshold: Option<f32>,
}

pub(super) fn build(config: &RoutingConfig, system: &SystemView) -> Result<Box<dyn RoutingPolicy>, String> {
    let options: QueryOptions = config.parse()?;
    let (small, large) = system.pair("query")?;
    let threshold = options.entropy_threshold.map(|value| value as f32);
    Ok(Box::new(Query { small, large, fraction: options.large_fraction, threshold }))
}

impl RoutingPolicy for Query {
    fn needs(&self) -> SignalNeeds {
        SignalNeeds { entropy: self.threshold.is_some() }
    }

    fn route(&self, rows: &[RowView<'_>], decisions: &mut Vec<Decision>) {
        decisions.extend(rows.iter().map(|row| {
            let first = row.model == self.small && row.position == 0;
            let hard = match self.threshold {
                Some(threshold) => row.signals.entropy >= threshold,
                None => draw_unit(row.seed, row.key, 0, Purpose::Route) < self.fraction,
            };
            if first && hard { Decision::Switch(self.large) } else { Decision::Stay }
        }));
    }

    fn send(&self, _row: &RowView<'_>, _to: ModelIndex) -> Candidate {
        Candidate::Drop
    }
}

#[cfg(test)]
mod tests {
    use super::super::Signals;
    use super::*;
    use crate::request::RequestId;

    fn decide(options: serde_json::Value, model: ModelIndex, position: usize, key: u64, entropy: f32) -> Decision {
        let view = SystemView { models: vec!["small".into(), "large".into()], entry: 0, vocab: 10 };
        let policy = build(&RoutingConfig::new("query", options), &view).expect("valid options");
        let signals = Signals { entropy };
        let mut decisions = Vec::new();
        let row = RowView { request: RequestId(1), seed: 1, key, model, position, candidate: 0, signals: &signals };
        policy.route(&[row], &mut decisions);
        decisions[0]
    }

    #[test]
    fn only_the_first_candidate_of_the_entry_model_decides() {
        let options = serde_json::json!({"entropy_threshold": 2.0});
        assert_eq!(decide(options.clone(), 0, 0, 0, 2.0), Decision::Switch(1));
        assert_eq!(decide(options.clone(), 0, 0, 0, 1.99), Decision::Stay);
        assert_eq!(decide(options.clone(), 0, 1, 0, 9.0), Decision::Stay);
        assert_eq!(decide(options, 1, 0, 0, 0.0), Decision::Stay);
    }

    #[test]
    fn the_fraction_is_kept_over_requests() {
        let options = serde_json::json!({"large_fraction": 0.3});
        let large = (0..10_000).filter(|key| decide(options.clone(), 0, 0, *key, 0.0) != Decision::Stay).count();
        // Five standard deviations.
        assert!((large as f64 / 1e4 - 0.3).abs() < 0.023, "{large}");
    }
}
