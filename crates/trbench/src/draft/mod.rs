//! `trbench make-draft`: a small model out of a large one, by dropping layers and fitting a linear map at each gap.
//!
//! The idea follows work on depth pruning (ShortGPT, arXiv 2403.03853, and others): middle layers change the residual
//! stream little. What they add is replaced by `W x + b`, fitted in closed form on text that the large model writes itself.

mod evaluate;
mod file;
mod fit;
mod layers;
mod ridge;
mod select;
mod vocabulary;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::{ArgGroup, Args};
use serde::Serialize;
use tokenrouter_engine::config::WeightDtype;
use tokenrouter_engine::model::ModelFiles;

use self::evaluate::{Agreement, Scored, compare};
use self::fit::Gap;
use self::select::Select;
use crate::error::usage;
use crate::offline::{
    Generation, OfflineModel, Output, Use, built_in_or_files, command_line, model_config, openings, weight_dtype,
};
use crate::terminal::{Format, plain_table};

/// Most tokens that are written to measure agreement on the model's own text.
const HELD_OUT_TOKENS: usize = 4000;

/// Arguments of `trbench make-draft`.
#[derive(Debug, Clone, Args)]
#[command(group(ArgGroup::new("size").required(true).args(["keep", "layers"])))]
pub struct DraftArgs {
    /// The large model: `demo`, a GGUF file, a model folder, or a hub id.
    #[arg(long)]
    source: String,
    /// How many layers to keep; which ones is found by the likelihood of the text.
    #[arg(long)]
    keep: Option<usize>,
    /// The layers to keep, such as `0-12,19-29`.
    #[arg(long)]
    layers: Option<String>,
    /// How to choose layers for `--keep`.
    #[arg(long, default_value = "greedy")]
    select: Select,
    /// Tokens of text to choose layers with.
    #[arg(long, default_value_t = 600)]
    select_tokens: usize,
    /// Text files, documents separated by blank lines: the first, third, ... are for fitting, the others are held out.
    /// Default: the text and the problems that ship with the project.
    #[arg(long, num_args = 1..)]
    text: Vec<PathBuf>,
    /// Tokens that the large model writes to fit on.
    #[arg(long, default_value_t = 20_000)]
    tokens: usize,
    /// Most tokens of one written text.
    #[arg(long, default_value_t = 192)]
    length: usize,
    /// Tokens that the draft can write: the most frequent ones of the text that the large model writes. Default: all.
    #[arg(long, value_name = "TOKENS")]
    output_vocab: Option<usize>,
    /// Strength of the regularisation relative to each input's variance; of several the best on held-out text is taken.
    #[arg(long, value_delimiter = ',', default_value = "1e-5,1e-4,1e-3,1e-2,1e-1")]
    ridge: Vec<f64>,
    /// Seed of what the model writes.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Weights of the draft: `native` (as in the file), `f32` or `bf16`.
    #[arg(long, default_value = "native", value_parser = weight_dtype)]
    dtype: WeightDtype,
    /// Weights of the large model.
    #[arg(long, default_value = "f32", value_parser = weight_dtype)]
    large_dtype: WeightDtype,
    /// Threads; 0: all cores.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// The patch file to write.
    #[arg(long, short, value_name = "SAFETENSORS")]
    out: PathBuf,
    /// Format of the report.
    #[arg(long, default_value = "table")]
    output: Output,
}

/// What was made and how good it is.
#[derive(Debug, Serialize)]
struct Report {
    source: String,
    /// The layers kept.
    layers: Vec<usize>,
    gaps: Vec<Gap>,
    /// Tokens that the draft can write, if these are not all.
    output_vocab: Option<usize>,
    text: String,
    seed: u64,
    /// On held-out documents.
    held_out: Pair,
    /// On what the large model writes to held-out prompts.
    written: Pair,
    file: String,
    bytes: u64,
    seconds: f64,
}

/// Agreement without and with the patches.
#[derive(Debug, Serialize)]
struct Pair {
    plain: Agreement,
    patched: Agreement,
}

/// The model that a draft is made from, and the draft.
struct Models {
    full: OfflineModel,
    draft: OfflineModel,
}

