//! Small dense linear systems.

/// Solves `A x = b` by elimination with row pivoting, in place; a column without a pivot gets 0.
pub(super) fn solve(mut a: Vec<Vec<f64>>, mut b: Vec<f64>) -> Vec<f64> {
    let n = b.len();
    for column in 0..n {
        let pivot = (column..n).max_by(|&i, &j| a[i][column].abs().total_cmp(&a[j][column].abs())).unwrap_or(column);
        a.swap(column, pivot);
        b.swap(column, pivot);
        if a[column][column].abs() < 1e-14 {
            continue;
        }
        for row in (0..n).filter(|&row| row != column) {
            let factor = a[row][column] / a[column][column];
            if factor == 0.0 {
                continue;
            }
            let pivot_row = a[column].clone();
            a[row].iter_mut().zip(&pivot_row).for_each(|(slot, value)| *slot -= factor * value);
            b[row] -= factor * b[column];
        }
    }
    (0..n).map(|i| if a[i][i].abs() < 1e-14 { 0.0 } else { b[i] / a[i][i] }).collect()
}

/// Expected visits to every state of a chain that is left for good with the mass missing from the rows of `kept`, from
/// `start`.
pub(super) fn visits(kept: &[Vec<f64>], start: &[f64]) -> Vec<f64> {
    let n = start.len();
    // v = start + v Q, that is (I - Q^T) v = start.
    let a = (0..n).map(|i| (0..n).map(|j| f64::from(u8::from(i == j)) - kept[j][i]).collect()).collect();
    solve(a, start.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_geometric_stay_has_its_mean() {
        let found = visits(&[vec![0.75, 0.0], vec![0.5, 0.0]], &[0.0, 1.0]);
        assert!((found[0] - 2.0).abs() < 1e-12 && (found[1] - 1.0).abs() < 1e-12, "{found:?}");
    }
}
