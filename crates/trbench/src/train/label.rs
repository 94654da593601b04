//! Samples to learn from: where two models, reading the same text, would write different tokens.

use indicatif::ProgressBar;
use tokenrouter_core::keyed::{Purpose, draw_u64};
use tokenrouter_kernels::{SignalSet, StepNeeds};

use crate::offline::{Completion, OfflineModel, chunks};

/// Largest logits that a sample keeps, as R2R has it; fewer when the vocabulary is smaller.
const TOP_LOGITS: usize = 100;

/// Differences that do not count as divergence: the large model could as well have written the small one's token.
#[derive(Debug, Clone, Copy)]
pub(super) struct Neutral {
    /// The token is among this many most likely ones of the large model.
    pub(super) top: usize,
    /// And at least this share as likely as the most likely one.
    pub(super) ratio: f32,
}

/// Two models with the same vocabulary.
pub(super) struct Models {
    pub(super) small: OfflineModel,
    pub(super) large: OfflineModel,
}

/// Samples, one per token that the large model wrote.
#[derive(Debug, Default, Clone)]
pub(super) struct Samples {
    /// Width of `hidden` and of `embedding`.
    pub(super) width: usize,
    /// Width of `top`.
    pub(super) logits: usize,
    /// The small model's last hidden state after the final norm, `[n, width]`.
    pub(super) hidden: Vec<f32>,
    /// Input embedding of the small model's most likely token, `[n, width]`.
    pub(super) embedding: Vec<f32>,
    /// Its largest logits, falling, `[n, logits]`.
    pub(super) top: Vec<f32>,
    /// Entropy of its softmax in nats, `[n]`.
    pub(super) entropy: Vec<f32>,
    /// Whether the large model would write another token, `[n]`.
    pub(super) divergent: Vec<bool>,
    /// The prompt that the text answers, `[n]`.
    pub(super) prompt: Vec<usize>,
}

/// Samples by use. All texts of a prompt are in the same part.
#[derive(Debug)]
pub(super) struct Split {
    /// To fit the parameters (70 %).
    pub(super) fit: Samples,
    /// To end training in time and to choose the threshold (15 %).
    pub(super) validation: Samples,
    /// To report on (15 %).
    pub(super) test: Samples,
}

impl Split {
    /// The parts: to fit, to validate, to test.
    pub(super) fn parts(&self) -> [&Samples; 3] {
        [&self.fit, &self.validation, &self.test]
    }
}

impl Samples {
    pub(super) fn count(&self) -> usize {
        self.divergent.len()
    }

    /// Number of divergent tokens.
    pub(super) fn positives(&self) -> usize {
        self.divergent.iter().filter(|divergent| **divergent).count()
    }

    /// Some of the samples.
    fn pick(&self, indices: &[usize]) -> Self {
        fn rows(values: &[f32], width: usize, indices: &[usize]) -> Vec<f32> {
            indices.iter().flat_map(|index| &values[index * width..(index + 1) * width]).copied().collect()
        }
        Self {
            width: self.width,
            logits: self.logits,
            hidden: rows(&self.hidden, self.width, indices),
            embedding: rows(&self.embedding, self.width, indices),
            top: rows(&self.top, self.logits, indices),
            entropy: rows(&self.entropy, 1, indices),
            divergent: indices.iter().map(|index| self.divergent[*index]).collect(),
            prompt: indices.iter().map(|index| self.prompt[*index]).collect(),
        }
    }

    /// A random split by prompt, a function of `seed`. None when there are less than three prompts.
    pub(super) fn split(&self, seed: u64) -> Option<Split> {
        let mut prompts = self.prompt.clone();
        prompts.sort_unstable();
        prompts.dedup();
        prompts.sort_by_key(|prompt| (draw_u64(seed, *prompt as u64, 0, Purpose::Route), *prompt));
        let n = prompts.len();
        if n < 3 {
            return None;
        }
        let held_out = (n * 15 / 100).max(1);
        let part = |prompts: &[usize]| {
            let indices: Vec<usize> = (0..self.count()).filter(|at| prompts.contains(&self.prompt[*at])).collect();
            self.pick(&indices)
        };
        let (rest, test) = prompts.split_at(n - held_out);
        let (fit, validation) = rest.split_at(rest.len() - held_out);
        Some(Split { fit: part(fit), validation: part(validation), test: part(test) })
    }
}

