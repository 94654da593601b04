//! Exports read back by small independent parsers: the same throughput must come out.

use crate::support::{close, three, throughput, two};
use tokenrouter_dtmc::{
    Chain, ClosedSystem, ExportFormat, Method, PrismFile, SolveOptions, Thresholds, Tolerance, TransitionMatrix,
    export, export_prism,
};

fn chain(system: &ClosedSystem, thresholds: &[u32]) -> Chain {
    Chain::build(system, &Thresholds::new(thresholds), &SolveOptions::default()).expect("small")
}

fn written(system: &ClosedSystem, chain: &Chain, format: ExportFormat) -> String {
    let mut bytes = Vec::new();
    export(system, chain, format, &mut bytes).expect("in memory");
    String::from_utf8(bytes).expect("text")
}

/// Throughput from rows and the two rewards.
fn rate(rows: &[Vec<(u32, f64)>], tokens: &[f64], time: &[f64], quantum_ms: f64) -> f64 {
    let matrix = TransitionMatrix::from_rows(rows).expect("stochastic");
    let pi = Method::Gth.solver(rows.len()).solve(&matrix, Tolerance::default()).expect("irreducible").pi;
    let mean = |reward: &[f64]| pi.iter().zip(reward).map(|(p, r)| p * r).sum::<f64>();
    1000.0 * mean(tokens) / (mean(time) * quantum_ms)
}

#[test]
fn drn_reads_back() {
    let system = two(4, 0.65, 0.1);
    let text = written(&system, &chain(&system, &[1, 1]), ExportFormat::Drn);
    let (mut rows, mut tokens, mut time) = (Vec::new(), Vec::new(), Vec::new());
    for line in text.split("@model\n").nth(1).expect("a body").lines() {
        if let Some(rest) = line.strip_prefix("state ") {
            let rewards = rest.split_once('[').and_then(|(_, r)| r.split_once(']')).expect("rewards").0;
            let (a, b) = rewards.split_once(", ").expect("two rewards");
            tokens.push(a.parse::<f64>().expect("a number"));
            time.push(b.parse::<f64>().expect("a number"));
            rows.push(Vec::new());
        } else if let Some((to, p)) = line.trim().split_once(" : ") {
            rows.last_mut()
                .expect("a state")
                .push((to.parse::<u32>().expect("a state"), p.parse::<f64>().expect("a number")));
        }
    }
    assert_eq!(rows.len(), 715);
    assert_eq!(text.matches(" init").count(), 1);
    assert!(close(rate(&rows, &tokens, &time, 0.1), throughput(&system, &[1, 1]), 1e-10));
}

#[test]
fn prism_files_read_back() {
    let system = three(2, 0.5);
    let chain = chain(&system, &[1, 1, 1]);
    let file = |file: PrismFile| {
        let mut bytes = Vec::new();
        export_prism(&system, &chain, file, &mut bytes).expect("in memory");
        String::from_utf8(bytes).expect("text")
    };
    let transitions = file(PrismFile::Transitions);
    let mut lines = transitions.lines();
    assert_eq!(lines.next(), Some(format!("{} {}", chain.len(), chain.matrix().nonzeros()).as_str()));
    let mut rows = vec![Vec::new(); chain.len()];
    for line in lines {
        let fields: Vec<&str> = line.split(' ').collect();
        rows[fields[0].parse::<usize>().expect("a state")]
            .push((fields[1].parse().expect("a state"), fields[2].parse().expect("a number")));
    }
    let rewards = |which: PrismFile| {
        let mut values = vec![0.0; chain.len()];
        for line in file(which).lines().skip(3) {
            let (state, value) = line.split_once(' ').expect("two fields");
            values[state.parse::<usize>().expect("a state")] = value.parse().expect("a number");
        }
        values
    };
    let (tokens, time) = (rewards(PrismFile::TokenRewards), rewards(PrismFile::TimeRewards));
    assert!(close(rate(&rows, &tokens, &time, 0.5), throughput(&system, &[1, 1, 1]), 1e-10));
    assert_eq!(file(PrismFile::States).lines().count(), chain.len() + 1);
    assert!(file(PrismFile::Labels).starts_with("0=\"init\" 1=\"deadlock\"\n"));
}

#[test]
fn json_and_dot_are_well_formed() {
    let system = two(8, 0.65, 0.1);
    let chain = chain(&system, &[1, 7]);
    let value: serde_json::Value =
        serde_json::from_str(&written(&system, &chain, ExportFormat::Json)).expect("valid JSON");
    assert_eq!((value["states"].as_u64(), value["nonzeros"].as_u64()), (Some(18), Some(58)));
    let states = value["chain"].as_array().expect("a list");
    let column = |name: &str| states.iter().map(|s| s[name].as_f64().expect("a number")).collect::<Vec<_>>();
    let rows: Vec<Vec<(u32, f64)>> =
        states.iter().map(|s| serde_json::from_value(s["row"].clone()).expect("a row")).collect();
    assert!(close(rate(&rows, &column("tokens"), &column("quanta"), 0.1), 281.8128134192, 1e-10));
    let dot = written(&system, &chain, ExportFormat::Dot);
    assert!(dot.starts_with("digraph") && dot.trim_end().ends_with('}'));
    assert_eq!(dot.matches(" -> ").count(), 58);
}
