//! Traces: every step of a request, with the model that made it and the number that decided. `trbench run --trace`
//! writes them to `trace.jsonl`, `trbench trace` shows one.

mod html;
mod text;

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use tokenrouter_core::StepRecord;

use crate::error::usage;
use crate::files::write_file;

/// One line of `trace.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestTrace {
    /// Number of the request in the run.
    pub id: u64,
    /// The dataset's name of the item.
    pub item: String,
    /// Names of the models; steps refer to them by index.
    pub models: Vec<String>,
    /// The model at which requests start.
    pub entry: usize,
    /// All steps, in order.
    pub steps: Vec<TraceStep>,
}

/// One step of a trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceStep {
    /// What the step did.
    #[serde(flatten)]
    pub record: StepRecord,
    /// Text of the candidate. A committed token that ends in the middle of a character leaves it to the next one.
    pub text: String,
}

impl RequestTrace {
    /// Moves from one model to another: index of the step, and where it leads.
    pub fn switches(&self) -> impl Iterator<Item = (usize, usize)> {
        let moves = |(index, step): (usize, &TraceStep)| {
            step.record.to.filter(|to| *to != step.record.model).map(|to| (index, to))
        };
        self.steps.iter().enumerate().filter_map(moves)
    }

    /// Committed tokens of a model.
    pub fn tokens_of(&self, model: usize) -> usize {
        self.steps.iter().filter(|step| step.record.committed && step.record.model == model).count()
    }

    fn title(&self) -> String {
        let tokens = |(index, name): (usize, &String)| format!("{} by {name}", self.tokens_of(index));
        let by: Vec<String> = self.models.iter().enumerate().map(tokens).collect();
        let dropped = self.steps.iter().filter(|step| !step.record.committed).count();
        format!(
            "request {} ({}): tokens {}; {} switches, {dropped} dropped candidates",
            self.id,
            self.item,
            by.join(", "),
            self.switches().count()
        )
    }
}

/// Arguments of `trbench trace`.
#[derive(Debug, Clone, Args)]
pub struct TraceArgs {
    /// A result folder of `trbench run --trace`, or its `trace.jsonl`.
    #[arg(value_name = "RESULT")]
    result: PathBuf,
    /// Which request.
    #[arg(long, default_value_t = 0)]
    request: u64,
    /// How to print it.
    #[arg(long, default_value = "text")]
    output: TraceFormat,
    /// Whether the text is coloured; `auto`: on a terminal.
    #[arg(long, default_value = "auto")]
    color: Color,
    /// Write an HTML page with the coloured text to this file as well.
    #[arg(long, short, alias = "html", value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TraceFormat {
    /// The text by origin, and the switches.
    Text,
    /// The steps, as JSON.
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Color {
    /// On a terminal.
    Auto,
    /// Always.
    Always,
    /// Never: models are named in the text instead.
    Never,
}

/// Prints one request of a trace.
pub fn run(args: &TraceArgs) -> anyhow::Result<ExitCode> {
    let (path, traces) = read(&args.result)?;
    let Some(trace) = traces.iter().find(|trace| trace.id == args.request) else {
        let last = traces.iter().map(|trace| trace.id).max().unwrap_or_default();
        return Err(usage(format!("`{}` has no request {}, it has up to {last}", path.display(), args.request)));
    };
    if let Some(file) = &args.out {
        write_file(file, html::page(trace)?.as_bytes())?;
    }
    let mut out = std::io::stdout().lock();
    match args.output {
        TraceFormat::Json => writeln!(out, "{}", serde_json::to_string_pretty(trace)?)?,
        TraceFormat::Text => {
            let color = match args.color {
                Color::Auto => crate::terminal::colors(&out),
                other => other == Color::Always,
            };
            out.write_all(text::render(trace, color).as_bytes())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the traces of a result folder or file.
pub fn read(result: &Path) -> anyhow::Result<(PathBuf, Vec<RequestTrace>)> {
    let path = if result.is_dir() { result.join("trace.jsonl") } else { result.to_owned() };
    let file = std::fs::File::open(&path).map_err(|error| {
        usage(format!("cannot read `{}`: {error}; `trbench run --trace` writes traces", path.display()))
    })?;
    let mut traces = Vec::new();
    for (number, line) in std::io::BufReader::new(file).lines().enumerate() {
        let place = || format!("`{}` line {}", path.display(), number + 1);
        let line = line.with_context(place)?;
        let trace: RequestTrace =
            serde_json::from_str(&line).map_err(|error| usage(format!("{}: {error}", place())))?;
        let models = trace.models.len();
        let known = |step: &TraceStep| step.record.model < models && step.record.to.is_none_or(|to| to < models);
        if let Some(bad) = trace.steps.iter().position(|step| !known(step)) {
            return Err(usage(format!("{}: step {bad} names a model beyond the {models} models", place())));
        }
        traces.push(trace);
    }
    if traces.is_empty() {
        return Err(usage(format!("`{}` is empty", path.display())));
    }
    Ok((path, traces))
}

/// Writes the traces of a run.
pub fn write(dir: &Path, traces: &[RequestTrace]) -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    for trace in traces {
        serde_json::to_writer(&mut bytes, trace)?;
        bytes.push(b'\n');
    }
    write_file(&dir.join("trace.jsonl"), &bytes)
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// A step of a two-model trace.
    pub(crate) fn step(model: usize, text: &str, committed: bool, to: usize, score: Option<f32>) -> TraceStep {
        let record = StepRecord { position: 0, model, token: 1, committed, to: Some(to), score };
        TraceStep { record, text: text.to_owned() }
    }

    /// A trace of `steps`, with positions filled in.
    pub(crate) fn trace(steps: Vec<TraceStep>) -> RequestTrace {
        let mut position = 0;
        let steps = steps.into_iter().map(|mut step| {
            step.record.position = position;
            position += usize::from(step.record.committed);
            step
        });
        RequestTrace {
            id: 0,
            item: "item".into(),
            models: vec!["small".into(), "large".into()],
            entry: 0,
            steps: steps.collect(),
        }
    }
}
