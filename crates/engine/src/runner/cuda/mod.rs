//! The runner over this project's CUDA kernels.
//!
//! Only five words of a row return to the host after a step (candidate and signals), unless a request samples, has
//! penalties, or wants log-probabilities: then its row of logits follows. A routing head runs right after the forward pass,
//! and its score is one of those words.

mod load;
mod ranks;

use std::time::Instant;

use tokenrouter_kernels::cuda::{CudaHead, CudaLimits, CudaNeeds, CudaOutput, Device, GraphCounts, MAX_TOP};
use tokenrouter_kernels::{Error, SignalSet};

use super::native::kv_dtype;
use super::sampler::{Candidates, Sampler};
use super::{RunnerOptions, row_inputs};
use crate::config::WeightDtype;
use crate::heads::{Head, LoadedHead};
use crate::model::{Arch, LinearPatches, ModelError, Weights};
use ranks::Ranks;
use tokenrouter_core::routing::SignalNeeds;
use tokenrouter_core::step::{Batch, BatchRow};
use tokenrouter_core::step::{ModelRunner, RunnerError, Softmax, StepOutput};

/// The most that a runner has to work on in a step, and which steps it captures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CudaShapes {
    /// Most new tokens.
    pub tokens: usize,
    /// Most rows.
    pub rows: usize,
    /// Captured shapes: tokens, and rows that sample.
    pub graphs: Vec<(usize, usize)>,
}

/// Runs a model on CUDA devices, with its KV cache.
#[derive(Debug)]
pub struct CudaRunner {
    ranks: Ranks,
    needs: SignalNeeds,
    /// Whether the routing head runs on the device.
    scores: bool,
    sampler: Sampler,
    step: CudaOutput,
    logits: Vec<f32>,
}

impl CudaRunner {
    /// Loads the weights: onto one device, or shards of them onto several.
    pub fn load(
        arch: &Arch,
        (weights, patches): (&Weights, &LinearPatches),
        dtype: WeightDtype,
        options: &RunnerOptions,
        (devices, shapes): (&[Device], &CudaShapes),
    ) -> Result<Self, ModelError> {
        let path = weights.path();
        let failed = |error: Error| ModelError::invalid(path, error.to_string());
        let needs = options.needs;
        if needs.top_logits > MAX_TOP {
            let message =
                format!("the routing method reads the {} largest logits, on CUDA at most {MAX_TOP}", needs.top_logits);
            return Err(ModelError::invalid(path, message));
        }
        load::check_ranks(arch, devices.len()).map_err(|message| ModelError::invalid(path, message))?;
        let head = options.head.as_deref().and_then(LoadedHead::of).map(Head::to_host).transpose().map_err(failed)?;
        let on_device = head.is_some();
        let limits = CudaLimits {
            tokens: shapes.tokens,
            rows: shapes.rows,
            kv: options.kv,
            kv_dtype: kv_dtype(options.kv_dtype),
            graphs: shapes.graphs.clone(),
        };
        let cuda_needs = CudaNeeds {
            signals: SignalSet { softmax: needs.softmax, top_k: needs.top_logits },
            extra_row: needs.extra_row,
            bound: if options.vocab == 0 { arch.vocab } else { options.vocab },
            top_on_host: head.is_none(),
        };
        let ranks = Ranks::load(devices, |device, rank, collective| {
            let loader = load::Loader { arch, weights, patches, dtype, device, rank };
            let (config, weights) = loader.load(options.kv)?;
            // Every rank has the whole residual stream; the first one's results are used.
            let head = head.as_ref().filter(|_| rank.0 == 0);
            let head = head.map(|head| CudaHead::upload(device, head, shapes.rows)).transpose().map_err(failed)?;
            let needs = (cuda_needs, head);
            tokenrouter_kernels::cuda::CudaDecoder::new(device, config, weights, limits.clone(), needs, collective)
                .map_err(failed)
        })?;
        Ok(Self {
            ranks,
            needs,
            scores: on_device,
            sampler: Sampler::new(options),
            step: CudaOutput::default(),
            logits: vec![0.0; arch.vocab],
        })
    }

    /// How often steps were replayed from graphs.
    pub fn graph_counts(&self) -> GraphCounts {
        self.ranks.first().graph_counts()
    }

    /// Logits of a row of the last step that sampled.
    pub fn logits(&mut self, row: usize) -> Result<&[f32], Error> {
        self.ranks.first().logits(row, &mut self.logits)?;
        Ok(&self.logits)
    }

    /// Chooses the token of a row: the candidate, unless the request wants more than the largest logit.
    fn choose(&mut self, index: usize, row: &BatchRow, batch: &Batch, output: &mut StepOutput) -> Result<(), Error> {
        let (request, candidate) = (&row.request, self.step.candidates[index]);
        let params = &request.sampling;
        let greedy = (params.temperature <= 0.0 || params.top_k == 1)
            && !params.has_penalties()
            && row.position() >= params.min_tokens;
        if greedy && request.logprobs.is_none() {
            output.tokens.push(candidate);
            return Ok(());
        }
        self.ranks.first().logits(index, &mut self.logits)?;
        if let Some(extra) = self.needs.extra_row.and_then(|extra| self.logits.get_mut(extra as usize)) {
            *extra = f32::NEG_INFINITY;
        }
        let raw = request.logprobs.map(|_| self.logits.clone());
        let candidates = Candidates { logits: &mut self.logits, argmax: Some(candidate), history: batch.history(row) };
        output.tokens.push(self.sampler.sample(candidates, request, row.position()));
        if let Some(raw) = raw {
            self.sampler.note_logprobs(row, &raw, output);
        }
        Ok(())
    }

    /// What the policy reads, from what returned with the step or by further copies.
    fn signals(&mut self, output: &mut StepOutput) -> Result<(), Error> {
        let (step, first) = (&mut self.step, self.ranks.first());
        if self.needs.softmax {
            let signals = step.entropy.iter().zip(&step.log_sum_exp);
            output
                .softmax
                .extend(signals.map(|(entropy, log_sum_exp)| Softmax { entropy: *entropy, log_sum_exp: *log_sum_exp }));
        }
        if self.needs.extra_row.is_some() {
            std::mem::swap(&mut output.extra, &mut step.extra);
        }
        if self.scores {
            if output.tokens == step.candidates {
                std::mem::swap(&mut output.scores, &mut step.scores);
            } else {
                first.score(&output.tokens, &mut output.scores)?;
            }
            return Ok(());
        }
        std::mem::swap(&mut output.top, &mut step.top);
        if self.needs.hidden {
            first.hidden(&mut output.hidden)?;
        }
        if self.needs.embedding {
            first.embeddings(&output.tokens, &mut output.embedding)?;
        }
        Ok(())
    }
}

impl ModelRunner for CudaRunner {
    fn forward(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), RunnerError> {
        self.step(batch, output).map_err(RunnerError::new)
    }
}

impl CudaRunner {
    fn step(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), Error> {
        output.clear();
        let rows = row_inputs(batch);
        let hits = self.graph_counts().hits;
        self.ranks.forward(&rows, batch.copies(), &mut self.step)?;
        output.graph = Some(self.graph_counts().hits > hits);
        let start = Instant::now();
        for (index, row) in batch.rows().iter().filter(|row| row.sample).enumerate() {
            self.choose(index, row, batch, output)?;
        }
        output.sampling = start.elapsed();
        self.signals(output)
    }
}
