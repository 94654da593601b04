//! `trbench datasets`: what there is, whether a file is one, and fetching.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;
use comfy_table::{CellAlignment, Table, presets};

use super::download::{self, FetchArgs};
use super::survey::{Report, survey, survey_records};
use super::{BuiltIn, Kind, records};

/// What `trbench datasets` can do.
#[derive(Debug, Subcommand)]
pub enum DatasetsCommand {
    /// Print the built-in workloads, and the data sets that were fetched.
    List,
    /// Say what a file holds: format, records, fields, lengths; and name every line that is not valid.
    Check {
        /// JSONL, JSON, Parquet or `.traj`.
        file: PathBuf,
    },
    /// Download a public data set, verify it, and keep it in the cache (`TRBENCH_CACHE`).
    Fetch(FetchArgs),
}

/// Runs `trbench datasets`.
pub fn run(command: &DatasetsCommand) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    match command {
        DatasetsCommand::List => list(&mut out)?,
        DatasetsCommand::Check { file } => {
            let report = survey(file)?;
            print(&report, &mut out)?;
            if !report.is_valid() {
                return Err(report.refusal());
            }
        }
        DatasetsCommand::Fetch(args) => writeln!(out, "{}", download::fetch(args)?.display())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print(report: &Report, out: &mut impl Write) -> anyhow::Result<()> {
    let Report { file, container, kind, stats, .. } = report;
    let kind = kind.map_or("nothing that is known", Kind::label);
    writeln!(out, "{file}: {} ({kind})", container.label())?;
    let repeated = if stats.repeated > 0 { format!(", {} names repeated", stats.repeated) } else { String::new() };
    writeln!(
        out,
        "sessions: {}, requests: {}, with an integer answer: {}{repeated}",
        stats.sessions,
        stats.requests(),
        stats.answers
    )?;
    if stats.ungradable > 0 {
        writeln!(out, "answers that are no integers: {}; these requests are run and not graded", stats.ungradable)?;
    }
    let fields: Vec<_> =
        stats.fields.iter().map(|((purpose, field), count)| format!("{purpose} from `{field}` ({count})")).collect();
    writeln!(out, "fields: {}", if fields.is_empty() { "none".into() } else { fields.join(", ") })?;
    if stats.sessions > 0 {
        let mut table = table(&["", "least", "median", "mean", "most"]);
        table.add_rows(stats.lengths());
        writeln!(out, "{table}")?;
        // Code has about three characters a token, prose about four; only a model's tokenizer knows.
        let most = stats.longest_prompt();
        writeln!(out, "longest prompt: about {} tokens of prose or {} of code", most / 4, most / 3)?;
    }
    Ok(())
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header.to_vec());
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn list(out: &mut impl Write) -> anyhow::Result<()> {
    let mut table = table(&["--workload", "sessions", "requests", "answers", "longest prompt"]);
    for built_in in BuiltIn::ALL {
        let records = records::from_text(built_in.text(), built_in.file()).context("a built-in data set is broken")?;
        let stats = survey_records(built_in.file().into(), records).stats;
        let name = match built_in {
            BuiltIn::AimeStyle => "aime",
            BuiltIn::SweStyle => "swe-smith",
        };
        table.add_row([
            format!("{name} ({})", built_in.file()),
            stats.sessions.to_string(),
            stats.requests().to_string(),
            stats.answers.to_string(),
            format!("{} characters", stats.longest_prompt()),
        ]);
    }
    let given = || "as given".to_owned();
    table.add_row(["random (--input-len)".into(), given(), given(), "0".into(), given()]);
    table.add_row(["custom (--dataset-path)".into(), given(), given(), given(), given()]);
    writeln!(out, "{table}")?;
    for path in download::fetched() {
        writeln!(out, "fetched: {}", path.display())?;
    }
    Ok(())
}
