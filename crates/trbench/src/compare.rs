//! `trbench compare A B`: how much faster B is than A, as far as their trials can tell.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::error::usage;
use crate::report;
use crate::results::Summary;
use crate::stats::{Welch, welch};
use crate::terminal::{Format, plain_table};

/// Arguments of `trbench compare`.
#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// Result folder of the baseline; with several systems in both folders, those of equal labels are compared.
    a: PathBuf,
    /// Result folder of what is compared with it.
    b: PathBuf,
    /// Output format.
    #[arg(long, default_value = "table")]
    output: CompareFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CompareFormat {
    /// A table for people.
    Table,
    /// A Markdown table.
    Md,
    /// The numbers, as JSON.
    Json,
}

/// What is compared: name in `summary.json`, words, whether more is better.
const METRICS: [(&str, &str, bool); 3] = [
    ("output_throughput", "throughput, tok/s", true),
    ("mean_ttft_ms", "ttft, ms", false),
    ("mean_tpot_ms", "tpot, ms", false),
];

/// One line of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// Labels of A and B.
    pub systems: [String; 2],
    /// Name in `summary.json`.
    pub metric: &'static str,
    /// Geometric means over trials.
    pub means: [f64; 2],
    /// Trials.
    pub trials: [usize; 2],
    /// Change from A to B in percent, of geometric means.
    pub percent: f64,
    /// Its 95 % interval by Welch's t on logarithms; absent for fewer than two trials on a side.
    pub interval: Option<[f64; 2]>,
    /// The result in words.
    pub verdict: String,
}