/// Runs `trbench make-draft`.
pub fn run(args: &DraftArgs) -> anyhow::Result<ExitCode> {
    let begin = Instant::now();
    check(args)?;
    if args.source == "demo" {
        crate::fetch::fetch_demo(&tokenrouter_engine::model::cache_dir())?;
    }
    let files = ModelFiles::open(&model_config(&args.source))?;
    let given = args.layers.as_deref().map(|text| given_layers(text, files.arch.layers.len())).transpose()?;
    if let Some(keep) = args.keep {
        check_keep(keep, files.arch.layers.len())?;
    }
    check_output_vocab(args.output_vocab, files.arch.vocab)?;
    let texts = Corpus::new(args, &files)?;
    let bar = crate::terminal::spinner("loading the model");
    let mut models = Models {
        full: OfflineModel::load(&files, args.large_dtype, args.threads, Use::Generate)?,
        draft: OfflineModel::load(&files, args.dtype, args.threads, Use::Score)?,
    };
    let keep = match given {
        Some(layers) => layers,
        None => select::select(&mut models.draft, args.keep.unwrap_or_default(), args.select, &texts.select, &bar)?,
    };
    let options = Generation { temperature: 1.0, seed: args.seed, length: args.length, tokens: args.tokens };
    let own: Vec<_> =
        models.full.generate(&texts.prompts, &options, &bar)?.into_iter().map(|text| text.tokens).collect();
    let options = Generation { tokens: args.tokens.min(HELD_OUT_TOKENS), ..options };
    let written = models.full.generate(&texts.held_out_prompts, &options, &bar)?;
    let written: Vec<_> = written.into_iter().map(|text| (text.tokens, text.prompt_tokens)).collect();
    let tokens = args.output_vocab.map(|count| vocabulary::choose(&own, &files.eos, count, files.arch.vocab));
    models.draft.decoder().select_layers(&keep)?;
    bar.set_message("comparing without patches");
    let plain = [&texts.held_out, &written].map(|texts| compare(&mut models, texts, tokens.as_deref()));
    let gaps = fit::fit(&mut models, &keep, &own, &args.ridge, &bar)?;
    bar.set_message("comparing with patches");
    let patched = [&texts.held_out, &written].map(|texts| compare(&mut models, texts, tokens.as_deref()));
    bar.finish_and_clear();
    let ([plain, plain_written], [patched, patched_written]) = (plain, patched);
    let bytes = file::write(&args.out, (&gaps, tokens.as_deref()), &about(args, &keep, &gaps, &texts.name))?;
    let report = Report {
        source: args.source.clone(),
        layers: keep,
        gaps,
        output_vocab: tokens.map(|tokens| tokens.len()),
        text: texts.name,
        seed: args.seed,
        held_out: Pair { plain: plain?, patched: patched? },
        written: Pair { plain: plain_written?, patched: patched_written? },
        file: args.out.display().to_string(),
        bytes,
        seconds: begin.elapsed().as_secs_f64(),
    };
    print(&report, args.output)?;
    Ok(ExitCode::SUCCESS)
}

fn check(args: &DraftArgs) -> anyhow::Result<()> {
    for (name, value) in [("--tokens", args.tokens), ("--length", args.length), ("--select-tokens", args.select_tokens)]
    {
        if value == 0 {
            return Err(usage(format!("{name} 0 is not allowed, allowed is 1 or more")));
        }
    }
    if let Some(bad) = args.ridge.iter().find(|value| !(value.is_finite() && **value > 0.0)) {
        return Err(usage(format!("--ridge {bad} is not allowed, allowed is above 0")));
    }
    crate::offline::check_target(&args.out)
}

fn given_layers(text: &str, have: usize) -> anyhow::Result<Vec<usize>> {
    let layers = layers::parse(text).map_err(|why| usage(format!("--layers: {why}")))?;
    if let Some(bad) = layers.iter().find(|layer| **layer >= have) {
        return Err(usage(format!("--layers names layer {bad}, the model has layers 0 to {}", have - 1)));
    }
    check_keep(layers.len(), have)?;
    Ok(layers)
}

fn check_keep(keep: usize, have: usize) -> anyhow::Result<()> {
    if keep == 0 || keep >= have {
        let most = have.saturating_sub(1);
        return Err(usage(format!("{keep} layers to keep: the model has {have}, allowed are 1 to {most}")));
    }
    Ok(())
}

fn check_output_vocab(count: Option<usize>, vocab: usize) -> anyhow::Result<()> {
    match count {
        Some(count) if count == 0 || count > vocab => Err(usage(format!(
            "--output-vocab {count} is not allowed: the model has {vocab} tokens, allowed are 1 to {vocab}"
        ))),
        _ => Ok(()),
    }
}

/// Texts by use.
struct Corpus {
    name: String,
    /// To choose layers.
    select: Vec<Vec<u32>>,
    /// To write from.
    prompts: Vec<Vec<u32>>,
    held_out_prompts: Vec<Vec<u32>>,
    held_out: Vec<Scored>,
}

