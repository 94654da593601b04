//! `trbench bench-kernels`: what a GPU machine is asked to prove.

mod demo;

use std::io::Write as _;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use serde_json::{Value, json};
use tokenrouter_engine::model::Shape;
use tokenrouter_kernels::DecoderConfig;
use tokenrouter_kernels::cuda::bench::{self, StepTiming, Timing};
use tokenrouter_kernels::cuda::{Device, checks};

use crate::error::usage;
use crate::files::write_file;
use crate::terminal::{Format, plain_table};

/// Arguments of `trbench bench-kernels`.
#[derive(Debug, Clone, Args)]
pub struct BenchKernelsArgs {
    /// Ordinal of the CUDA device.
    #[arg(long, default_value_t = 0)]
    ordinal: usize,
    /// Shapes whose kernels and steps are timed, with random weights made on the device.
    #[arg(long, value_delimiter = ',', default_value = "Qwen/Qwen3-0.6B,Qwen/Qwen3-8B")]
    models: Vec<String>,
    /// Batch sizes.
    #[arg(long, value_parser = count(1..=512), value_delimiter = ',', default_value = "1,2,4,8,16,32")]
    batches: Vec<usize>,
    /// Positions that a row attends to.
    #[arg(long, value_parser = count(1..=32_768), default_value_t = 1024)]
    context: usize,
    /// Only check the kernels.
    #[arg(long)]
    check_only: bool,
    /// Where to write everything as JSON.
    #[arg(long, short, default_value = "results/bench/gpu.json", value_name = "FILE")]
    out: PathBuf,
    /// Output format.
    #[arg(long, default_value = "table")]
    output: Format,
}

fn count(allowed: RangeInclusive<u64>) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(allowed)
}

