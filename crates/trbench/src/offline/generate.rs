//! Text that a model generates, in one batch of several sequences.

use std::sync::Arc;

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use tokenrouter_core::step::Batch;
use tokenrouter_core::step::{ModelRunner, StepOutput};
use tokenrouter_core::{Request, RequestId, SamplingParams};

use super::OfflineModel;

/// How text is generated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Generation {
    /// 0 is greedy.
    pub(crate) temperature: f32,
    /// Seed of the draws.
    pub(crate) seed: u64,
    /// Most tokens of one completion.
    pub(crate) length: usize,
    /// New completions are begun until there are this many tokens.
    pub(crate) tokens: usize,
}

/// A text that a model generated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Completion {
    /// Index of its prompt.
    pub(crate) prompt: usize,
    /// Prompt and completion.
    pub(crate) tokens: Vec<u32>,
    /// Length of the prompt.
    pub(crate) prompt_tokens: usize,
}

impl OfflineModel {
    /// Completes `prompts`, each in turn and again, until there are enough tokens. The same for the same arguments,
    /// whatever the number of threads.
    pub(crate) fn generate(
        &mut self,
        prompts: &[Vec<u32>],
        options: &Generation,
        bar: &ProgressBar,
    ) -> anyhow::Result<Vec<Completion>> {
        let length = self.length();
        let tables: Vec<_> = (0..self.slots).map(|slot| self.blocks(slot)).collect();
        if let Some(long) = prompts.iter().map(Vec::len).find(|len| *len == 0 || len + 2 > length) {
            bail!("a prompt has {long} tokens, allowed are 1 to {}", length - 2);
        }
        if prompts.is_empty() {
            bail!("there is nothing to write from: no prompt");
        }
        let slots = (0..self.slots).map(|_| None).collect();
        let mut sequences = Sequences { started: 0, tokens: 0, slots, finished: Vec::new() };
        let mut batch = Batch::default();
        let mut step = StepOutput::default();
        loop {
            sequences.start(prompts, options, length);
            batch.clear();
            for (table, sequence) in tables.iter().zip(&sequences.slots) {
                if let Some(sequence) = sequence {
                    sequence.push(table, &mut batch);
                }
            }
            if batch.rows().is_empty() {
                break;
            }
            self.runner.forward(&batch, &mut step).context("a step of the model failed")?;
            sequences.append(&step.tokens, &self.eos);
            bar.set_message(format!("writing: {} of {} tokens", sequences.tokens, options.tokens));
        }
        sequences.finished.sort_by_key(|(number, _)| *number);
        Ok(sequences.finished.into_iter().map(|(_, completion)| completion).collect())
    }
}

/// Sequences being generated.
struct Sequences {
    /// How many were started.
    started: usize,
    /// Tokens generated.
    tokens: usize,
    /// Those in the batch.
    slots: Vec<Option<Sequence>>,
    /// By number of the sequence.
    finished: Vec<(usize, Completion)>,
}

struct Sequence {
    number: usize,
    prompt: usize,
    request: Arc<Request>,
    log: Vec<u32>,
    /// Positions with keys and values.
    stored: usize,
}

impl Sequence {
    fn push(&self, table: &[u32], batch: &mut Batch) {
        batch.push(RequestId(self.number as u64), &self.request, (&self.log, self.stored..self.log.len()), table);
    }
}

impl Sequences {
    /// Fills free slots while more tokens are wanted.
    fn start(&mut self, prompts: &[Vec<u32>], options: &Generation, length: usize) {
        for slot in self.slots.iter_mut().filter(|slot| slot.is_none()) {
            if self.tokens >= options.tokens {
                return;
            }
            let prompt = self.started % prompts.len();
            let log = prompts[prompt].clone();
            let sampling = SamplingParams {
                temperature: options.temperature,
                seed: options.seed,
                max_tokens: options.length.min(length - log.len()),
                ..SamplingParams::default()
            };
            let request = Request::new(log.clone(), sampling, self.started as u64);
            *slot = Some(Sequence { number: self.started, prompt, request: Arc::new(request), log, stored: 0 });
            self.started += 1;
        }
    }

    /// Appends the next token of every slot in use.
    fn append(&mut self, tokens: &[u32], eos: &[u32]) {
        let used = self.slots.iter_mut().filter(|slot| slot.is_some());
        for (slot, token) in used.zip(tokens) {
            let Some(sequence) = slot else { continue };
            sequence.stored = sequence.log.len();
            sequence.log.push(*token);
            self.tokens += 1;
            let prompt_tokens = sequence.request.prompt.len();
            if sequence.request.sampling.finish_after(&sequence.log[prompt_tokens..], eos, None).is_some()
                && let Some(sequence) = slot.take()
            {
                self.finished.push((
                    sequence.number,
                    Completion { prompt: sequence.prompt, tokens: sequence.log, prompt_tokens },
                ));
            }
        }
    }
}
