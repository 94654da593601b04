//! How near a draft is to the model that it was made from.

use serde::Serialize;
use tokenrouter_kernels::{Isa, SignalSet, StepNeeds, softmax_weights};

use super::Models;
use crate::offline::chunks;

/// Agreement of two models over texts, teacher-forced.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Agreement {
    /// Predictions compared.
    pub(super) tokens: usize,
    /// Perplexity of the texts under the whole model.
    pub(super) perplexity_full: f64,
    /// Under the draft.
    pub(super) perplexity: f64,
    /// Share of positions where both would write the same token greedily.
    pub(super) top1: f64,
    /// Mean of `sum(min(p, q))`: the share of tokens that speculative sampling would accept.
    pub(super) overlap: f64,
    /// Mean Kullback-Leibler divergence of the draft from the whole model, in nats.
    pub(super) kl: f64,
    /// Share of the whole model's greedy tokens that the draft can write, where it cannot write all. The other numbers are
    /// those of a draft that can.
    pub(super) covered: Option<f64>,
}

/// A text and the index of its first token that is compared.
pub(super) type Scored = (Vec<u32>, usize);

/// Compares the predictions of both models for the tokens of `texts` from the given index on (at least the second).
/// `vocabulary`: the tokens that the draft can write, ascending, if these are not all.
pub(super) fn compare(models: &mut Models, texts: &[Scored], vocabulary: Option<&[u32]>) -> anyhow::Result<Agreement> {
    let Models { full, draft } = models;
    let needs = StepNeeds { signals: SignalSet { softmax: true, top_k: 0 }, ..StepNeeds::default() };
    let vocab = full.vocab;
    let isa = Isa::detect();
    let (mut p, mut q) = (Vec::new(), Vec::new());
    let mut sums = [0f64; 6];
    let mut tokens = 0usize;
    for (text, from) in texts {
        let from = (*from).max(1) - 1;
        full.prefill(text, from)?;
        draft.prefill(text, from)?;
        for chunk in chunks(from, text.len().saturating_sub(1)) {
            let large = full.score(text, chunk.clone(), needs)?;
            let small = draft.score(text, chunk.clone(), needs)?;
            for (row, at) in chunk.enumerate() {
                let (a, b) = (large.signals[row], small.signals[row]);
                let span = row * vocab..(row + 1) * vocab;
                let (x, y) = (&large.logits[span.clone()], &small.logits[span]);
                let next = text[at + 1] as usize;
                softmax_weights(isa, x, 1.0, &mut p);
                softmax_weights(isa, y, 1.0, &mut q);
                let (p_scale, q_scale) = ((a.max - a.log_sum_exp).exp(), (b.max - b.log_sum_exp).exp());
                let overlap: f32 = p.iter().zip(&q).map(|(p, q)| (p * p_scale).min(q * q_scale)).sum();
                // sum p (ln p - ln q) = sum p (x - y) - lse(x) + lse(y).
                let gap: f32 = p.iter().zip(x.iter().zip(y)).map(|(p, (x, y))| p * p_scale * (x - y)).sum();
                sums[0] += f64::from(a.log_sum_exp - x[next]);
                sums[1] += f64::from(b.log_sum_exp - y[next]);
                sums[2] += f64::from(u8::from(a.argmax == b.argmax));
                sums[3] += f64::from(overlap);
                sums[4] += f64::from(gap - a.log_sum_exp + b.log_sum_exp);
                let writable = vocabulary.is_none_or(|tokens| tokens.binary_search(&a.argmax).is_ok());
                sums[5] += f64::from(u8::from(writable));
                tokens += 1;
            }
        }
    }
    let mean = |sum: f64| sum / tokens.max(1) as f64;
    Ok(Agreement {
        tokens,
        perplexity_full: mean(sums[0]).exp(),
        perplexity: mean(sums[1]).exp(),
        top1: mean(sums[2]),
        overlap: mean(sums[3]),
        kl: mean(sums[4]),
        covered: vocabulary.map(|_| mean(sums[5])),
    })
}

#[cfg(test)]
mod tests {
    use tokenrouter_engine::config::{ModelConfig, WeightDtype};
    use tokenrouter_engine::model::ModelFiles;

    use super::*;
    use crate::offline::{OfflineModel, Use, built_in_or_files};

    /// The packed int4 and int8 weights lose nothing against the same weights as floats, on the text of the repository.
    #[test]
    fn packed_weights_keep_the_perplexity() {
        crate::fetch::fetch_demo(&tokenrouter_engine::model::cache_dir()).expect("the demo model");
        let config = ModelConfig { source: Some("demo".into()), ..ModelConfig::default() };
        let files = ModelFiles::open(&config).expect("opens");
        let load = |dtype| OfflineModel::load(&files, dtype, 0, Use::Score).expect("loads");
        let mut models = Models { full: load(WeightDtype::F32), draft: load(WeightDtype::Native) };
        let documents = built_in_or_files(&[]).expect("the text").documents;
        let texts: Vec<Scored> = (documents.iter().take(8))
            .map(|document| (files.text.encode(document).expect("encodes"), 1))
            .map(|(tokens, from)| (tokens.into_iter().take(crate::offline::LENGTH).collect(), from))
            .collect();
        let found = compare(&mut models, &texts, None).expect("compares");
        assert!(found.tokens > 500, "{found:?}");
        let change = found.perplexity / found.perplexity_full - 1.0;
        assert!(change.abs() < 0.005, "{change}: {found:?}");
        assert!(found.kl < 0.01 && found.top1 > 0.95, "{found:?}");
    }
}
