//! Answers under the eyes of one model: would it have written these tokens, and how likely were they?

use tokenrouter_engine::Config;
use tokenrouter_engine::config::ModelConfig;
use tokenrouter_engine::model::ModelFiles;
use tokenrouter_kernels::{SignalSet, StepNeeds};

use crate::error::usage;
use crate::offline::{OfflineModel, Use, chunks};
use crate::results::Judged;
use crate::spec::RunSpec;
use crate::stats::ratio;
use crate::terminal::spinner;

/// A prompt and what was written after it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Transcript {
    /// All tokens.
    pub(super) tokens: Vec<u32>,
    /// Length of the prompt.
    pub(super) prompt: usize,
}

/// The model that reads the answers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Judge<'a> {
    name: &'a str,
    config: &'a ModelConfig,
}

/// The model of `--judge`, if the flags and the configuration allow for it.
pub(super) fn find<'a>(spec: &RunSpec, config: &'a Config) -> anyhow::Result<Option<Judge<'a>>> {
    let Some(name) = &spec.judge else { return Ok(None) };
    let found = config.models.iter().find(|(model, _)| *model == name);
    match found {
        None => {
            let known = config.model_names().join(", ");
            Err(usage(format!("--judge: unknown model `{name}`, the models are {known}")))
        }
        Some((_, model)) if model.emulated.is_some() => {
            Err(usage(format!("--judge: model `{name}` is emulated, it has nothing to say")))
        }
        Some((name, config)) => Ok(Some(Judge { name, config })),
    }
}

impl Judge<'_> {
    /// Lets the model read the answers.
    pub(super) fn judge(self, answers: &[Transcript]) -> anyhow::Result<Option<Judged>> {
        let Self { name, config } = self;
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
}
