//! `trbench train-router`: heads that tell where a small model's token would differ from the large model's.
//!
//! The large model writes, both models read it, and a token is *divergent* where their most likely tokens differ. That is
//! the first of the two steps of R2R's labelling; the second, whether a difference matters, needs a judge
//! (`--neutral-top` is a cheap one).

mod fit;
mod label;
mod net;
mod score;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::json;
use tokenrouter_engine::Config;
use tokenrouter_engine::config::ModelConfig;
use tokenrouter_engine::heads::{About, Head, HeadFile, HeadKind, R2rInputs};
use tokenrouter_engine::model::ModelFiles;

use self::fit::{History, Labelled, Training, train};
use self::label::{Neutral, Samples, label};
use self::net::{Net, Scales, Size};
use self::score::{Point, auc, point, threshold_for_recall, threshold_for_share};
use crate::cli::usage;
use crate::fetch;
use crate::offline::{OfflineModel, Output, Use, Writing, built_in_or_files, command_line, openings};
use crate::report::{Format, plain_table};

/// Shares of the table in the report.
const SHARES: [f64; 8] = [0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7];

/// Which head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// R2R's classifier, for `method: r2r`.
    R2r,
    /// CITER's confidence network, for `method: citer`.
    Citer,
    /// Co-LLM's deferral row, for `method: collm`.
    Collm,
}

/// Arguments of `trbench train-router`.
#[derive(Debug, Clone, Args)]
pub struct TrainArgs {
    /// Configuration that names the pair: its entry model is the small one.
    #[arg(long, short)]
    config: PathBuf,
    /// The large model, where the configuration has more than two.
    #[arg(long)]
    large: Option<String>,
    /// The head to train; several, divided by commas, learn from the same samples.
    #[arg(long, required = true, value_delimiter = ',')]
    kind: Vec<Kind>,
    /// Text files whose documents (separated by blank lines) give prompts. Default: the text and the problems that ship with
    /// the project.
    #[arg(long, num_args = 1..)]
    text: Vec<PathBuf>,
    /// Tokens that the large model writes.
    #[arg(long, default_value_t = 40_000)]
    tokens: usize,
    /// Most tokens of one answer.
    #[arg(long, default_value_t = 192)]
    length: usize,
    /// Temperature of what the large model writes; 0 is greedy.
    #[arg(long, default_value_t = 0.7)]
    temperature: f32,
    /// A difference is no divergence when the small model's token is among this many most likely ones of the large model
    /// and at least `--neutral-ratio` times as likely as the first.
    #[arg(long)]
    neutral_top: Option<usize>,
    /// See `--neutral-top`.
    #[arg(long, default_value_t = 0.5, requires = "neutral_top")]
    neutral_ratio: f32,
    /// Width of the head's hidden layers (r2r, citer).
    #[arg(long, default_value_t = 32)]
    hidden: usize,
    /// Residual blocks (r2r).
    #[arg(long, default_value_t = 1)]
    blocks: usize,
    /// Most passes over the samples.
    #[arg(long, default_value_t = 40)]
    epochs: usize,
    /// Samples per update.
    #[arg(long, default_value_t = 256)]
    batch: usize,
    /// Learning rate of AdamW.
    #[arg(long, default_value_t = 1e-3)]
    lr: f64,
    /// Weight decay of AdamW.
    #[arg(long, default_value_t = 0.1)]
    weight_decay: f64,
    /// Share of the hidden state and of the embedding that is left out in every update, against overfitting.
    #[arg(long, default_value_t = 0.6)]
    dropout: f64,
    /// Seed of the text, the split, the initial weights and the order of samples.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The recommended threshold is to send this share of tokens to the large model.
    #[arg(long, default_value_t = 0.2)]
    share: f64,
    /// The recommended threshold is to send this share of the divergent tokens to the large model, instead of `--share`.
    #[arg(long, conflicts_with = "share")]
    recall: Option<f64>,
    /// Threads of the models; 0: all cores.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// The head file to write; `{kind}` in it stands for the kind.
    #[arg(long, short, value_name = "SAFETENSORS")]
    out: String,
    /// Format of the report.
    #[arg(long, default_value = "table")]
    output: Output,
}

