//! R2R's cheap uncertainty signals (its `immediate` switching): aleatoric and epistemic uncertainty of the largest
//! logits, read as evidence of a Dirichlet distribution.
//!
//! With the `k` largest logits `x_i` and `S` their sum: `AU = -sum (x_i / S) (digamma(x_i + 1) - digamma(S + 1))` and
//! `EU = k / (S + k)`. Evidence cannot be negative: negative logits count as 0.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::registry::{BuiltPolicy, Keeps, Method, MethodFacts, Sweep, SystemView, check_not_negative};
use super::{BatchView, Candidate, Decision, RoutingPolicy, Row, SignalNeeds};
use crate::request::ModelIndex;

/// Options of `aleatoric`. All thresholds that are given must be reached.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Aleatoric {
    /// Aleatoric uncertainty at or above which the large model writes the token.
    aleatoric_threshold: f64,
    /// Epistemic uncertainty that must be reached as well.
    epistemic_threshold: Option<f64>,
    /// Entropy in nats that must be reached as well.
    entropy_threshold: Option<f64>,
    /// Number of largest logits that are read.
    top_logits: usize,
}

impl Default for Aleatoric {
    fn default() -> Self {
        Self { aleatoric_threshold: 2.275, epistemic_threshold: None, entropy_threshold: None, top_logits: 10 }
    }
}

impl Method for Aleatoric {
    const FACTS: MethodFacts = MethodFacts {
        name: "aleatoric",
        summary: "Uncertainty of the small model's largest logits, read as evidence; the large model is borrowed for one \
                  token.",
        signal: "aleatoric uncertainty of the small model's 10 largest logits",
        unit: "nats",
        rule: "AU >= aleatoric_threshold, and the others where given",
        dropped: "the small model's",
        p: "[[1-p, p], [1, 0]]",
        c: "[[1, 0], [1, 0]]",
        source: "R2R's `immediate` switching, arXiv 2505.21600",
        sweep: Some(Sweep { option: "aleatoric_threshold", high_is_hard: true, span: Keeps::Token }),
    };

    fn check(&self) -> Result<(), String> {
        check_not_negative("aleatoric_threshold", self.aleatoric_threshold)?;
        for (name, value) in
            [("epistemic_threshold", self.epistemic_threshold), ("entropy_threshold", self.entropy_threshold)]
        {
            value.map_or(Ok(()), |value| check_not_negative(name, value))?;
        }
        if !(2..=1000).contains(&self.top_logits) {
            return Err(format!("`routing.top_logits` is {}, allowed are 2 to 1000", self.top_logits));
        }
        Ok(())
    }

    fn build(self, system: &SystemView) -> BuiltPolicy {
        let (small, large) = system.pair("aleatoric")?;
        Ok(Box::new(Policy { small, large, options: self }))
    }
}

#[derive(Debug)]
struct Policy {
    small: ModelIndex,
    large: ModelIndex,
    options: Aleatoric,
}

impl RoutingPolicy for Policy {
    fn needs(&self, model: ModelIndex) -> SignalNeeds {
        if model != self.small {
            return SignalNeeds::default();
        }
        SignalNeeds {
            top_logits: self.options.top_logits,
            softmax: self.options.entropy_threshold.is_some(),
            ..SignalNeeds::default()
        }
    }

    fn takes_threshold(&self) -> bool {
        true
    }

    fn route(&self, batch: &mut BatchView<'_>) {
        let options = &self.options;
        batch.decide(|row, signals| {
            if row.model == self.large {
                return Decision::Switch(self.small);
            }
            let (aleatoric, epistemic) = uncertainty(signals.top);
            row.score = aleatoric as f32;
            let hard = aleatoric >= row.threshold.unwrap_or(options.aleatoric_threshold)
                && options.epistemic_threshold.is_none_or(|least| epistemic >= least)
                && options.entropy_threshold.is_none_or(|least| f64::from(signals.entropy) >= least);
            if hard { Decision::Switch(self.large) } else { Decision::Stay }
        });
    }

