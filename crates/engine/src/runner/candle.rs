//! The runner over candle tensors.

use std::time::Instant;

use rayon::ThreadPool;
use tokenrouter_kernels::{Isa, SignalSet, logit_signals};

use super::sampler::{Candidates, Sampler};
use super::{ModelRunner, RunnerError, RunnerOptions, Softmax, StepOutput};
use crate::model::Decoder;
use tokenrouter_core::routing::SignalNeeds;
use tokenrouter_core::step::Batch;

/// Runs a [`Decoder`] in a thread pool of its own.
#[derive(Debug)]
pub struct CandleRunner {
    decoder: Decoder,
    needs: SignalNeeds,
    sampler: Sampler,
    isa: Isa,
    /// Largest logits of one row.
    top: Vec<(f32, u32)>,
    pool: ThreadPool,
}

impl CandleRunner {
    /// A runner with `threads` threads, pinned to `cores` when given.
    pub fn new(
        decoder: Decoder,
        options: &RunnerOptions,
        threads: usize,
        cores: Option<Vec<usize>>,
    ) -> Result<Self, rayon::ThreadPoolBuildError> {
        let builder = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let pool = builder.start_handler(move |index| {
            if let Some(id) = cores.as_ref().and_then(|cores| cores.get(index % cores.len())) {
                // Pinning is an optimisation: a machine that refuses it still computes.
                let _pinned = core_affinity::set_for_current(core_affinity::CoreId { id: *id });
            }
        });
        Ok(Self {
            decoder,
            needs: options.needs,
            sampler: Sampler::new(options),
            isa: Isa::detect(),
            top: Vec::new(),
            pool: pool.build()?,
        })
    }
}

impl ModelRunner for CandleRunner {
    fn forward(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), RunnerError> {
        self.step(batch, output).map_err(RunnerError::new)
    }
}

impl CandleRunner {
    fn step(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), candle_core::Error> {
        output.clear();
        let (decoder, needs) = (&self.decoder, self.needs);
        let rows = batch.rows().iter().filter(|row| row.sample);
        if rows.clone().next().is_none() {
            // A chunk in the middle of a prefill: only its keys and values are wanted.
            self.pool.install(|| decoder.prefill(batch))?;
            return Ok(());
        }
        let (hidden, mut logits) = self.pool.install(|| {
            let (hidden, logits) = decoder.forward(batch)?;
            let hidden = if needs.hidden { hidden.flatten_all()?.to_vec1::<f32>()? } else { Vec::new() };
            candle_core::Result::Ok((hidden, logits.to_vec2::<f32>()?))
        })?;
        output.hidden = hidden;
        let start = Instant::now();
        let set = SignalSet { softmax: needs.softmax, top_k: needs.top_logits };
        for (row, logits) in rows.zip(&mut logits) {
            if let Some(extra) = needs.extra_row.and_then(|extra| logits.get_mut(extra as usize)) {
                output.extra.push(std::mem::replace(extra, f32::NEG_INFINITY));
            }
            let signals = logit_signals(self.isa, logits, set, &mut self.top);
            output.top.extend_from_slice(&self.top);
            if needs.softmax {
                output.softmax.push(Softmax { entropy: signals.entropy, log_sum_exp: signals.log_sum_exp });
            }
            let raw = row.request.logprobs.map(|_| logits.clone());
            let candidates = Candidates { logits, argmax: Some(signals.argmax), history: batch.history(row) };
            output.tokens.push(self.sampler.sample(candidates, &row.request, row.position()));
            if let Some(raw) = raw {
                self.sampler.note_logprobs(row, &raw, output);
            }
        }
        output.sampling = start.elapsed();
        if needs.embedding {
            output.embedding = self.decoder.embeddings(&output.tokens)?;
        }
        Ok(())
    }
}
