//! Ridge regression in closed form, from sums that are gathered block by block.

use nalgebra::{DMatrix, DVector};

/// Samples that are gathered before a product is taken.
const BLOCK: usize = 512;

/// Second moments of `[x, 1]` and `y`, in double precision.
#[derive(Debug, Clone)]
pub(super) struct Moments {
    /// `[d + 1, d + 1]`: sums of products of `[x, 1]` with itself.
    xx: DMatrix<f64>,
    /// `[d + 1, m]`: of `[x, 1]` with `y`.
    xy: DMatrix<f64>,
    /// `[m]`: of `y` with itself, by component.
    yy: DVector<f64>,
    /// Samples that wait for a product, one per column.
    x: DMatrix<f64>,
    y: DMatrix<f64>,
    waiting: usize,
}

/// `y = weight x + bias`.
#[derive(Debug, Clone)]
pub(super) struct Affine {
    /// `[m, d]`.
    pub(super) weight: DMatrix<f64>,
    /// `[m]`.
    pub(super) bias: DVector<f64>,
}

impl Moments {
    pub(super) fn new(d: usize, m: usize) -> Self {
        Self {
            xx: DMatrix::zeros(d + 1, d + 1),
            xy: DMatrix::zeros(d + 1, m),
            yy: DVector::zeros(m),
            x: DMatrix::zeros(d + 1, BLOCK),
            y: DMatrix::zeros(m, BLOCK),
            waiting: 0,
        }
    }

    /// Adds samples: rows of `x`, `[n, d]`, with rows of `y`, `[n, m]`.
    pub(super) fn add(&mut self, x: &[f32], y: &[f32]) {
        let (d, m) = (self.x.nrows() - 1, self.y.nrows());
        for (x, y) in x.chunks_exact(d).zip(y.chunks_exact(m)) {
            let mut column = self.x.column_mut(self.waiting);
            column.iter_mut().zip(x.iter().chain(&[1.0])).for_each(|(to, from)| *to = f64::from(*from));
            let mut column = self.y.column_mut(self.waiting);
            column.iter_mut().zip(y).for_each(|(to, from)| *to = f64::from(*from));
            self.waiting += 1;
            if self.waiting == BLOCK {
                self.flush();
            }
        }
    }

    fn flush(&mut self) {
        let (x, y) = (self.x.columns(0, self.waiting), self.y.columns(0, self.waiting));
        self.xx.gemm(1.0, &x, &x.transpose(), 1.0);
        self.xy.gemm(1.0, &x, &y.transpose(), 1.0);
        for column in y.column_iter() {
            self.yy += column.component_mul(&column);
        }
        self.waiting = 0;
    }

    /// The sums of both.
    pub(super) fn merge(&mut self, other: &mut Self) {
        self.flush();
        other.flush();
        self.xx += &other.xx;
        self.xy += &other.xy;
        self.yy += &other.yy;
    }

    /// Number of samples.
    pub(super) fn count(&mut self) -> usize {
        self.flush();
        let last = self.xx.nrows() - 1;
        self.xx[(last, last)] as usize
    }

    /// The map with the least mean squared error plus `lambda * var(x_i) * weight[o][i]^2`, summed over inputs and
    /// outputs: relative to the variance of every input, because residual streams have a few that are much larger than
    /// the others. The bias is free. None when there are no samples.
    pub(super) fn ridge(&mut self, lambda: f64) -> Option<Affine> {
        let count = self.count() as f64;
        let d = self.xx.nrows() - 1;
        if count == 0.0 {
            return None;
        }
        let mean_x = self.xx.view((0, d), (d, 1)) / count;
        let mean_y = self.xy.row(d).transpose() / count;
        let mut a = self.xx.view((0, 0), (d, d)) / count - &mean_x * mean_x.transpose();
        let b = self.xy.rows(0, d) / count - &mean_x * mean_y.transpose();
        // An input that never changes has no variance; a crumb keeps the matrix regular.
        let crumb = 1e-12 * (a.trace() / d as f64).max(f64::MIN_POSITIVE);
        for i in 0..d {
            a[(i, i)] += lambda * a[(i, i)].max(0.0) + crumb;
        }
        let weight = a.cholesky()?.solve(&b).transpose();
        let bias = mean_y - &weight * DVector::from_column_slice(mean_x.as_slice());
        Some(Affine { weight, bias })
    }

    /// Share of the squares of `y` around 0 that `map` leaves: 0 is a perfect fit, 1 as good as no map.
    pub(super) fn error(&mut self, map: &Affine) -> f64 {
        self.flush();
        let d = self.xx.nrows() - 1;
        let mut full = DMatrix::zeros(d + 1, map.weight.nrows());
        full.view_mut((0, 0), (d, map.weight.nrows())).copy_from(&map.weight.transpose());
        full.row_mut(d).copy_from(&map.bias.transpose());
        let total = self.yy.sum();
        let left = total - 2.0 * full.dot(&self.xy) + full.dot(&(&self.xx * &full));
        if total > 0.0 { left.max(0.0) / total } else { 0.0 }
    }
}

