//! Linear maps for the gaps, by regression on the residual streams at both ends.

use anyhow::Context;
use indicatif::ProgressBar;
use serde::Serialize;
use tokenrouter_engine::model::LinearPatch;
use tokenrouter_kernels::{PackedMatrix, Patch, StepNeeds};

use super::ridge::{Affine, Fit, Moments, best};
use super::{Models, layers};
use crate::offline::chunks;

/// One text in this many is held out to choose the regularisation.
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

/// Fits the gaps between the layers `keep` from the first to the last, and leaves the draft with its layers and maps. The target of a gap is the whole
/// model's stream after it, so that a map also makes up for what earlier ones miss.
pub(super) fn fit(
    models: &mut Models,
    keep: &[usize],
    texts: &[Vec<u32>],
    grid: &[f64],
    bar: &ProgressBar,
) -> anyhow::Result<Vec<Gap>> {
    let mut fitted = Vec::new();
    for gap in layers::gaps(keep) {
        let before: Vec<usize> = keep.iter().copied().filter(|layer| *layer < gap.start).collect();
        let after: Vec<usize> = (0..gap.end).collect();
        models.draft.decoder().select_layers(&before)?;
        models.full.decoder().select_layers(&after)?;
        let [mut fit, mut held_out] = gather(models, texts, bar)?;
        if held_out.count() == 0 {
            held_out = fit.clone();
        }
        bar.set_message(format!("solving for the gap before layer {}", gap.end));
        let tokens = fit.count() + held_out.count();
        let Fit { lambda, error, map } = best(&mut fit, &mut held_out, grid)
            .with_context(|| format!("the regression at the gap before layer {} has no solution", gap.end))?;
        let patch = to_patch(&map);
        models.draft.decoder().set_patch(gap.end, Some(packed(&patch)?))?;
        fitted.push(Gap { layer: gap.end, dropped: gap.len(), tokens, lambda, error, patch });
    }
    models.draft.decoder().select_layers(keep)?;
    let all: Vec<usize> = (0..models.full.layers).collect();
    models.full.decoder().select_layers(&all)?;
    Ok(fitted)
}

/// Moments of the draft's stream and of what the whole model adds to it: of the texts to fit, and of those kept out.
fn gather(models: &mut Models, texts: &[Vec<u32>], bar: &ProgressBar) -> anyhow::Result<[Moments; 2]> {
    let Models { full, draft } = models;
    let d = full.d_model;
    let needs = StepNeeds { residual: true, ..StepNeeds::default() };
    let mut moments = [Moments::new(d, d), Moments::new(d, d)];
    for (number, text) in texts.iter().enumerate() {
        bar.set_message(format!("reading text {} of {}", number + 1, texts.len()));
        let into = &mut moments[usize::from(number % HOLD_OUT == HOLD_OUT - 1)];
        for chunk in chunks(0, text.len()) {
            // The first position is in: its stream is a hundred times larger, all others attend to it, and a map that was
            // not fitted there turns it into something that they cannot use.
            let mut change = full.score(text, chunk.clone(), needs)?.residual.clone();
            let stream = &draft.score(text, chunk, needs)?.residual;
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

#[cfg(test)]
mod tests {
    use tokenrouter_engine::config::{ModelConfig, WeightDtype};
    use tokenrouter_engine::model::ModelFiles;

    use super::*;
    use crate::draft::evaluate::{Scored, compare};
    use crate::draft::select::{Select, mean_nll, select};
    use crate::offline::{Generation, OfflineModel, Use};
    use tokenrouter_testing::tiny;

    #[test]
    fn a_map_brings_a_draft_nearer_to_its_model() {
        let dir = tempfile::tempdir().expect("a folder");
        let config = tiny::config("llama");
        tiny::write(dir.path(), &config, &tiny::tensors(&config, 5));
        let files = ModelFiles::open(&ModelConfig { path: Some(dir.path().into()), ..ModelConfig::default() });
        let files = files.expect("a model");
        let load = |purpose| OfflineModel::load(&files, WeightDtype::F32, 1, purpose).expect("loads");
        let mut models = Models { full: load(Use::Generate), draft: load(Use::Score) };
        let bar = ProgressBar::hidden();
        let options = Generation { temperature: 1.0, seed: 0, length: 60, tokens: 1500 };
        let prompts: Vec<Vec<u32>> = (3..90).map(|id| vec![id]).collect();
        let texts = models.full.generate(&prompts, &options, &bar).expect("writes");
        let texts: Vec<Vec<u32>> = texts.into_iter().map(|text| text.tokens).collect();
        let scored: Vec<Scored> = texts.iter().map(|text| (text.clone(), 1)).collect();
        let same = compare(&mut models, &scored, None).expect("compares");
        assert!(same.top1 == 1.0 && (same.overlap - 1.0).abs() < 1e-4 && same.kl.abs() < 1e-5, "{same:?}");
        assert!((same.perplexity - mean_nll(&mut models.draft, &texts).expect("reads").exp()).abs() < 1e-3);
        models.draft.decoder().select_layers(&[0, 2]).expect("layers");
        let plain = compare(&mut models, &scored, None).expect("compares");
        let gaps = fit(&mut models, &[0, 2], &texts, &[1e-4, 1e-2], &bar).expect("fits");
        assert_eq!((gaps[0].layer, gaps[0].dropped), (2, 1));
        assert_eq!(gaps[0].tokens, texts.iter().map(Vec::len).sum::<usize>());
        let patched = compare(&mut models, &scored, None).expect("compares");
        assert!(patched.kl < 0.9 * plain.kl && gaps[0].error < 1.0, "{plain:?} {patched:?}");
        // The likeliest pair of layers, by trying all three.
        let draft = &mut models.draft;
        draft.decoder().set_patch(2, None).expect("no patch");
        let mut nll = |layers: &[usize]| {
            draft.decoder().select_layers(layers).expect("layers");
            mean_nll(draft, &texts[..4]).expect("reads")
        };
        let pairs = [[1, 2], [0, 2], [0, 1]];
        let best = pairs.into_iter().min_by(|a, b| nll(a).total_cmp(&nll(b))).expect("some");
        for how in [Select::Greedy, Select::Block] {
            assert_eq!(select(draft, 2, how, &texts[..4], &bar).expect("chooses"), best);
        }
    }
}
