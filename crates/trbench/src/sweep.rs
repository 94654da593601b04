//! `trbench sweep-threshold`: the threshold that gives a wanted share of large-model tokens, from the scores of a run.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use tokenrouter_core::routing::registry::{self, Keeps, Sweep};
use tokenrouter_engine::Config;

use crate::error::usage;
use crate::terminal::{Format, plain_table};
use crate::trace::{self, RequestTrace};

/// Arguments of `trbench sweep-threshold`.
#[derive(Debug, Clone, Args)]
pub struct SweepArgs {
    /// A result folder of `trbench run --trace`.
    #[arg(value_name = "RESULT")]
    result: PathBuf,
    /// Wanted shares of the large model, above 0 and below 1; a comma list.
    #[arg(long, value_delimiter = ',', default_value = "0.05,0.1,0.2,0.3,0.5")]
    share: Vec<f64>,
    /// Output format.
    #[arg(long, default_value = "table")]
    output: Format,
}

/// A threshold and what it is expected to do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// Wanted share.
    pub share: f64,
    /// The threshold that comes nearest; half way between two scores, so that equality does not matter.
    pub threshold: f64,
    /// The share that it gives on these scores.
    pub expected: f64,
}

/// The scores of a run, by the model that made them.
#[derive(Debug, Default)]
struct Scores {
    /// At the entry model: what decides whether a request moves up. Risen.
    small: Vec<f64>,
    /// At the other models: what decides whether it comes back. Risen.
    large: Vec<f64>,
    /// Mean tokens of a step that the entry model wrote, and of one that another wrote.
    step_tokens: [f64; 2],
}

/// Prints the thresholds for the wanted shares.
pub fn run(args: &SweepArgs) -> anyhow::Result<ExitCode> {
    if let Some(bad) = args.share.iter().find(|share| !(**share > 0.0 && **share < 1.0)) {
        return Err(usage(format!("--share {bad} is not allowed, allowed is above 0 and below 1")));
    }
    let (path, traces) = trace::read(&args.result)?;
    let manifest = path.with_file_name("manifest.json");
    let config = config_of(&manifest)?;
    let method = &config.routing.method;
    let facts = registry::find(method).map(|entry| entry.facts).with_context(|| format!("no method `{method}`"))?;
    let Some(sweep) = facts.sweep else {
        let swept = registry::entries().iter().filter(|e| e.facts.sweep.is_some()).map(|e| e.facts.name);
        let swept: Vec<&str> = swept.collect();
        let message = format!("method `{method}` has no threshold to sweep, these have: {}", swept.join(", "));
        return Err(usage(message));
    };
    let scores = Scores::of(&traces, sweep);
    if scores.small.len() < 2 {
        return Err(usage(format!("`{}` has {} scores, at least 2 are needed", path.display(), scores.small.len())));
    }
    let points: Vec<Point> = args.share.iter().map(|share| scores.threshold_for(*share, sweep)).collect();
    print(&points, method, sweep, &scores, args.output)?;
    Ok(ExitCode::SUCCESS)
}

fn config_of(manifest: &std::path::Path) -> anyhow::Result<Config> {
    let text = std::fs::read_to_string(manifest)
        .map_err(|error| usage(format!("cannot read `{}`: {error}", manifest.display())))?;
    let value: serde_json::Value = serde_json::from_str(&text)?;
    let yaml = value["config_text"].as_str().context("the manifest has no `config_text`")?;
    let origin = value["config"].as_str().unwrap_or_default();
    Ok(Config::from_yaml(yaml, origin)?)
}

impl Scores {
    fn of(traces: &[RequestTrace], sweep: Sweep) -> Self {
        let mut scores = Self::default();
        let mut lengths = [(0u64, 0u64); 2];
        for trace in traces {
            for (index, step) in trace.steps.iter().enumerate() {
                let record = step.record;
                let side = usize::from(record.model != trace.entry);
                // A step of reasoning begins with a probe: the score of one that is dropped counts for its writer.
                if record.score.is_some() && record.model == trace.entry {
                    let writer = record.to.map_or(0, |to| usize::from(to != trace.entry));
                    lengths[writer].0 += 1;
                }
                if record.committed && index > 0 {
                    lengths[side].1 += 1;
                }
                let Some(score) = record.score.map(f64::from).filter(|score| score.is_finite()) else { continue };
                if side == 0 { scores.small.push(score) } else { scores.large.push(score) }
            }
        }
        for (mean, (steps, tokens)) in scores.step_tokens.iter_mut().zip(lengths) {
            *mean = if steps == 0 { 1.0 } else { tokens as f64 / steps as f64 };
        }
        if !sweep.high_is_hard {
            for score in scores.small.iter_mut().chain(&mut scores.large) {
                *score = -*score;
            }
        }
        scores.small.sort_unstable_by(f64::total_cmp);
        scores.large.sort_unstable_by(f64::total_cmp);
        scores
    }

    /// Share of the large model with a threshold on the scores as sorted, where high is hard.
    fn share_at(&self, threshold: f64, span: Keeps) -> f64 {
        let above = |scores: &[f64]| {
            let below = scores.partition_point(|score| *score <= threshold);
            (scores.len() - below) as f64 / scores.len().max(1) as f64
        };
        let up = above(&self.small);
        match span {
            Keeps::Token | Keeps::Request => up,
            // Without scores of the large model every visit is taken to last one token.
            Keeps::UntilEasy => {
                let back = if self.large.is_empty() { 1.0 } else { 1.0 - above(&self.large) };
                if up == 0.0 { 0.0 } else { up / (back * (1.0 - up) + up) }
            }
            Keeps::Step => {
                let [small, large] = self.step_tokens;
                up * large / (up * large + (1.0 - up) * small)
            }
        }
    }

