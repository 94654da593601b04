//! Restarted GMRES for `(I - G) z = b` with a matrix-free `G`.

/// Budget and target of a GMRES run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Krylov {
    /// Directions kept before a restart.
    pub(crate) restart: usize,
    /// Most applications of `G`.
    pub(crate) applications: usize,
    /// Target for the 2-norm of the residual.
    pub(crate) target: f64,
}

/// Improves `z` by one restart cycle of GMRES. `apply` overwrites its argument with `G` times it.
///
/// Returns the applications spent. Works for the singular systems met here (`G` stochastic) as long as they are
/// consistent. Modified Gram-Schmidt with Givens rotations; stops early at the target or at a lucky breakdown.
pub(crate) fn gmres(z: &mut [f64], b: &[f64], krylov: Krylov, mut apply: impl FnMut(&mut [f64])) -> usize {
    let size = z.len();
    let mut residual = z.to_vec();
    apply(&mut residual);
    for ((r, &zi), &bi) in residual.iter_mut().zip(z.iter()).zip(b) {
        *r += bi - zi;
    }
    let beta = norm(&residual);
    let mut spent = 1;
    if beta <= krylov.target {
        return spent;
    }
    residual.iter_mut().for_each(|r| *r /= beta);
    let mut basis = vec![residual];
    let mut columns: Vec<Vec<f64>> = Vec::new();
    let mut rotations: Vec<(f64, f64)> = Vec::new();
    let mut rhs = vec![beta];
    while columns.len() < krylov.restart.min(size) && spent < krylov.applications {
        let k = columns.len();
        let mut w = basis[k].clone();
        apply(&mut w);
        spent += 1;
        for (wi, &vi) in w.iter_mut().zip(&basis[k]) {
            *wi = vi - *wi;
        }
        let mut column = vec![0.0; k + 2];
        for (entry, v) in column.iter_mut().zip(&basis) {
            *entry = dot(&w, v);
            axpy(&mut w, -*entry, v);
        }
        let length = norm(&w);
        column[k + 1] = length;
        for (i, &(c, s)) in rotations.iter().enumerate() {
            let (upper, lower) = (column[i], column[i + 1]);
            column[i] = c * upper + s * lower;
            column[i + 1] = c * lower - s * upper;
        }
        let radius = column[k].hypot(column[k + 1]);
        if radius == 0.0 {
            break;
        }
        let (c, s) = (column[k] / radius, column[k + 1] / radius);
        column[k] = radius;
        rotations.push((c, s));
        rhs.push(-s * rhs[k]);
        rhs[k] *= c;
        columns.push(column);
        if rhs[k + 1].abs() <= krylov.target || length <= 1e-14 * radius {
            break;
        }
        w.iter_mut().for_each(|wi| *wi /= length);
        basis.push(w);
    }
    add_combination(z, &basis, &columns, &mut rhs);
    spent
}

/// Back substitution in the triangular factor, then `z += sum_k y_k v_k`.
fn add_combination(z: &mut [f64], basis: &[Vec<f64>], columns: &[Vec<f64>], rhs: &mut [f64]) {
    for k in (0..columns.len()).rev() {
        let y = rhs[k] / columns[k][k];
        for i in 0..k {
            rhs[i] -= y * columns[k][i];
        }
        axpy(z, y, &basis[k]);
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn norm(a: &[f64]) -> f64 {
    dot(a, a).sqrt()
}

fn axpy(a: &mut [f64], factor: f64, b: &[f64]) {
    for (x, y) in a.iter_mut().zip(b) {
        *x += factor * y;
    }
}
