//! Models that run without a scheduler: to read given text and to write text of their own. For tools that measure or fit.

mod text;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::ValueEnum;
use indicatif::ProgressBar;
use tokenrouter_core::step::Batch;
use tokenrouter_engine::config::WeightDtype;
use tokenrouter_engine::model::ModelFiles;
use tokenrouter_engine::runner::{ModelRunner, NativeRunner, RunnerOptions};
use tokenrouter_engine::{Request, RequestId, SamplingParams, runner};
use tokenrouter_kernels::{Decoder, Pool, RowInput, StepNeeds, StepOutput};

use crate::cli::usage;
pub(crate) use text::{built_in_or_files, openings};

/// Positions that are read in one step: bounds the memory for logits.
const READ: usize = 64;
/// Most positions of one sequence that are stored in one step without reading them.
const SKIP: usize = 256;
/// Sequences that are written side by side.
const SLOTS: usize = 16;
/// Positions per block of the cache.
const BLOCK: usize = 32;
/// Most positions of a sequence; longer texts are cut.
pub(crate) const LENGTH: usize = 512;

/// How a command prints its report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Tables for people.
    Table,
    /// Everything, as JSON.
    Json,
}

/// What a model is loaded for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// One sequence at a time.
    Read,
    /// Several sequences side by side.
    Write,
}

/// How text is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writing {
    /// 0 is greedy.
    pub(crate) temperature: f32,
    /// Seed of the draws.
    pub(crate) seed: u64,
    /// Most tokens of one answer.
    pub(crate) length: usize,
    /// New texts are begun until this many tokens are written.
    pub(crate) tokens: usize,
}

/// A text that a model wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Written {
    /// Index of its prompt.
    pub(crate) prompt: usize,
    /// Prompt and answer.
    pub(crate) tokens: Vec<u32>,
    /// Length of the prompt.
    pub(crate) prompt_tokens: usize,
}

/// A model on the CPU kernels.
pub(crate) struct OfflineModel {
    runner: NativeRunner,
    eos: Vec<u32>,
    /// Width of the residual stream.
    pub(crate) d_model: usize,
    /// Size of the vocabulary.
    pub(crate) vocab: usize,
    /// Number of layers.
    pub(crate) layers: usize,
    length: usize,
    slots: usize,
    out: StepOutput,
}

impl OfflineModel {
    /// Loads the weights. `threads` 0 takes all cores.
    pub(crate) fn load(files: &ModelFiles, dtype: WeightDtype, threads: usize, purpose: Use) -> anyhow::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let pool = Pool::new(if threads == 0 { cores } else { threads }, None).context("cannot start the threads")?;
        let slots = if purpose == Use::Read { 1 } else { SLOTS };
        let length = LENGTH.min(files.arch.context);
        let kv = (slots * length.div_ceil(BLOCK), BLOCK);
        let options = RunnerOptions { eos: files.eos.clone(), kv, ..RunnerOptions::default() };
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

    /// Reads the positions `new` of a text whose earlier positions were read before: one row of results per position.
    pub(crate) fn read(&mut self, tokens: &[u32], new: Range<usize>, needs: StepNeeds) -> anyhow::Result<&StepOutput> {
        let blocks: Vec<u32> = (0..self.length.div_ceil(BLOCK) as u32).collect();
        let row = |at: usize| RowInput { tokens: &tokens[at..=at], start: at, blocks: &blocks, sample: true };
        // The keys and values of all rows are stored before any row attends, so rows may be neighbours in one text.
        let rows: Vec<RowInput<'_>> = new.map(row).collect();
        let (decoder, kv) = self.runner.parts();
        decoder.forward(&rows, kv, needs, &mut self.out).context("a step of the model failed")?;
        Ok(&self.out)
    }

    /// Passes over the first `count` positions of a text.
    pub(crate) fn skip(&mut self, tokens: &[u32], count: usize) -> anyhow::Result<()> {
        let blocks: Vec<u32> = (0..self.length.div_ceil(BLOCK) as u32).collect();
        for start in (0..count).step_by(SKIP) {
            let tokens = &tokens[start..count.min(start + SKIP)];
            let (decoder, kv) = self.runner.parts();
            let row = RowInput { tokens, start, blocks: &blocks, sample: false };
            decoder.forward(&[row], kv, StepNeeds::default(), &mut self.out).context("a step of the model failed")?;
        }
        Ok(())
    }

