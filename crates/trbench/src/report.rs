//! Tables of runs: throughput, latency, routing, batches.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::error::usage;
use crate::results::{self, ModelSummary, Summary};
use crate::terminal::{Format, number, plain_table};
use crate::trials::{Slo, TrialRows};

/// Arguments of `trbench report`.
#[derive(Debug, Clone, Args)]
pub struct ReportArgs {
    /// Result folders (of one run, or of several below them) or `result.csv` files.
    #[arg(long = "result", required = true, num_args = 1.., value_name = "DIR|CSV")]
    results: Vec<PathBuf>,
    /// Output format.
    #[arg(long, default_value = "table")]
    output: Format,
}

/// Prints the reports of finished runs.
pub fn run(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let mut summaries = Vec::new();
    for path in &args.results {
        collect(path, &mut summaries)?;
    }
    print(&summaries, args.output, std::io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn collect(path: &Path, summaries: &mut Vec<Summary>) -> anyhow::Result<()> {
    if path.is_file() {
        let summary = path.with_file_name("summary.json");
        if summary.is_file() && path.file_name().is_some_and(|name| name == "result.csv") {
            summaries.push(results::read_summary(&summary)?);
        } else {
            summaries.push(from_csv(path)?);
        }
        return Ok(());
    }
    if path.join("summary.json").is_file() {
        summaries.push(results::read_summary(&path.join("summary.json"))?);
        return Ok(());
    }
    let entries =
        std::fs::read_dir(path).map_err(|error| usage(format!("cannot read `{}`: {error}", path.display())))?;
    let mut folders: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|p| p.join("summary.json").is_file()).collect();
    folders.sort();
    if folders.is_empty() {
        return Err(usage(format!("`{}` holds no results (no `summary.json`)", path.display())));
    }
    for folder in folders {
        summaries.push(results::read_summary(&folder.join("summary.json"))?);
    }
    Ok(())
}

/// What can be said from the rows alone. The duration is the longest request's, so no throughput is derived.
fn from_csv(path: &Path) -> anyhow::Result<Summary> {
    let records = results::read_records(path)?;
    let trial = TrialRows { records, ..TrialRows::default() };
    Ok(Summary::new(&path.display().to_string(), &[trial], Slo::default(), None, serde_json::Value::Null))
}

/// Prints summaries in a format.
pub fn print(summaries: &[Summary], format: Format, mut out: impl Write) -> anyhow::Result<()> {
    match format {
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(summaries)?)?,
        Format::Csv => {
            let mut writer = csv::Writer::from_writer(out);
            writer.write_record(HEADINGS)?;
            for summary in summaries {
                writer.write_record(system_row(summary))?;
            }
            writer.flush()?;
        }
        Format::Table | Format::Md => {
            writeln!(out, "{}", plain_table(&HEADINGS, summaries.iter().map(system_row), format))?;
            let rows = summaries.iter().flat_map(|s| s.models.iter().map(|m| model_row(s, m)));
            let mut rows = rows.peekable();
            if rows.peek().is_some() {
                writeln!(out, "\n{}", plain_table(&MODEL_HEADINGS, rows, format))?;
            }
            writeln!(out, "\n{}", footnote(summaries))?;
        }
    }
    Ok(())
}

const HEADINGS: [&str; 14] = [
    "system",
    "requests",
    "failed",
    "tok/s",
    "ttft mean ms",
    "tpot mean ms",
    "tpot p50",
    "e2el mean ms",
    "e2el p50",
    "e2el p90",
    "good req/s",
    "large share",
    "handoffs/tok",
    "correct",
];

const MODEL_HEADINGS: [&str; 13] = [
    "system",
    "model",
    "steps",
    "mean batch",
    "step ms",
    "kernels/sampling/scheduling/idle %",
    "buffer wait ms",
    "by max_wait",
    "prefix hits",
    "P row",
    "C row",
    "mean run",
    "geometric p",
];

fn system_row(summary: &Summary) -> [String; 14] {
    let latency =
        |key: &str| with_interval(summary, summary.latency.get(key).and_then(serde_json::Value::as_f64), key, 1);
    let emulated = if summary.emulated { " (emulated)" } else { "" };
    let interrupted = if summary.interrupted { " (interrupted)" } else { "" };
    [
        format!("{}{emulated}{interrupted}", summary.label),
        summary.completed.to_string(),
        summary.failed.to_string(),
        with_interval(summary, (summary.duration > 0.0).then_some(summary.output_throughput), "output_throughput", 1),
        latency("mean_ttft_ms"),
        latency("mean_tpot_ms"),
        latency("median_tpot_ms"),
        latency("mean_e2el_ms"),
        latency("median_e2el_ms"),
        latency("p90_e2el_ms"),
        with_interval(summary, summary.request_goodput, "request_goodput", 2),
        number(summary.llm_ratio, 3),
        number(summary.handoffs_per_token, 3),
        if summary.graded == 0 { "-".into() } else { format!("{}/{}", summary.correct, summary.graded) },
    ]
}

