//! Text that a routed system writes, for the model to read: what a student meets when it is served is text that it wrote itself,
//! between tokens of the large model.

use std::path::Path;

use anyhow::{Context as _, bail};
use tokenrouter_core::{FinishReason, Request};
use tokenrouter_engine::{Config, Engine};

use super::sequences::Sequence;
use super::shown;
use crate::error::usage;
use crate::interrupt;

/// A running system.
pub(super) struct Writer {
    engine: Engine,
}

impl Writer {
    /// Starts the system of a configuration; it must have the vocabulary of the model that reads.
    pub(super) fn launch(path: &Path, vocab: usize) -> anyhow::Result<Self> {
        let config = Config::from_file(path).map_err(|error| usage(error.to_string()))?;
        let engine = Engine::launch(&config).with_context(|| format!("cannot start `{}`", shown(path)))?;
        if engine.vocab() != vocab {
            return Err(usage(format!(
                "--config `{}` has a vocabulary of {} tokens, --model one of {vocab}",
                shown(path),
                engine.vocab()
            )));
        }
        Ok(Self { engine })
    }

    /// Writes the rest of every sequence, up to `length` tokens with the prompt. Returns whether it was allowed to complete.
    pub(super) fn write(&self, sequences: &mut [Sequence], length: usize) -> anyhow::Result<bool> {
        for group in sequences.chunks_mut(self.engine.most_open().max(1)) {
            let streams = group
                .iter()
                .map(|sequence| {
                    let mut sampling = sequence.request.sampling.clone();
                    sampling.max_tokens = length - sequence.log.len();
                    self.engine.generate(Request::new(sequence.log.clone(), sampling, sequence.request.key))
                })
                .collect::<Result<Vec<_>, _>>()
                .context("the system of --config refuses a prompt")?;
            for (sequence, stream) in group.iter_mut().zip(streams) {
                if interrupt::was_asked() {
                    return Ok(false);
                }
                let (tokens, reason, _) = stream.collect_blocking();
                match reason {
                    FinishReason::Stop | FinishReason::Length => {}
                    FinishReason::Error(why) => bail!("the system of --config failed: {why}"),
                    other => bail!("the system of --config ended a request with `{}`", other.as_str()),
                }
                sequence.complete_with(tokens.into_iter().map(|token| token.id));
            }
        }
        Ok(true)
    }
}
