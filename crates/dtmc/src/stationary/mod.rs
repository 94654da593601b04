//! Stationary distributions of irreducible chains: several methods behind one trait.
//!
//! Every answer carries its residual `||pi P - pi||_1`, measured on the answer itself. A method that can't reach the
//! tolerance returns [`Error::NotConverged`], never a number.

mod cutset;
mod gmres;
mod gth;
mod lu;
mod power;

pub(crate) use cutset::CutSet;
pub(crate) use gmres::{Krylov, gmres};

use crate::{Error, TransitionMatrix};
use serde::{Deserialize, Serialize};

/// Largest chain that [`Method::Auto`] gives to GTH elimination.
const GTH_AUTO_STATES: usize = 40;
/// Largest chain that GTH accepts (a dense matrix of 8 bytes per entry).
const GTH_MAX_STATES: usize = 6_000;
/// Largest chain that sparse LU accepts.
const LU_MAX_STATES: usize = 30_000;

/// How to compute the stationary distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Method {
    /// GTH for tiny chains, cut-set Krylov otherwise.
    #[default]
    Auto,
    /// Dense elimination without subtraction (Grassmann, Taksar, Heyman): accurate in every entry.
    Gth,
    /// Sparse LU of `I - P^T`, the weight of one state fixed and then normalised.
    SparseLu,
    /// Sweeps in time order with GMRES on the states where a sweep wraps around.
    CutSet,
    /// The same sweeps without acceleration: Gauss-Seidel in time order.
    Sweeps,
    /// Power iteration on the lazy chain `(I + P) / 2`, which converges whatever the period.
    Power,
}

impl Method {
    /// Every method with its name.
    pub const NAMES: [(&'static str, Self); 6] = [
        ("auto", Self::Auto),
        ("gth", Self::Gth),
        ("sparse-lu", Self::SparseLu),
        ("cut-set", Self::CutSet),
        ("sweeps", Self::Sweeps),
        ("power", Self::Power),
    ];

    /// The method's name, as on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|&&(_, method)| method == self).map_or("auto", |&(name, _)| name)
    }

    /// The solver behind the name, for a chain of `states`.
    #[must_use]
    pub fn solver(self, states: usize) -> Box<dyn StationarySolver> {
        match self {
            Self::Auto if states <= GTH_AUTO_STATES => Box::new(Gth),
            Self::Auto | Self::CutSet => Box::new(CutSetKrylov),
            Self::Gth => Box::new(Gth),
            Self::SparseLu => Box::new(SparseLu),
            Self::Sweeps => Box::new(Sweeps),
            Self::Power => Box::new(Power),
        }
    }
}

/// When an iterative method may stop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Largest `||pi P - pi||_1` of an answer.
    pub residual: f64,
    /// Most products with the matrix (sweeps count as one each).
    pub iterations: usize,
}

impl Default for Tolerance {
    fn default() -> Self {
        Self { residual: 1e-12, iterations: 100_000 }
    }
}

/// A stationary distribution with the evidence for it.
#[derive(Debug, Clone)]
pub struct Stationary {
    /// Probabilities, non-negative, summing to one.
    pub pi: Vec<f64>,
    /// `||pi P - pi||_1` of `pi`.
    pub residual: f64,
    /// Name of the method.
    pub method: &'static str,
    /// Products with the matrix; 1 for a direct method.
    pub iterations: usize,
}

impl Stationary {
    /// Accepts `pi` when its residual meets the tolerance.
    fn accept(
        matrix: &TransitionMatrix,
        mut pi: Vec<f64>,
        method: &'static str,
        iterations: usize,
        tolerance: Tolerance,
    ) -> Result<Self, Error> {
        pi.iter_mut().filter(|mass| **mass < 0.0).for_each(|mass| *mass = 0.0);
        let total: f64 = pi.iter().sum();
        pi.iter_mut().for_each(|mass| *mass /= total);
        let residual = matrix.residual(&pi);
        if residual.is_finite() && residual <= tolerance.residual {
            Ok(Self { pi, residual, method, iterations })
        } else {
            Err(Error::NotConverged { method: method.to_owned(), iterations, residual, tolerance: tolerance.residual })
        }
    }
}

/// A way to compute the stationary distribution of an irreducible chain.
pub trait StationarySolver: Send + Sync {
    /// The method's name.
    fn name(&self) -> &'static str;

    /// Solves `pi P = pi`, `sum(pi) = 1`.
    ///
    /// # Errors
    /// [`Error::NotConverged`] when the residual stays above the tolerance, [`Error::MethodLimit`] when the chain is too
    /// large for the method.
    fn solve(&self, matrix: &TransitionMatrix, tolerance: Tolerance) -> Result<Stationary, Error>;
}

/// See [`Method::Gth`].
#[derive(Debug, Clone, Copy)]
pub struct Gth;
/// See [`Method::SparseLu`].
#[derive(Debug, Clone, Copy)]
pub struct SparseLu;
/// See [`Method::CutSet`].
#[derive(Debug, Clone, Copy)]
pub struct CutSetKrylov;
/// See [`Method::Sweeps`].
#[derive(Debug, Clone, Copy)]
pub struct Sweeps;
/// See [`Method::Power`].
#[derive(Debug, Clone, Copy)]
pub struct Power;

impl StationarySolver for Gth {
    fn name(&self) -> &'static str {
        "gth"
    }
    fn solve(&self, matrix: &TransitionMatrix, tolerance: Tolerance) -> Result<Stationary, Error> {
        limit(self.name(), GTH_MAX_STATES, matrix)?;
        Stationary::accept(matrix, gth::eliminate(matrix), self.name(), 1, tolerance)
    }
}

impl StationarySolver for SparseLu {
    fn name(&self) -> &'static str {
        "sparse-lu"
    }
    fn solve(&self, matrix: &TransitionMatrix, tolerance: Tolerance) -> Result<Stationary, Error> {
        limit(self.name(), LU_MAX_STATES, matrix)?;
        Stationary::accept(matrix, lu::solve(matrix), self.name(), 1, tolerance)
    }
}

impl StationarySolver for CutSetKrylov {
    fn name(&self) -> &'static str {
        "cut-set"
    }
    fn solve(&self, matrix: &TransitionMatrix, tolerance: Tolerance) -> Result<Stationary, Error> {
        let (pi, sweeps) = cutset::krylov(matrix, tolerance);
        Stationary::accept(matrix, pi, self.name(), sweeps, tolerance)
    }
}

impl StationarySolver for Sweeps {
    fn name(&self) -> &'static str {
        "sweeps"
    }
    fn solve(&self, matrix: &TransitionMatrix, tolerance: Tolerance) -> Result<Stationary, Error> {
        let (pi, sweeps) = cutset::plain(matrix, tolerance);
        Stationary::accept(matrix, pi, self.name(), sweeps, tolerance)
    }
}

impl StationarySolver for Power {
    fn name(&self) -> &'static str {
        "power"
    }
    fn solve(&self, matrix: &TransitionMatrix, tolerance: Tolerance) -> Result<Stationary, Error> {
        let (pi, iterations) = power::iterate(matrix, tolerance);
        Stationary::accept(matrix, pi, self.name(), iterations, tolerance)
    }
}

fn limit(method: &str, limit: usize, matrix: &TransitionMatrix) -> Result<(), Error> {
    if matrix.len() <= limit {
        return Ok(());
    }
    Err(Error::MethodLimit { method: method.to_owned(), limit, states: matrix.len() })
}
