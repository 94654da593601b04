//! The best launch policy of all: an average-reward semi-Markov decision process, solved with bounds.
//!
//! At every event an idle model may launch what waits for it, or wait, knowing all queues and all remaining times. Howard's
//! policy iteration finds the best stationary policy: each policy's gain comes from its stationary distribution, its
//! relative values from the same sweeps run backwards. The certificate does not rest on the iteration having gone well:
//! for *any* values `h`, no policy gains more than `max over states and actions of (tokens + P h - h) / time`
//! (Puterman 1994, section 11.4), and that maximum is evaluated at the end.

mod build;

use crate::stationary::{CutSet, Krylov, gmres};
use crate::{ClosedSystem, Error, SolveOptions, StateView, Thresholds, TransitionMatrix, classes};
use build::Process;
use serde::Serialize;

/// Most rounds of policy iteration.
const ROUNDS: usize = 100;
/// Relative improvement below which an action counts as no better.
const INDIFFERENT: f64 = 1e-10;

/// The optimum over all launch policies, and how the thresholds compare.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Certificate {
    /// Throughput of the policy found, in tokens per second: a lower bound of the optimum.
    pub policy_tok_s: f64,
    /// No launch policy does better than this, in tokens per second.
    pub upper_bound_tok_s: f64,
    /// Decision states.
    pub states: usize,
    /// State-action pairs.
    pub actions: usize,
    /// Rounds of policy iteration.
    pub rounds: usize,
    /// States in which the policy departs from the thresholds given, most frequent first.
    pub departures: Vec<Departure>,
    /// Share of decisions in which it does.
    pub departure_share: f64,
}

impl Certificate {
    /// How much the upper bound exceeds `throughput_tok_s`, relative to it.
    #[must_use]
    pub fn gap(&self, throughput_tok_s: f64) -> f64 {
        self.upper_bound_tok_s / throughput_tok_s - 1.0
    }
}

/// A decision in which the best policy differs from the thresholds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Departure {
    /// The state before the decision.
    pub state: StateView,
    /// Models that the thresholds launch.
    pub thresholds_launch: Vec<usize>,
    /// Models that the policy launches.
    pub policy_launches: Vec<usize>,
    /// Share of all decisions taken in this state under the policy.
    pub share: f64,
}

/// Computes the best launch policy and compares its decisions with `thresholds`.
///
/// # Errors
/// A process over the limits, a policy with several recurrent classes, or a solver that doesn't reach its tolerance.
pub fn certify(system: &ClosedSystem, thresholds: &Thresholds, options: &SolveOptions) -> Result<Certificate, Error> {
    thresholds.check(system)?;
    let process = build::build(system, options)?;
    let mut policy: Vec<usize> = (0..process.states()).map(|state| process.actions_of(state).end - 1).collect();
    let mut rounds = 0;
    let (evaluated, upper) = loop {
        rounds += 1;
        let evaluated = Evaluated::new(&process, &policy, options)?;
        let (changed, upper) = improve(&process, &mut policy, &evaluated);
        if changed == 0 {
            break (evaluated, upper);
        }
        if rounds == ROUNDS {
            return Err(Error::NotConverged {
                method: "policy iteration".to_owned(),
                iterations: rounds,
                residual: upper - evaluated.gain,
                tolerance: INDIFFERENT,
            });
        }
    };
    let per_second = 1000.0 / system.quantum_ms();
    let departures = departures(system, thresholds, &process, &policy, &evaluated.shares);
    Ok(Certificate {
        policy_tok_s: evaluated.gain * per_second,
        upper_bound_tok_s: upper.max(evaluated.gain) * per_second,
        states: process.states(),
        actions: process.actions.len(),
        rounds,
        departure_share: departures.iter().fold(0.0, |sum, departure| sum + departure.share),
        departures,
    })
}

/// A policy with its gain (tokens per quantum), relative values and decision shares.
struct Evaluated {
    gain: f64,
    values: Vec<f64>,
    shares: Vec<f64>,
}

impl Evaluated {
    fn new(process: &Process, policy: &[usize], options: &SolveOptions) -> Result<Self, Error> {
        let matrix = policy_matrix(process, policy);
        let found = classes(&matrix);
        let [class] = found.recurrent.as_slice() else {
            let example = |index: usize| {
                let state = found.recurrent.get(index).and_then(|class| class.first());
                state.map_or_else(String::new, |&state| format!("[{}]", process.views[state as usize]))
            };
            return Err(Error::SeveralClasses {
                classes: found.recurrent.len(),
                first: example(0),
                second: example(1),
            });
        };
        let restricted = matrix.restrict(class);
        let stationary = options.method.solver(restricted.len()).solve(&restricted, options.tolerance)?;
        let mut shares = vec![0.0; process.states()];
        let (mut tokens, mut quanta) = (0.0, 0.0);
        for (&state, &mass) in class.iter().zip(&stationary.pi) {
            let action = process.actions[policy[state as usize]];
            shares[state as usize] = mass;
            tokens += mass * action.tokens;
            quanta += mass * action.quanta;
        }
        let gain = tokens / quanta;
        let values = relative_values(process, policy, &matrix, gain);
        Ok(Self { gain, values, shares })
    }
}