/// What was learnt and how well.
#[derive(Debug, Serialize)]
struct Report {
    kind: &'static str,
    /// Samples to fit, to validate, to test.
    samples: [usize; 3],
    /// Share of divergent tokens in each.
    divergent: [f64; 3],
    training: History,
    /// Area under the ROC curve on the test samples, scores by the file as the engine reads it.
    auc: f64,
    /// Of the small model's entropy, for comparison.
    auc_entropy: f64,
    /// The threshold in the file, and what it does on the test samples.
    recommended: Point,
    /// Thresholds chosen on the validation samples for some shares, and what they do on the test samples.
    curve: Vec<Point>,
    /// The rule of the method: which scores go to the large model.
    rule: &'static str,
    parameters: usize,
    seed: u64,
    file: String,
    bytes: u64,
    /// Of the training, without writing and labelling.
    seconds: f64,
}

impl Kind {
    fn head(self) -> HeadKind {
        match self {
            Self::R2r => HeadKind::R2rMlp,
            Self::Citer => HeadKind::CiterMlp,
            Self::Collm => HeadKind::DeferralRow,
        }
    }

    /// The routing method that reads it.
    fn method(self) -> &'static str {
        match self {
            Self::R2r => "r2r",
            Self::Citer => "citer",
            Self::Collm => "collm",
        }
    }

    /// The sign that makes a score a hardness: CITER's says how easy a token is.
    fn sign(self) -> f32 {
        if self == Self::Citer { -1.0 } else { 1.0 }
    }

    fn rule(self) -> &'static str {
        match self {
            Self::R2r => "score >= threshold",
            Self::Citer => "score < threshold",
            Self::Collm => "score > threshold",
        }
    }
}

/// Runs `trbench train-router`.
pub fn run(args: &TrainArgs) -> anyhow::Result<ExitCode> {
    check(args)?;
    let config = Config::from_file(&args.config)?;
    let (small, large) = pair(&config, args.large.as_deref())?;
    fetch::ensure_sources(&config)?;
    let bar = crate::run::spinner("loading the models");
    let (samples, source) = samples(args, (small, large), &bar)?;
    let source = (source, small.0.to_owned());
    let parts = samples.split(args.seed);
    let parts = parts.filter(|parts| parts.iter().all(|part| part.count() > 0)).ok_or_else(|| {
        usage(format!("--tokens {} are too few: at least three prompts must be answered", args.tokens))
    })?;
    let positives = parts[0].positives();
    if positives == 0 || positives == parts[0].count() {
        let message = format!(
            "{positives} of {} tokens to fit on are divergent: there is nothing to tell apart, try more --tokens",
            parts[0].count()
        );
        return Err(usage(message));
    }
    let mut reports = Vec::new();
    for kind in &args.kind {
        reports.push(make(args, *kind, &parts, &source, &bar)?);
    }
    bar.finish_and_clear();
    print(&reports, args.output)?;
    Ok(ExitCode::SUCCESS)
}

