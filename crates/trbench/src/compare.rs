//! `trbench compare A B`: how much faster B is than A, as far as their trials can tell.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use crate::error::usage;
use crate::results::{self, Found, Summary};
use crate::stats::{Welch, welch};
use crate::terminal::{Format, number, plain_table, say, wrapped};

/// Arguments of `trbench compare`.
#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// Result folder of the baseline; with several systems in both folders, those of equal labels are compared.
    a: PathBuf,
    /// Result folder of what is compared with it.
    b: PathBuf,
    /// Compare also what was measured on another machine, with another configuration, workload, seed or load.
    #[arg(long)]
    force: bool,
    /// Output format.
    #[arg(long, default_value = "table")]
    output: Format,
}

/// What is compared: name in `summary.json`, words, whether more is better.
const METRICS: [(&str, &str, bool); 3] = [
    ("output_throughput", "tokens/s", true),
    ("mean_tpot_ms", "ms per token", false),
    ("mean_ttft_ms", "ttft ms", false),
];

/// One line of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// Label of A.
    pub system_a: String,
    /// Label of B.
    pub system_b: String,
    /// Name in `summary.json`.
    pub metric: &'static str,
    /// What `trbench report` shows of A.
    pub a: f64,
    /// What it shows of B.
    pub b: f64,
    /// Trials of A.
    pub trials_a: usize,
    /// Trials of B.
    pub trials_b: usize,
    /// Change from A to B in percent.
    pub percent: f64,
    /// Lower end of its 95 % interval, by Welch's t on the logarithms of the trials; absent for fewer than two trials on a
    /// side.
    pub percent_low: Option<f64>,
    /// Upper end.
    pub percent_high: Option<f64>,
    /// What that says.
    pub verdict: Verdict,
    /// Settings in which the results differ, compared with `--force`.
    pub forced: String,
}

/// What an interval says of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The whole interval is on the better side of no change.
    Faster,
    /// It is on the other side.
    Slower,
    /// It contains no change.
    NoDifferenceShown,
    /// There is no interval.
    NotTested,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::NoDifferenceShown => "no difference shown",
            Self::NotTested => "not tested",
        })
    }
}

/// Compares two results.
pub fn run(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    let (a, b) = (results::find(&args.a)?, results::find(&args.b)?);
    let pairs = pairs(&a, &b)?;
    let forced = pairs.iter().map(|(a, b)| obstacles(a, b)).collect::<Vec<_>>();
    if forced.iter().any(|obstacles| !obstacles.is_empty()) {
        let all = described(&pairs, &forced);
        if !args.force {
            let hint = "`--force` compares them all the same";
            return Err(usage(format!("the results did not measure the same thing:\n{all}\n{hint}")));
        }
        say(&format!("warning: the results did not measure the same thing, a change may come from that:\n{all}"));
    }
    let named = |obstacles: &Vec<Obstacle>| {
        obstacles.iter().map(|obstacle| obstacle.field.as_str()).collect::<Vec<_>>().join(" ")
    };
    let lines: Vec<Difference> = (pairs.iter().zip(&forced))
        .flat_map(|((a, b), forced)| differences(&a.summary, &b.summary, &named(forced)))
        .collect();
    print(&lines, args.output, std::io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}

/// What belongs together: the only system of either, or those of equal labels.
fn pairs<'a>(a: &'a [Found], b: &'a [Found]) -> anyhow::Result<Vec<(&'a Found, &'a Found)>> {
    if let ([a], [b]) = (a, b) {
        return Ok(vec![(a, b)]);
    }
    let labels = |all: &[Found]| all.iter().map(|found| found.summary.label.clone()).collect::<Vec<_>>();
    for (all, side) in [(a, "first"), (b, "second")] {
        let labels = labels(all);
        if let Some(twice) = labels.iter().enumerate().find(|(at, label)| labels[..*at].contains(label)) {
            let (label, hint) = (twice.1, "name the folder of one system");
            return Err(usage(format!("the {side} result has `{label}` more than once: {hint}")));
        }
    }
    let with_label = |found: &'a Found| b.iter().find(|other| other.summary.label == found.summary.label);
    let mut pairs: Vec<_> = a.iter().filter_map(|found| Some((found, with_label(found)?))).collect();
    pairs.sort_by(|x, y| x.0.summary.label.cmp(&y.0.summary.label));
    if pairs.is_empty() {
        let (a, b) = (labels(a).join(", "), labels(b).join(", "));
        return Err(usage(format!("no system is in both results: the first has {a}, the second {b}")));
    }
    Ok(pairs)
}