fn policy_matrix(process: &Process, policy: &[usize]) -> TransitionMatrix {
    let mut matrix = TransitionMatrix { row_start: vec![0], ..TransitionMatrix::default() };
    for &action in policy {
        let (columns, probs) = process.targets(action);
        matrix.pool_start.push(matrix.pool.len() as u32);
        matrix.columns.extend_from_slice(columns);
        matrix.pool.extend_from_slice(probs);
        matrix.row_start.push(matrix.columns.len() as u32);
    }
    matrix
}

/// Solves `h = tokens - gain * quanta + P h` (up to a constant) on the cut set, then everywhere.
fn relative_values(process: &Process, policy: &[usize], matrix: &TransitionMatrix, gain: f64) -> Vec<f64> {
    let cut = CutSet::new(matrix);
    let reward: Vec<f64> =
        policy.iter().map(|&action| process.actions[action].tokens - gain * process.actions[action].quanta).collect();
    let nothing = vec![0.0; reward.len()];
    let pull = |on_cut: &mut [f64], reward: &[f64]| {
        let mut values = vec![0.0; reward.len()];
        for (&state, &value) in cut.targets.iter().zip(on_cut.iter()) {
            values[state as usize] = value;
        }
        cut.pull(reward, &mut values);
        for (&state, value) in cut.targets.iter().zip(on_cut) {
            *value = values[state as usize];
        }
        values
    };
    let mut on_cut = vec![0.0; cut.targets.len()];
    let mut offset = on_cut.clone();
    pull(&mut offset, &reward);
    let scale = offset.iter().fold(1e-300_f64, |largest, value| largest.max(value.abs()));
    for _ in 0..20 {
        let options = Krylov { restart: 60, applications: 120, target: 1e-13 * scale };
        let spent = gmres(&mut on_cut, &offset, options, |x| {
            pull(x, &nothing);
        });
        if spent == 1 {
            break;
        }
    }
    let mut values = pull(&mut on_cut, &reward);
    // Values are relative; centre them so that differences keep their digits.
    let middle = values.iter().sum::<f64>() / values.len() as f64;
    values.iter_mut().for_each(|value| *value -= middle);
    values
}

/// Switches every state to its best action when that is truly better. Returns the switches, and the upper bound on the
/// gain of any policy that these values prove.
fn improve(process: &Process, policy: &mut [usize], evaluated: &Evaluated) -> (usize, f64) {
    let (mut changed, mut upper) = (0, f64::NEG_INFINITY);
    for (state, chosen) in policy.iter_mut().enumerate() {
        let own = evaluated.values[state];
        let score = |index: usize| {
            let action = process.actions[index];
            let (columns, probs) = process.targets(index);
            let next: f64 = columns.iter().zip(probs).map(|(&c, &p)| p * (evaluated.values[c as usize] - own)).sum();
            (action.tokens - evaluated.gain * action.quanta + next, (action.tokens + next) / action.quanta)
        };
        let mut best = score(*chosen).0 + INDIFFERENT * (1.0 + evaluated.gain * process.actions[*chosen].quanta);
        for index in process.actions_of(state) {
            let (advantage, ratio) = score(index);
            upper = upper.max(ratio);
            if advantage > best {
                best = advantage;
                *chosen = index;
                changed += 1;
            }
        }
    }
    (changed, upper)
}

fn departures(
    system: &ClosedSystem,
    thresholds: &Thresholds,
    process: &Process,
    policy: &[usize],
    shares: &[f64],
) -> Vec<Departure> {
    let mut found = Vec::new();
    for (state, &share) in shares.iter().enumerate().filter(|&(_, &share)| share > 0.0) {
        let view = &process.views[state];
        let launched = process.actions[policy[state]].launches;
        let by_thresholds = (0..system.models()).filter(|&index| {
            let queued: u32 = system.states_of(index).map(|s| view.waiting[s]).sum();
            view.remaining[index] == 0 && queued >= thresholds.as_slice()[index]
        });
        let thresholds_launch: Vec<usize> = by_thresholds.collect();
        let policy_launches: Vec<usize> = (0..system.models()).filter(|index| launched >> index & 1 == 1).collect();
        if thresholds_launch != policy_launches {
            found.push(Departure { state: view.clone(), thresholds_launch, policy_launches, share });
        }
    }
    found.sort_by(|a, b| b.share.total_cmp(&a.share));
    found
}