/// Trains, writes and tests one head.
fn make(
    args: &TrainArgs,
    kind: Kind,
    parts: &[Samples; 3],
    (source, model): &(String, String),
    bar: &indicatif::ProgressBar,
) -> anyhow::Result<Report> {
    let begin = Instant::now();
    let (mut file, training) = learn(args, kind, parts, bar)?;
    let (validation, test) = (hardness(kind, &file, &parts[1])?, hardness(kind, &file, &parts[2])?);
    let threshold = match args.recall {
        Some(recall) => threshold_for_recall(&validation, &parts[1].divergent, recall),
        None => threshold_for_share(&validation, args.share),
    };
    let sign = f64::from(kind.sign());
    let at = |threshold: f64| {
        let point = point(&test, &parts[2].divergent, threshold);
        Point { threshold: sign * point.threshold, ..point }
    };
    let (count, divergent) = (parts.iter().map(Samples::count), parts.iter().map(Samples::positives));
    let (count, divergent) = (count.sum::<usize>(), divergent.sum::<usize>());
    file.about = About {
        threshold: Some((sign * threshold).clamp(0.0, 1.0)),
        source: Some(source.clone()),
        model: Some(model.clone()),
        command: Some(command_line()),
        init_args: Some(json!({"seed": args.seed, "samples": count, "divergent": divergent})),
    };
    let path = target(args, kind);
    file.write(&path)?;
    Ok(Report {
        kind: kind.head().name(),
        samples: parts.each_ref().map(Samples::count),
        divergent: parts.each_ref().map(|part| part.positives() as f64 / part.count() as f64),
        training,
        auc: auc(&test, &parts[2].divergent),
        auc_entropy: auc(&parts[2].entropy, &parts[2].divergent),
        recommended: at(threshold),
        curve: SHARES.map(|share| at(threshold_for_share(&validation, share))).to_vec(),
        rule: kind.rule(),
        parameters: file.parameters(),
        seed: args.seed,
        bytes: std::fs::metadata(&path)?.len(),
        file: path.display().to_string(),
        seconds: begin.elapsed().as_secs_f64(),
    })
}

/// Where a head goes.
fn target(args: &TrainArgs, kind: Kind) -> PathBuf {
    PathBuf::from(args.out.replace("{kind}", kind.method()))
}

fn check(args: &TrainArgs) -> anyhow::Result<()> {
    let sizes = [
        ("--tokens", args.tokens),
        ("--length", args.length),
        ("--hidden", args.hidden),
        ("--blocks", args.blocks),
        ("--epochs", args.epochs),
        ("--batch", args.batch),
        ("--neutral-top", args.neutral_top.unwrap_or(1)),
    ];
    for (name, value) in sizes {
        if value == 0 {
            return Err(usage(format!("{name} 0 is not allowed, allowed is 1 or more")));
        }
    }
    let above_zero = |value: f64| value.is_finite() && value > 0.0;
    let part = |value: f64| value > 0.0 && value < 1.0;
    for (name, value, good, allowed) in [
        (
            "--temperature",
            f64::from(args.temperature),
            args.temperature >= 0.0 && args.temperature.is_finite(),
            "0 or more",
        ),
        ("--lr", args.lr, above_zero(args.lr), "above 0"),
        ("--weight-decay", args.weight_decay, args.weight_decay == 0.0 || above_zero(args.weight_decay), "0 or more"),
        ("--dropout", args.dropout, (0.0..1.0).contains(&args.dropout), "0 or more and below 1"),
        ("--neutral-ratio", f64::from(args.neutral_ratio), part(args.neutral_ratio.into()), "above 0 and below 1"),
        ("--share", args.share, part(args.share), "above 0 and below 1"),
        ("--recall", args.recall.unwrap_or(0.5), part(args.recall.unwrap_or(0.5)), "above 0 and below 1"),
    ] {
        if !good {
            return Err(usage(format!("{name} {value} is not allowed, allowed is {allowed}")));
        }
    }
    if args.kind.len() > 1 && !args.out.contains("{kind}") {
        return Err(usage(format!("--out `{}` is one file for several heads, put `{{kind}}` into it", args.out)));
    }
    args.kind.iter().try_for_each(|kind| crate::offline::check_target(&target(args, *kind)))
}

type Named<'a> = (&'a str, &'a ModelConfig);

