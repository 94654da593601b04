//! Sweeps in time order, and Krylov acceleration on the states where a sweep wraps around.
//!
//! Number the states in any order. A transition to a smaller number is a *back edge*; the targets of back edges form the
//! *cut set* `F`. Put mass on `F` and push it forward once through all states in order (a *sweep*): all of it ends up on
//! `F` again. A sweep is therefore one step of the chain watched only on `F` (the censored chain, whose matrix `G` is
//! never formed), and the mass that passed through each state is, at the fixed point, its stationary weight.
//!
//! The states of [`crate::Chain`] are ordered by time, so a sweep covers a full round of the slowest model, whatever
//! the quantum, and `F` is a small part of the chain. The near-periodicity that ruins power iteration (rounds of
//! almost constant length) disappears: it happens within a sweep. GMRES on `(I - G)^T` then needs tens of sweeps.

use super::{Tolerance, gmres::Krylov, gmres::gmres};
use crate::TransitionMatrix;

/// Directions kept by GMRES, unless memory asks for fewer.
const RESTART: usize = 120;
/// Most bytes for these directions.
const BASIS_BYTES: usize = 256 << 20;
/// Plain sweeps before acceleration starts: they wash out transients of the initial guess.
const WARM_UP: usize = 2;

/// The cut set of a matrix in its given order, and sweeps over it.
pub(crate) struct CutSet<'a> {
    matrix: &'a TransitionMatrix,
    /// Targets of back edges, ascending.
    pub(crate) targets: Vec<u32>,
    /// `(state, 1 - P_ss)` of states with a self loop, ascending; the escape probability is a sum, not a difference.
    loops: Vec<(u32, f64)>,
}

impl<'a> CutSet<'a> {
    pub(crate) fn new(matrix: &'a TransitionMatrix) -> Self {
        let mut is_target = vec![false; matrix.len()];
        let mut loops = Vec::new();
        for state in 0..matrix.len() {
            let (columns, probs) = matrix.row(state);
            let mut has_loop = false;
            for &column in columns {
                if (column as usize) < state {
                    is_target[column as usize] = true;
                }
                has_loop |= column as usize == state;
            }
            if has_loop {
                let others = columns.iter().zip(probs).filter(|&(&column, _)| column as usize != state);
                loops.push((state as u32, others.map(|(_, &p)| p).sum()));
            }
        }
        let targets = (0..matrix.len() as u32).filter(|&state| is_target[state as usize]).collect();
        Self { matrix, targets, loops }
    }

    /// Pushes the mass in `mass` (zero outside the cut set) forward once. On return it lies on the cut set again.
    fn sweep(&self, mass: &mut [f64], mut visit: impl FnMut(usize, f64)) {
        let mut loops = self.loops.iter();
        let mut next_loop = loops.next();
        for state in 0..self.matrix.len() {
            let mut through = mass[state];
            if let Some(&(at, escape)) = next_loop
                && at as usize == state
            {
                through /= escape;
                next_loop = loops.next();
            }
            visit(state, through);
            let (columns, probs) = self.matrix.row(state);
            for (&column, &p) in columns.iter().zip(probs) {
                mass[column as usize] += through * p;
            }
            mass[state] = 0.0;
        }
    }

    /// Replaces mass on the cut set by the mass after one sweep. `scratch` has one zero per state and is left so.
    fn apply(&self, on_cut: &mut [f64], scratch: &mut [f64]) {
        for (&state, &mass) in self.targets.iter().zip(on_cut.iter()) {
            scratch[state as usize] = mass;
        }
        self.sweep(scratch, |_, _| ());
        for (&state, mass) in self.targets.iter().zip(on_cut) {
            *mass = std::mem::take(&mut scratch[state as usize]);
        }
    }

    /// Weights of all states from the mass on the cut set.
    fn spread(&self, on_cut: &[f64], scratch: &mut [f64]) -> Vec<f64> {
        for (&state, &mass) in self.targets.iter().zip(on_cut) {
            scratch[state as usize] = mass;
        }
        let mut weights = vec![0.0; self.matrix.len()];
        self.sweep(scratch, |state, through| weights[state] = through);
        scratch.iter_mut().for_each(|mass| *mass = 0.0);
        weights
    }