impl Corpus {
    fn new(args: &DraftArgs, files: &ModelFiles) -> anyhow::Result<Self> {
        let texts = built_in_or_files(&args.text)?;
        let limit = crate::offline::LENGTH.min(files.arch.context);
        let every_other = |first: usize| -> (Vec<&str>, Vec<&str>) {
            let documents = texts.documents.iter().skip(first).step_by(2).map(String::as_str);
            let problems = texts.problems.iter().skip(first).step_by(2).map(String::as_str);
            (documents.collect(), problems.collect())
        };
        let encode = |documents: &[&str]| -> anyhow::Result<Vec<Vec<u32>>> {
            let texts = documents.iter().map(|document| {
                let mut tokens = files.text.encode(document)?;
                tokens.truncate(limit);
                Ok(tokens)
            });
            texts.collect()
        };
        let ((fit, fit_problems), (held_out, held_out_problems)) = (every_other(0), every_other(1));
        let mut select = Vec::new();
        let mut left = args.select_tokens;
        for mut tokens in encode(&fit)? {
            tokens.truncate(left);
            left -= tokens.len();
            select.push(tokens);
        }
        let held_out_texts = encode(&held_out)?.into_iter().map(|tokens| (tokens, 1)).collect();
        Ok(Self {
            prompts: openings(&files.text, &fit, &fit_problems)?,
            held_out_prompts: openings(&files.text, &held_out, &held_out_problems)?,
            name: texts.name.clone(),
            select,
            held_out: held_out_texts,
        })
    }
}

fn about(args: &DraftArgs, keep: &[usize], gaps: &[Gap], text: &str) -> BTreeMap<&'static str, String> {
    let lambdas: Vec<String> = gaps.iter().map(|gap| gap.lambda.to_string()).collect();
    BTreeMap::from([
        ("format", "tokenrouter-patch".into()),
        ("source", args.source.clone()),
        ("layers", layers::format(keep)),
        ("text", text.to_owned()),
        ("tokens", args.tokens.to_string()),
        ("seed", args.seed.to_string()),
        ("lambda", lambdas.join(",")),
        ("command", command_line()),
    ])
}

fn print(report: &Report, output: Output) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if output == Output::Json {
        writeln!(out, "{}", serde_json::to_string_pretty(report)?)?;
        return Ok(());
    }
    let headings = ["text", "tokens", "ppl large", "ppl", "top-1 agreement", "sum min(p, q)", "KL"];
    let pairs = [("held out", &report.held_out), ("written by the large model", &report.written)];
    let rows = pairs.into_iter().flat_map(|(name, pair)| {
        [(format!("{name}, no patch"), pair.plain), (format!("{name}, patched"), pair.patched)]
    });
    let rows = rows.map(|(name, agreement)| {
        [
            name,
            agreement.tokens.to_string(),
            format!("{:.2}", agreement.perplexity_full),
            format!("{:.2}", agreement.perplexity),
            format!("{:.3}", agreement.top1),
            format!("{:.3}", agreement.overlap),
            format!("{:.3}", agreement.kl),
        ]
    });
    writeln!(out, "{}", plain_table(&headings, rows, Format::Table))?;
    for gap in &report.gaps {
        let Gap { layer, dropped, tokens, lambda, error, .. } = gap;
        writeln!(
            out,
            "gap before layer {layer}: {dropped} layers dropped, {tokens} tokens, lambda {lambda}, {:.1} % of the change unexplained",
            100.0 * error
        )?;
    }
    writeln!(
        out,
        "{} of {} layers kept: {}; seed {}; {} bytes in {}; {:.0} s\n",
        report.layers.len(),
        report.layers.len() + report.gaps.iter().map(|gap| gap.dropped).sum::<usize>(),
        layers::format(&report.layers),
        report.seed,
        report.bytes,
        report.file,
        report.seconds
    )?;
    if let (Some(count), Some(share)) = (report.output_vocab, report.held_out.patched.covered) {
        let written = report.written.patched.covered.unwrap_or_default();
        writeln!(
            out,
            "the draft writes {count} tokens: {:.2} % of the large model's choices on held-out text, {:.2} % on its own\n",
            100.0 * share,
            100.0 * written
        )?;
    }
    let key = if report.source == "demo" || !Path::new(&report.source).exists() { "source" } else { "path" };
    writeln!(out, "models:\n  small:\n    {key}: {}\n    layers: {:?}", report.source, report.layers)?;
    writeln!(out, "    patch: {}  # seen from the folder of the configuration", report.file)?;
    Ok(())
}