/// The small and the large model of a configuration.
fn pair<'a>(config: &'a Config, large: Option<&str>) -> anyhow::Result<(Named<'a>, Named<'a>)> {
    let entry = config.entry_index();
    let (name, small) = config.models.get_index(entry).context("the configuration has an entry model")?;
    let others: Vec<_> = config.models.iter().filter(|(other, _)| *other != name).collect();
    let names = others.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let found = match large {
        Some(wanted) => others.iter().find(|(other, _)| *other == wanted),
        None if others.len() == 1 => others.first(),
        None => return Err(usage(format!("--large is needed to choose the large model, allowed are: {names}"))),
    };
    let (other, large) = found.ok_or_else(|| {
        usage(format!("--large {} is not a model besides `{name}`, allowed are: {names}", large.unwrap_or_default()))
    })?;
    for (name, model) in [(name, small), (*other, *large)] {
        if model.emulated.is_some() {
            return Err(usage(format!("model `{name}` is emulated: it has no hidden states to learn from")));
        }
    }
    Ok(((name.as_str(), small), (other.as_str(), *large)))
}

/// Opens the models, lets the large one write and both read.
fn samples(
    args: &TrainArgs,
    (small, large): (Named<'_>, Named<'_>),
    bar: &indicatif::ProgressBar,
) -> anyhow::Result<(Samples, String)> {
    // What is quickly wrong first.
    let texts = built_in_or_files(&args.text)?;
    let open = |model: Named<'_>| ModelFiles::open(model.1).with_context(|| format!("model `{}`", model.0));
    let (small_files, large_files) = (open(small)?, open(large)?);
    if small_files.text.vocabulary_hash(None) != large_files.text.vocabulary_hash(None) {
        return Err(usage(format!(
            "models `{}` and `{}` have different vocabularies ({} and {} tokens): they cannot exchange tokens",
            small.0, large.0, small_files.arch.vocab, large_files.arch.vocab
        )));
    }
    let documents: Vec<&str> = texts.documents.iter().map(String::as_str).collect();
    let problems: Vec<&str> = texts.problems.iter().map(String::as_str).collect();
    let prompts = openings(&large_files.text, &documents, &problems)?;
    let mut writer = OfflineModel::load(&large_files, large.1.dtype, args.threads, Use::Write)?;
    let mut reader = OfflineModel::load(&small_files, small.1.dtype, args.threads, Use::Read)?;
    let writing = Writing { temperature: args.temperature, seed: args.seed, length: args.length, tokens: args.tokens };
    let written = writer.write(&prompts, &writing, bar)?;
    let neutral = args.neutral_top.map(|top| Neutral { top, ratio: args.neutral_ratio });
    let samples = label((&mut reader, &mut writer), &written, neutral, bar)?;
    let source = format!("answers of model `{}` to prompts of {}", large.0, texts.name);
    Ok((samples, source))
}

/// Trains a head and puts it into its file form.
fn learn(
    args: &TrainArgs,
    kind: Kind,
    [fit, validation, _]: &[Samples; 3],
    bar: &indicatif::ProgressBar,
) -> anyhow::Result<(HeadFile, History)> {
    let scales = Scales::of(fit);
    let size = Size { hidden: args.hidden, blocks: args.blocks, expansion: 2 };
    let net = Net::new(kind.head(), (fit.width, fit.logits), size, args.seed)?;
    // CITER's score is the confidence that the small model suffices.
    let wanted = |divergent: &bool| *divergent != (kind == Kind::Citer);
    let labelled = |samples: &Samples| Labelled::new(scales.apply(samples)?, samples.divergent.iter().map(wanted));
    let how = Training {
        epochs: args.epochs,
        patience: 5,
        batch: args.batch,
        learning_rate: args.lr,
        weight_decay: args.weight_decay,
        dropout: args.dropout,
        seed: args.seed,
    };
    let history = train(&net, (&labelled(fit)?, &labelled(validation)?), how, bar)?;
    Ok((HeadFile { kind: kind.head(), about: About::default(), tensors: net.export(&scales)? }, history))
}

