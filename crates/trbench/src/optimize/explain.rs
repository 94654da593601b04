//! `--explain`: a card of the chain.

use serde::Serialize;
use std::fmt::Write;
use std::time::Instant;
use tokenrouter_dtmc::{Chain, ClosedSystem, SolveOptions, Thresholds, classes, estimate_size, period, solve_chain};

/// Facts about one chain and its solution.
#[derive(Debug, Serialize)]
pub(super) struct Card {
    thresholds: Thresholds,
    estimated_states: f64,
    states: usize,
    nonzeros: usize,
    state_bits: u32,
    bytes: usize,
    communicating_classes: usize,
    recurrent_classes: usize,
    transient_states: usize,
    period: u64,
    method: String,
    iterations: usize,
    residual: f64,
    build_ms: f64,
    solve_ms: f64,
}

pub(super) fn card(system: &ClosedSystem, thresholds: &Thresholds, options: &SolveOptions) -> anyhow::Result<Card> {
    let estimated_states = estimate_size(system, thresholds)?.states;
    let started = Instant::now();
    let chain = Chain::build(system, thresholds, options)?;
    let build_ms = started.elapsed().as_secs_f64() * 1e3;
    let started = Instant::now();
    let solution = solve_chain(system, thresholds, &chain, options)?;
    let solve_ms = started.elapsed().as_secs_f64() * 1e3;
    let found = classes(chain.matrix());
    Ok(Card {
        thresholds: thresholds.clone(),
        estimated_states,
        states: chain.len(),
        nonzeros: chain.matrix().nonzeros(),
        state_bits: chain.state_bits(),
        bytes: chain.bytes(),
        communicating_classes: found.communicating,
        recurrent_classes: found.recurrent.len(),
        transient_states: found.transient,
        period: period(chain.matrix()),
        method: solution.method,
        iterations: solution.iterations,
        residual: solution.residual,
        build_ms,
        solve_ms,
    })
}

impl Card {
    pub(super) fn render(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            // Writing to a string can't fail.
            let _infallible = writeln!(text, "  {name:<22} {value}");
        };
        line("states", format!("{} (estimated before building: {:.0})", self.states, self.estimated_states));
        line("transitions", self.nonzeros.to_string());
        line("memory of the chain", format!("{:.1} MB, {} bits per state", self.bytes as f64 / 1e6, self.state_bits));
        line(
            "classes",
            format!(
                "{} communicating, {} recurrent, {} transient states",
                self.communicating_classes, self.recurrent_classes, self.transient_states
            ),
        );
        line("period", self.period.to_string());
        line("method", format!("`{}`, {} iterations", self.method, self.iterations));
        line("residual", format!("{:.2e}", self.residual));
        line("time", format!("build {:.1} ms, solve {:.1} ms", self.build_ms, self.solve_ms));
        format!("chain of {}\n{text}", self.thresholds)
    }
}
