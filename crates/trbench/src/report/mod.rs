//! Reports of runs: tables for people, and the same numbers as data.

mod data;
mod tables;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::error::usage;
use crate::results::{self, Summary};
use crate::terminal::Format;

/// Arguments of `trbench report`.
#[derive(Debug, Clone, Args)]
pub struct ReportArgs {
    /// Result folders (of one run, or of several below them) or `result.csv` files.
    #[arg(value_name = "DIR|CSV")]
    results: Vec<PathBuf>,
    /// The same, as a flag.
    #[arg(long = "result", num_args = 1.., value_name = "DIR|CSV", hide = true)]
    named: Vec<PathBuf>,
    /// Output format.
    #[arg(long, default_value = "table")]
    output: Format,
}

/// Prints the reports of finished runs.
pub fn run(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let mut summaries = Vec::new();
    for path in args.results.iter().chain(&args.named) {
        summaries.extend(results::find(path)?.into_iter().map(|found| found.summary));
    }
    if summaries.is_empty() {
        return Err(usage("which results? Give a result folder, such as `trbench report results/NAME`"));
    }
    print(&summaries, args.output, std::io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}

/// Prints summaries in a format.
pub fn print(summaries: &[Summary], format: Format, mut out: impl Write) -> anyhow::Result<()> {
    match format {
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(summaries)?)?,
        Format::Csv => data::write(summaries, out)?,
        Format::Table | Format::Md => out.write_all(tables::render(summaries, format).as_bytes())?,
    }
    Ok(())
}
