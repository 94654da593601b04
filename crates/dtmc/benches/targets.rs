//! Prints a table of the crate's performance targets: time and peak memory, each case in a process of its own.
//!
//! `cargo bench -p tokenrouter-dtmc --bench targets [-- NAME]` runs all cases, or those whose name contains `NAME`.

mod systems;

use std::io::{self, Write};
use std::process::Command;
use std::time::Instant;
use systems::{three, two};
use tokenrouter_dtmc::{
    ClosedSystem, SearchOptions, SolveOptions, Strategy, Thresholds, certify, optimize, solve, threshold_table,
};

/// Variable that tells a child process which case to run.
const CASE: &str = "DTMC_BENCH_CASE";

struct Case {
    name: &'static str,
    target: &'static str,
    run: fn() -> String,
}

const CASES: [Case; 9] = [
    Case { name: "search M=2 N=16, 136 vectors", target: "0.1 s", run: || search(&two(16), Strategy::Auto) },
    Case { name: "search M=2 N=64, 2080 vectors", target: "15 s", run: || search(&two(64), Strategy::Auto) },
    Case { name: "search M=2 N=64, all exact", target: "-", run: || search(&two(64), Strategy::Exhaustive) },
    Case { name: "solve M=3 N=4, 658 298 states", target: "1.0 s, 300 MB", run: || one(&three(4, 0.1)) },
    Case { name: "solve M=3 N=6, 3 544 213 states", target: "not killed", run: || one(&three(6, 0.1)) },
    Case { name: "search M=3 N=16, 816 vectors", target: "60 s", run: || search(&three(16, 0.1), Strategy::Auto) },
    Case { name: "table n = 1..16, M=2", target: "-", run: || table(&two(16)) },
    Case { name: "certify M=2 N=8", target: "-", run: || certificate(&two(8), Thresholds::new([1, 7])) },
    Case { name: "certify M=2 N=16", target: "-", run: || certificate(&two(16), Thresholds::new([1, 13])) },
];

fn search(system: &ClosedSystem, strategy: Strategy) -> String {
    let found = optimize(system, &SearchOptions { strategy, ..SearchOptions::default() }).expect("solvable");
    let best = &found.best;
    let width = if best.half_width() > 0.0 { format!(" ± {:.2}", best.half_width()) } else { String::new() };
    format!("{} {:.4}{width}, {:?}", best.thresholds(), best.throughput_tok_s(), found.strategy)
}

fn one(system: &ClosedSystem) -> String {
    match solve(system, &Thresholds::eager(system.models()), &SolveOptions::default()) {
        Ok(s) => {
            format!("{:.10}, {} `{}` sweeps, residual {:.0e}", s.throughput_tok_s(), s.iterations, s.method, s.residual)
        }
        Err(error) => format!("refused: {error}"),
    }
}

fn table(system: &ClosedSystem) -> String {
    let rows = threshold_table(system, &SearchOptions::default()).expect("solvable");
    format!("{} rows, last {}", rows.len(), rows[rows.len() - 1])
}

fn certificate(system: &ClosedSystem, thresholds: Thresholds) -> String {
    let c = certify(system, &thresholds, &SolveOptions::default()).expect("solvable");
    format!("{:.4} to {:.4}, {} states", c.policy_tok_s, c.upper_bound_tok_s, c.states)
}

/// Peak resident memory of this process in MB, where the system tells.
fn peak_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
}

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    if let Some(index) = std::env::var(CASE).ok().and_then(|text| text.parse::<usize>().ok()) {
        let started = Instant::now();
        let answer = (CASES[index].run)();
        let seconds = started.elapsed().as_secs_f64();
        let memory = peak_mb().map_or_else(|| "?".to_owned(), |mb| format!("{mb:.0} MB"));
        return writeln!(out, "{seconds:>9.3} s  {memory:>8}  {answer}");
    }
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    writeln!(out, "{:<33} {:<14} {:>11}  {:>8}  answer", "case", "target", "time", "peak")?;
    for (index, case) in CASES.iter().enumerate() {
        if wanted.as_ref().is_some_and(|name| !case.name.contains(name.as_str())) {
            continue;
        }
        let child = Command::new(std::env::current_exe()?).env(CASE, index.to_string()).output()?;
        let line = String::from_utf8_lossy(&child.stdout);
        let line = if child.status.success() { line.trim_end() } else { "failed" };
        writeln!(out, "{:<33} {:<14} {line}", case.name, case.target)?;
        out.flush()?;
    }
    Ok(())
}
