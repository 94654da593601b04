//! Linear maps for the gaps, by regression on the residual streams at both ends.

use std::ops::Range;

use anyhow::Context;
use indicatif::ProgressBar;
use serde::Serialize;
use tokenrouter_engine::model::LinearPatch;
use tokenrouter_kernels::{PackedMatrix, Patch, StepNeeds};

use super::ridge::{Affine, Moments, best};
use crate::offline::{OfflineModel, parts};

/// Every so many texts one is kept to choose the regularisation.
const HOLD_OUT: usize = 8;

/// What was fitted at a gap.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Gap {
    /// The kept layer after it, before which the map acts.
    pub(super) layer: usize,
    /// How many layers are missing.
    pub(super) dropped: usize,
    /// Tokens that it was fitted on.
    pub(super) tokens: usize,
    /// Regularisation, relative to the variance of each input.
    pub(super) lambda: f64,
    /// Share of the squared change of the residual stream that the map does not explain, on texts kept out of the fit.
    pub(super) error: f64,
    /// The map.
    #[serde(skip)]
    pub(super) patch: LinearPatch,
}

/// Fits all gaps from the first to the last, and leaves `draft` with its layers and maps. The target of a gap is the whole
/// model's stream after it, so that a map also makes up for what earlier ones miss.
pub(super) fn fit(
    (full, draft): (&mut OfflineModel, &mut OfflineModel),
    (keep, gaps): (&[usize], &[Range<usize>]),
    texts: &[Vec<u32>],
    grid: &[f64],
    bar: &ProgressBar,
) -> anyhow::Result<Vec<Gap>> {
    let mut fitted = Vec::new();
    for gap in gaps {
        let before: Vec<usize> = keep.iter().copied().filter(|layer| *layer < gap.start).collect();
        let after: Vec<usize> = (0..gap.end).collect();
        draft.decoder().select_layers(&before)?;
        full.decoder().select_layers(&after)?;
        let [mut fit, mut held_out] = gather((&mut *full, &mut *draft), texts, bar)?;
        if held_out.count() == 0 {
            held_out = fit.clone();
        }
        bar.set_message(format!("solving for the gap before layer {}", gap.end));
        let tokens = fit.count() + held_out.count();
        let (lambda, error, map) = best(&mut fit, &mut held_out, grid)
            .with_context(|| format!("the regression at the gap before layer {} has no solution", gap.end))?;
        let patch = to_patch(&map);
        draft.decoder().set_patch(gap.end, Some(packed(&patch)?))?;
        fitted.push(Gap { layer: gap.end, dropped: gap.len(), tokens, lambda, error, patch });
    }
    draft.decoder().select_layers(keep)?;
    let all: Vec<usize> = (0..full.layers).collect();
    full.decoder().select_layers(&all)?;
    Ok(fitted)
}

/// Moments of the draft's stream and of what the whole model adds to it: of the texts to fit, and of those kept out.
fn gather(
    (full, draft): (&mut OfflineModel, &mut OfflineModel),
    texts: &[Vec<u32>],
    bar: &ProgressBar,
) -> anyhow::Result<[Moments; 2]> {
    let d = full.d_model;
    let needs = StepNeeds { residual: true, ..StepNeeds::default() };
    let mut moments = [Moments::new(d, d), Moments::new(d, d)];
    for (number, text) in texts.iter().enumerate() {
        bar.set_message(format!("reading text {} of {}", number + 1, texts.len()));
        let into = &mut moments[usize::from(number % HOLD_OUT == HOLD_OUT - 1)];
        for part in parts(0, text.len()) {
            // The first position is in: its stream is a hundred times larger, all others attend to it, and a map that was
            // not fitted there turns it into something that they cannot use.
            let mut change = full.read(text, part.clone(), needs)?.residual.clone();
            let stream = &draft.read(text, part, needs)?.residual;
            change.iter_mut().zip(stream).for_each(|(to, from)| *to -= from);
            into.add(stream, &change);
        }
    }
    Ok(moments)
}

fn to_patch(map: &Affine) -> LinearPatch {
    // By columns of the transpose, which are the rows.
    let weight = map.weight.transpose().iter().map(|value| *value as f32).collect();
    LinearPatch { weight, bias: map.bias.iter().map(|value| *value as f32).collect() }
}

fn packed(patch: &LinearPatch) -> anyhow::Result<Patch> {
    let d = patch.bias.len();
    Ok(Patch { weight: PackedMatrix::from_f32(d, d, &patch.weight)?, bias: patch.bias.clone() })
}
