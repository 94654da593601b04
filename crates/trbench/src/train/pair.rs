//! The two models, and the samples that they give.

use anyhow::Context;
use indicatif::ProgressBar;
use tokenrouter_engine::Config;
use tokenrouter_engine::config::ModelConfig;
use tokenrouter_engine::model::ModelFiles;

use super::TrainArgs;
use super::label::{Models, Neutral, Samples, label};
use crate::error::usage;
use crate::offline::{Generation, OfflineModel, Use, built_in_or_files, openings};

/// A model of a configuration.
pub(super) struct NamedModel<'a> {
    pub(super) name: &'a str,
    config: &'a ModelConfig,
}

/// The small and the large model of a configuration.
pub(super) struct Pair<'a> {
    pub(super) small: NamedModel<'a>,
    large: NamedModel<'a>,
}

impl<'a> Pair<'a> {
    /// The entry model of a configuration and the large one, which needs a name where there are several others.
    pub(super) fn of(config: &'a Config, large: Option<&str>) -> anyhow::Result<Self> {
        let entry = config.entry_index();
        let (name, small) = config.models.get_index(entry).context("the configuration has an entry model")?;
        let others: Vec<_> = config.models.iter().filter(|(other, _)| *other != name).collect();
        let names = others.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        let found = match large {
            Some(wanted) => others.iter().find(|(other, _)| *other == wanted),
            None if others.len() == 1 => others.first(),
            None => return Err(usage(format!("--large is needed to choose the large model, allowed are: {names}"))),
        };
        let (other, large) = found.ok_or_else(|| {
            usage(format!(
                "--large {} is not a model besides `{name}`, allowed are: {names}",
                large.unwrap_or_default()
            ))
        })?;
        for (name, model) in [(name, small), (*other, *large)] {
            if model.emulated.is_some() {
                return Err(usage(format!("model `{name}` is emulated: it has no hidden states to learn from")));
            }
        }
        Ok(Self { small: NamedModel { name, config: small }, large: NamedModel { name: other, config: large } })
    }

    /// Lets the large model write and both score it. Also says where the text comes from.
    pub(super) fn samples(&self, args: &TrainArgs, bar: &ProgressBar) -> anyhow::Result<(Samples, String)> {
        let Self { small, large } = self;
        // What is quickly wrong first.
        let texts = built_in_or_files(&args.text)?;
        let (small_files, large_files) = (small.open()?, large.open()?);
        if small_files.text.vocabulary_hash(None) != large_files.text.vocabulary_hash(None) {
            return Err(usage(format!(
                "models `{}` and `{}` have different vocabularies ({} and {} tokens): they cannot exchange tokens",
                small.name, large.name, small_files.arch.vocab, large_files.arch.vocab
            )));
        }
        let documents: Vec<&str> = texts.documents.iter().map(String::as_str).collect();
        let problems: Vec<&str> = texts.problems.iter().map(String::as_str).collect();
        let prompts = openings(&large_files.text, &documents, &problems)?;
        let mut models = Models {
            large: OfflineModel::load(&large_files, large.config.dtype, args.threads, Use::Generate)?,
            small: OfflineModel::load(&small_files, small.config.dtype, args.threads, Use::Score)?,
        };
        let options =
            Generation { temperature: args.temperature, seed: args.seed, length: args.length, tokens: args.tokens };
        let written = models.large.generate(&prompts, &options, bar)?;
        let neutral = args.neutral_top.map(|top| Neutral { top, ratio: args.neutral_ratio });
        let samples = label(&mut models, &written, neutral, bar)?;
        let source = format!("answers of model `{}` to prompts of {}", large.name, texts.name);
        Ok((samples, source))
    }
}

impl NamedModel<'_> {
    fn open(&self) -> anyhow::Result<ModelFiles> {
        ModelFiles::open(self.config).with_context(|| format!("model `{}`", self.name))
    }
}
