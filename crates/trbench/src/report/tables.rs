//! `--output table` and `--output md`: speed first, then what was asked and answered, then what the models did.

use serde_json::Value;

use crate::results::{ModelSummary, Summary};
use crate::terminal::{Format, number, plain_table, wrapped};

/// All tables, and notes on their columns. What was measured comes first, what was emulated by itself, and what was emulated
/// in virtual time.
pub(super) fn render(summaries: &[Summary], format: Format) -> String {
    let (emulated, measured): (Vec<_>, Vec<_>) = summaries.iter().cloned().partition(|summary| summary.emulated);
    let (timeless, emulated): (Vec<_>, Vec<_>) = emulated.into_iter().partition(|summary| summary.virtual_time);
    let parts = [measured, emulated, timeless];
    let parts = parts.iter().filter(|part| !part.is_empty()).map(|part| tables(part, format));
    parts.collect::<Vec<_>>().join("\n")
}

const EMULATED: &str = "emulated: latency profiles stand in for the models.";
const EMULATED_VIRTUAL: &str =
    "emulated, virtual time: latency profiles stand in for the models, and a clock that jumps for the machine's.";

fn tables(summaries: &[Summary], format: Format) -> String {
    let models = || summaries.iter().flat_map(|summary| summary.models.iter().map(move |model| (summary, model)));
    let mut parts = Vec::new();
    match summaries.first() {
        Some(summary) if summary.virtual_time => parts.push(EMULATED_VIRTUAL.to_owned()),
        Some(summary) if summary.emulated => parts.push(EMULATED.to_owned()),
        _ => {}
    }
    parts.push(plain_table(&SPEED, summaries.iter().map(|summary| speed(summary, summaries)), format));
    parts.push(plain_table(&REQUESTS, summaries.iter().map(requests), format));
    if models().next().is_some() {
        parts.push(plain_table(&WORK, models().map(|(summary, model)| work(summary, model)), format));
        parts.push(plain_table(&ROUTING, models().map(|(summary, model)| routing(summary, model)), format));
    }
    parts.push(notes(summaries).iter().map(|note| wrapped(note)).collect::<Vec<_>>().join("\n"));
    parts.join("\n\n") + "\n"
}

const SPEED: [&str; 7] = ["system", "tokens/s", "x large alone", "ms per token", "ttft ms", "e2el ms", "large share"];

fn speed(summary: &Summary, all: &[Summary]) -> [String; 7] {
    [
        label(summary),
        with_interval(summary, "output_throughput", 1),
        number(ratio_to_large(summary, all), 2),
        with_interval(summary, "mean_tpot_ms", 1),
        with_interval(summary, "mean_ttft_ms", 1),
        with_interval(summary, "mean_e2el_ms", 1),
        number(summary.llm_ratio, 3),
    ]
}

const REQUESTS: [&str; 11] = [
    "system",
    "thresholds",
    "requests",
    "failed",
    "correct",
    "good req/s",
    "ttft p50",
    "tpot p50",
    "e2el p50",
    "e2el p90",
    "handoffs/token",
];

fn requests(summary: &Summary) -> [String; 11] {
    let graded = summary.graded > 0 && !(is_demo(summary) && summary.correct == 0);
    [
        label(summary),
        thresholds(summary),
        summary.completed.to_string(),
        if summary.failed == 0 { "-".into() } else { summary.failed.to_string() },
        if graded { format!("{}/{}", summary.correct, summary.graded) } else { "-".into() },
        with_interval(summary, "request_goodput", 2),
        number(summary.value("median_ttft_ms"), 1),
        number(summary.value("median_tpot_ms"), 1),
        number(summary.value("median_e2el_ms"), 1),
        number(summary.value("p90_e2el_ms"), 1),
        number(summary.handoffs_per_token, 3),
    ]
}

