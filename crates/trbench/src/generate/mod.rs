//! `trbench generate`: text that a model samples, with the likeliest next tokens at every position: data to train a
//! student on (`python -m tokenrouter.distill`).
//!
//! Sequences run in one batch without a scheduler, a token a step, prompts included, because their positions teach as well.
//! The data are files of whole sequences, numbered, each there completely or not at all; what a file holds depends on the
//! arguments and its number only, so that an interrupted run goes on with the next one.

mod part;
mod prompts;
mod routed;
mod sequences;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use tokenrouter_engine::config::WeightDtype;
use tokenrouter_engine::model::ModelFiles;

use self::part::{Story, existing};
use self::prompts::Prompt;
use self::routed::Writer;
use self::sequences::{Sampling, plan, write_part};
use crate::error::{Interrupted, usage};
use crate::interrupt;
use crate::offline::{OfflineModel, Output, Use, model_config, weight_dtype};

/// Most sequences in one batch.
const MAX_BATCH: usize = 512;

/// Arguments of `trbench generate`.
#[derive(Debug, Clone, Args)]
pub struct GenerateArgs {
    /// The model: `demo`, a GGUF file, a model folder, or a hub id.
    #[arg(long)]
    model: String,
    /// Prompts, one JSON object a line: `{"prompt": "text"}`, `{"messages": [...]}` or `{"tokens": [...]}`, and `then`, a list
    /// of texts that are appended in turn where the model ends. Default: the text and the problems that ship with the
    /// project. Prompts are taken in random order, again and again.
    #[arg(long, value_name = "JSONL")]
    prompts: Option<PathBuf>,
    /// A configuration whose system writes, routed; the model reads: text like that which a student meets when it is served.
    #[arg(long, value_name = "YAML")]
    config: Option<PathBuf>,
    /// Go on where the model ends, up to `--length`.
    #[arg(long)]
    ignore_eos: bool,
    /// Folder for the data: `part-00000.safetensors` and so on. What is there is kept.
    #[arg(long, short)]
    out: PathBuf,
    /// Tokens in the folder, prompts included, at which to stop.
    #[arg(long, default_value_t = 1_000_000)]
    tokens: usize,
    /// Most tokens of a sequence, prompt included. 1 token after the prompt is always written.
    #[arg(long, default_value_t = 256)]
    length: usize,
    /// Temperatures; every sequence has one of them. 0 is greedy.
    #[arg(long, value_delimiter = ',', default_value = "0,0.6,0.8,0.8,1")]
    temperature: Vec<f32>,
    /// Likeliest tokens that are kept of every position.
    #[arg(long, default_value_t = 64)]
    top_k: usize,
    /// Sequences in one batch.
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Sequences in one file.
    #[arg(long, default_value_t = 256)]
    sequences: usize,
    /// Seed of the order of prompts and of the draws.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Weights of the model: `native` (as in the file), `f32` or `bf16`.
    #[arg(long, default_value = "native", value_parser = weight_dtype)]
    dtype: WeightDtype,
    /// Threads; 0: all cores.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Format of the report.
    #[arg(long, default_value = "table")]
    output: Output,
}

impl GenerateArgs {
    /// The option that decides where sequences end, if one does.
    fn own_ends(&self) -> Option<&'static str> {
        if self.config.is_some() { Some("--config") } else { self.ignore_eos.then_some("--ignore-eos") }
    }
}

/// What was written.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    folder: String,
    /// Files in the folder.
    parts: usize,
    /// Tokens in the folder, prompts included.
    tokens: usize,
    /// Tokens that this run computed.
    new_tokens: usize,
    seconds: f64,
    tokens_per_s: f64,
}