    /// Pulls values back once: solves `h = b + P h` by substitution from the last state to the first, taking the values
    /// of cut-set states as given where a back edge points at them. `values` holds `h` afterwards.
    pub(crate) fn pull(&self, reward: &[f64], values: &mut [f64]) {
        let mut loops = self.loops.iter().rev();
        let mut next_loop = loops.next();
        for state in (0..self.matrix.len()).rev() {
            let (columns, probs) = self.matrix.row(state);
            let mut value = reward[state];
            values[state] = 0.0;
            value += columns.iter().zip(probs).map(|(&column, &p)| p * values[column as usize]).sum::<f64>();
            if let Some(&(at, escape)) = next_loop
                && at as usize == state
            {
                value /= escape;
                next_loop = loops.next();
            }
            values[state] = value;
        }
    }
}

/// Stationary weights by accelerated sweeps, and the sweeps spent.
pub(super) fn krylov(matrix: &TransitionMatrix, tolerance: Tolerance) -> (Vec<f64>, usize) {
    let cut = CutSet::new(matrix);
    let size = cut.targets.len();
    let mut scratch = vec![0.0; matrix.len()];
    if size == 0 {
        // An irreducible chain without back edges is a single state.
        return (vec![1.0; matrix.len()], 1);
    }
    let mut mass = vec![1.0 / size as f64; size];
    for _ in 1..WARM_UP {
        cut.apply(&mut mass, &mut scratch);
    }
    // States visited per sweep: the residual on the cut set counts for that much less in the whole chain.
    let visits: f64 = cut.spread(&mass, &mut scratch).iter().sum();
    let mut spent = WARM_UP;
    let restart = RESTART.min(BASIS_BYTES / (8 * size)).max(4);
    // GMRES watches the 2-norm; the 1-norm is at most sqrt(size) times that.
    let mut target = 0.25 * tolerance.residual * visits / (size as f64).sqrt();
    loop {
        // `mass` is right up to a correction z of total zero: (I - G) z = G mass - mass.
        let mut defect = mass.clone();
        cut.apply(&mut defect, &mut scratch);
        defect.iter_mut().zip(&mass).for_each(|(after, &before)| *after -= before);
        let mut z = vec![0.0; size];
        let budget = tolerance.iterations.saturating_sub(spent + 1);
        let options = Krylov { restart, applications: budget, target };
        spent += 1 + gmres(&mut z, &defect, options, |x| cut.apply(x, &mut scratch));
        mass.iter_mut().zip(&z).for_each(|(before, &correction)| *before = (*before + correction).max(0.0));
        let total: f64 = mass.iter().sum();
        mass.iter_mut().for_each(|weight| *weight /= total);
        let weights = cut.spread(&mass, &mut scratch);
        spent += 1;
        let size_of_weights: f64 = weights.iter().sum();
        let residual = matrix.residual(&weights) / size_of_weights;
        if residual <= 0.5 * tolerance.residual || spent >= tolerance.iterations || !residual.is_finite() {
            return (weights, spent);
        }
        target = (target * 0.1).max(f64::MIN_POSITIVE);
    }
}

/// Stationary weights by plain sweeps, and the sweeps spent.
pub(super) fn plain(matrix: &TransitionMatrix, tolerance: Tolerance) -> (Vec<f64>, usize) {
    let cut = CutSet::new(matrix);
    let mut scratch = vec![0.0; matrix.len()];
    let size = cut.targets.len().max(1);
    let mut mass = vec![1.0 / size as f64; cut.targets.len()];
    for spent in 1..=tolerance.iterations {
        let before = mass.clone();
        cut.apply(&mut mass, &mut scratch);
        let change: f64 = mass.iter().zip(&before).map(|(a, b)| (a - b).abs()).sum();
        if change <= 0.25 * tolerance.residual {
            return (cut.spread(&mass, &mut scratch), spent + 1);
        }
        // Half a step keeps a periodic censored chain from oscillating.
        mass.iter_mut().zip(&before).for_each(|(after, &old)| *after = 0.5 * (*after + old));
    }
    (cut.spread(&mass, &mut scratch), tolerance.iterations)
}
