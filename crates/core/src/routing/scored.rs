//! What R2R, CITER and Co-LLM have in common: a learned score of the small model's step decides whether its candidate is
//! dropped and the large model borrowed for that one token.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::head::{Head, HeadKind};
use super::registry::{SystemView, check_unit};
use super::{BatchView, Candidate, Decision, RoutingPolicy, Row, SignalNeeds};
use crate::names::list;
use crate::request::ModelIndex;

/// Which side of the threshold goes to the large model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hard {
    /// `score >= threshold`.
    AtLeast,
    /// `score > threshold`.
    Above,
    /// `score < threshold`.
    Below,
}

impl Hard {
    fn holds(self, score: f32, threshold: f64) -> bool {
        let score = f64::from(score);
        match self {
            Self::AtLeast => score >= threshold,
            Self::Above => score > threshold,
            Self::Below => score < threshold,
        }
    }
}

/// Where the score comes from.
#[derive(Debug)]
pub(super) enum Scorer {
    /// A head on the small model's hidden state.
    Head(Arc<dyn Head>),
    /// The logit of a row of the small model's own output matrix that is no token.
    Row(u32),
}

/// Borrows the large model for one token where the score of the small model's step is on the hard side.
#[derive(Debug)]
pub(super) struct Scored {
    small: ModelIndex,
    large: ModelIndex,
    scorer: Scorer,
    threshold: f64,
    hard: Hard,
    /// Reused from step to step; only the small model's subserver scores, so the lock is never contended.
    scores: Mutex<Vec<f32>>,
}

/// Reads the head of a method and checks that it is of the right kind and fits the small model.
pub(super) fn load_head(
    method: &str,
    path: &Path,
    kind: HeadKind,
    system: &SystemView,
) -> Result<Arc<dyn Head>, String> {
    let (small, _) = system.pair(method)?;
    let head = (system.load_head)(path).map_err(|error| format!("`routing.weights`: {error}"))?;
    if head.kind() != kind {
        return Err(format!(
            "`routing.weights` is `{}`, a head of kind `{}`; method `{method}` needs kind `{}`",
            path.display(),
            head.kind().name(),
            kind.name()
        ));
    }
    let (sizes, width) = (head.sizes(), system.hidden[small]);
    let fits = sizes.hidden == width && sizes.embedding.is_none_or(|embedding| embedding == width);
    if width > 0 && !fits {
        return Err(format!(
            "`routing.weights` is `{}`, made for hidden states of width {}; model `{}` has width {width}",
            path.display(),
            sizes.hidden,
            system.models[small]
        ));
    }
    Ok(head)
}

/// The threshold of the configuration, or of the file.
pub(super) fn threshold(given: Option<f64>, of_file: Option<f64>) -> Result<f64, String> {
    given
        .or(of_file)
        .ok_or_else(|| "`routing.threshold` is missing, and the file of `routing.weights` names none".into())
}

/// A threshold that is given must be a probability.
pub(super) fn check_threshold(given: Option<f64>) -> Result<(), String> {
    given.map_or(Ok(()), |value| check_unit("threshold", value))
}

/// The path of weights, which the configuration must give.
pub(super) fn required_weights<'a>(method: &str, weights: &'a Path) -> Result<&'a Path, String> {
    if weights.as_os_str().is_empty() {
        let kinds = list(&HeadKind::ALL.map(HeadKind::name));
        return Err(format!(
            "`routing.weights` is missing: method `{method}` needs a head file (kinds are {kinds}), made by `trbench \
             convert-router` or `trbench train-router`"
        ));
    }
    Ok(weights)
}

impl Scored {
    pub(super) fn policy(
        (small, large): (ModelIndex, ModelIndex),
        scorer: Scorer,
        threshold: f64,
        hard: Hard,
    ) -> Box<dyn RoutingPolicy> {
        Box::new(Self { small, large, scorer, threshold, hard, scores: Mutex::default() })
    }

    fn score(&self, batch: &BatchView<'_>, scores: &mut Vec<f32>) -> Result<(), String> {
        let output = batch.output();
        if !output.scores.is_empty() {
            // The runner has run the head where the model ran.
            scores.clone_from(&output.scores);
            return Ok(());
        }
        match &self.scorer {
            Scorer::Row(_) => {
                scores.clear();
                scores.extend(output.extra.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())));
                Ok(())
            }
            Scorer::Head(head) => head.score(output, scores),
        }
    }
}

impl RoutingPolicy for Scored {
    fn needs(&self, model: ModelIndex) -> SignalNeeds {
        if model != self.small {
            return SignalNeeds::default();
        }
        match &self.scorer {
            Scorer::Row(row) => SignalNeeds { extra_row: Some(*row), ..SignalNeeds::default() },
            Scorer::Head(head) => SignalNeeds {
                hidden: true,
                embedding: head.sizes().embedding.is_some(),
                top_logits: head.sizes().top_logits.unwrap_or_default(),
                ..SignalNeeds::default()
            },
        }
    }

    fn head(&self, model: ModelIndex) -> Option<Arc<dyn Head>> {
        match &self.scorer {
            Scorer::Head(head) if model == self.small => Some(Arc::clone(head)),
            _ => None,
        }
    }

    fn takes_threshold(&self) -> bool {
        true
    }

    fn route(&self, batch: &mut BatchView<'_>) {
        // All rows of a step are of one model.
        if batch.rows().first().is_none_or(|row| row.model == self.large) {
            batch.decide(|_, _| Decision::Switch(self.small));
            return;
        }
        let mut scores = self.scores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(message) = self.score(batch, &mut scores) {
            batch.decide(|row, _| Decision::Fail(format!("{}: no routing score: {message}", row.request)));
            return;
        }
        let mut scores = scores.iter();
        batch.decide(|row, _| {
            row.score = scores.next().copied().unwrap_or(f32::NAN);
            let threshold = row.threshold.unwrap_or(self.threshold);
            if self.hard.holds(row.score, threshold) { Decision::Switch(self.large) } else { Decision::Stay }
        });
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
    fn equality_at_the_threshold_is_on_the_side_of_the_table() {
        for (hard, below, at, above) in
            [(Hard::AtLeast, false, true, true), (Hard::Above, false, false, true), (Hard::Below, true, false, false)]
        {
            assert_eq!([0.25, 0.5, 0.75].map(|score| hard.holds(score, 0.5)), [below, at, above], "{hard:?}");
        }
    }

    #[test]
    fn a_deferral_row_borrows_above_the_threshold_and_the_large_model_returns() {
        let policy = Scored::policy((0, 1), Scorer::Row(9), 0.5, Hard::Above);
        assert_eq!(policy.needs(0).extra_row, Some(9));
        assert_eq!(policy.needs(1), SignalNeeds::default());
        let output = |logit| StepOutput { tokens: vec![5], extra: vec![logit], ..StepOutput::default() };
        // sigmoid(0) is one half exactly: not above.
        assert_eq!(decide(&*policy, &mut row(0, 3), &output(0.0)).0, Decision::Stay);
        assert_eq!(decide(&*policy, &mut row(0, 3), &output(0.01)), (Decision::Switch(1), Candidate::Drop));
        assert_eq!(decide(&*policy, &mut row(1, 3), &output(9.0)), (Decision::Switch(0), Candidate::Commit));
    }
}