/// Runs `trbench generate`.
pub fn run(args: &GenerateArgs) -> anyhow::Result<ExitCode> {
    check(args)?;
    interrupt::start();
    if args.model == "demo" {
        crate::fetch::fetch_demo(&tokenrouter_engine::model::cache_dir())?;
    }
    let files = ModelFiles::open(&model_config(&args.model))?;
    check_sizes(args, &files)?;
    let prompts = match &args.prompts {
        Some(path) => prompts::read(path, &files.text, (args.length, files.arch.vocab))?,
        None => prompts::built_in(&files.text, args.length)?,
    };
    if let Some(option) = args.own_ends().filter(|_| prompts.iter().any(|prompt| !prompt.then.is_empty())) {
        return Err(usage(format!("{option} does not go with prompts that have `then`")));
    }
    std::fs::create_dir_all(&args.out).with_context(|| format!("cannot create the folder `{}`", args.out.display()))?;
    let writer = args.config.as_ref().map_or_else(|| args.model.clone(), |path| path.display().to_string());
    let story = Story { model: args.model.clone(), seed: args.seed, top_k: args.top_k, writer };
    let (first, before) = existing(&args.out, &story)?;
    let report = write(args, &files, &prompts, &story, (first, before))?;
    print(&report, args.output)?;
    Ok(ExitCode::SUCCESS)
}

fn write(
    args: &GenerateArgs,
    files: &ModelFiles,
    prompts: &[Prompt],
    story: &Story,
    (first, before): (usize, usize),
) -> anyhow::Result<Report> {
    let purpose = Use::Sample { slots: args.batch, length: args.length, top_k: args.top_k };
    let mut model = OfflineModel::load(files, args.dtype, args.threads, purpose)?;
    let writer = args.config.as_ref().map(|path| Writer::launch(path, files.arch.vocab)).transpose()?;
    let bar = crate::terminal::counted(args.tokens.saturating_sub(before) as u64, "tokens");
    let sampling = Sampling {
        temperatures: &args.temperature,
        seed: args.seed,
        length: args.length,
        sequences: args.sequences,
        ignore_eos: args.ignore_eos,
    };
    let (mut part, mut tokens, begin) = (first, before, Instant::now());
    while tokens < args.tokens {
        let Some(written) = write_part(&mut model, plan(prompts, &sampling, part), &sampling, writer.as_ref(), &bar)?
        else {
            let message = format!("`{}` has {part} files with {tokens} tokens", args.out.display());
            return Err(Interrupted(message).into());
        };
        part::write(&part::path(&args.out, part), &written, story)?;
        tokens += written.tokens.len();
        part += 1;
    }
    bar.finish_and_clear();
    let seconds = begin.elapsed().as_secs_f64();
    Ok(Report {
        model: args.model.clone(),
        folder: args.out.display().to_string(),
        parts: part,
        tokens,
        new_tokens: tokens - before,
        seconds,
        tokens_per_s: if tokens > before { (tokens - before) as f64 / seconds } else { 0.0 },
    })
}

fn check(args: &GenerateArgs) -> anyhow::Result<()> {
    for (name, value, most) in [
        ("--tokens", args.tokens, usize::MAX),
        ("--batch", args.batch, MAX_BATCH),
        ("--sequences", args.sequences, 1 << 20),
        ("--top-k", args.top_k, 1024),
    ] {
        if value == 0 || value > most {
            let most = if most == usize::MAX { "1 or more".to_owned() } else { format!("1 to {most}") };
            return Err(usage(format!("{name} {value} is not allowed, allowed is {most}")));
        }
    }
    if args.length < 2 {
        return Err(usage(format!("--length {} is not allowed, allowed is 2 or more", args.length)));
    }
    match args.temperature.iter().find(|value| !(value.is_finite() && **value >= 0.0)) {
        Some(bad) => Err(usage(format!("--temperature {bad} is not allowed, allowed is 0 or more"))),
        None => Ok(()),
    }
}

fn check_sizes(args: &GenerateArgs, files: &ModelFiles) -> anyhow::Result<()> {
    let (context, vocab) = (files.arch.context, files.arch.vocab);
    if args.length > context {
        let length = args.length;
        return Err(usage(format!("--length {length} is not allowed: the model has a context of {context} tokens")));
    }
    if args.top_k > vocab {
        let top_k = args.top_k;
        return Err(usage(format!("--top-k {top_k} is not allowed: the model has a vocabulary of {vocab} tokens")));
    }
    Ok(())
}

fn print(report: &Report, output: Output) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match output {
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(report)?)?,
        Output::Table => writeln!(
            out,
            "{}: {} files with {} tokens, {} of them new, {:.0} tokens/s",
            report.folder, report.parts, report.tokens, report.new_tokens, report.tokens_per_s
        )?,
    }
    Ok(())
}

/// Where a file is expected.
fn shown(path: &Path) -> String {
    path.display().to_string()
}
