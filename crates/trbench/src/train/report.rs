//! What was learnt, and its form for people.

use std::io::Write as _;

use serde::Serialize;

use super::fit::History;
use super::score::OperatingPoint;
use crate::offline::Output;
use crate::terminal::{Format, plain_table};

/// What was learnt and how well.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) kind: &'static str,
    /// Samples to fit, to validate, to test.
    pub(super) samples: [usize; 3],
    /// Share of divergent tokens in each.
    pub(super) divergent: [f64; 3],
    pub(super) training: History,
    /// Area under the ROC curve on the test samples, scores by the file as the engine reads it.
    pub(super) auc: f64,
    /// Of the small model's entropy, for comparison.
    pub(super) auc_entropy: f64,
    /// The threshold in the file, and what it does on the test samples.
    pub(super) recommended: OperatingPoint,
    /// Thresholds chosen on the validation samples for some shares, and what they do on the test samples.
    pub(super) curve: Vec<OperatingPoint>,
    /// The rule of the method: which scores go to the large model.
    pub(super) rule: &'static str,
    pub(super) parameters: usize,
    pub(super) seed: u64,
    pub(super) file: String,
    pub(super) bytes: u64,
    /// Of the training, without writing and labelling.
    pub(super) seconds: f64,
}

/// Writes reports to stdout.
pub(super) fn print(reports: &[Report], output: Output) -> anyhow::Result<()> {
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
    let row = |point: &OperatingPoint| {
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
