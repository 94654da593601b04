//! The smallest law that the visits support, and how well it fits them.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ChiSquared, ContinuousCDF};

use super::em::{Counts, fit};
use super::law::{Form, RunLaw, Shape};

/// Visits expected in a cell of the test, at least.
const LEAST_EXPECTED: f64 = 5.0;
/// Visits below which nothing but one state is looked for.
const LEAST_VISITS: f64 = 30.0;
/// Difference of the criterion that is rounding of the iteration: the simpler form, which comes first, keeps its place.
const TIE: f64 = 0.05;

/// A form that was fitted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Its shape.
    pub shape: Shape,
    /// Its number of states.
    pub states: usize,
    /// Numbers that the data determine.
    pub parameters: usize,
    /// Logarithm of the likelihood.
    pub log_likelihood: f64,
    /// Bayesian information criterion: `parameters ln(visits) - 2 log_likelihood`. The smallest is taken.
    pub bic: f64,
}

/// The law of one model's visits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LawFit {
    /// The law that was chosen.
    pub law: RunLaw,
    /// What it is among the candidates.
    pub chosen: Candidate,
    /// All forms that can make the visits, the simplest first.
    pub candidates: Vec<Candidate>,
    /// Visits behind the fit.
    pub visits: f64,
    /// The test of the law that was chosen; `None` where there are too few visits for a degree of freedom.
    pub test: Option<LawTest>,
}

/// Pearson's test of visits against a law.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LawTest {
    /// Sum over lengths, merged so that at least 5 visits are expected in each cell.
    pub chi_square: f64,
    /// Cells, less one for the total, less one for every number that was fitted.
    pub degrees: usize,
    /// Probability of so large a sum under the law.
    pub p_value: f64,
}

/// The law with the smallest criterion among forms of up to `most_states`. At least one visit.
pub(super) fn choose(counts: &Counts, most_states: usize, seed: u64) -> Option<LawFit> {
    let visits = counts.visits();
    let most = if visits < LEAST_VISITS { 1 } else { most_states };
    let mut best: Option<(RunLaw, Candidate)> = None;
    let mut candidates = Vec::new();
    for form in Form::all(most) {
        let Some((law, log_likelihood)) = fit(form, counts, seed) else { continue };
        let parameters = form.parameters();
        let bic = (parameters as f64).mul_add(visits.ln(), -2.0 * log_likelihood);
        let candidate = Candidate { shape: form.shape, states: form.states, parameters, log_likelihood, bic };
        if best.as_ref().is_none_or(|(_, best)| bic < best.bic - TIE) {
            best = Some((law, candidate.clone()));
        }
        candidates.push(candidate);
    }
    let (law, chosen) = best?;
    let test = test(&law, counts, chosen.parameters);
    Some(LawFit { law, chosen, candidates, visits, test })
}

/// Tests visits against a law of which `fitted` numbers came from the same visits.
pub(super) fn test(law: &RunLaw, counts: &Counts, fitted: usize) -> Option<LawTest> {
    let (total, n) = (counts.visits(), counts.ended.len());
    let (mut chi_square, mut cells) = (0.0, 0_usize);
    let (mut seen, mut expected, mut rest) = (0.0, 0.0, 1.0);
    let mut close = |seen: f64, expected: f64| {
        if expected > 0.0 {
            chi_square += (seen - expected).powi(2) / expected;
            cells += 1;
        }
    };
    let mut last = None;
    for (k, probability) in law.probabilities(n).into_iter().enumerate() {
        seen += counts.ended[k];
        expected += total * probability;
        rest -= probability;
        if total * rest < LEAST_EXPECTED {
            last = Some(k);
            break;
        }
        if expected >= LEAST_EXPECTED {
            close(std::mem::take(&mut seen), std::mem::take(&mut expected));
        }
    }
    // The last cell takes everything that is longer.
    let beyond = last.map_or(0.0, |k| counts.ended[k + 1..].iter().sum());
    close(seen + beyond + counts.longer, expected + total * rest.max(0.0));
    let degrees = cells.checked_sub(1 + fitted).filter(|&degrees| degrees > 0)?;
    let p_value = ChiSquared::new(degrees as f64).ok()?.sf(chi_square);
    Some(LawTest { chi_square, degrees, p_value })
}