/// Scores of a head as the engine computes them; higher means that the large model is needed.
fn hardness(kind: Kind, file: &HeadFile, samples: &Samples) -> anyhow::Result<Vec<f32>> {
    let mut scores = Vec::new();
    match Head::new(file)? {
        Head::R2r(head) => {
            let Samples { hidden, embedding, top, .. } = samples;
            head.score(&R2rInputs { hidden, embedding, logits: top }, &mut scores)?;
        }
        Head::Citer(head) => head.score(&samples.hidden, &mut scores)?,
        Head::Deferral(head) => head.score(&samples.hidden, &mut scores)?,
    }
    scores.iter_mut().for_each(|score| *score *= kind.sign());
    Ok(scores)
}

fn print(reports: &[Report], output: Output) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if output == Output::Json {
        writeln!(out, "{}", serde_json::to_string_pretty(reports)?)?;
        return Ok(());
    }
    for (index, report) in reports.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        print_table(report, &mut out)?;
    }
    Ok(())
}

fn print_table(report: &Report, out: &mut impl std::io::Write) -> anyhow::Result<()> {
    writeln!(out, "{}", report.kind)?;
    let names = ["fit", "validation", "test"];
    for (name, (count, share)) in names.iter().zip(report.samples.iter().zip(report.divergent)) {
        writeln!(out, "{name}: {count} tokens, {:.1} % divergent", 100.0 * share)?;
    }
    let best = report.training.losses[report.training.best_epoch];
    writeln!(
        out,
        "epoch {} of {} kept: loss {:.4}, validation {:.4}",
        report.training.best_epoch,
        report.training.losses.len() - 1,
        best.0,
        best.1
    )?;
    writeln!(out, "test AUC {:.4} (entropy of the small model alone: {:.4})\n", report.auc, report.auc_entropy)?;
    let row = |point: &Point| {
        let values = [point.share, point.recall, point.precision];
        let [share, recall, precision] = values.map(|value| format!("{value:.3}"));
        [format!("{:.4}", point.threshold), share, recall, precision]
    };
    let headings = ["threshold", "share", "recall of divergent", "precision"];
    writeln!(out, "{}\n", plain_table(&headings, report.curve.iter().map(row), Format::Table))?;
    let [threshold, share, recall, precision] = row(&report.recommended);
    writeln!(
        out,
        "recommended: {threshold} ({}), on the test tokens share {share}, recall {recall}, precision {precision}",
        report.rule
    )?;
    writeln!(
        out,
        "{} parameters, seed {}, {} bytes in {}; trained in {:.0} s",
        report.parameters, report.seed, report.bytes, report.file, report.seconds
    )?;
    Ok(())
}

#[cfg(test)]
mod testing {
    use tokenrouter_engine::keyed::{Purpose, draw_unit};

    use super::label::Samples;

    /// Samples of ten prompts whose label is a linear function of the hidden state, but for some near the border. Inputs
    /// are of different sizes and off centre.
    pub(super) fn separable(n: usize, noise: f32) -> Samples {
        let (width, logits) = (6, 5);
        let draw = |what: u64, at: usize| (2.0 * draw_unit(9, what, at as u64, Purpose::Sample) - 1.0) as f32;
        let rows = |what: u64, width: usize| -> Vec<f32> {
            (0..n * width).map(|at| (at % width + 1) as f32 * (draw(what, at) + 2.0)).collect()
        };
        let hidden = rows(1, width);
        let side = |at: usize| {
            let row = &hidden[at * width..(at + 1) * width];
            let sum: f32 = row.iter().enumerate().map(|(i, x)| (x / (i + 1) as f32 - 2.0) * draw(4, i)).sum();
            sum + noise * draw(5, at) > 0.0
        };
        let divergent = (0..n).map(side).collect();
        Samples {
            width,
            logits,
            divergent,
            embedding: rows(2, width),
            top: rows(3, logits),
            entropy: vec![0.0; n],
            prompt: (0..n).map(|at| at % 10).collect(),
            hidden,
        }
    }
}
