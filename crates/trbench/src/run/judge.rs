//! Answers under the eyes of one model: would it have written these tokens, and how likely were they?

use serde::{Deserialize, Serialize};
use tokenrouter_engine::Config;
use tokenrouter_engine::config::ModelConfig;
use tokenrouter_engine::model::ModelFiles;
use tokenrouter_kernels::{SignalSet, StepNeeds};

use super::{RunArgs, spinner};
use crate::cli::usage;
use crate::offline::{OfflineModel, Use, chunks};
use crate::stats::ratio;

/// A prompt and what was written after it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Answer {
    /// All tokens.
    pub(super) tokens: Vec<u32>,
    /// Length of the prompt.
    pub(super) prompt: usize,
}

/// What a model says of the answers of a run, reading them token by token (teacher-forced).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// Name of the model.
    pub model: String,
    /// Tokens that were judged; those beyond the first 512 of prompt and answer are not.
    pub tokens: usize,
    /// Share of the tokens that the model itself would have written greedily.
    pub agreement: f64,
    /// Its 95 % interval, requests taken as independent.
    pub agreement_interval: Option<[f64; 2]>,
    /// Mean natural logarithm of the tokens' probabilities.
    pub log_likelihood: f64,
    /// Its 95 % interval.
    pub log_likelihood_interval: Option<[f64; 2]>,
}

/// The model of `--judge`, if the flags and the configuration allow for it.
pub(super) fn model<'a>(args: &RunArgs, config: &'a Config) -> anyhow::Result<Option<(&'a str, &'a ModelConfig)>> {
    let Some(name) = &args.judge else { return Ok(None) };
    let found = config.models.iter().find(|(model, _)| *model == name);
    match found {
        None => {
            let known = config.model_names().join(", ");
            Err(usage(format!("--judge: unknown model `{name}`, the models are {known}")))
        }
        Some((_, model)) if model.emulated.is_some() => {
            Err(usage(format!("--judge: model `{name}` is emulated, it has nothing to say")))
        }
        Some((name, model)) => Ok(Some((name.as_str(), model))),
    }
}

/// Lets the model read the answers.
pub(super) fn judge((name, config): (&str, &ModelConfig), answers: &[Answer]) -> anyhow::Result<Option<Judged>> {
    let bar = spinner(&format!("{name} reads the answers"));
    let files = ModelFiles::open(config)?;
    let mut model = OfflineModel::load(&files, config.dtype, 0, Use::Score)?;
    let needs = StepNeeds { signals: SignalSet { softmax: true, top_k: 0 }, ..StepNeeds::default() };
    let (mut agreeing, mut likely) = (Vec::new(), Vec::new());
    for answer in answers {
        let tokens = &answer.tokens[..answer.tokens.len().min(model.length())];
        // The position before a token is the one that predicts it.
        let first = answer.prompt.max(1) - 1;
        if first + 1 >= tokens.len() {
            continue;
        }
        model.prefill(tokens, first)?;
        let (mut agree, mut sum) = (0u32, 0.0);
        for chunk in chunks(first, tokens.len() - 1) {
            let vocab = model.vocab;
            let out = model.score(tokens, chunk.clone(), needs)?;
            for (row, at) in chunk.enumerate() {
                let (signal, next) = (out.signals[row], tokens[at + 1]);
                agree += u32::from(signal.argmax == next);
                sum += f64::from(out.logits[row * vocab + next as usize] - signal.log_sum_exp);
            }
        }
        let count = (tokens.len() - 1 - first) as f64;
        agreeing.push((f64::from(agree), count));
        likely.push((sum, count));
    }
    bar.finish_and_clear();
    let tokens = agreeing.iter().map(|(_, count)| *count as usize).sum();
    Ok(ratio(&agreeing).zip(ratio(&likely)).map(|(agreement, likelihood)| Judged {
        model: name.to_owned(),
        tokens,
        agreement: agreement.value,
        agreement_interval: agreement.interval,
        log_likelihood: likelihood.value,
        log_likelihood_interval: likelihood.interval,
    }))
}
