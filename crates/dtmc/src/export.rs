//! The chain in formats that other tools read, so that they can check it.
//!
//! In every format a state carries two rewards: `tokens`, the expected tokens committed by the event that ends the stay,
//! and `time`, the quanta until then. Throughput is the ratio of their long-run averages, divided by the quantum.

use crate::{Chain, Error, Model};
use serde_json::json;
use std::io::{self, Write};

/// Single-file formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportFormat {
    /// Storm's direct encoding (`.drn`).
    Drn,
    /// Graphviz.
    Dot,
    /// JSON with states and sparse rows.
    Json,
}

/// The files of PRISM's explicit format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PrismFile {
    /// `.tra`: transitions.
    Transitions,
    /// `.sta`: state variables.
    States,
    /// `.lab`: the initial state.
    Labels,
    /// `1.srew`: tokens.
    TokenRewards,
    /// `2.srew`: quanta.
    TimeRewards,
}

impl PrismFile {
    /// Every file, with the suffix to put after a common prefix.
    pub const ALL: [(&'static str, Self); 5] = [
        (".tra", Self::Transitions),
        (".sta", Self::States),
        (".lab", Self::Labels),
        ("1.srew", Self::TokenRewards),
        ("2.srew", Self::TimeRewards),
    ];
}

/// Writes the chain in a single-file format.
///
/// # Errors
/// [`Error::Write`] when the writer fails.
pub fn export(model: &Model, chain: &Chain, format: ExportFormat, out: &mut dyn Write) -> Result<(), Error> {
    let (name, result) = match format {
        ExportFormat::Drn => ("DRN", drn(model, chain, out)),
        ExportFormat::Dot => ("dot", dot(model, chain, out)),
        ExportFormat::Json => ("JSON", json_text(model, chain, out)),
    };
    written(name, result)
}

/// Writes one file of PRISM's explicit format.
///
/// # Errors
/// [`Error::Write`] when the writer fails.
pub fn export_prism(model: &Model, chain: &Chain, file: PrismFile, out: &mut dyn Write) -> Result<(), Error> {
    let result = match file {
        PrismFile::Transitions => transitions(chain, out),
        PrismFile::States => states(model, chain, out),
        PrismFile::Labels => writeln!(out, "0=\"init\" 1=\"deadlock\"\n{}: 0", chain.initial()),
        PrismFile::TokenRewards => rewards("tokens", chain, out, |state| chain.tokens(model, state)),
        PrismFile::TimeRewards => rewards("time", chain, out, |state| f64::from(chain.elapsed(state))),
    };
    written("PRISM", result)
}

fn written(what: &str, result: io::Result<()>) -> Result<(), Error> {
    result.map_err(|error| Error::Write { what: format!("the {what} export"), reason: error.to_string() })
}

/// A probability in the shortest form that reads back the same.
fn number(value: f64) -> String {
    if value != 0.0 && value.abs() < 1e-5 { format!("{value:e}") } else { value.to_string() }
}

/// Columns and probabilities of a row, ascending.
fn sorted_row(chain: &Chain, state: usize) -> Vec<(u32, f64)> {
    let (columns, probs) = chain.matrix().row(state);
    let mut row: Vec<(u32, f64)> = columns.iter().copied().zip(probs.iter().copied()).collect();
    row.sort_unstable_by_key(|&(column, _)| column);
    row
}

fn transitions(chain: &Chain, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{} {}", chain.len(), chain.matrix().nonzeros())?;
    for state in 0..chain.len() {
        for (column, p) in sorted_row(chain, state) {
            writeln!(out, "{state} {column} {}", number(p))?;
        }
    }
    Ok(())
}

fn states(model: &Model, chain: &Chain, out: &mut dyn Write) -> io::Result<()> {
    let counts = |prefix: &'static str| (0..model.routing_states()).map(move |state| format!("{prefix}{state}"));
    let clocks = (0..model.models()).map(|index| format!("t{index}"));
    let names: Vec<String> = counts("w").chain(counts("r")).chain(clocks).collect();
    writeln!(out, "({})", names.join(","))?;
    for state in 0..chain.len() {
        let view = chain.state(state);
        let values: Vec<String> =
            view.waiting.iter().chain(&view.running).chain(&view.remaining).map(u32::to_string).collect();
        writeln!(out, "{state}:({})", values.join(","))?;
    }
    Ok(())
}

fn rewards(name: &str, chain: &Chain, out: &mut dyn Write, reward: impl Fn(usize) -> f64) -> io::Result<()> {
    let values: Vec<(usize, f64)> =
        (0..chain.len()).map(|state| (state, reward(state))).filter(|&(_, value)| value != 0.0).collect();
    writeln!(out, "# Reward structure: \"{name}\"\n# State rewards\n{} {}", chain.len(), values.len())?;
    values.iter().try_for_each(|&(state, value)| writeln!(out, "{state} {}", number(value)))
}

fn drn(model: &Model, chain: &Chain, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "@type: DTMC\n@parameters\n\n@reward_models\ntokens time\n@nr_states\n{0}\n@nr_choices\n{0}\n@model",
        chain.len()
    )?;
    for state in 0..chain.len() {
        let init = if state == chain.initial() { " init" } else { "" };
        writeln!(out, "state {state} [{}, {}]{init}", number(chain.tokens(model, state)), chain.elapsed(state))?;
        writeln!(out, "\taction 0")?;
        for (column, p) in sorted_row(chain, state) {
            writeln!(out, "\t\t{column} : {}", number(p))?;
        }
    }
    Ok(())
}

fn dot(model: &Model, chain: &Chain, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "digraph chain {{\n  node [shape=box, fontname=monospace];")?;
    for state in 0..chain.len() {
        let view = chain.state(state);
        let (elapsed, tokens) = (chain.elapsed(state), chain.tokens(model, state));
        writeln!(
            out,
            "  s{state} [label=\"w {:?} r {:?}\\nt {:?}\\n{elapsed} quanta, {tokens:.4} tokens\"];",
            view.waiting, view.running, view.remaining
        )?;
        for (column, p) in sorted_row(chain, state) {
            writeln!(out, "  s{state} -> s{column} [label=\"{p:.4}\"];")?;
        }
    }
    writeln!(out, "}}")
}

fn json_text(model: &Model, chain: &Chain, out: &mut dyn Write) -> io::Result<()> {
    let header = json!({"states": chain.len(), "nonzeros": chain.matrix().nonzeros(), "initial": chain.initial(),
        "quantum_ms": model.quantum_ms()});
    let header = header.to_string();
    writeln!(out, "{},\"chain\":[", header.trim_end_matches('}'))?;
    for state in 0..chain.len() {
        let view = chain.state(state);
        let line = json!({"id": state, "waiting": view.waiting, "running": view.running, "remaining": view.remaining,
            "quanta": chain.elapsed(state), "tokens": chain.tokens(model, state), "row": sorted_row(chain, state)});
        writeln!(out, "{line}{}", if state + 1 < chain.len() { "," } else { "" })?;
    }
    writeln!(out, "]}}")
}
