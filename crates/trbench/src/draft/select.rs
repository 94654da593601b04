//! Which layers to keep: those without which a text becomes least likely.

use anyhow::Context;
use clap::ValueEnum;
use indicatif::ProgressBar;
use tokenrouter_kernels::{SignalSet, StepNeeds};

use crate::offline::{OfflineModel, chunks};

/// How layers are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Select {
    /// One layer after another, each time the one without which the text stays most likely.
    Greedy,
    /// One run of neighbouring layers.
    Block,
}

/// Mean negative log-likelihood per token of `texts`, in nats, with the layers that `model` runs now. A text's first
/// token is given.
pub(super) fn mean_nll(model: &mut OfflineModel, texts: &[Vec<u32>]) -> anyhow::Result<f64> {
    let needs = StepNeeds { signals: SignalSet { softmax: true, top_k: 0 }, ..StepNeeds::default() };
    let vocab = model.vocab;
    let (mut sum, mut count) = (0.0, 0usize);
    for text in texts {
        for chunk in chunks(0, text.len().saturating_sub(1)) {
            let out = model.score(text, chunk.clone(), needs)?;
            for ((logits, signals), at) in out.logits.chunks_exact(vocab).zip(&out.signals).zip(chunk) {
                sum += f64::from(signals.log_sum_exp) - f64::from(logits[text[at + 1] as usize]);
                count += 1;
            }
        }
    }
    Ok(sum / count.max(1) as f64)
}

/// Chooses `keep` of the model's layers by the likelihood of `texts`.
pub(super) fn select(
    model: &mut OfflineModel,
    keep: usize,
    how: Select,
    texts: &[Vec<u32>],
    bar: &ProgressBar,
) -> anyhow::Result<Vec<usize>> {
    let layers = model.layers;
    let mut kept: Vec<usize> = (0..layers).collect();
    let mut tried = 0usize;
    let mut best_of = |candidates: Vec<Vec<usize>>| -> anyhow::Result<Vec<usize>> {
        let mut best: Option<(f64, Vec<usize>)> = None;
        for candidate in candidates {
            model.decoder().select_layers(&candidate)?;
            let nll = mean_nll(model, texts)?;
            tried += 1;
            bar.set_message(format!("choosing layers: {tried} sets tried, {} layers left", candidate.len()));
            if best.as_ref().is_none_or(|(least, _)| nll < *least) {
                best = Some((nll, candidate));
            }
        }
        best.map(|(_, candidate)| candidate).context("there is no layer to drop")
    };
    match how {
        Select::Greedy => {
            while kept.len() > keep {
                let without = |dropped: usize| kept.iter().copied().filter(|layer| *layer != dropped).collect();
                kept = best_of(kept.iter().map(|layer| without(*layer)).collect())?;
            }
        }
        Select::Block if keep < layers => {
            let dropped = layers - keep;
            let without = |start: usize| (0..start).chain(start + dropped..layers).collect();
            kept = best_of((0..=keep).map(without).collect())?;
        }
        Select::Block => {}
    }
    Ok(kept)
}
