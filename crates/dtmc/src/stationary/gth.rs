//! Elimination after Grassmann, Taksar and Heyman (1985): state reduction with additions, multiplications and divisions
//! of non-negative numbers only, so no entry loses accuracy to cancellation.

use crate::TransitionMatrix;

/// Stationary weights (not normalised) of an irreducible chain.
pub(super) fn eliminate(matrix: &TransitionMatrix) -> Vec<f64> {
    let states = matrix.len();
    let mut dense = vec![0.0; states * states];
    for state in 0..states {
        let (columns, probs) = matrix.row(state);
        for (&column, &p) in columns.iter().zip(probs) {
            dense[state * states + column as usize] += p;
        }
    }
    // Censor the last state, again and again: what went through it is spread over its successors.
    for last in (1..states).rev() {
        let (above, below) = dense.split_at_mut(last * states);
        let pivot = &below[..last];
        let leaving: f64 = pivot.iter().sum();
        for row in above.chunks_exact_mut(states) {
            let into = row[last];
            if into == 0.0 {
                continue;
            }
            let share = into / leaving;
            row[last] = share;
            for (entry, &p) in row[..last].iter_mut().zip(pivot) {
                *entry += share * p;
            }
        }
    }
    let mut weights = vec![0.0; states];
    weights[0] = 1.0;
    for state in 1..states {
        weights[state] = (0..state).map(|from| weights[from] * dense[from * states + state]).sum();
    }
    weights
}
