//! The chain in formats that other tools read, so that they can check it.
//!
//! In every format a state carries two rewards: `tokens`, the expected tokens committed by the event that ends the stay,
//! and `time`, the quanta until then. Throughput is the ratio of their long-run averages, divided by the quantum.

use crate::{Chain, ClosedSystem, Error, StateView};
use serde::{Serialize, Serializer};
use serde_json::ser::Formatter;
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
pub fn export(system: &ClosedSystem, chain: &Chain, format: ExportFormat, out: &mut dyn Write) -> Result<(), Error> {
    let (name, result) = match format {
        ExportFormat::Drn => ("DRN", drn(system, chain, out)),
        ExportFormat::Dot => ("dot", dot(system, chain, out)),
        ExportFormat::Json => ("JSON", json_text(system, chain, out)),
    };
    written(name, result)
}

/// Writes one file of PRISM's explicit format.
///
/// # Errors
/// [`Error::Write`] when the writer fails.
pub fn export_prism(system: &ClosedSystem, chain: &Chain, file: PrismFile, out: &mut dyn Write) -> Result<(), Error> {
    let result = match file {
        PrismFile::Transitions => transitions(chain, out),
        PrismFile::States => states(system, chain, out),
        PrismFile::Labels => writeln!(out, "0=\"init\" 1=\"deadlock\"\n{}: 0", chain.initial()),
        PrismFile::TokenRewards => rewards("tokens", chain, out, |state| chain.tokens(system, state)),
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

fn states(system: &ClosedSystem, chain: &Chain, out: &mut dyn Write) -> io::Result<()> {
    let counts = |prefix: &'static str| (0..system.routing_states()).map(move |state| format!("{prefix}{state}"));
    let clocks = (0..system.models()).map(|index| format!("t{index}"));
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

fn drn(system: &ClosedSystem, chain: &Chain, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "@type: DTMC\n@parameters\n\n@reward_models\ntokens time\n@nr_states\n{0}\n@nr_choices\n{0}\n@model",
        chain.len()
    )?;
    for state in 0..chain.len() {
        let init = if state == chain.initial() { " init" } else { "" };
        writeln!(out, "state {state} [{}, {}]{init}", number(chain.tokens(system, state)), chain.elapsed(state))?;
        writeln!(out, "\taction 0")?;
        for (column, p) in sorted_row(chain, state) {
            writeln!(out, "\t\t{column} : {}", number(p))?;
        }
    }
    Ok(())
}

fn dot(system: &ClosedSystem, chain: &Chain, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "digraph chain {{\n  node [shape=box, fontname=monospace];")?;
    for state in 0..chain.len() {
        let view = chain.state(state);
        let (elapsed, tokens) = (chain.elapsed(state), chain.tokens(system, state));
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

/// The JSON export: the header's keys and `chain`, a list with an object for every state.
#[derive(Serialize)]
struct Document<'a> {
    states: usize,
    nonzeros: usize,
    initial: usize,
    quantum_ms: f64,
    #[serde(serialize_with = "each_state")]
    chain: ExportedChain<'a>,
}

struct ExportedChain<'a> {
    system: &'a ClosedSystem,
    chain: &'a Chain,
}

#[derive(Serialize)]
struct ExportedState {
    id: usize,
    waiting: Vec<u32>,
    running: Vec<u32>,
    remaining: Vec<u32>,
    quanta: u32,
    tokens: f64,
    row: Vec<(u32, f64)>,
}

/// Writes state after state, without a copy of the chain.
fn each_state<S: Serializer>(exported: &ExportedChain<'_>, serializer: S) -> Result<S::Ok, S::Error> {
    let ExportedChain { system, chain } = exported;
    serializer.collect_seq((0..chain.len()).map(|id| {
        let StateView { waiting, running, remaining } = chain.state(id);
        let (quanta, tokens) = (chain.elapsed(id), chain.tokens(system, id));
        ExportedState { id, waiting, running, remaining, quanta, tokens, row: sorted_row(chain, id) }
    }))
}

/// Compact JSON with a line for every object within the document.
#[derive(Default)]
struct LinePerState {
    depth: usize,
}

impl Formatter for LinePerState {
    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth += 1;
        writer.write_all(if self.depth > 1 { b"\n{" } else { b"{" })
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth -= 1;
        writer.write_all(b"}")
    }
}

fn json_text(system: &ClosedSystem, chain: &Chain, out: &mut dyn Write) -> io::Result<()> {
    let document = Document {
        states: chain.len(),
        nonzeros: chain.matrix().nonzeros(),
        initial: chain.initial(),
        quantum_ms: system.quantum_ms(),
        chain: ExportedChain { system, chain },
    };
    document.serialize(&mut serde_json::Serializer::with_formatter(&mut *out, LinePerState::default()))?;
    writeln!(out)
}
