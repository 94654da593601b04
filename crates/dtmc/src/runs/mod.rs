//! Laws of visit lengths, and the routing states that they make.
//!
//! The chain draws a request's way anew after every step, so that a visit with one routing state has a geometric length.
//! Real visits may not: a method that hands over whole sentences never returns after a token. Any length has a *phase-type*
//! law, the time that a walk over a few states takes. This module finds the smallest one that measured visits support
//! ([`fit_runs`]), and makes its states routing states of a [`System`].
//!
//! What is lost: lengths of successive visits are taken as independent of each other and of the model that the request
//! goes to, and every step of a visit commits the same mean number of tokens.

mod choose;
mod em;
mod law;

use serde::{Deserialize, Serialize};

pub use choose::{Candidate, LawFit, LawTest};
pub use law::{RunLaw, Shape};

use crate::{Error, MAX_MODELS, MAX_ROUTING_STATES, System};
use em::Counts;

/// Longest visit length that is told from longer ones.
pub const LONGEST_VISIT: usize = 4096;

/// Visits of one model, as they were measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelVisits {
    /// `lengths[n]`: visits of `n` steps; entry 0 must be 0. Up to [`LONGEST_VISIT`].
    pub lengths: Vec<u64>,
    /// Visits with more steps than the last entry of `lengths` says.
    #[serde(default)]
    pub longer: u64,
    /// `moves[j]`: visits after which the request went on at model `j`, length `M`. Its own entry is for requests that ended
    /// here and were followed by one that begins here. Absent where there are two models, and all go to the other.
    #[serde(default)]
    pub moves: Vec<u64>,
    /// `tokens[j]`: mean tokens committed by a step after which the request went on at model `j`, its own included; length
    /// `M`. Absent: one.
    #[serde(default)]
    pub tokens: Vec<f64>,
}

/// How [`fit_runs`] looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunOptions {
    /// Most states of each model's law, 1 to 3.
    pub most_states: usize,
    /// Seed of the restarts.
    pub seed: u64,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self { most_states: law::MOST_STATES, seed: 0 }
    }
}

/// Routing states with their matrices: what a [`System`] is over where runs are not geometric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoutingStates {
    /// The model of every state, length `S`.
    pub state_models: Vec<usize>,
    /// `P`, `S x S`.
    pub routing: Vec<Vec<f64>>,
    /// `C`, `S x S`.
    pub commits: Vec<Vec<f64>>,
}

impl RoutingStates {
    /// `system` over these states.
    #[must_use]
    pub fn of(&self, system: System) -> System {
        System {
            routing: self.routing.clone(),
            commits: Some(self.commits.clone()),
            state_models: Some(self.state_models.clone()),
            ..system
        }
    }
}

/// What [`fit_runs`] found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunsFit {
    /// The states of all models, in order.
    pub states: RoutingStates,
    /// The law of every model's visits; `None` for one that no visit ended at.
    pub models: Vec<Option<LawFit>>,
}

/// The smallest phase-type law of every model's visits (by the Bayesian information criterion), and routing states made of
/// them. The states of model `i` come before those of model `i + 1`. The number of all states is at most
/// [`MAX_ROUTING_STATES`].
///
/// # Errors
/// [`Error::InvalidSystem`] for lists of the wrong length, visits of no step, and moves that contradict them;
/// [`Error::InvalidOption`] for `most_states` outside 1 to 3.
pub fn fit_runs(visits: &[ModelVisits], options: &RunOptions) -> Result<RunsFit, Error> {
    let models = visits.len();
    if models == 0 || models > MAX_MODELS {
        return Err(Error::system("visits", format!("{models} models"), format!("1 to {MAX_MODELS} models")));
    }
    if !(1..=law::MOST_STATES).contains(&options.most_states) {
        let allowed = format!("1 to {}", law::MOST_STATES);
        return Err(Error::option("most_states", options.most_states.to_string(), allowed));
    }
    let most = options.most_states.min(MAX_ROUTING_STATES / models).max(1);
    let mut laws = Vec::with_capacity(models);
    let mut onward = Vec::with_capacity(models);
    for (model, of) in visits.iter().enumerate() {
        onward.push(targets(of, model, models)?);
        laws.push(fit_model(of, model, most, options.seed)?);
    }
    let states = compose(&laws, &onward, visits);
    Ok(RunsFit { states, models: laws })
}