/// A value, and half the width of its interval over trials where there is one.
fn with_interval(summary: &Summary, value: Option<f64>, name: &str, digits: usize) -> String {
    let half = summary.intervals.get(name).map_or_else(String::new, |mean| format!("±{:.digits$}", mean.half()));
    number(value, digits) + half.as_str()
}

fn model_row(summary: &Summary, model: &ModelSummary) -> [String; 13] {
    // Half the width of the interval, where it shows at three digits.
    let row = |values: &[f64], intervals: &[Option<[f64; 2]>]| {
        let cell = |(index, value): (usize, &f64)| {
            let half = intervals.get(index).copied().flatten().map_or(0.0, |[low, high]| (high - low) / 2.0);
            if half < 5e-4 { format!("{value:.3}") } else { format!("{value:.3}±{half:.3}") }
        };
        values.iter().enumerate().map(cell).collect::<Vec<_>>().join(" ")
    };
    let mean_step = (model.steps > 0).then(|| model.busy_s * 1e3 / model.steps as f64);
    [
        summary.label.clone(),
        model.name.clone(),
        model.steps.to_string(),
        format!("{:.2}", model.mean_batch),
        number(mean_step, 2),
        shares(model),
        format!("{:.2}", model.buffer_wait_ms),
        model.launches_timeout.to_string(),
        match model.prefix_tokens {
            0 => "-".into(),
            tokens => format!("{:.0} %", 100.0 * model.prefix_hits as f64 / tokens as f64),
        },
        row(&model.p_row, &model.p_interval),
        row(&model.c_row, &model.c_interval),
        number(mean_run(&model.runs), 2),
        model.geometric.as_ref().map_or_else(|| "-".into(), |test| format!("{:.3}", test.p_value)),
    ]
}

/// Where a subserver's time went, in percent.
fn shares(model: &ModelSummary) -> String {
    let kernels = model.busy_s - model.sampling_s;
    let parts = [kernels, model.sampling_s, model.scheduling_s, model.idle_s];
    let total: f64 = parts.iter().sum();
    if total <= 0.0 {
        return "-".into();
    }
    parts.map(|part| format!("{:.1}", 100.0 * part / total)).join("/")
}

fn mean_run(runs: &[u64]) -> Option<f64> {
    let visits: u64 = runs.iter().sum();
    let steps: u64 = runs.iter().zip(0u64..).map(|(count, length)| count * length).sum();
    (visits > 0).then(|| steps as f64 / visits as f64)
}

fn footnote(summaries: &[Summary]) -> String {
    let mut lines =
        vec!["-: no value, or the sample is too small for it (p50 needs 7 requests, p90 44, p99 459).".to_owned()];
    if summaries.iter().any(|summary| !summary.models.is_empty()) {
        lines.push("mean run: steps per visit; geometric p: chance of such lengths if visits were geometric, as the model assumes.".into());
    }
    if summaries.iter().any(|summary| summary.emulated) {
        lines.push("emulated: latency profiles stand in for the models.".into());
    }
    if summaries.iter().any(|summary| !summary.intervals.is_empty()) {
        let trials = summaries.iter().map(|summary| summary.trials.len()).max().unwrap_or_default();
        lines.push(format!("±: 95 % interval of the mean over {trials} trials."));
    }
    if let Some(busy) = summaries.iter().filter_map(|summary| summary.client_busy).max_by(f64::total_cmp) {
        let lag = summaries.iter().filter_map(|summary| summary.max_client_lag_ms).max_by(f64::total_cmp);
        let lag = lag.map(|lag| format!(", and sent requests at most {lag:.1} ms late")).unwrap_or_default();
        lines.push(format!("client: busy {:.1} % of the time at most{lag}.", 100.0 * busy));
    }
    for summary in summaries.iter().filter(|summary| summary.resumed > 0) {
        let (label, count) = (&summary.label, summary.resumed);
        lines.push(format!(
            "{label}: {count} requests were measured before an interruption; its models' columns lack them."
        ));
    }
    if let Some(error) = summaries.iter().find_map(|summary| summary.first_error.as_ref()) {
        lines.push(format!("first error: {error}"));
    }
    lines.join("\n")
}