/// Compares what both models predict for the texts that the large one wrote.
pub(super) fn label(
    models: &mut Models,
    texts: &[Completion],
    neutral: Option<Neutral>,
    bar: &ProgressBar,
) -> anyhow::Result<Samples> {
    let Models { small, large } = models;
    let (width, logits) = (small.d_model, TOP_LOGITS.min(small.vocab));
    let small_needs =
        StepNeeds { hidden: true, signals: SignalSet { softmax: true, top_k: logits }, ..StepNeeds::default() };
    let top_k = neutral.map_or(0, |neutral| neutral.top);
    let large_needs = StepNeeds { signals: SignalSet { softmax: false, top_k }, ..StepNeeds::default() };
    let mut samples = Samples { width, logits, ..Samples::default() };
    let mut embedding = vec![0.0; width];
    for (number, text) in texts.iter().enumerate() {
        bar.set_message(format!("labelling text {} of {}", number + 1, texts.len()));
        // The position before a token is the one that predicts it.
        let first = text.prompt_tokens - 1;
        small.prefill(&text.tokens, first)?;
        large.prefill(&text.tokens, first)?;
        for chunk in chunks(first, text.tokens.len() - 1) {
            let there = large.score(&text.tokens, chunk.clone(), large_needs)?;
            let here = small.score(&text.tokens, chunk, small_needs)?;
            samples.hidden.extend_from_slice(&here.hidden);
            samples.top.extend(here.top.iter().map(|(logit, _)| *logit));
            let mut candidates = Vec::new();
            for (row, (mine, its)) in here.signals.iter().zip(&there.signals).enumerate() {
                let passes = neutral.is_some_and(|neutral| {
                    let likely = &there.top[row * there.top.len() / there.signals.len()..][..neutral.top];
                    let least = its.max + neutral.ratio.ln();
                    likely.iter().any(|(logit, id)| *id == mine.argmax && *logit >= least)
                });
                samples.entropy.push(mine.entropy);
                samples.divergent.push(mine.argmax != its.argmax && !passes);
                samples.prompt.push(text.prompt);
                candidates.push(mine.argmax);
            }
            for candidate in candidates {
                small.decoder().embedding_row(candidate, &mut embedding)?;
                samples.embedding.extend_from_slice(&embedding);
            }
        }
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokenrouter_core::step::{Batch, StepOutput};
    use tokenrouter_core::{Request, RequestId, SamplingParams};
    use tokenrouter_engine::config::{ModelConfig, WeightDtype};
    use tokenrouter_engine::model::ModelFiles;

    use super::*;
    use crate::offline::{Generation, Use};
    use tokenrouter_testing::{candle_oracle::CandleDecoder, tiny};

    fn files(seed: u64) -> ModelFiles {
        let dir = tempfile::tempdir().expect("a folder");
        let config = tiny::config("llama");
        tiny::write(dir.path(), &config, &tiny::tensors(&config, seed));
        ModelFiles::open(&ModelConfig { path: Some(dir.path().into()), ..ModelConfig::default() }).expect("a model")
    }

    /// What follows `tokens`, by the oracle: token, hidden state, embedding.
    fn oracle(files: &ModelFiles, tokens: &[u32]) -> StepOutput {
        let decoder = CandleDecoder::load(files, WeightDtype::F32, (8, 16)).expect("loads");
        let request = Request::new(tokens.to_vec(), SamplingParams::default(), 0);
        let mut batch = Batch::default();
        batch.push(RequestId(0), &Arc::new(request), (tokens, 0..tokens.len()), &[0, 1, 2, 3, 4, 5, 6, 7]);
        decoder.step(&batch).expect("a step")
    }

    #[test]
    fn labels_and_features_are_those_of_single_steps() {
        let (small_files, large_files) = (files(1), files(2));
        let load =
            |files: &ModelFiles, purpose| OfflineModel::load(files, WeightDtype::F32, 1, purpose).expect("loads");
        let mut models = Models { small: load(&small_files, Use::Score), large: load(&large_files, Use::Generate) };
        let options = Generation { temperature: 1.0, seed: 4, length: 12, tokens: 40 };
        let bar = ProgressBar::hidden();
        let prompts = [vec![5, 6, 7], vec![8], vec![9, 10]];
        let texts = models.large.generate(&prompts, &options, &bar).expect("writes");
        assert!(texts.iter().map(|text| text.tokens.len() - text.prompt_tokens).sum::<usize>() >= 40);
        assert_eq!(load(&large_files, Use::Generate).generate(&prompts, &options, &bar).expect("writes"), texts);
        let samples = label(&mut models, &texts, None, &bar).expect("labels");
        let lax = Neutral { top: 96, ratio: 1e-6 };
        let none = label(&mut models, &texts, Some(lax), &bar).expect("labels");
        assert_eq!(none.positives(), 0, "every token is among all tokens");
        let mut at = 0;
        for text in &texts {
            for end in text.prompt_tokens..text.tokens.len() {
                let (mine, its) =
                    (oracle(&small_files, &text.tokens[..end]), oracle(&large_files, &text.tokens[..end]));
                assert_eq!(samples.divergent[at], mine.tokens != its.tokens);
                assert_eq!(samples.prompt[at], text.prompt);
                let near = |ours: &[f32], theirs: &[f32]| ours.iter().zip(theirs).all(|(a, b)| (a - b).abs() < 1e-3);
                assert!(near(&samples.hidden[at * 64..(at + 1) * 64], &mine.hidden));
                assert!(near(&samples.embedding[at * 64..(at + 1) * 64], &mine.embedding));
                assert!((samples.entropy[at] - mine.softmax[0].entropy).abs() < 1e-3);
                at += 1;
            }
        }
        assert_eq!((at, samples.logits, samples.top.len()), (samples.count(), 96, 96 * at));
        assert!(samples.positives() > 0);
        assert!(samples.split(0).expect("three prompts").parts().iter().all(|part| part.count() > 0));
    }
}