/// Why two results cannot be compared: a setting that differs, or a file that is missing.
struct Obstacle {
    field: String,
    words: String,
}

fn obstacles(a: &Found, b: &Found) -> Vec<Obstacle> {
    match results::differences(a, b) {
        Ok(differences) => differences
            .into_iter()
            .map(|results::Difference { field, old, new }| {
                let words = format!("`{field}` is {} and {}", shown(&field, &old), shown(&field, &new));
                Obstacle { field, words }
            })
            .collect(),
        Err(words) => vec![Obstacle { field: "manifest.json".into(), words }],
    }
}

/// A value in a message: the beginning of a digest, and everything else whole.
fn shown(field: &str, value: &Value) -> String {
    match value.as_str().filter(|_| field.ends_with("_sha256")) {
        Some(digest) => digest.chars().take(12).collect(),
        None => value.to_string(),
    }
}

/// A line for each setting that differs, with the systems where it does.
fn described(pairs: &[(&Found, &Found)], forced: &[Vec<Obstacle>]) -> String {
    let mut lines: Vec<(String, Vec<String>)> = Vec::new();
    for ((a, b), obstacles) in pairs.iter().zip(forced) {
        for obstacle in obstacles {
            let name = systems(&a.summary.label, &b.summary.label);
            match lines.iter_mut().find(|(words, _)| *words == obstacle.words) {
                Some((_, names)) => names.push(name),
                None => lines.push((obstacle.words.clone(), vec![name])),
            }
        }
    }
    let line = |(words, names): &(String, Vec<String>)| {
        let of = if names.len() == pairs.len() { String::new() } else { format!(" ({})", names.join(", ")) };
        format!("  {words}{of}")
    };
    lines.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn systems(a: &str, b: &str) -> String {
    if a == b { a.to_owned() } else { format!("{b} against {a}") }
}

/// All metrics that both have.
pub fn differences(a: &Summary, b: &Summary, forced: &str) -> Vec<Difference> {
    let one = |(metric, _, more_is_better): &(&'static str, &str, bool)| {
        let above_zero = |value: &f64| *value > 0.0;
        let values = [a.value(metric).filter(above_zero)?, b.value(metric).filter(above_zero)?];
        let trials = [a, b].map(|summary| -> Vec<f64> {
            let values: Option<Vec<f64>> = summary.trials.iter().map(|trial| trial.get(metric)).collect();
            values.filter(|values| values.iter().all(above_zero)).unwrap_or_default()
        });
        let change = change(values, [&trials[0], &trials[1]]);
        Some(Difference {
            system_a: a.label.clone(),
            system_b: b.label.clone(),
            metric,
            a: values[0],
            b: values[1],
            trials_a: a.trials.len(),
            trials_b: b.trials.len(),
            percent: change.percent,
            percent_low: change.interval.map(|[low, _]| low),
            percent_high: change.interval.map(|[_, high]| high),
            verdict: change.verdict(*more_is_better),
            forced: forced.to_owned(),
        })
    };
    METRICS.iter().filter_map(one).collect()
}

/// A change in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Change {
    percent: f64,
    interval: Option<[f64; 2]>,
}

/// The change between two values, and its interval by the scatter of the trials behind them. The logarithm of a ratio is
/// what is estimated: the interval of the ratio is not symmetric, and never reaches -100 %.
fn change(values: [f64; 2], trials: [&[f64]; 2]) -> Change {
    let percent = |log: f64| 100.0 * log.exp_m1();
    let middle = (values[1] / values[0]).ln();
    let logs = trials.map(|values| values.iter().map(|value| value.ln()).collect::<Vec<_>>());
    let interval = welch(&logs[0], &logs[1]).map(|Welch { difference, low, high, .. }| {
        [percent(middle + low - difference), percent(middle + high - difference)]
    });
    Change { percent: percent(middle), interval }
}

impl Change {
    /// Faster or slower only where the interval excludes no change.
    fn verdict(self, more_is_better: bool) -> Verdict {
        match self.interval {
            None => Verdict::NotTested,
            Some([low, high]) if low <= 0.0 && high >= 0.0 => Verdict::NoDifferenceShown,
            Some([low, _]) if (low > 0.0) == more_is_better => Verdict::Faster,
            Some(_) => Verdict::Slower,
        }
    }
}

const HEADINGS: [&str; 7] = ["system", "of", "A", "B", "change", "95 % interval", "B is"];

