//! One model on the CPU kernels.

use std::ops::Range;
use std::path::Path;

use anyhow::Context;
use tokenrouter_core::routing::SignalNeeds;
use tokenrouter_engine::config::{ModelConfig, WeightDtype};
use tokenrouter_engine::model::ModelFiles;
use tokenrouter_engine::runner::{NativeRunner, RunnerOptions};
use tokenrouter_kernels::{Decoder, Pool, RowInput, StepNeeds, StepOutput};

/// Positions that are scored in one step: bounds the memory for logits.
const CHUNK: usize = 64;
/// Most positions of one sequence that are prefilled in one step.
const PREFILL_CHUNK: usize = 256;
/// Sequences that are generated in one batch.
const SLOTS: usize = 16;
/// Positions per block of the cache.
const BLOCK: usize = 32;
/// Most positions of a sequence; longer texts are cut.
pub(crate) const LENGTH: usize = 512;

/// What a model is loaded for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Scoring: one sequence at a time.
    Score,
    /// Generating: several sequences in one batch. It can score as well.
    Generate,
    /// Sampling with the likeliest tokens of every position: so many sequences of this length in one batch.
    Sample { slots: usize, length: usize, top_k: usize },
}

/// A model on the CPU kernels.
pub(crate) struct OfflineModel {
    pub(crate) runner: NativeRunner,
    pub(crate) eos: Vec<u32>,
    /// Width of the residual stream.
    pub(crate) d_model: usize,
    /// Size of the vocabulary.
    pub(crate) vocab: usize,
    /// Number of layers.
    pub(crate) layers: usize,
    length: usize,
    /// Sequences in one batch.
    pub(crate) slots: usize,
    out: StepOutput,
}

impl OfflineModel {
    /// Loads the weights. `threads` 0 takes all cores.
    pub(crate) fn load(files: &ModelFiles, dtype: WeightDtype, threads: usize, purpose: Use) -> anyhow::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let pool = Pool::new(if threads == 0 { cores } else { threads }, None).context("cannot start the threads")?;
        let (slots, length, top_k) = match purpose {
            Use::Score => (1, LENGTH, 0),
            Use::Generate => (SLOTS, LENGTH, 0),
            Use::Sample { slots, length, top_k } => (slots, length, top_k),
        };
        let length = length.min(files.arch.context);
        let needs = SignalNeeds { softmax: top_k > 0, top_logits: top_k, ..SignalNeeds::default() };
        let kv = (slots * length.div_ceil(BLOCK), BLOCK);
        let options = RunnerOptions { eos: files.eos.clone(), kv, needs, ..RunnerOptions::default() };
        let runner = NativeRunner::load(&files.arch, (&files.weights, &files.patches), dtype, &options, pool)?;
        let arch = &files.arch;
        Ok(Self {
            runner,
            eos: files.eos.clone(),
            d_model: arch.d_model,
            vocab: arch.vocab,
            layers: arch.layers.len(),
            length,
            slots,
            out: StepOutput::default(),
        })
    }

    /// Most positions of a sequence.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The decoder, to change what it computes.
    pub(crate) fn decoder(&mut self) -> &mut Decoder {
        self.runner.parts().0
    }

    /// Blocks of the cache of the sequence in a slot.
    pub(crate) fn blocks(&self, slot: usize) -> Vec<u32> {
        let each = self.length.div_ceil(BLOCK);
        (slot * each..(slot + 1) * each).map(|block| block as u32).collect()
    }

    /// Runs the positions `new` of a text whose earlier positions are in the cache: one row of results per position.
    pub(crate) fn score(&mut self, tokens: &[u32], new: Range<usize>, needs: StepNeeds) -> anyhow::Result<&StepOutput> {
        let blocks = self.blocks(0);
        let row = |at: usize| RowInput { tokens: &tokens[at..=at], start: at, blocks: &blocks, sample: true };
        // The keys and values of all rows are stored before any row attends, so rows may be neighbours in one text.
        let rows: Vec<RowInput<'_>> = new.map(row).collect();
        let (decoder, kv) = self.runner.parts();
        decoder.forward(&rows, kv, needs, &mut self.out).context("a step of the model failed")?;
        Ok(&self.out)
    }

    /// Puts the first `count` positions of a text into the cache.
    pub(crate) fn prefill(&mut self, tokens: &[u32], count: usize) -> anyhow::Result<()> {
        let blocks = self.blocks(0);
        for start in (0..count).step_by(PREFILL_CHUNK) {
            let tokens = &tokens[start..count.min(start + PREFILL_CHUNK)];
            let (decoder, kv) = self.runner.parts();
            let row = RowInput { tokens, start, blocks: &blocks, sample: false };
            decoder.forward(&[row], kv, StepNeeds::default(), &mut self.out).context("a step of the model failed")?;
        }
        Ok(())
    }
}

/// The positions `from..to` in steps that [`OfflineModel::score`] can take.
pub(crate) fn chunks(from: usize, to: usize) -> impl Iterator<Item = Range<usize>> {
    (from..to).step_by(CHUNK).map(move |start| start..to.min(start + CHUNK))
}

/// The configuration of a model by what users call it: `demo`, a GGUF file, a model folder, or a hub id.
pub(crate) fn model_config(source: &str) -> ModelConfig {
    // A hub id has a slash as well, so what exists as a file is one.
    let local = source != "demo" && (Path::new(source).exists() || source.split('/').count() != 2);
    let (path, source) = if local { (Some(source.into()), None) } else { (None, Some(source.to_owned())) };
    ModelConfig { path, source, ..ModelConfig::default() }
}
