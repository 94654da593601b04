//! Maximum likelihood by expectation and maximisation.
//!
//! One pass forward and one backward over the lengths, scaled against underflow, give the expected number of moves along
//! every arc, for all visits together; the shares of these are the next law. The likelihood never falls.

use rand_distr::{Distribution, StandardNormal};

use super::law::{Form, RunLaw, Shape};
use crate::random::{Generator, stream};

/// Visits by their length, as the passes need them.
#[derive(Debug, Clone)]
pub(super) struct Counts {
    /// `ended[k]`: visits of `k + 1` steps.
    pub(super) ended: Vec<f64>,
    /// Visits with more steps than the last entry says.
    pub(super) longer: f64,
}

impl Counts {
    pub(super) fn visits(&self) -> f64 {
        self.ended.iter().sum::<f64>() + self.longer
    }

    /// Steps of all visits, those of the longer ones counted up to where they are cut.
    pub(super) fn steps(&self) -> f64 {
        let ended: f64 = self.ended.iter().zip(1..).map(|(count, length)| count * f64::from(length)).sum();
        ended + self.longer * (self.ended.len() + 1) as f64
    }
}

/// What a pass over the visits says of a law.
pub(super) struct Expected {
    start: Vec<f64>,
    stay: Vec<Vec<f64>>,
    leave: Vec<f64>,
    /// Logarithm of the likelihood of the visits.
    pub(super) log_likelihood: f64,
}

/// The expected number of moves along every arc; `None` where the law cannot make some visit.
pub(super) fn expect(law: &RunLaw, counts: &Counts) -> Option<Expected> {
    let (m, n) = (law.states(), counts.ended.len());
    // With visits that are longer, the pass goes one step beyond the last length.
    let steps = if counts.longer > 0.0 { n + 1 } else { n };
    // at[k]: law of the state at step k, given that the visit has that many steps; go_on[k]: probability that it has one
    // more.
    let (mut at, mut go_on) = (vec![law.start.clone()], Vec::with_capacity(steps));
    let (mut log_likelihood, mut log_scale) = (0.0, 0.0);
    for k in 0..steps {
        if let Some(&count) = counts.ended.get(k).filter(|&&count| count > 0.0) {
            let ends: f64 = at[k].iter().zip(&law.leave).map(|(mass, leave)| mass * leave).sum();
            if ends <= 0.0 {
                return None;
            }
            log_likelihood += count * (log_scale + ends.ln());
        }
        if k == n {
            log_likelihood += counts.longer * log_scale;
        }
        if k + 1 == steps {
            break;
        }
        let mut next = law.next(&at[k]);
        let ratio: f64 = next.iter().sum();
        if ratio <= 0.0 {
            // No visit goes on: none may be longer.
            if counts.ended[k + 1..].iter().sum::<f64>() + counts.longer > 0.0 {
                return None;
            }
            break;
        }
        next.iter_mut().for_each(|mass| *mass /= ratio);
        log_scale += ratio.ln();
        at.push(next);
        go_on.push(ratio);
    }
    let mut found = Expected { start: vec![0.0; m], stay: vec![vec![0.0; m]; m], leave: vec![0.0; m], log_likelihood };
    // back[i]: visits that are still to end, each weighed by how much more likely state i makes its end.
    let mut back = vec![0.0; m];
    for k in (0..at.len()).rev() {
        let mut here = vec![0.0; m];
        if let Some(&ratio) = go_on.get(k) {
            for i in 0..m {
                for (j, later) in back.iter().enumerate() {
                    let onward = law.stay[i][j] * later / ratio;
                    found.stay[i][j] += at[k][i] * onward;
                    here[i] += onward;
                }
            }
        }
        if let Some(&count) = counts.ended.get(k).filter(|&&count| count > 0.0) {
            let ends: f64 = at[k].iter().zip(&law.leave).map(|(mass, leave)| mass * leave).sum();
            for i in 0..m {
                found.leave[i] += at[k][i] * count * law.leave[i] / ends;
                here[i] += count * law.leave[i] / ends;
            }
        }
        if k == n {
            here.iter_mut().for_each(|weight| *weight += counts.longer);
        }
        back = here;
    }
    found.start.iter_mut().zip(law.start.iter().zip(&back)).for_each(|(slot, (start, back))| *slot = start * back);
    Some(found)
}

/// The law under which the expected moves are most likely. States that were never there keep their arcs.
pub(super) fn maximise(law: &RunLaw, expected: &Expected) -> RunLaw {
    let mut next = law.clone();
    let begun: f64 = expected.start.iter().sum();
    next.start.iter_mut().zip(&expected.start).for_each(|(slot, count)| *slot = count / begun);
    for i in 0..law.states() {
        let total: f64 = expected.stay[i].iter().sum::<f64>() + expected.leave[i];
        if total > 0.0 {
            next.stay[i].iter_mut().zip(&expected.stay[i]).for_each(|(slot, count)| *slot = count / total);
            next.leave[i] = expected.leave[i] / total;
        }
    }
    next
}

