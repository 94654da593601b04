//! Query-level routing: the entry model decides once, on its first candidate, and the request then stays where it is.
//!
//! `P = C = I` after the choice. The candidate of a request that moves is dropped: the large model writes everything.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::registry::{BuiltPolicy, Keeps, Method, MethodFacts, Sweep, SystemView, check_not_negative, check_unit};
use super::{BatchView, Candidate, Decision, RoutingPolicy, Row, SignalNeeds};
use crate::request::ModelIndex;

/// Options of `query`. At most one of the thresholds decides; without any, the fraction does.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Query {
    /// Share of the requests that go to the large model, chosen by a keyed draw.
    large_fraction: f64,
    /// Entropy in nats of the small model's first token at or above which a request goes to the large model.
    entropy_threshold: Option<f64>,
    /// Prompt tokens at or above which a request goes to the large model.
    prompt_tokens_threshold: Option<usize>,
}

impl Default for Query {
    fn default() -> Self {
        Self { large_fraction: 0.4, entropy_threshold: None, prompt_tokens_threshold: None }
    }
}

impl Method for Query {
    const FACTS: MethodFacts = MethodFacts {
        name: "query",
        summary: "Query-level routing: one choice per request, before the first token is committed.",
        signal: "a keyed draw, the entropy of the small model's first token, or the prompt's length",
        unit: "0 to 1, nats, or tokens",
        rule: "draw < large_fraction; H >= entropy_threshold; tokens >= prompt_tokens_threshold",
        dropped: "the small model's first, when the request moves",
        p: "[[1, 0], [0, 1]]",
        c: "[[1, 0], [0, 1]]",
        source: "the paper's query-level baseline",
        sweep: Some(Sweep { option: "entropy_threshold", high_is_hard: true, span: Keeps::Request }),
    };

    fn check(&self) -> Result<(), String> {
        check_unit("large_fraction", self.large_fraction)?;
        if self.entropy_threshold.is_some() && self.prompt_tokens_threshold.is_some() {
            return Err("`routing.entropy_threshold` and `routing.prompt_tokens_threshold` exclude each other".into());
        }
        self.entropy_threshold.map_or(Ok(()), |value| check_not_negative("entropy_threshold", value))
    }

    fn build(self, system: &SystemView) -> BuiltPolicy {
        let (small, large) = system.pair("query")?;
        let by = match (self.entropy_threshold, self.prompt_tokens_threshold) {
            (Some(threshold), _) => By::Entropy(threshold),
            (None, Some(threshold)) => By::Prompt(threshold),
            (None, None) => By::Draw(self.large_fraction),
        };
        Ok(Box::new(Policy { small, large, by }))
    }
}

#[derive(Debug)]
enum By {
    Entropy(f64),
    Prompt(usize),
    Draw(f64),
}

#[derive(Debug)]
struct Policy {
    small: ModelIndex,
    large: ModelIndex,
    by: By,
}

impl RoutingPolicy for Policy {
    fn needs(&self, model: ModelIndex) -> SignalNeeds {
        let softmax = model == self.small && matches!(self.by, By::Entropy(_));
        SignalNeeds { softmax, ..SignalNeeds::default() }
    }

    fn takes_threshold(&self) -> bool {
        matches!(self.by, By::Entropy(_))
    }

    fn route(&self, batch: &mut BatchView<'_>) {
        batch.decide(|row, signals| {
            if row.model != self.small || row.position != 0 {
                return Decision::Stay;
            }
            let hard = match self.by {
                By::Entropy(threshold) => {
                    row.score = signals.entropy;
                    f64::from(signals.entropy) >= row.threshold.unwrap_or(threshold)
                }
                By::Prompt(threshold) => row.prompt_tokens >= threshold,
                By::Draw(fraction) => row.draw() < fraction,
            };
            if hard { Decision::Switch(self.large) } else { Decision::Stay }
        });
    }

    fn send(&self, _row: &mut Row, _to: ModelIndex) -> Candidate {
        Candidate::Drop
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{decide, row, with_entropy};
    use super::*;

    fn policy(options: Query) -> Box<dyn RoutingPolicy> {
        options.build(&SystemView::emulated(&["small", "large"], 10)).expect("valid options")
    }

    #[test]
    fn only_the_first_candidate_of_the_entry_model_decides() {
        let policy = policy(Query { entropy_threshold: Some(2.0), ..Query::default() });
        let decide = |model, position, entropy| decide(&*policy, &mut row(model, position), &with_entropy(entropy)).0;
        assert_eq!(decide(0, 0, 2.0), Decision::Switch(1));
        assert_eq!(decide(0, 0, 1.99), Decision::Stay);
        assert_eq!(decide(0, 1, 9.0), Decision::Stay);
        assert_eq!(decide(1, 0, 0.0), Decision::Stay);
    }

    #[test]
    fn long_prompts_can_go_to_the_large_model() {
        let policy = policy(Query { prompt_tokens_threshold: Some(100), ..Query::default() });
        for (tokens, want) in [(99, Decision::Stay), (100, Decision::Switch(1))] {
            let mut row = row(0, 0);
            row.prompt_tokens = tokens;
            assert_eq!(decide(&*policy, &mut row, &with_entropy(0.0)).0, want);
        }
    }

    #[test]
    fn the_fraction_is_kept_over_requests() {
        let policy = policy(Query { large_fraction: 0.3, ..Query::default() });
        let large = (0..10_000).filter(|key| {
            let mut row = row(0, 0);
            row.key = *key;
            decide(&*policy, &mut row, &with_entropy(0.0)).0 != Decision::Stay
        });
        // Five standard deviations.
        let share = large.count() as f64 / 1e4;
        assert!((share - 0.3).abs() < 0.023, "{share}");
    }
}
