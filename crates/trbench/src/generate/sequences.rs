//! The sequences of one file, sampled in one batch.

use std::collections::VecDeque;
use std::sync::Arc;

use anyhow::Context as _;
use indicatif::ProgressBar;
use tokenrouter_core::keyed::{Purpose, draw_u64};
use tokenrouter_core::step::{Batch, ModelRunner as _, StepOutput};
use tokenrouter_core::{Request, RequestId, SamplingParams};

use super::part::Part;
use super::prompts::Prompt;
use super::routed::Writer;
use crate::interrupt;
use crate::offline::OfflineModel;

/// How sequences are sampled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sampling<'a> {
    pub(super) temperatures: &'a [f32],
    pub(super) seed: u64,
    /// Most tokens of a sequence.
    pub(super) length: usize,
    /// Sequences of a file.
    pub(super) sequences: usize,
    /// Go on where the model ends.
    pub(super) ignore_eos: bool,
}

pub(super) struct Sequence {
    pub(super) request: Arc<Request>,
    /// All tokens so far, whoever they are from; those from `stored` on have not been computed.
    pub(super) log: Vec<u32>,
    /// For every token of the log: whether the model sampled it.
    sampled: Vec<bool>,
    stored: usize,
    then: VecDeque<Vec<u32>>,
    /// Nothing is added to the log: it was written by another system.
    complete: bool,
    /// `[stored, k]`.
    top: Vec<(u32, f32)>,
}

/// Samples the sequences of a file, or lets the model read what `writer` writes: a function of what `plan` gave. `None` if the
/// command was asked to end before it was complete.
pub(super) fn write_part(
    model: &mut OfflineModel,
    mut planned: Vec<Sequence>,
    sampling: &Sampling<'_>,
    writer: Option<&Writer>,
    bar: &ProgressBar,
) -> anyhow::Result<Option<Part>> {
    if let Some(writer) = writer
        && !writer.write(&mut planned, sampling.length)?
    {
        return Ok(None);
    }
    let mut waiting: VecDeque<(usize, Sequence)> = planned.into_iter().enumerate().collect();
    let mut slots: Vec<Option<(usize, Sequence)>> = (0..model.slots).map(|_| None).collect();
    let mut done: Vec<Option<Sequence>> = (0..waiting.len()).map(|_| None).collect();
    let (mut batch, mut step) = (Batch::default(), StepOutput::default());
    let tables: Vec<_> = (0..model.slots).map(|slot| model.blocks(slot)).collect();
    let eos = model.eos.clone();
    loop {
        batch.clear();
        for (table, place) in tables.iter().zip(&mut slots) {
            if place.is_none() {
                *place = waiting.pop_front();
            }
            if let Some((number, sequence)) = place {
                sequence.push(RequestId(*number as u64), table, &mut batch);
            }
        }
        let rows = batch.rows().len();
        if rows == 0 {
            break;
        }
        if interrupt::was_asked() {
            return Ok(None);
        }
        model.runner.forward(&batch, &mut step).context("a step of the model failed")?;
        for (row, place) in slots.iter_mut().filter(|place| place.is_some()).enumerate() {
            let ended = place.as_mut().is_some_and(|(_, sequence)| sequence.advance(row, &step, &eos, sampling.length));
            if ended && let Some((number, sequence)) = place.take() {
                done[number] = Some(sequence);
            }
        }
        bar.inc(rows as u64);
    }
    let mut written = Part::default();
    for sequence in done.into_iter().flatten() {
        written.push(&sequence.log, &sequence.sampled, sequence.request.sampling.temperature, &sequence.top);
    }
    Ok(Some(written))
}

/// The sequences of file `part`: prompts in random order, all of them before any of them again; a temperature for each.
pub(super) fn plan(prompts: &[Prompt], sampling: &Sampling<'_>, part: usize) -> Vec<Sequence> {
    let (seed, temperatures) = (sampling.seed, sampling.temperatures);
    let mut order: (usize, Vec<usize>) = (usize::MAX, Vec::new());
    let first = part * sampling.sequences;
    let sequence = |number: usize| {
        let (round, place) = (number / prompts.len(), number % prompts.len());
        if order.0 != round {
            order = (round, shuffled(prompts.len(), seed, round as u64));
        }
        let prompt = &prompts[order.1[place]];
        let draw = draw_u64(seed, u64::MAX, number as u64, Purpose::Workload);
        let temperature = temperatures[(draw % temperatures.len() as u64) as usize];
        let params = SamplingParams { temperature, seed, ignore_eos: sampling.ignore_eos, ..SamplingParams::default() };
        // Positions of draws count from the first token, so that forced tokens have positions too.
        let request = Request::new(prompt.tokens[..1].to_vec(), params, number as u64);
        Sequence {
            request: Arc::new(request),
            log: prompt.tokens.clone(),
            sampled: vec![false; prompt.tokens.len()],
            stored: 0,
            then: prompt.then.iter().cloned().collect(),
            complete: false,
            top: Vec::new(),
        }
    };
    (first..first + sampling.sequences).map(sequence).collect()
}