    /// The share falls with the threshold: the first gap between scores at which it is no longer above the wanted one,
    /// or the gap before it if that is nearer.
    fn threshold_for(&self, share: f64, sweep: Sweep) -> Point {
        let mut all: Vec<f64> = self.small.clone();
        if sweep.span == Keeps::UntilEasy {
            all.extend(&self.large);
            all.sort_unstable_by(f64::total_cmp);
        }
        all.dedup();
        let mut gaps: Vec<f64> = vec![all[0] - 1e-3 * all[0].abs().max(1e-3)];
        gaps.extend(all.windows(2).map(|pair| pair[0] / 2.0 + pair[1] / 2.0));
        gaps.push(all[all.len() - 1]);
        let first = gaps.partition_point(|gap| self.share_at(*gap, sweep.span) > share).min(gaps.len() - 1);
        let distance = |index: &usize| (self.share_at(gaps[*index], sweep.span) - share).abs();
        let best = [first.saturating_sub(1), first].into_iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
        let gap = gaps[best.unwrap_or(first)];
        let threshold = if sweep.high_is_hard { gap } else { -gap };
        Point { share, threshold, expected: self.share_at(gap, sweep.span) }
    }
}

fn print(points: &[Point], method: &str, sweep: Sweep, scores: &Scores, format: Format) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match format {
        Format::Json => {
            let value = serde_json::json!({
                "method": method, "option": sweep.option, "scores": scores.small.len(), "points": points,
            });
            writeln!(out, "{}", serde_json::to_string_pretty(&value)?)?;
        }
        Format::Csv => {
            let mut csv = csv::Writer::from_writer(out);
            points.iter().try_for_each(|point| csv.serialize(point))?;
            csv.flush()?;
        }
        Format::Table | Format::Md => {
            let row = |point: &Point| {
                [format!("{:.3}", point.share), format!("{:.5}", point.threshold), format!("{:.3}", point.expected)]
            };
            let headings = ["wanted share", sweep.option, "expected share"];
            writeln!(out, "{}", plain_table(&headings, points.iter().map(row), format))?;
            let of = match sweep.span {
                Keeps::Request => "requests",
                Keeps::Step => "tokens before the answer",
                _ => "tokens",
            };
            writeln!(
                out,
                "\n`{method}`, share of {of}, from {} scores of the entry model and {} of others. A new threshold changes\n\
                 what is written and so the scores: check the share with a run.",
                scores.small.len(),
                scores.large.len()
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::testing::{step, trace};

    fn sweep(span: Keeps) -> Sweep {
        Sweep { option: "entropy_threshold", high_is_hard: true, span }
    }

    fn small_scores(scores: impl IntoIterator<Item = f32>) -> RequestTrace {
        trace(scores.into_iter().map(|score| step(0, "a", true, 0, Some(score))).collect())
    }

    #[test]
    fn a_borrowed_token_share_is_a_quantile() {
        let scores = Scores::of(&[small_scores((0..100).map(|i| i as f32))], sweep(Keeps::Token));
        let point = scores.threshold_for(0.2, sweep(Keeps::Token));
        assert_eq!((point.threshold, point.expected), (79.5, 0.2));
        // The same scores where low is hard: the lowest fifth.
        let low = Sweep { high_is_hard: false, ..sweep(Keeps::Token) };
        let scores = Scores::of(&[small_scores((0..100).map(|i| i as f32))], low);
        assert_eq!(scores.threshold_for(0.2, low).threshold, 19.5);
    }

    #[test]
    fn spans_count_how_long_the_large_model_keeps_a_request() {
        // Small: half above 0.5. Large: a quarter at or below 0.5, so visits last 4 tokens on average.
        let mut steps: Vec<_> =
            (0..100).map(|i| step(0, "a", true, 0, Some(if i % 2 == 0 { 1.0 } else { 0.0 }))).collect();
        steps.extend((0..100).map(|i| step(1, "b", true, 1, Some(if i % 4 == 0 { 0.0 } else { 1.0 }))));
        let scores = Scores::of(&[trace(steps)], sweep(Keeps::UntilEasy));
        let (a, b) = (0.5, 0.25);
        assert!((scores.share_at(0.5, Keeps::UntilEasy) - a / (b * (1.0 - a) + a)).abs() < 1e-12);
    }

    #[test]
    fn steps_weigh_by_their_length() {
        // One step by each model after the first: probes with scores, 3 tokens by the small, 9 by the large model.
        let mut steps = vec![step(0, "first", true, 0, None), step(0, "probe", true, 0, Some(0.1))];
        steps.extend((0..2).map(|_| step(0, "a", true, 0, None)));
        steps.push(step(0, "probe", false, 1, Some(2.0)));
        steps.extend((0..9).map(|_| step(1, "b", true, 1, None)));
        let scores = Scores::of(&[trace(steps)], sweep(Keeps::Step));
        assert_eq!(scores.step_tokens, [3.0, 9.0]);
        assert!((scores.share_at(1.0, Keeps::Step) - 0.75).abs() < 1e-12);
    }
}