/// Restarts of each form.
const RESTARTS: u64 = 8;
/// Steps of each, after which the best [`KEPT`] go on.
const TRIAL_STEPS: usize = 40;
const KEPT: usize = 2;
/// Steps at most, and the gain in the logarithm of the likelihood per step below which it is over.
const MOST_STEPS: usize = 4000;
const GAIN: f64 = 1e-7;

/// The law of a form with the largest likelihood that was found, and its logarithm; `None` where the form cannot make
/// some visit. The same `seed` finds the same.
pub(super) fn fit(form: Form, counts: &Counts, seed: u64) -> Option<(RunLaw, f64)> {
    if form.shape == Shape::Geometric {
        return closed_form(counts);
    }
    if counts.ended.iter().take(form.shortest() - 1).any(|&count| count > 0.0) {
        return None;
    }
    let mut trials: Vec<(RunLaw, f64)> = (0..RESTARTS)
        .filter_map(|restart| {
            let mut draws = stream(seed, (restart << 8) | (form.parameters() * 8 + form.states) as u64);
            let law = begin(form, counts.steps() / counts.visits(), restart, &mut draws);
            climb(law, counts, TRIAL_STEPS)
        })
        .collect();
    trials.sort_by(|a, b| b.1.total_cmp(&a.1));
    trials.truncate(KEPT);
    let climbed = trials.into_iter().filter_map(|(law, _)| climb(law, counts, MOST_STEPS));
    climbed.max_by(|a, b| a.1.total_cmp(&b.1))
}

/// One state needs no iteration: visits that ended over steps that were made.
fn closed_form(counts: &Counts) -> Option<(RunLaw, f64)> {
    let ended: f64 = counts.ended.iter().sum();
    // A longer visit was seen to go on after each of the lengths listed.
    let law = RunLaw::geometric(ended / (counts.steps() - counts.longer));
    let log_likelihood = expect(&law, counts)?.log_likelihood;
    Some((law, log_likelihood))
}

fn climb(mut law: RunLaw, counts: &Counts, steps: usize) -> Option<(RunLaw, f64)> {
    let mut expected = expect(&law, counts)?;
    for _ in 0..steps {
        let next = maximise(&law, &expected);
        // Rounding can take the last possible visit away: then the law before it is the answer.
        let Some(found) = expect(&next, counts) else { break };
        let gain = found.log_likelihood - expected.log_likelihood;
        if gain < 0.0 {
            break;
        }
        (law, expected) = (next, found);
        if gain < GAIN {
            break;
        }
    }
    Some((law, expected.log_likelihood))
}

/// A law of the form to begin with: arcs drawn at random around those of a law with this mean.
fn begin(form: Form, mean: f64, restart: u64, draws: &mut Generator) -> RunLaw {
    let m = form.states;
    let spread = if restart == 0 { 0.5 } else { 1.5 };
    let mut weight = |middle: f64| {
        let normal: f64 = StandardNormal.sample(draws);
        middle * (spread * normal).exp()
    };
    let mut law = RunLaw { start: vec![0.0; m], stay: vec![vec![0.0; m]; m], leave: vec![0.0; m] };
    for i in 0..m {
        if form.may_start(i) {
            law.start[i] = weight(1.0);
        }
        for j in 0..m {
            if form.may_stay(i, j) {
                let middle = if i == j { (mean / m as f64).max(0.1) } else { 1.0 };
                law.stay[i][j] = weight(middle);
            }
        }
        if form.may_leave(i) {
            law.leave[i] = weight(1.0);
        }
        let total = law.stay[i].iter().sum::<f64>() + law.leave[i];
        law.stay[i].iter_mut().for_each(|share| *share /= total);
        law.leave[i] /= total;
    }
    let total: f64 = law.start.iter().sum();
    law.start.iter_mut().for_each(|share| *share /= total);
    law
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None,
            rng_seed: proptest::test_runner::RngSeed::Fixed(20_260), ..ProptestConfig::default() })]

        /// Whatever the form, the visits and the start, a step never lowers the likelihood, and keeps shares shares.
        #[test]
        fn the_likelihood_never_falls(
            form in prop::sample::select(Form::all(3)),
            ended in prop::collection::vec(0_u32..30, 4..40),
            longer in prop::sample::select(vec![0_u32, 3]),
            seed in any::<u64>(),
        ) {
            let mut ended: Vec<f64> = ended.into_iter().map(f64::from).collect();
            ended[..form.shortest() - 1].fill(0.0);
            ended[3] += 1.0;
            let counts = Counts { ended, longer: f64::from(longer) };
            let mut law = begin(form, counts.steps() / counts.visits(), seed % 3, &mut stream(seed, 1));
            let mut last = f64::NEG_INFINITY;
            for _ in 0..60 {
                let Some(expected) = expect(&law, &counts) else { return Err(TestCaseError::fail("impossible")) };
                prop_assert!(expected.log_likelihood >= last - 1e-9 * last.abs(), "{last} {}", expected.log_likelihood);
                last = expected.log_likelihood;
                law = maximise(&law, &expected);
                prop_assert!((law.start.iter().sum::<f64>() - 1.0).abs() < 1e-9);
                for (row, leave) in law.stay.iter().zip(&law.leave) {
                    prop_assert!((row.iter().sum::<f64>() + leave - 1.0).abs() < 1e-9);
                }
            }
        }
    }
}