/// The numbers below `n` in an order of their own for every round (Fisher and Yates).
fn shuffled(n: usize, seed: u64, round: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    for last in (1..n).rev() {
        let draw = draw_u64(seed, round, last as u64, Purpose::Workload);
        order.swap(last, (draw % (last as u64 + 1)) as usize);
    }
    order
}

impl Sequence {
    /// Takes what another system wrote after the prompt, to its end.
    pub(super) fn complete_with(&mut self, tokens: impl Iterator<Item = u32>) {
        self.log.extend(tokens);
        self.sampled.resize(self.log.len(), true);
        self.complete = true;
    }

    /// Adds its next token to a batch.
    fn push(&self, id: RequestId, table: &[u32], batch: &mut Batch) {
        let end = self.stored + 1;
        // The log as far as it is computed, so that every position asks for its next token.
        batch.push(id, &self.request, (&self.log[..end], self.stored..end), table);
    }

    /// Takes the results of its row. Returns whether it is complete.
    fn advance(&mut self, row: usize, step: &StepOutput, eos: &[u32], length: usize) -> bool {
        let k = step.top.len() / step.tokens.len();
        let normaliser = step.softmax[row].log_sum_exp;
        self.top.extend(step.top[row * k..(row + 1) * k].iter().map(|(logit, id)| (*id, logit - normaliser)));
        self.stored += 1;
        if self.stored < self.log.len() {
            return false;
        }
        if self.complete || self.log.len() >= length {
            return true;
        }
        let ended = self.log.last().is_some_and(|last| eos.contains(last)) && self.sampled.last() == Some(&true);
        if ended && !self.request.sampling.ignore_eos {
            let Some(mut forced) = self.then.pop_front() else { return true };
            forced.truncate(length - self.log.len());
            self.sampled.extend(forced.iter().map(|_| false));
            let nothing = forced.is_empty();
            self.log.append(&mut forced);
            return nothing;
        }
        self.log.push(step.tokens[row]);
        self.sampled.push(true);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prompt_comes_once_a_round_in_changing_order() {
        let rounds: Vec<Vec<usize>> = (0..3).map(|round| shuffled(20, 7, round)).collect();
        for order in &rounds {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..20).collect::<Vec<_>>());
        }
        assert!(rounds[0] != rounds[1] && rounds[1] != rounds[2]);
        assert_eq!(shuffled(20, 7, 1), rounds[1]);
    }

    #[test]
    fn a_sequence_takes_forced_tokens_where_the_model_ends() {
        let params = SamplingParams::default();
        let mut sequence = Sequence {
            request: Arc::new(Request::new(vec![1], params, 0)),
            log: vec![1, 2],
            sampled: vec![false; 2],
            stored: 0,
            then: VecDeque::from([vec![8, 2]]),
            complete: false,
            top: Vec::new(),
        };
        // `2` ends a sequence, but only where the model wrote it.
        let mut step = StepOutput {
            softmax: vec![tokenrouter_core::step::Softmax { entropy: 0.0, log_sum_exp: 1.0 }],
            ..StepOutput::default()
        };
        // Tokens that come where the next one is known already are not used.
        let mut written = [9, 5, 2, 7, 4, 6, 3, 0].into_iter();
        let mut steps = 0;
        loop {
            let token = written.next().expect("more tokens");
            (step.tokens, step.top) = (vec![token], vec![(0.5, token)]);
            steps += 1;
            if sequence.advance(0, &step, &[2], 8) {
                break;
            }
        }
        assert_eq!(sequence.log, [1, 2, 5, 2, 8, 2, 6, 3]);
        assert_eq!((steps, sequence.top.len()), (8, 8));
        assert_eq!(sequence.sampled, [false, false, true, true, false, false, true, true]);
        assert!((sequence.top[0].1 + 0.5).abs() < 1e-6, "logit minus the normaliser");
    }
}
