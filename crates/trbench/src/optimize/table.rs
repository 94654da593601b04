//! The default output: a short table, best first.

use super::args::OptimizeArgs;
use super::tasks::Answers;
use comfy_table::LineStyle;
use comfy_table::{CellAlignment, ContentArrangement, Table, TableStyle};
use std::fmt::Write;
use tokenrouter_dtmc::{Certificate, ClosedSystem, Departure, Prediction, QuantumStudy, Spread, TableRow};

/// Widest bar, in characters.
const BAR: usize = 20;
/// Departures of the best policy shown.
const DEPARTURES: usize = 8;

/// Everything as text.
pub(super) fn render(args: &OptimizeArgs, answers: &Answers) -> String {
    let mut sections = vec![headline(answers), candidates(args, answers), models(answers.best())];
    if let Some(spreads) = &answers.spreads {
        sections.push(uncertainty(args, spreads));
    }
    if let Some(certificate) = &answers.certificate {
        sections.push(certificate_text(&answers.system, certificate, answers.best()));
    }
    if let Some(study) = &answers.study {
        sections.push(study_text(study));
    }
    if let Some(rows) = &answers.table {
        sections.push(active_table(rows));
    }
    if let (Some(row), Some(bound)) = (&answers.within_latency, args.max_time_per_token_ms) {
        sections.push(format!(
            "within {bound} ms per token: {} active requests with {}: {:.4} tok/s, {:.4} ms per token\n",
            row.active,
            row.best.thresholds(),
            row.best.throughput_tok_s(),
            row.best.measures().time_per_token_ms
        ));
    }
    if let Some(card) = &answers.card {
        sections.push(card.render());
    }
    if !answers.notes.is_empty() {
        sections.push(answers.notes.iter().map(|note| format!("note: {note}\n")).collect());
    }
    sections.join("\n")
}

fn headline(answers: &Answers) -> String {
    let best = answers.best();
    let mut text = format!(
        "{} {}: {} tok/s, {:.3} ms per token\n",
        if answers.search.is_some() { "best thresholds" } else { "thresholds" },
        best.thresholds(),
        throughput(best),
        best.measures().time_per_token_ms
    );
    if let Some(found) = &answers.search {
        let strategy = serde_json::to_value(found.strategy).ok();
        let ties = match found.near_ties {
            0 | 1 => "no near-ties".to_owned(),
            ties => format!("{ties} vectors within the near-tie band"),
        };
        // Writing to a string can't fail.
        let _infallible = writeln!(
            text,
            "{} of {} feasible vectors evaluated ({}), {ties}",
            found.evaluated,
            found.feasible,
            strategy.as_ref().and_then(|name| name.as_str()).unwrap_or("search")
        );
        if let Some(line) = sparkline(&answers.candidates) {
            text.push_str(&line);
        }
    }
    text
}

fn throughput(candidate: &Prediction) -> String {
    match candidate.solution() {
        Some(_) => format!("{:.4}", candidate.throughput_tok_s()),
        None => format!("{:.2} ± {:.2}", candidate.throughput_tok_s(), candidate.half_width()),
    }
}

fn bar(share: f64) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share.clamp(0.0, 1.0) * (BAR * 8) as f64).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), PARTS[eighths % 8])
}

/// Throughput over the last threshold, the others at their best, from 1 upwards.
fn sparkline(candidates: &[Prediction]) -> Option<String> {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let last = candidates.first()?.thresholds().as_slice().len() - 1;
    let mut best: Vec<f64> = Vec::new();
    for candidate in candidates {
        let at = candidate.thresholds().as_slice()[last] as usize;
        if best.len() < at {
            best.resize(at, f64::NAN);
        }
        best[at - 1] = best[at - 1].max(candidate.throughput_tok_s());
    }
    if best.len() < 2 || best.len() > 100 || best.iter().any(|value| value.is_nan()) {
        return None;
    }
    let (low, high) = best.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), &v| (low.min(v), high.max(v)));
    let level = |value: f64| if high > low { ((value - low) / (high - low) * 7.0).round() as usize } else { 7 };
    let line: String = best.iter().map(|&value| LEVELS[level(value)]).collect();
    Some(format!("over B_{last} = 1..{}, others at their best: {line}  {low:.1} to {high:.1} tok/s\n", best.len()))
}

fn new_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    let rule = LineStyle::none().fill('─').junction('─');
    table.load_style(TableStyle::new().header_separator(rule)).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    table
}

