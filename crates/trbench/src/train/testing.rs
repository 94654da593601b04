//! Samples for tests.

use tokenrouter_core::keyed::{Purpose, draw_unit};

use super::label::Samples;

/// Samples of ten prompts whose label is a linear function of the hidden state, but for some near the border. Inputs
/// are of different sizes and off centre.
pub(super) fn separable(n: usize, noise: f32) -> Samples {
    let (width, logits) = (6, 5);
    let draw = |what: u64, at: usize| (2.0 * draw_unit(9, what, at as u64, Purpose::Sample) - 1.0) as f32;
    let rows = |what: u64, width: usize| -> Vec<f32> {
        (0..n * width).map(|at| (at % width + 1) as f32 * (draw(what, at) + 2.0)).collect()
    };
    let hidden = rows(1, width);
    let side = |at: usize| {
        let row = &hidden[at * width..(at + 1) * width];
        let sum: f32 = row.iter().enumerate().map(|(i, x)| (x / (i + 1) as f32 - 2.0) * draw(4, i)).sum();
        sum + noise * draw(5, at) > 0.0
    };
    let divergent = (0..n).map(side).collect();
    Samples {
        width,
        logits,
        divergent,
        embedding: rows(2, width),
        top: rows(3, logits),
        entropy: vec![0.0; n],
        prompt: (0..n).map(|at| at % 10).collect(),
        hidden,
    }
}