/// Compares two results.
pub fn run(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    let read = |path: &PathBuf| -> anyhow::Result<Vec<Summary>> {
        let mut summaries = Vec::new();
        report::collect(path, &mut summaries)?;
        Ok(summaries)
    };
    let (a, b) = (read(&args.a)?, read(&args.b)?);
    let mut pairs: Vec<(&Summary, &Summary)> = match (&a[..], &b[..]) {
        ([a], [b]) => vec![(a, b)],
        _ => a.iter().filter_map(|a| Some((a, b.iter().find(|b| b.label == a.label)?))).collect(),
    };
    pairs.sort_by(|x, y| x.0.label.cmp(&y.0.label));
    if pairs.is_empty() {
        let labels = |all: &[Summary]| all.iter().map(|s| s.label.clone()).collect::<Vec<_>>().join(", ");
        let (a, b) = (labels(&a), labels(&b));
        return Err(usage(format!("no system is in both results: the first has {a}, the second {b}")));
    }
    let differences: Vec<_> = pairs.into_iter().flat_map(|(a, b)| differences(a, b)).collect();
    let mut out = std::io::stdout().lock();
    let format = match args.output {
        CompareFormat::Json => {
            writeln!(out, "{}", serde_json::to_string_pretty(&differences)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        CompareFormat::Table => Format::Table,
        CompareFormat::Md => Format::Md,
    };
    writeln!(out, "{}", plain_table(&HEADINGS, differences.iter().map(row), format))?;
    Ok(ExitCode::SUCCESS)
}

const HEADINGS: [&str; 6] = ["B against A", "of", "A", "B", "trials", "B is"];

fn row(difference: &Difference) -> [String; 6] {
    let [a, b] = &difference.systems;
    let words = METRICS.iter().find(|(name, ..)| *name == difference.metric).map_or("", |(_, words, _)| words);
    [
        if a == b { a.clone() } else { format!("{b} against {a}") },
        words.to_owned(),
        format!("{:.2}", difference.means[0]),
        format!("{:.2}", difference.means[1]),
        format!("{}, {}", difference.trials[0], difference.trials[1]),
        difference.verdict.clone(),
    ]
}

/// All metrics that both have.
pub fn differences(a: &Summary, b: &Summary) -> Vec<Difference> {
    let values = |summary: &Summary, name: &str| -> Option<Vec<f64>> {
        let values: Option<Vec<f64>> = summary.trials.iter().map(|trial| trial.get(name)).collect();
        values.filter(|values| !values.is_empty() && values.iter().all(|value| *value > 0.0))
    };
    let one = |(name, _, more_is_better): &(&'static str, &str, bool)| {
        let (in_a, in_b) = (values(a, name)?, values(b, name)?);
        Some(difference([&a.label, &b.label], name, [&in_a, &in_b], *more_is_better))
    };
    METRICS.iter().filter_map(one).collect()
}

fn difference(systems: [&String; 2], metric: &'static str, values: [&[f64]; 2], more_is_better: bool) -> Difference {
    let logs = values.map(|values| values.iter().map(|value| value.ln()).collect::<Vec<_>>());
    let means = [0, 1].map(|side| (logs[side].iter().sum::<f64>() / logs[side].len() as f64).exp());
    let percent = |log: f64| 100.0 * log.exp_m1();
    let change = percent(means[1].ln() - means[0].ln());
    let interval = welch(&logs[0], &logs[1]).map(|Welch { low, high, .. }| [percent(low), percent(high)]);
    Difference {
        systems: systems.map(Clone::clone),
        metric,
        means,
        trials: values.map(<[f64]>::len),
        percent: change,
        interval,
        verdict: verdict(change, interval, more_is_better),
    }
}

/// "faster by 12.0 % ± 4.0 %" only when the interval excludes no change.
fn verdict(percent: f64, interval: Option<[f64; 2]>, more_is_better: bool) -> String {
    let Some([low, high]) = interval else {
        return format!("{percent:+.1} %, not tested: an interval needs `--trials` of 2 or more on both sides");
    };
    let half = (high - low) / 2.0;
    let better = (percent > 0.0) == more_is_better;
    match () {
        () if low <= 0.0 && high >= 0.0 => format!("no difference shown ({percent:+.1} % ± {half:.1} %)"),
        () if better && more_is_better => format!("faster by {percent:.1} % ± {half:.1} %"),
        () if more_is_better => format!("slower by {:.1} % ± {half:.1} %", -percent),
        () if better => format!("shorter by {:.1} % ± {half:.1} %", -percent),
        () => format!("longer by {percent:.1} % ± {half:.1} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(a: &[f64], b: &[f64], more_is_better: bool) -> Difference {
        difference([&"a".to_owned(), &"b".to_owned()], "output_throughput", [a, b], more_is_better)
    }

    #[test]
    fn verdicts_respect_their_intervals() {
        let clear = of(&[100.0, 101.0, 99.0], &[112.0, 113.0, 111.0], true);
        assert!((clear.percent - 12.0).abs() < 0.1 && clear.verdict.starts_with("faster by 12.0 % ± "), "{clear:?}");
        assert!(of(&[112.0, 113.0], &[100.0, 101.0], true).verdict.starts_with("slower by 10.7 %"));
        assert!(of(&[112.0, 113.0], &[100.0, 101.0], false).verdict.starts_with("shorter by 10.7 %"));
        assert!(of(&[100.0, 101.0], &[112.0, 113.0], false).verdict.starts_with("longer by 11.9 %"));
        assert!(of(&[90.0, 110.0], &[95.0, 118.0], true).verdict.starts_with("no difference shown"));
        let single = of(&[100.0], &[150.0, 150.0], true);
        assert!(single.interval.is_none() && single.verdict.contains("not tested"), "{single:?}");
        // Trials without any scatter.
        assert_eq!(of(&[100.0, 100.0], &[100.0, 100.0], true).interval, Some([0.0, 0.0]));
    }

    #[test]
    fn the_change_back_is_the_inverse() {
        let (a, b) = ([100.0, 104.0, 97.0], [130.0, 128.0, 133.0]);
        let (there, back) = (of(&a, &b, true), of(&b, &a, true));
        let factor = |percent: f64| 1.0 + percent / 100.0;
        assert!((factor(there.percent) * factor(back.percent) - 1.0).abs() < 1e-12);
        let ([low, _], [_, high]) = (there.interval.expect("trials"), back.interval.expect("trials"));
        assert!((factor(low) * factor(high) - 1.0).abs() < 1e-12);
    }
}