fn finish(mut table: Table, text_columns: &[usize]) -> String {
    for (index, column) in table.column_iter_mut().enumerate() {
        if !text_columns.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!("{table}\n")
}

fn candidates(args: &OptimizeArgs, answers: &Answers) -> String {
    let top = answers.best().throughput_tok_s();
    let mut table = new_table(&["thresholds", "tok/s", "vs best", "", "ms/token", "longest wait ms", "states", "by"]);
    for candidate in answers.candidates.iter().take(args.top.max(1)) {
        let share = candidate.throughput_tok_s() / top;
        let (states, by) = match candidate.solution() {
            Some(solution) => (solution.states.to_string(), "exact"),
            None => ("-".to_owned(), "simulation"),
        };
        table.add_row([
            candidate.thresholds().to_string(),
            throughput(candidate),
            format!("{:+.2} %", 100.0 * (share - 1.0)),
            bar(share),
            format!("{:.3}", candidate.measures().time_per_token_ms),
            format!("{:.2}", candidate.longest_wait_ms()),
            states,
            by.to_owned(),
        ]);
    }
    let hidden = answers.candidates.len().saturating_sub(args.top.max(1));
    let more = if hidden > 0 {
        format!("... and {hidden} more; `--top` or `--output json` show them\n")
    } else {
        String::new()
    };
    finish(table, &[0, 3, 7]) + more.as_str()
}

fn models(best: &Prediction) -> String {
    let mut table = new_table(&[
        "model",
        "utilisation",
        "mean batch",
        "batches/s",
        "steps/s",
        "mean wait ms",
        "tok/s",
        "token share",
    ]);
    for (index, model) in best.measures().models.iter().enumerate() {
        table.add_row([
            index.to_string(),
            format!("{:.2} %", 100.0 * model.utilisation),
            format!("{:.3}", model.mean_batch),
            format!("{:.2}", model.batches_per_s),
            format!("{:.2}", model.steps_per_s),
            format!("{:.3}", model.mean_wait_ms),
            format!("{:.2}", model.tokens_per_s),
            format!("{:.2} %", 100.0 * model.token_share),
        ]);
    }
    format!("per model under {}\n{}", best.thresholds(), finish(table, &[0]))
}

fn uncertainty(args: &OptimizeArgs, spreads: &[Spread]) -> String {
    let mut table = new_table(&["thresholds", "predicted", "interval", "difference to the first", "best in", ""]);
    for (index, spread) in spreads.iter().enumerate() {
        let verdict = match (index, spread.distinguishable) {
            (0, _) => "",
            (_, true) => "told apart",
            (_, false) => "cannot be told apart",
        };
        table.add_row([
            spread.thresholds.to_string(),
            format!("{:.2}", spread.nominal_tok_s),
            format!("{:.2} to {:.2}", spread.low_tok_s, spread.high_tok_s),
            format!("{:+.2} to {:+.2}", spread.difference_low, spread.difference_high),
            format!("{:.0} %", 100.0 * spread.best_share),
            verdict.to_owned(),
        ]);
    }
    let title =
        format!("prediction intervals at {} % from measured P and L, {} draws\n", 100.0 * args.confidence, args.draws);
    title + finish(table, &[0, 5]).as_str()
}

fn certificate_text(system: &ClosedSystem, certificate: &Certificate, best: &Prediction) -> String {
    let mut text = format!(
        "best launch policy of any kind: {:.4} tok/s (no policy above {:.4}); {} is {:.2} % below\n\
         {} decision states, {} actions, {} rounds; it departs from the thresholds in {:.2} % of decisions\n",
        certificate.policy_tok_s,
        certificate.upper_bound_tok_s,
        best.thresholds(),
        100.0 * (1.0 - best.throughput_tok_s() / certificate.upper_bound_tok_s),
        certificate.states,
        certificate.actions,
        certificate.rounds,
        100.0 * certificate.departure_share
    );
    if certificate.departures.is_empty() {
        return text;
    }
    let mut table = new_table(&["share", "waiting", "running, ms left", "thresholds", "best policy"]);
    for departure in certificate.departures.iter().take(DEPARTURES) {
        table.add_row([
            format!("{:.2} %", 100.0 * departure.share),
            format!("{:?}", departure.state.waiting),
            running(system, departure),
            decision(&departure.thresholds_launch),
            decision(&departure.policy_launches),
        ]);
    }
    text += &finish(table, &[1, 2, 3, 4]);
    text
}

fn running(system: &ClosedSystem, departure: &Departure) -> String {
    let view = &departure.state;
    let parts: Vec<String> = (0..system.models())
        .filter(|&index| view.remaining[index] > 0)
        .map(|index| {
            let size: u32 = (0..system.routing_states())
                .filter(|&s| system.state_models()[s] == index)
                .map(|s| view.running[s])
                .sum();
            format!("model {index}: {size}, {:.1}", f64::from(view.remaining[index]) * system.quantum_ms())
        })
        .collect();
    if parts.is_empty() { "nothing".to_owned() } else { parts.join("; ") }
}

fn decision(launches: &[usize]) -> String {
    if launches.is_empty() {
        return "wait".to_owned();
    }
    format!("launch {}", launches.iter().map(usize::to_string).collect::<Vec<_>>().join(" and "))
}

fn study_text(study: &QuantumStudy) -> String {
    let mut table = new_table(&["quantum ms", "tok/s", "change", "states"]);
    for row in &study.rows {
        table.add_row([
            format!("{}", row.quantum_ms),
            format!("{:.6}", row.solution.throughput_tok_s()),
            row.relative_change.map_or_else(String::new, |change| format!("{change:+.2e}")),
            row.solution.states.to_string(),
        ]);
    }
    let verdict = match &study.stopped {
        None => "the answer has settled".to_owned(),
        Some(reason) => format!("the answer has not settled: {reason}"),
    };
    format!("halving the quantum: {verdict}\n{}", finish(table, &[]))
}

fn active_table(rows: &[TableRow]) -> String {
    let mut table = new_table(&["active n", "thresholds", "tok/s", "ms/token", "search"]);
    for row in rows {
        table.add_row([
            row.active.to_string(),
            row.best.thresholds().to_string(),
            throughput(&row.best),
            format!("{:.3}", row.best.measures().time_per_token_ms),
            if row.exhaustive { "every vector" } else { "hill climbing" }.to_owned(),
        ]);
    }
    format!("best thresholds by active requests\n{}", finish(table, &[1, 4]))
}