/// The name of a system, with what must not be overlooked. That it is emulated is said above the tables.
fn label(summary: &Summary) -> String {
    let interrupted = if summary.interrupted { " (interrupted)" } else { "" };
    format!("{}{interrupted}", summary.label)
}

fn thresholds(summary: &Summary) -> String {
    match &summary.server_info["thresholds"] {
        Value::Array(list) if summary.models.len() > 1 => {
            list.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
        }
        Value::String(text) => text.clone(),
        _ => "-".into(),
    }
}

/// A value, and half the width of its interval over trials where there is one.
fn with_interval(summary: &Summary, name: &str, digits: usize) -> String {
    let half = summary.intervals.get(name).map_or_else(String::new, |mean| format!("±{:.digits$}", mean.half()));
    number(summary.value(name), digits) + half.as_str()
}

/// Throughput against that of the large model alone under the same load, where it was measured.
fn ratio_to_large(summary: &Summary, all: &[Summary]) -> Option<f64> {
    let routed = all.iter().find(|other| other.models.len() > 1);
    let alone = |other: &&Summary| {
        let [model] = &other.models[..] else { return false };
        let last = |routed: &Summary| {
            routed.models.iter().enumerate().rfind(|(at, _)| *at != routed.entry).map(|(_, m)| m.name.clone())
        };
        let large = match routed.and_then(last) {
            Some(large) => large == model.name,
            None => other.llm_ratio == Some(1.0),
        };
        large
            && (other.max_concurrency, &other.load, other.emulated, other.virtual_time)
                == (summary.max_concurrency, &summary.load, summary.emulated, summary.virtual_time)
    };
    let large = all.iter().find(alone)?.value("output_throughput").filter(|rate| *rate > 0.0)?;
    Some(summary.value("output_throughput")? / large)
}

const WORK: [&str; 9] =
    ["model", "steps", "batch", "step ms", "kernels %", "overhead %", "idle %", "wait ms", "timeouts"];

fn work(summary: &Summary, model: &ModelSummary) -> [String; 9] {
    let mean_step = (model.steps > 0).then(|| model.busy_s * 1e3 / model.steps as f64);
    let times = [model.busy_s - model.sampling_s, model.sampling_s + model.scheduling_s, model.idle_s];
    let total: f64 = times.iter().sum();
    let [kernels, overhead, idle] = times.map(|time| number((total > 0.0).then(|| 100.0 * time / total), 1));
    [
        format!("{} {}", summary.label, model.name),
        model.steps.to_string(),
        format!("{:.2}", model.mean_batch),
        number(mean_step, 2),
        kernels,
        overhead,
        idle,
        format!("{:.2}", model.buffer_wait_ms),
        if model.launches_timeout == 0 { "-".into() } else { model.launches_timeout.to_string() },
    ]
}

const ROUTING: [&str; 6] = ["model", "P row", "C row", "mean run", "geometric p", "prefix hits"];

fn routing(summary: &Summary, model: &ModelSummary) -> [String; 6] {
    // A system of one model goes nowhere.
    let routed = summary.models.len() > 1;
    let row = |values: &[f64], intervals: &[Option<[f64; 2]>]| {
        if routed { matrix_row(values, intervals) } else { "-".into() }
    };
    [
        format!("{} {}", summary.label, model.name),
        row(&model.p_row, &model.p_interval),
        row(&model.c_row, &model.c_interval),
        number(mean_run(&model.runs), 2),
        model.geometric.as_ref().map_or_else(|| "-".into(), |test| format!("{:.3}", test.p_value)),
        match model.prefix_hits {
            0 => "-".into(),
            hits => format!("{:.0} %", 100.0 * hits as f64 / model.prefix_tokens as f64),
        },
    ]
}

/// A row of a matrix, with the widest half of its intervals where that shows at three digits.
fn matrix_row(values: &[f64], intervals: &[Option<[f64; 2]>]) -> String {
    let row = values.iter().map(|value| format!("{value:.3}")).collect::<Vec<_>>().join(" ");
    let half = intervals.iter().flatten().map(|[low, high]| (high - low) / 2.0).fold(0.0, f64::max);
    if half < 5e-4 { row } else { format!("{row} ±{half:.3}") }
}

