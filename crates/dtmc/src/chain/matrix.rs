//! Row-compressed stochastic matrices whose rows may share their probabilities.

use crate::Error;
use sprs::{CsMat, TriMat};

/// A sparse row-stochastic matrix.
///
/// Columns are stored row by row; the probabilities of a row are a slice of a pool, and rows with the same distribution
/// share one slice. Chains of this crate have millions of entries but only a few hundred distinct distributions, so an
/// entry costs four bytes.
#[derive(Debug, Clone, Default)]
pub struct TransitionMatrix {
    pub(crate) row_start: Vec<u32>,
    pub(crate) columns: Vec<u32>,
    pub(crate) pool_start: Vec<u32>,
    pub(crate) pool: Vec<f64>,
}

impl TransitionMatrix {
    /// A matrix from explicit rows of `(column, probability)`.
    ///
    /// # Errors
    /// When a column is out of range, a probability is negative or not finite, or a row doesn't sum to 1 within 1e-9.
    pub fn from_rows(rows: &[Vec<(u32, f64)>]) -> Result<Self, Error> {
        let mut matrix = Self { row_start: vec![0], ..Self::default() };
        for (index, row) in rows.iter().enumerate() {
            let place = || format!("transition row {index}");
            if let Some(&(column, _)) = row.iter().find(|&&(column, _)| column as usize >= rows.len()) {
                return Err(Error::system(place(), format!("column {column}"), format!("0 to {}", rows.len() - 1)));
            }
            if let Some(&(_, p)) = row.iter().find(|&&(_, p)| !(p.is_finite() && p >= 0.0)) {
                return Err(Error::system(place(), format!("probability {p}"), "a finite number, 0 or above"));
            }
            let sum: f64 = row.iter().map(|&(_, p)| p).sum();
            if (sum - 1.0).abs() > 1e-9 {
                return Err(Error::system(
                    place(),
                    format!("the probabilities sum to {sum}"),
                    "a sum of 1 within 1e-9",
                ));
            }
            matrix.pool_start.push(matrix.pool.len() as u32);
            for &(column, p) in row.iter().filter(|&&(_, p)| p > 0.0) {
                matrix.columns.push(column);
                matrix.pool.push(p);
            }
            matrix.row_start.push(matrix.columns.len() as u32);
        }
        Ok(matrix)
    }

    /// Number of states.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.pool_start.len()
    }

    /// True for the matrix without states.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.pool_start.is_empty()
    }

    /// Number of stored entries.
    #[must_use]
    pub const fn nonzeros(&self) -> usize {
        self.columns.len()
    }

    /// Columns and probabilities of a row.
    #[must_use]
    #[inline]
    pub fn row(&self, state: usize) -> (&[u32], &[f64]) {
        let (start, end) = (self.row_start[state] as usize, self.row_start[state + 1] as usize);
        let pool = self.pool_start[state] as usize;
        (&self.columns[start..end], &self.pool[pool..pool + end - start])
    }

    /// The matrix as one of `sprs`, for computations that this crate does not have: row-compressed, columns ascending, an
    /// entry of its own for every transition (16 bytes each; this type shares them).
    #[must_use]
    pub fn to_sprs(&self) -> CsMat<f64> {
        let mut triplets = TriMat::with_capacity((self.len(), self.len()), self.nonzeros());
        for state in 0..self.len() {
            let (columns, probs) = self.row(state);
            columns.iter().zip(probs).for_each(|(&column, &p)| triplets.add_triplet(state, column as usize, p));
        }
        // Adds up what leads to one state twice.
        triplets.to_csr()
    }

    /// The row vector `x P`.
    #[must_use]
    pub fn left_multiply(&self, x: &[f64]) -> Vec<f64> {
        let mut product = vec![0.0; self.len()];
        for (state, &mass) in x.iter().enumerate() {
            let (columns, probs) = self.row(state);
            for (&column, &p) in columns.iter().zip(probs) {
                product[column as usize] += mass * p;
            }
        }
        product
    }

    /// `||pi P - pi||_1`.
    #[must_use]
    pub fn residual(&self, pi: &[f64]) -> f64 {
        self.left_multiply(pi).iter().zip(pi).map(|(a, b)| (a - b).abs()).sum()
    }

    /// The matrix on a closed subset of states, in the order given.
    #[must_use]
    pub(crate) fn restrict(&self, keep: &[u32]) -> Self {
        let mut number = vec![u32::MAX; self.len()];
        for (new, &old) in keep.iter().enumerate() {
            number[old as usize] = new as u32;
        }
        let mut restricted =
            Self { row_start: Vec::with_capacity(keep.len() + 1), pool: self.pool.clone(), ..Self::default() };
        restricted.row_start.push(0);
        for &old in keep {
            let (columns, _) = self.row(old as usize);
            restricted.columns.extend(columns.iter().map(|&column| number[column as usize]));
            restricted.row_start.push(restricted.columns.len() as u32);
            restricted.pool_start.push(self.pool_start[old as usize]);
        }
        restricted
    }

    /// Bytes held.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        4 * (self.row_start.len() + self.columns.len() + self.pool_start.len()) + 8 * self.pool.len()
    }
}