/// Prints a comparison in a format.
fn print(lines: &[Difference], format: Format, mut out: impl Write) -> anyhow::Result<()> {
    match format {
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(lines)?)?,
        Format::Csv => {
            let mut csv = csv::Writer::from_writer(out);
            lines.iter().try_for_each(|line| csv.serialize(line))?;
            csv.flush()?;
        }
        Format::Table | Format::Md => {
            writeln!(out, "{}\n\n{}", table(lines, format), notes(lines))?;
        }
    }
    Ok(())
}

/// One table. Two systems of different names are a single pair, whose names stand above it.
fn table(lines: &[Difference], format: Format) -> String {
    let rows = lines.iter().enumerate().map(|(at, line)| row(line, at.checked_sub(1).map(|before| &lines[before])));
    let Some(pair) = lines.first().filter(|line| line.system_a != line.system_b) else {
        return plain_table(&HEADINGS, rows, format);
    };
    let [_, headings @ ..] = HEADINGS;
    let rows = rows.map(|[_, cells @ ..]| cells);
    format!("{} (B) against {} (A)\n\n{}", pair.system_b, pair.system_a, plain_table(&headings, rows, format))
}

fn row(line: &Difference, before: Option<&Difference>) -> [String; 7] {
    let repeated = before.is_some_and(|before| before.system_b == line.system_b);
    let words = METRICS.iter().find(|(name, ..)| *name == line.metric).map_or("", |(_, words, _)| words);
    let interval = line.percent_low.zip(line.percent_high);
    [
        if repeated { String::new() } else { line.system_b.clone() },
        words.to_owned(),
        number(Some(line.a), 2),
        number(Some(line.b), 2),
        format!("{:+.1} %", line.percent),
        interval.map_or_else(|| "-".into(), |(low, high)| format!("{low:+.1} to {high:+.1} %")),
        line.verdict.to_string(),
    ]
}

fn notes(lines: &[Difference]) -> String {
    let mut notes = Vec::new();
    if lines.iter().any(|line| line.verdict == Verdict::NotTested) {
        notes.push("not tested: an interval needs `--trials` of 2 or more on both sides.".to_owned());
    }
    if lines.iter().any(|line| line.verdict != Verdict::NotTested) {
        notes.push(wrapped(
            "faster, slower: the interval excludes no change. Each interval misses the true change in 5 % of the cases.",
        ));
    }
    if lines.iter().any(|line| !line.forced.is_empty()) {
        notes.push("forced: the results did not measure the same thing.".to_owned());
    }
    notes.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(a: &[f64], b: &[f64]) -> Change {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        change([mean(a), mean(b)], [a, b])
    }

    #[test]
    fn verdicts_respect_their_intervals() {
        let clear = of(&[100.0, 101.0, 99.0], &[112.0, 113.0, 111.0]);
        assert!((clear.percent - 12.0).abs() < 1e-9, "{clear:?}");
        assert_eq!((clear.verdict(true), clear.verdict(false)), (Verdict::Faster, Verdict::Slower));
        let back = of(&[112.0, 113.0], &[100.0, 101.0]);
        assert_eq!((back.verdict(true), back.verdict(false)), (Verdict::Slower, Verdict::Faster));
        assert_eq!(of(&[90.0, 110.0], &[95.0, 118.0]).verdict(true), Verdict::NoDifferenceShown);
        let single = of(&[100.0], &[150.0, 150.0]);
        assert_eq!((single.interval, single.verdict(true)), (None, Verdict::NotTested));
        // Trials without any scatter, and equal.
        let equal = of(&[100.0, 100.0], &[100.0, 100.0]);
        assert_eq!((equal.interval, equal.verdict(true)), (Some([0.0, 0.0]), Verdict::NoDifferenceShown));
    }

    #[test]
    fn intervals_are_asymmetric_and_stay_above_minus_100_percent() {
        let wide = of(&[100.0, 30.0], &[300.0, 90.0]);
        let [low, high] = wide.interval.expect("trials");
        assert!(low > -100.0 && high - wide.percent > 10.0 * (wide.percent - low), "{wide:?}");
        assert_eq!(wide.verdict(true), Verdict::NoDifferenceShown);
    }

    #[test]
    fn the_change_back_is_the_inverse() {
        let (a, b) = ([100.0, 104.0, 97.0], [130.0, 128.0, 133.0]);
        let (there, back) = (of(&a, &b), of(&b, &a));
        let factor = |percent: f64| 1.0 + percent / 100.0;
        assert!((factor(there.percent) * factor(back.percent) - 1.0).abs() < 1e-12);
        let ([low, _], [_, high]) = (there.interval.expect("trials"), back.interval.expect("trials"));
        assert!((factor(low) * factor(high) - 1.0).abs() < 1e-12);
    }
}