/// The law of one list of visits, as [`fit_runs`] takes it; `None` when no visit ended.
fn fit_model(visits: &ModelVisits, model: usize, most: usize, seed: u64) -> Result<Option<LawFit>, Error> {
    let place = || format!("visits of model {model}");
    if visits.lengths.len() > LONGEST_VISIT + 1 {
        let problem = format!("lengths of up to {}", visits.lengths.len() - 1);
        return Err(Error::system(place(), problem, format!("lengths of up to {LONGEST_VISIT}, and `longer`")));
    }
    if visits.lengths.first().is_some_and(|&count| count > 0) {
        return Err(Error::system(place(), "visits of 0 steps", "visits of 1 step or more"));
    }
    let mut ended: Vec<f64> = visits.lengths.iter().skip(1).map(|&count| count as f64).collect();
    if visits.longer == 0 {
        ended.truncate(ended.iter().rposition(|&count| count > 0.0).map_or(0, |last| last + 1));
    }
    if ended.iter().all(|&count| count == 0.0) {
        return Ok(None);
    }
    let counts = Counts { ended, longer: visits.longer as f64 };
    Ok(choose::choose(&counts, most, seed))
}

/// The test of visits against the geometric law of their mean; `None` where there are too few.
///
/// # Errors
/// As [`fit_runs`].
pub fn geometric_test(visits: &ModelVisits) -> Result<Option<LawTest>, Error> {
    Ok(fit_model(visits, 0, 1, 0)?.and_then(|fit| fit.test))
}

/// Shares of the models that a visit to `model` is followed by.
fn targets(visits: &ModelVisits, model: usize, models: usize) -> Result<Vec<f64>, Error> {
    let place = |what: &str| format!("{what} of model {model}");
    let mut shares: Vec<f64> = match visits.moves.len() {
        0 if models <= 2 => (0..models).map(|to| f64::from(u8::from(to != model))).collect(),
        given if given == models => visits.moves.iter().map(|&count| count as f64).collect(),
        given => {
            return Err(Error::system(place("moves"), format!("{given} entries"), format!("{models}, one per model")));
        }
    };
    let total: f64 = shares.iter().sum();
    let ended = visits.lengths.iter().sum::<u64>() + visits.longer;
    if models > 1 && total == 0.0 && ended > 0 {
        return Err(Error::system(place("moves"), format!("{ended} visits ended and no move"), "the moves after them"));
    }
    if total > 0.0 {
        shares.iter_mut().for_each(|share| *share /= total);
    }
    if !(visits.tokens.is_empty() || visits.tokens.len() == models) {
        let problem = format!("{} entries", visits.tokens.len());
        return Err(Error::system(place("tokens"), problem, format!("{models}, one per model")));
    }
    if let Some(bad) = visits.tokens.iter().find(|tokens| !(tokens.is_finite() && **tokens >= 0.0)) {
        return Err(Error::system(place("tokens"), format!("{bad}"), "finite numbers, 0 or above"));
    }
    Ok(shares)
}

/// `P` and `C` over the states of all laws. A model without a law stays where it is.
fn compose(laws: &[Option<LawFit>], onward: &[Vec<f64>], visits: &[ModelVisits]) -> RoutingStates {
    let absorbing = RunLaw::geometric(0.0);
    // A single model has nowhere to go.
    let law = |model: usize| laws[model].as_ref().map_or(&absorbing, |fit| &fit.law);
    let laws: Vec<&RunLaw> = (0..laws.len()).map(law).collect();
    let state_models: Vec<usize> =
        laws.iter().enumerate().flat_map(|(model, law)| std::iter::repeat_n(model, law.states())).collect();
    let first: Vec<usize> = laws
        .iter()
        .scan(0, |next, law| {
            let here = *next;
            *next += law.states();
            Some(here)
        })
        .collect();
    let states = state_models.len();
    let (mut routing, mut commits) = (vec![vec![0.0; states]; states], vec![vec![0.0; states]; states]);
    for (state, &model) in state_models.iter().enumerate() {
        let own = state - first[model];
        for (to, &target) in state_models.iter().enumerate() {
            let there = to - first[target];
            let tokens = visits[model].tokens.get(target).copied().unwrap_or(1.0);
            let stayed = if target == model { laws[model].stay[own][there] } else { 0.0 };
            let moved = laws[model].leave[own] * onward[model][target] * laws[target].start[there];
            routing[state][to] = stayed + moved;
            commits[state][to] = if routing[state][to] > 0.0 { tokens } else { 0.0 };
        }
        // A single model, and rounding.
        let sum: f64 = routing[state].iter().sum();
        if sum > 0.0 {
            routing[state].iter_mut().for_each(|share| *share /= sum);
        } else {
            routing[state][state] = 1.0;
            commits[state][state] = visits[model].tokens.get(model).copied().unwrap_or(1.0);
        }
    }
    RoutingStates { state_models, routing, commits }
}
