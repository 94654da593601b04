//! `trbench train-router`: heads that tell where a small model's token would differ from the large model's.
//!
//! The large model writes, both models read it, and a token is *divergent* where their most likely tokens differ. That is
//! the first of the two steps of R2R's labelling; the second, whether a difference matters, needs a judge
//! (`--neutral-top` is a cheap one).

mod args;
mod fit;
mod label;
mod net;
mod pair;
mod report;
mod scale;
mod score;
#[cfg(test)]
mod testing;

use std::process::ExitCode;
use std::time::Instant;

use indicatif::ProgressBar;
use serde_json::json;
use tokenrouter_engine::Config;
use tokenrouter_engine::heads::{About, Head, HeadFile, R2rInputs};

use self::args::Kind;
pub use self::args::TrainArgs;
use self::fit::{History, Hyperparameters, Labelled, train};
use self::label::{Samples, Split};
use self::net::{Net, Size};
use self::pair::Pair;
use self::report::Report;
use self::scale::Scales;
use self::score::{OperatingPoint, auc, operating_point, threshold_for_recall, threshold_for_share};
use crate::error::usage;
use crate::fetch;
use crate::offline::command_line;

/// Shares of the table in the report.
const SHARES: [f64; 8] = [0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7];
/// Epochs without a better validation loss after which training ends.
const PATIENCE: usize = 5;

/// Where the samples come from: goes into the head file.
struct Provenance {
    text: String,
    small_model: String,
}

/// Runs `trbench train-router`.
pub fn run(args: &TrainArgs) -> anyhow::Result<ExitCode> {
    args.check()?;
    let config = Config::from_file(&args.config)?;
    let pair = Pair::of(&config, args.large.as_deref())?;
    fetch::ensure_sources(&config)?;
    let bar = crate::terminal::spinner("loading the models");
    let (samples, text) = pair.samples(args, &bar)?;
    let provenance = Provenance { text, small_model: pair.small.name.to_owned() };
    let split = samples.split(args.seed);
    let split = split.filter(|split| split.parts().iter().all(|part| part.count() > 0)).ok_or_else(|| {
        usage(format!("--tokens {} are too few: at least three prompts must be answered", args.tokens))
    })?;
    let positives = split.fit.positives();
    if positives == 0 || positives == split.fit.count() {
        let message = format!(
            "{positives} of {} tokens to fit on are divergent: there is nothing to tell apart, try more --tokens",
            split.fit.count()
        );
        return Err(usage(message));
    }
    let mut reports = Vec::new();
    for kind in &args.kind {
        reports.push(train_head(args, *kind, &split, &provenance, &bar)?);
    }
    bar.finish_and_clear();
    report::print(&reports, args.output)?;
    Ok(ExitCode::SUCCESS)
}

/// Trains, writes and tests one head.
fn train_head(
    args: &TrainArgs,
    kind: Kind,
    split: &Split,
    provenance: &Provenance,
    bar: &ProgressBar,
) -> anyhow::Result<Report> {
    let begin = Instant::now();
    let (mut file, training) = fit_head(args, kind, split, bar)?;
    let (validation, test) = (hardness(kind, &file, &split.validation)?, hardness(kind, &file, &split.test)?);
    let threshold = match args.recall {
        Some(recall) => threshold_for_recall(&validation, &split.validation.divergent, recall),
        None => threshold_for_share(&validation, args.share),
    };
    let sign = f64::from(kind.sign());
    let on_test = |threshold: f64| {
        let point = operating_point(&test, &split.test.divergent, threshold);
        OperatingPoint { threshold: sign * point.threshold, ..point }
    };
    let samples = split.parts().map(Samples::count);
    let divergent = split.parts().map(Samples::positives);
    file.about = About {
        threshold: Some((sign * threshold).clamp(0.0, 1.0)),
        source: Some(provenance.text.clone()),
        model: Some(provenance.small_model.clone()),
        command: Some(command_line()),
        init_args: Some(json!({
            "seed": args.seed,
            "samples": samples.iter().sum::<usize>(),
            "divergent": divergent.iter().sum::<usize>(),
        })),
    };
    let path = args.target(kind);
    file.write(&path)?;
    Ok(Report {
        kind: kind.head().name(),
        samples,
        divergent: split.parts().map(|part| part.positives() as f64 / part.count() as f64),
        training,
        auc: auc(&test, &split.test.divergent),
        auc_entropy: auc(&split.test.entropy, &split.test.divergent),
        recommended: on_test(threshold),
        curve: SHARES.map(|share| on_test(threshold_for_share(&validation, share))).to_vec(),
        rule: kind.rule(),
        parameters: file.parameters(),
        seed: args.seed,
        bytes: std::fs::metadata(&path)?.len(),
        file: path.display().to_string(),
        seconds: begin.elapsed().as_secs_f64(),
    })
}

/// Trains a head and puts it into its file form.
fn fit_head(args: &TrainArgs, kind: Kind, split: &Split, bar: &ProgressBar) -> anyhow::Result<(HeadFile, History)> {
    let Split { fit, validation, .. } = split;
    let scales = Scales::of(fit);
    let size = Size { width: fit.width, logits: fit.logits, hidden: args.hidden, blocks: args.blocks, expansion: 2 };
    let net = Net::new(kind.head(), size, args.seed)?;
    // CITER's score is the confidence that the small model suffices.
    let target = |divergent: &bool| *divergent != (kind == Kind::Citer);
    let labelled = |samples: &Samples| Labelled::new(scales.apply(samples)?, samples.divergent.iter().map(target));
    let options = Hyperparameters {
        epochs: args.epochs,
        patience: PATIENCE,
        batch: args.batch,
        learning_rate: args.lr,
        weight_decay: args.weight_decay,
        dropout: args.dropout,
        seed: args.seed,
    };
    let history = train(&net, &labelled(fit)?, &labelled(validation)?, options, bar)?;
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