    /// Writes answers to `prompts`, each in turn and again, until there are enough tokens. The same for the same
    /// arguments, whatever the number of threads.
    pub(crate) fn write(
        &mut self,
        prompts: &[Vec<u32>],
        how: &Writing,
        bar: &ProgressBar,
    ) -> anyhow::Result<Vec<Written>> {
        if let Some(long) = prompts.iter().map(Vec::len).find(|len| *len == 0 || len + 2 > self.length) {
            bail!("a prompt has {long} tokens, allowed are 1 to {}", self.length - 2);
        }
        if prompts.is_empty() {
            bail!("there is nothing to write from: no prompt");
        }
        let mut desk = Desk { begun: 0, written: 0, slots: (0..self.slots).map(|_| None).collect(), done: Vec::new() };
        let mut batch = Batch::default();
        let mut step = runner::StepOutput::default();
        loop {
            desk.begin(prompts, how, self.length);
            batch.clear();
            for (slot, text) in desk.slots.iter().enumerate() {
                if let Some(text) = text {
                    text.push(slot, self.length.div_ceil(BLOCK), &mut batch);
                }
            }
            if batch.rows().is_empty() {
                break;
            }
            self.runner.forward(&batch, &mut step).context("a step of the model failed")?;
            desk.take(&step.tokens, &self.eos);
            bar.set_message(format!("writing: {} of {} tokens", desk.written, how.tokens));
        }
        desk.done.sort_by_key(|(number, _)| *number);
        Ok(desk.done.into_iter().map(|(_, written)| written).collect())
    }
}

/// Texts being written.
struct Desk {
    begun: usize,
    written: usize,
    slots: Vec<Option<Draft>>,
    done: Vec<(usize, Written)>,
}

struct Draft {
    number: usize,
    prompt: usize,
    request: Arc<Request>,
    log: Vec<u32>,
    /// Positions with keys and values.
    stored: usize,
}

impl Draft {
    fn push(&self, slot: usize, blocks: usize, batch: &mut Batch) {
        let table: Vec<u32> = (slot * blocks..(slot + 1) * blocks).map(|block| block as u32).collect();
        batch.push(RequestId(self.number as u64), &self.request, (&self.log, self.stored..self.log.len()), &table);
    }
}

impl Desk {
    /// Fills free slots while more tokens are wanted.
    fn begin(&mut self, prompts: &[Vec<u32>], how: &Writing, length: usize) {
        for slot in self.slots.iter_mut().filter(|slot| slot.is_none()) {
            if self.written >= how.tokens {
                return;
            }
            let prompt = self.begun % prompts.len();
            let log = prompts[prompt].clone();
            let sampling = SamplingParams {
                temperature: how.temperature,
                seed: how.seed,
                max_tokens: how.length.min(length - log.len()),
                ..SamplingParams::default()
            };
            let request = Request::new(log.clone(), sampling, self.begun as u64);
            *slot = Some(Draft { number: self.begun, prompt, request: Arc::new(request), log, stored: 0 });
            self.begun += 1;
        }
    }

    /// Appends the next token of every slot in use.
    fn take(&mut self, tokens: &[u32], eos: &[u32]) {
        let used = self.slots.iter_mut().filter(|slot| slot.is_some());
        for (slot, token) in used.zip(tokens) {
            let Some(text) = slot else { continue };
            text.stored = text.log.len();
            text.log.push(*token);
            self.written += 1;
            let prompt_tokens = text.request.prompt.len();
            if text.request.sampling.finish_after(&text.log[prompt_tokens..], eos, None).is_some()
                && let Some(text) = slot.take()
            {
                self.done.push((text.number, Written { prompt: text.prompt, tokens: text.log, prompt_tokens }));
            }
        }
    }
}

/// The positions `from..to` in steps that [`OfflineModel::read`] can take.
pub(crate) fn parts(from: usize, to: usize) -> impl Iterator<Item = Range<usize>> {
    (from..to).step_by(READ).map(move |start| start..to.min(start + READ))
}

/// Checks that a file can be put where the user wants it.
pub(crate) fn check_target(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    match path.parent() {
        _ if path.is_dir() => Err(usage(format!("--out `{shown}` is a folder, a file is needed"))),
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            Err(usage(format!("the folder of --out `{shown}` does not exist")))
        }
        _ => Ok(()),
    }
}

/// Parses a weight type by its name in configurations.
pub(crate) fn weight_dtype(name: &str) -> Result<WeightDtype, String> {
    serde_json::from_value(serde_json::Value::String(name.to_owned()))
        .map_err(|_| format!("`{name}` is no weight type, allowed are native, f32 and bf16"))
}

/// The command as it was typed, to be kept in files.
pub(crate) fn command_line() -> String {
    std::iter::once("trbench".to_owned()).chain(std::env::args().skip(1)).collect::<Vec<_>>().join(" ")
}