fn mean_run(runs: &[u64]) -> Option<f64> {
    let visits: u64 = runs.iter().sum();
    let steps: u64 = runs.iter().zip(0u64..).map(|(count, length)| count * length).sum();
    (visits > 0).then(|| steps as f64 / visits as f64)
}

/// Whether the models are those of the demo pair.
fn is_demo(summary: &Summary) -> bool {
    let models = summary.server_info["models"].as_array();
    models.is_some_and(|models| models.iter().any(|model| model.as_str().is_some_and(|text| text.contains(": demo,"))))
}

fn notes(summaries: &[Summary]) -> Vec<String> {
    let any = |of: &dyn Fn(&Summary) -> bool| summaries.iter().any(of);
    let mut notes = Vec::new();
    if any(&|summary| ratio_to_large(summary, summaries).is_some()) {
        notes.push("x large alone: tokens/s over that of the large model alone under the same load.".into());
    }
    if any(&|summary| !summary.intervals.is_empty()) {
        let trials = summaries.iter().map(|summary| summary.trials.len()).max().unwrap_or_default();
        notes.push(format!("±: 95 % interval of the mean over {trials} trials."));
    }
    notes.extend(answers(summaries));
    notes.push("Medians need 7 requests, p90 44; columns without a value are left out.".into());
    if any(&|summary| !summary.models.is_empty()) {
        notes.push(
            "overhead: choosing tokens, messages, routing, batches; wait: in the buffer, before a step; timeouts: steps \
             that max_wait started."
                .into(),
        );
    }
    if any(&|summary| summary.models.len() > 1) {
        notes.push(
            "P, C: where a request goes after a step, and whether the token stays; mean run: steps per visit; \
             geometric p: chance of such runs if visits were geometric, as the throughput model assumes."
                .into(),
        );
    }
    notes.extend(client(summaries));
    for summary in summaries.iter().filter(|summary| summary.resumed > 0) {
        let (label, count) = (&summary.label, summary.resumed);
        notes.push(format!(
            "{label}: {count} requests were measured before an interruption; its models' columns lack them."
        ));
    }
    notes.extend(
        summaries.iter().find_map(|summary| summary.first_error.as_ref()).map(|error| format!("first error: {error}")),
    );
    notes
}

/// What right and wrong answers mean.
fn answers(summaries: &[Summary]) -> Option<String> {
    let graded: usize = summaries.iter().map(|summary| summary.graded).sum();
    let sum = |of: fn(&Summary) -> usize| summaries.iter().filter(|summary| summary.graded > 0).map(of).sum::<usize>();
    let (correct, cut) = (sum(|summary| summary.correct), sum(|summary| summary.cut));
    let cut = if cut == 0 { String::new() } else { format!(" {cut} answers were cut at --max-tokens.") };
    match graded {
        0 => None,
        _ if correct == 0 && summaries.iter().any(is_demo) => Some(format!(
            "correct: none of {graded} answers, as expected: the demo models have 135 million parameters, these problems \
             are beyond them, and the run shows speed, not quality.{cut}"
        )),
        _ => Some(format!("correct: answers with the right number, of those that were graded.{cut}")),
    }
}

fn client(summaries: &[Summary]) -> Option<String> {
    let busy =
        summaries.iter().filter_map(|summary| summary.client_busy).max_by(f64::total_cmp).filter(|busy| *busy > 0.0)?;
    let lag = summaries.iter().filter_map(|summary| summary.max_client_lag_ms).max_by(f64::total_cmp);
    let lag = lag.map(|lag| format!(", and sent requests at most {lag:.1} ms late")).unwrap_or_default();
    Some(format!("client: busy {:.1} % of the time at most{lag}.", 100.0 * busy))
}