    fn send(&self, row: &mut Row, _to: ModelIndex) -> Candidate {
        if row.model == self.small { Candidate::Drop } else { Candidate::Commit }
    }
}

/// Aleatoric and epistemic uncertainty of logits.
fn uncertainty(top: &[(f32, u32)]) -> (f64, f64) {
    let evidence = || top.iter().map(|(logit, _)| f64::from(logit.max(0.0)));
    let (count, sum) = (top.len() as f64, evidence().sum::<f64>());
    let epistemic = count / (sum + count);
    if sum == 0.0 {
        // No evidence at all: as uncertain as a uniform distribution.
        return (count.ln(), epistemic);
    }
    let terms = evidence().map(|x| x / sum * (digamma(x + 1.0) - digamma(sum + 1.0)));
    (-terms.sum::<f64>(), epistemic)
}

/// The digamma function for `x >= 1`: recurrence up to 10, then the asymptotic series (Abramowitz and Stegun 6.3.18),
/// whose first neglected term is below 1e-13 there.
fn digamma(mut x: f64) -> f64 {
    let mut shift = 0.0;
    while x < 10.0 {
        shift -= 1.0 / x;
        x += 1.0;
    }
    let r = 1.0 / (x * x);
    let series = r * (1.0 / 12.0 - r * (1.0 / 120.0 - r * (1.0 / 252.0 - r * (1.0 / 240.0 - r * (1.0 / 132.0)))));
    shift + x.ln() - 0.5 / x - series
}

#[cfg(test)]
mod tests {
    use super::super::testing::{decide, row};
    use super::*;
    use crate::step::StepOutput;

    #[test]
    fn digamma_has_its_known_values() {
        const EULER: f64 = 0.577_215_664_901_532_9;
        let harmonic = |n: u32| (1..n).map(|i| 1.0 / f64::from(i)).sum::<f64>();
        for n in 1..60 {
            assert!((digamma(f64::from(n)) - (harmonic(n) - EULER)).abs() < 1e-11, "digamma({n})");
        }
        assert!((digamma(1.5) - (2.0 - EULER - 2.0 * 2f64.ln())).abs() < 1e-11);
    }

    #[test]
    fn uncertainty_of_integer_evidence_in_closed_form() {
        // x = (2, 1): S = 3; digamma(n + 1) - digamma(4) are differences of harmonic numbers.
        let (aleatoric, epistemic) = uncertainty(&[(2.0, 0), (1.0, 1)]);
        let want = 2.0 / 3.0 * (1.0 / 3.0) + 1.0 / 3.0 * (1.0 / 2.0 + 1.0 / 3.0);
        assert!((aleatoric - want).abs() < 1e-11 && (epistemic - 0.4).abs() < 1e-12);
        let (flat, none) = uncertainty(&[(-3.0, 0), (-4.0, 1)]);
        assert_eq!((flat, none), (2f64.ln(), 1.0));
    }

    #[test]
    fn all_given_thresholds_must_be_reached_and_the_large_model_returns() {
        let view = SystemView::emulated(&["small", "large"], 10);
        let (aleatoric, epistemic) = uncertainty(&[(2.0, 0), (1.0, 1)]);
        let output = StepOutput { tokens: vec![5], top: vec![(2.0, 0), (1.0, 1)], ..StepOutput::default() };
        for (at, and, want) in [
            (aleatoric, None, Decision::Switch(1)),
            (aleatoric + 1e-9, None, Decision::Stay),
            (aleatoric, Some(epistemic), Decision::Switch(1)),
            (aleatoric, Some(epistemic + 1e-9), Decision::Stay),
        ] {
            let options = Aleatoric { aleatoric_threshold: at, epistemic_threshold: and, ..Aleatoric::default() };
            let policy = options.build(&view).expect("valid options");
            assert_eq!(decide(&*policy, &mut row(0, 3), &output), (want, Candidate::Drop));
            assert_eq!(decide(&*policy, &mut row(1, 3), &output), (Decision::Switch(0), Candidate::Commit));
        }
    }
}
