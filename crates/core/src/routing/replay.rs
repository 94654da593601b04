//! Decisions of a recorded run, repeated: every system then does the same routing work, whatever its signals are.

use std::collections::HashMap;
use std::sync::Arc;

use super::{BatchView, Candidate, Decision, Matrix, RoutingPolicy, Row};
use crate::request::{ModelIndex, StepRecord};

/// Recorded decisions by request.
#[derive(Debug, Clone)]
pub struct Replay {
    models: usize,
    steps: Arc<HashMap<u64, Vec<StepRecord>>>,
    /// Keys in order, for requests that were not recorded.
    keys: Arc<[u64]>,
}

impl Replay {
    /// The steps of requests by their keys, in order, on `models` models. A request with another key, such as one of a
    /// warm-up, repeats the decisions of a recorded one.
    pub fn new(models: usize, steps: HashMap<u64, Vec<StepRecord>>) -> Result<Self, String> {
        let mut keys: Vec<_> = steps.keys().copied().collect();
        keys.sort_unstable();
        if keys.is_empty() {
            return Err("nothing was recorded".into());
        }
        let known = |step: &StepRecord| step.model < models && step.to.is_none_or(|to| to < models);
        if let Some(key) = keys.iter().find(|key| !steps[key].iter().all(known)) {
            return Err(format!("request {key} was recorded with more than {models} models"));
        }
        Ok(Self { models, steps: Arc::new(steps), keys: keys.into() })
    }

    fn of(&self, key: u64) -> &[StepRecord] {
        self.steps.get(&key).unwrap_or_else(|| &self.steps[&self.keys[key as usize % self.keys.len()]])
    }

    /// What was recorded for this step, which is the `made`-th of its request.
    fn decide(&self, row: &Row, made: usize) -> Decision {
        let steps = self.of(row.key);
        let Some(step) = steps.get(made) else {
            return Decision::Fail(format!("replay: request {} has {} recorded steps", row.key, steps.len()));
        };
        if (step.position, step.model) != (row.position, row.model) {
            return Decision::Fail(format!(
                "replay: step {made} of request {} was recorded at position {} of model {}, and is at position {} of \
                 model {}",
                row.key, step.position, step.model, row.position, row.model
            ));
        }
        match step.to {
            None => Decision::Finish,
            Some(to) if to != row.model => Decision::Switch(to),
            Some(_) if step.committed => Decision::Stay,
            Some(_) => Decision::Retry,
        }
    }
}

impl RoutingPolicy for Replay {
    fn route(&self, batch: &mut BatchView<'_>) {
        batch.decide(|row, _| {
            let made = row.state.get::<usize>();
            *made += 1;
            let index = *made - 1;
            self.decide(row, index)
        });
    }

    fn send(&self, row: &mut Row, _to: ModelIndex) -> Candidate {
        let made = *row.state.get::<usize>();
        let step = made.checked_sub(1).and_then(|index| self.of(row.key).get(index));
        if step.is_some_and(|step| step.committed) { Candidate::Commit } else { Candidate::Drop }
    }

    /// As recorded; a model that made no step stays.
    fn transition_model(&self) -> Option<(Matrix, Matrix)> {
        let mut moves = vec![vec![0.0; self.models]; self.models];
        let mut commits = moves.clone();
        for step in self.steps.values().flatten() {
            if let Some(to) = step.to {
                moves[step.model][to] += 1.0;
                commits[step.model][to] += f64::from(u8::from(step.committed));
            }
        }
        for (model, (moves, commits)) in moves.iter_mut().zip(&mut commits).enumerate() {
            let total: f64 = moves.iter().sum();
            for (count, commit) in moves.iter_mut().zip(commits.iter_mut()) {
                *commit = if *count > 0.0 { *commit / *count } else { 1.0 };
                *count = if total > 0.0 { *count / total } else { 0.0 };
            }
            if total == 0.0 {
                moves[model] = 1.0;
            }
        }
        Some((moves, commits))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::row;
    use super::*;
    use crate::step::StepOutput;

    fn step(position: usize, model: ModelIndex, committed: bool, to: Option<ModelIndex>) -> StepRecord {
        StepRecord { position, model, token: 5, committed, to, score: None }
    }

    #[test]
    fn recorded_decisions_are_repeated_in_order() {
        let steps = vec![
            step(0, 0, true, Some(0)),
            step(1, 0, false, Some(1)),
            step(1, 1, true, Some(0)),
            step(2, 0, false, Some(0)),
            step(2, 0, true, None),
        ];
        let replay = Replay::new(2, HashMap::from([(9, steps)])).expect("valid");
        let output = StepOutput { tokens: vec![5], ..StepOutput::default() };
        let mut state = super::super::RequestState::default();
        let mut next = |model, position, key| {
            let mut row = super::Row { key, state: std::mem::take(&mut state), ..row(model, position) };
            replay.route(&mut BatchView::new(std::slice::from_mut(&mut row), &output));
            let candidate = replay.send(&mut row, 1 - model);
            state = row.state;
            (row.decision, candidate)
        };
        assert_eq!(next(0, 0, 9).0, Decision::Stay);
        assert_eq!(next(0, 1, 9), (Decision::Switch(1), Candidate::Drop));
        // Keys that were not recorded repeat another request.
        assert_eq!(next(1, 1, 1 << 40), (Decision::Switch(0), Candidate::Commit));
        assert_eq!(next(0, 2, 9).0, Decision::Retry);
        assert_eq!(next(0, 2, 9).0, Decision::Finish);
        assert!(matches!(next(0, 3, 9).0, Decision::Fail(message) if message.contains("5 recorded steps")));
        let (routing, commits) = replay.transition_model().expect("counted");
        assert_eq!((routing[0][1], routing[1][0]), (1.0 / 3.0, 1.0));
        assert_eq!((commits[0][1], commits[0][0], commits[1][0]), (0.0, 0.5, 1.0));
    }

    #[test]
    fn another_course_is_noticed() {
        let replay = Replay::new(2, HashMap::from([(9, vec![step(0, 0, true, Some(0))])])).expect("valid");
        let output = StepOutput { tokens: vec![5], ..StepOutput::default() };
        let mut row = row(1, 0);
        replay.route(&mut BatchView::new(std::slice::from_mut(&mut row), &output));
        assert!(
            matches!(row.decision, Decision::Fail(message) if message.contains("recorded at position 0 of model 0"))
        );
        assert!(Replay::new(1, HashMap::from([(9, vec![step(0, 0, true, Some(1))])])).is_err());
        assert!(Replay::new(2, HashMap::new()).is_err());
    }
}
