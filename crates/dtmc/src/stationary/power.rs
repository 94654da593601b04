//! Power iteration on the lazy chain `(I + P) / 2`: slow, but without assumptions. The baseline of the benchmarks.

use super::Tolerance;
use crate::TransitionMatrix;

/// Iterates until the residual of `P` itself meets the tolerance, or the iterations are spent.
pub(super) fn iterate(matrix: &TransitionMatrix, tolerance: Tolerance) -> (Vec<f64>, usize) {
    let mut pi = vec![1.0 / matrix.len() as f64; matrix.len()];
    for iteration in 1..=tolerance.iterations {
        let product = matrix.left_multiply(&pi);
        let mut residual = 0.0;
        for (mass, next) in pi.iter_mut().zip(product) {
            residual += (next - *mass).abs();
            *mass = 0.5 * (*mass + next);
        }
        if residual <= 0.5 * tolerance.residual {
            return (pi, iteration);
        }
    }
    (pi, tolerance.iterations)
}
