//! The runner over candle tensors.

use rayon::ThreadPool;

use super::sampler::{sample, signals};
use super::{ModelRunner, RowOutput, RunnerError};
use crate::model::Decoder;
use crate::routing::SignalNeeds;
use crate::scheduler::Batch;

/// Runs a [`Decoder`] in a thread pool of its own.
#[derive(Debug)]
pub struct CandleRunner {
    decoder: Decoder,
    needs: SignalNeeds,
    pool: ThreadPool,
}

impl CandleRunner {
    /// A runner with `threads` threads, pinned to `cores` when given.
    pub fn new(
        decoder: Decoder,
        needs: SignalNeeds,
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
        Ok(Self { decoder, needs, pool: pool.build()? })
    }
}

impl ModelRunner for CandleRunner {
    fn forward(&mut self, batch: &Batch, outputs: &mut Vec<RowOutput>) -> Result<(), RunnerError> {
        outputs.clear();
        let (decoder, needs) = (&self.decoder, self.needs);
        let rows = batch.rows().iter().filter(|row| row.sample);
        if rows.clone().next().is_none() {
            // A chunk in the middle of a prefill: only its keys and values are wanted.
            self.pool.install(|| decoder.prefill(batch))?;
            return Ok(());
        }
        let logits = self.pool.install(|| decoder.forward(batch)?.to_vec2::<f32>())?;
        outputs.extend(rows.zip(&logits).map(|(row, logits)| RowOutput {
            token: sample(logits, &row.request, row.position()),
            signals: signals(logits, needs),
        }));
        Ok(())
    }
}