/// Checks all kernels, times them and whole steps beside the device's own bandwidth, writes JSON.
pub fn run(args: &BenchKernelsArgs) -> anyhow::Result<ExitCode> {
    let shapes = args.models.iter().map(|id| shape(id, args.context)).collect::<anyhow::Result<Vec<_>>>()?;
    let device = Device::cuda(args.ordinal)?;
    let checked = checks::all(&device)?;
    let mut report = Report::new(&device, args.output)?;
    report.checks(&checked)?;
    if !args.check_only {
        let bandwidth = bench::bandwidth(&device, 1 << 30)?;
        report.values.push(("copy_bytes_per_s", json!(bandwidth)));
        for (id, config, layers) in &shapes {
            let timings = bench::kernels(&device, config, &args.batches, &[args.context])?;
            let steps = bench::steps(&device, config, *layers, (&args.batches, args.context))?;
            report.model(&ModelTimings { id, bandwidth, kernels: &timings, steps: &steps })?;
        }
        report.demo(demo::compare(args.ordinal)?)?;
    }
    report.write(&args.out)?;
    let failed: Vec<&str> = checked.iter().filter(|check| check.failure.is_some()).map(|check| check.kernel).collect();
    if !failed.is_empty() {
        bail!("{} of {} checks failed: {}", failed.len(), checked.len(), failed.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}

/// What was timed of a model's shape.
#[derive(Debug, Clone, Copy)]
struct ModelTimings<'a> {
    id: &'a str,
    /// Of the device, copying, in bytes per second.
    bandwidth: f64,
    kernels: &'a [Timing],
    steps: &'a [StepTiming],
}

/// Id, shape, layers.
type ModelShape = (String, DecoderConfig, usize);

fn shape(id: &str, context: usize) -> anyhow::Result<ModelShape> {
    let known = || Shape::known_ids().collect::<Vec<_>>().join(", ");
    let shape =
        Shape::known(id).ok_or_else(|| usage(format!("--models `{id}` is not known, known are {}", known())))?;
    let arch = shape.arch;
    Ok((id.to_owned(), arch.decoder_config(context), arch.layers.len()))
}

/// What is printed and written.
struct Report {
    format: Format,
    values: Vec<(&'static str, Value)>,
    models: Vec<Value>,
}

impl Report {
    fn new(device: &Device, format: Format) -> anyhow::Result<Self> {
        let total = device.memory()?.map(|(_, total)| total);
        let values = vec![("device", json!(device.name())), ("memory_bytes", json!(total))];
        Ok(Self { format, values, models: Vec::new() })
    }

    fn print<const N: usize>(
        &self,
        headings: &[&str; N],
        rows: impl Iterator<Item = [String; N]>,
    ) -> anyhow::Result<()> {
        if self.format != Format::Json {
            writeln!(std::io::stdout(), "{}\n", plain_table(headings, rows, self.format))?;
        }
        Ok(())
    }

    fn checks(&mut self, checks: &[checks::Check]) -> anyhow::Result<()> {
        let rows = checks.iter().map(|check| {
            let result = check.failure.clone().unwrap_or_else(|| "ok".into());
            [check.kernel.to_owned(), check.cases.to_string(), format!("{:.3}", check.worst), result]
        });
        self.print(&["check", "cases", "worst / allowed", "result"], rows)?;
        let rows = checks.iter().map(|check| {
            // JSON has no infinity.
            let worst = check.worst.is_finite().then_some(check.worst);
            json!({"check": check.kernel, "cases": check.cases, "worst": worst, "failure": check.failure})
        });
        self.values.push(("checks", rows.collect()));
        Ok(())
    }

    fn model(&mut self, timings: &ModelTimings<'_>) -> anyhow::Result<()> {
        let ModelTimings { id, bandwidth, kernels, steps } = *timings;
        let share = |bytes: usize, seconds: f64| bytes as f64 / bandwidth / seconds;
        let rows = kernels.iter().map(|t| {
            let micros = format!("{:.1}", t.seconds * 1e6);
            let teraflops = if t.flops > 0 { format!("{:.1}", t.flops as f64 / t.seconds / 1e12) } else { "-".into() };
            let rate = format!("{:.0}", t.bytes as f64 / t.seconds / 1e9);
            let percent = format!("{:.0} %", 100.0 * share(t.bytes, t.seconds));
            [t.kernel.to_owned(), t.case.clone(), micros, rate, percent, teraflops]
        });
        self.print(&[id, "size", "us", "GB/s", "of copy bandwidth", "TFLOP/s"], rows)?;
        let rows = steps.iter().map(|s| {
            let graph = if s.graph { "graph" } else { "kernel by kernel" };
            let tokens = format!("{:.0}", s.batch as f64 / s.seconds);
            let percent = format!("{:.0} %", 100.0 * share(s.bytes, s.seconds));
            [s.batch.to_string(), graph.into(), format!("{:.3}", s.seconds * 1e3), tokens, percent]
        });
        self.print(&["batch", "step", "ms", "tokens/s", "of copy bandwidth"], rows)?;
        let kernels = kernels.iter().map(|t| {
            json!({"kernel": t.kernel, "case": t.case, "seconds": t.seconds, "bytes": t.bytes, "flops": t.flops,
                   "bandwidth_share": share(t.bytes, t.seconds)})
        });
        let step = steps.iter().map(|s| {
            json!({"batch": s.batch, "context": s.context, "graph": s.graph, "seconds": s.seconds, "bytes": s.bytes,
                   "tokens_per_s": s.batch as f64 / s.seconds, "bandwidth_share": share(s.bytes, s.seconds)})
        });
        let (kernels, step): (Vec<_>, Vec<_>) = (kernels.collect(), step.collect());
        self.models.push(json!({"model": id, "weights": "random", "kernels": kernels, "steps": step}));
        Ok(())
    }

    fn demo(&mut self, found: Value) -> anyhow::Result<()> {
        let rows = found.as_object().into_iter().flatten().map(|(key, value)| [key.clone(), value.to_string()]);
        self.print(&["demo pair", ""], rows)?;
        self.values.push(("demo", found));
        Ok(())
    }

    fn write(mut self, path: &std::path::Path) -> anyhow::Result<()> {
        self.values.push(("models", Value::Array(std::mem::take(&mut self.models))));
        let all: serde_json::Map<String, Value> =
            self.values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let text = serde_json::to_string_pretty(&Value::Object(all))?;
        if self.format == Format::Json {
            writeln!(std::io::stdout(), "{text}")?;
        }
        write_file(path, text.as_bytes())
    }
}