/// A map with the regularisation that gave it.
#[derive(Debug)]
pub(super) struct Fit {
    /// Relative to the variance of each input.
    pub(super) lambda: f64,
    /// Of the map that the fitting samples alone give, on the held-out ones.
    pub(super) error: f64,
    /// From all samples.
    pub(super) map: Affine,
}

/// The regularisation of `grid` with the least error on `held_out`, and the map that it gives on all samples.
pub(super) fn best(fit: &mut Moments, held_out: &mut Moments, grid: &[f64]) -> Option<Fit> {
    let mut best: Option<(f64, f64)> = None;
    for lambda in grid {
        let error = held_out.error(&fit.ridge(*lambda)?);
        if best.is_none_or(|(_, least)| error < least) {
            best = Some((*lambda, error));
        }
    }
    let (lambda, error) = best?;
    fit.merge(held_out);
    Some(Fit { lambda, error, map: fit.ridge(lambda)? })
}

#[cfg(test)]
mod tests {
    use tokenrouter_core::keyed::{Purpose, draw_unit};

    use super::*;

    const D: usize = 7;
    const M: usize = 5;

    fn draw(purpose: u64, at: u64) -> f32 {
        (2.0 * draw_unit(5, purpose, at, Purpose::Sample) - 1.0) as f32
    }

    /// Inputs of very different sizes, outputs of a known map and noise.
    fn samples(n: usize, noise: f32) -> (Vec<f32>, Vec<f32>) {
        let scale = |i: usize| 10f32.powi(i as i32 % 3 - 1);
        let x: Vec<f32> = (0..n * D).map(|i| scale(i % D) * (draw(1, i as u64) + 3.0)).collect();
        let y = (0..n * M).map(|i| {
            let (row, o) = (i / M, i % M);
            let product: f32 = (0..D).map(|k| x[row * D + k] * draw(2, (o * D + k) as u64)).sum();
            product + draw(3, o as u64) + noise * draw(4, i as u64)
        });
        let y = y.collect();
        (x, y)
    }

    #[test]
    fn a_known_map_is_found() {
        let (x, y) = samples(1500, 0.0);
        let mut moments = Moments::new(D, M);
        moments.add(&x, &y);
        let map = moments.ridge(1e-12).expect("samples");
        assert_eq!(moments.count(), 1500);
        for o in 0..M {
            assert!((map.bias[o] - f64::from(draw(3, o as u64))).abs() < 1e-3);
            for k in 0..D {
                assert!((map.weight[(o, k)] - f64::from(draw(2, (o * D + k) as u64))).abs() < 1e-3);
            }
        }
        assert!(moments.error(&map) < 1e-6);
    }

    /// The same minimum by another route: rows for the penalty under the centred samples, solved by a singular value
    /// decomposition instead of the normal equations.
    #[test]
    fn the_regularised_map_is_that_of_augmented_least_squares() {
        let n = 700;
        let (x, y) = samples(n, 0.5);
        let lambda = 0.3;
        let mut moments = Moments::new(D, M);
        let cut = 333;
        moments.add(&x[..cut * D], &y[..cut * M]);
        moments.add(&x[cut * D..], &y[cut * M..]);
        let map = moments.ridge(lambda).expect("samples");
        let matrix = |v: &[f32], w: usize| DMatrix::from_fn(n, w, |r, c| f64::from(v[r * w + c]));
        let (x, y) = (matrix(&x, D), matrix(&y, M));
        let centred = |m: &DMatrix<f64>| DMatrix::from_fn(n, m.ncols(), |r, c| m[(r, c)] - m.column(c).mean());
        let (cx, cy) = (centred(&x), centred(&y));
        let mut a = DMatrix::zeros(n + D, D);
        a.rows_mut(0, n).copy_from(&cx);
        for i in 0..D {
            a[(n + i, i)] = (lambda * cx.column(i).norm_squared()).sqrt();
        }
        let mut b = DMatrix::zeros(n + D, M);
        b.rows_mut(0, n).copy_from(&cy);
        let wanted = a.svd(true, true).solve(&b, 1e-14).expect("solvable");
        assert!((wanted.transpose() - &map.weight).amax() < 1e-8);
        // The error, residual by residual.
        let mut left = 0.0;
        for r in 0..n {
            let predicted = &map.weight * x.row(r).transpose() + &map.bias;
            left += (y.row(r).transpose() - predicted).norm_squared();
        }
        assert!((left / y.norm_squared() - moments.error(&map)).abs() < 1e-10);
    }

    #[test]
    fn the_grid_is_searched_on_held_out_samples() {
        let (x, y) = samples(60, 0.0);
        let (mut fit, mut held_out) = (Moments::new(D, M), Moments::new(D, M));
        fit.add(&x[..40 * D], &y[..40 * M]);
        held_out.add(&x[40 * D..], &y[40 * M..]);
        let Fit { lambda, error, .. } = best(&mut fit, &mut held_out, &[1.0, 1e-9, 0.1]).expect("samples");
        assert_eq!(lambda, 1e-9);
        assert!(error < 1e-6);
        assert_eq!(fit.count(), 60);
        assert!(best(&mut Moments::new(D, M), &mut Moments::new(D, M), &[1.0]).is_none());
    }
}
