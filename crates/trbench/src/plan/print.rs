//! The plan as JSON, CSV, tables and Markdown.

use super::answer::{Answer, Plan};
use super::args::PlanArgs;
use super::evaluate::{Source, Times};
use super::objective::Objective;
use crate::terminal::{Format, number, wrapped};
use tokenrouter_dtmc::serving::OpenLoop;

pub(super) fn render(args: &PlanArgs, plan: &Plan) -> anyhow::Result<String> {
    Ok(match args.output {
        Format::Json => serde_json::to_string_pretty(plan)? + "\n",
        Format::Csv if plan.curve.is_empty() || args.curve.is_none() => csv(plan)?,
        Format::Csv => curve_csv(&plan.curve)?,
        format => text(args, plan, format),
    })
}

const NAMES: [&str; 4] = ["ttft_ms", "tpot_ms", "wait_ms", "e2e_ms"];

fn times(answer: &Answer) -> [Option<&Times>; 4] {
    [&answer.ttft_ms, &answer.tpot_ms, &answer.wait_ms, &answer.e2e_ms].map(Option::as_ref)
}

/// A line for the routed system and for each to compare with.
fn csv(plan: &Plan) -> anyhow::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let mut header: Vec<String> =
        ["system", "stable", "rate_per_s", "max_rate_per_s", "load", "nmax", "replicas", "active", "queued"]
            .map(str::to_owned)
            .to_vec();
    for name in NAMES {
        header.extend(["mean", "p50", "p90", "p99"].map(|part| format!("{name}_{part}")));
    }
    header.extend(["cost_per_million_tokens", "cost_per_million_tokens_at_limit"].map(str::to_owned));
    writer.write_record(&header)?;
    for (name, answer) in lines(plan) {
        let text = |value: Option<f64>| value.map_or_else(String::new, plain);
        let mut row = vec![
            name.to_owned(),
            answer.stable.to_string(),
            answer.rate_per_s.to_string(),
            answer.max_rate_per_s.to_string(),
            answer.load.to_string(),
            plan.nmax.to_string(),
            plan.replicas.to_string(),
            text(answer.active),
            text(answer.queued),
        ];
        for one in times(answer) {
            let value = one.map(|one| one.value);
            row.extend(
                [
                    value.and_then(|v| v.mean),
                    value.and_then(|v| v.p50),
                    value.and_then(|v| v.p90),
                    value.and_then(|v| v.p99),
                ]
                .map(text),
            );
        }
        row.extend([answer.cost_per_million_tokens, answer.cost_per_million_tokens_at_limit].map(text));
        writer.write_record(&row)?;
    }
    finished(writer)
}

fn curve_csv(curve: &[OpenLoop]) -> anyhow::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record([
        "rate_per_replica_per_s",
        "load",
        "active",
        "queued",
        "wait_ms",
        "ttft_ms",
        "tpot_ms",
        "e2e_ms",
    ])?;
    for one in curve {
        let values = [
            Some(one.rate_per_s),
            Some(one.load),
            Some(one.active),
            Some(one.queued),
            Some(one.wait_ms),
            Some(one.ttft_ms),
            one.tpot_ms,
            Some(one.e2e_ms),
        ];
        writer.write_record(values.map(|value| value.map_or_else(String::new, plain)))?;
    }
    finished(writer)
}

pub(super) fn finished(writer: csv::Writer<Vec<u8>>) -> anyhow::Result<String> {
    Ok(String::from_utf8(writer.into_inner().map_err(|error| anyhow::anyhow!("{error}"))?)?)
}

fn lines(plan: &Plan) -> [(&'static str, &Answer); 3] {
    [
        ("routed", &plan.answer),
        ("single_large", &plan.single_large.answer),
        ("whole_request", &plan.whole_request.answer),
    ]
}

fn text(args: &PlanArgs, plan: &Plan, format: Format) -> String {
    let mut sections = vec![headline(plan)];
    if plan.answer.stable {
        sections.push(times_table(&plan.answer, format));
    }
    sections.extend(plan.slo.as_ref().map(|slo| objectives(slo, format)));
    if !plan.answer.replicas_needed.is_empty() {
        let why = if plan.slo.is_some() { "for the objectives" } else { "for a load of at most 80 %" };
        let all: Vec<String> = plan
            .answer
            .replicas_needed
            .iter()
            .map(|one| {
                format!("{} {}", one.replicas.map_or_else(|| "-".to_owned(), |count| count.to_string()), one.balancer)
            })
            .collect();
        sections.push(format!("replicas {why}: {}\n", all.join(", ")));
    }
    sections.push(compared(plan, format));
    sections.push(active_table(plan, format));
    if let Some(margin) = &plan.margin {
        sections.push(format!(
            "limit from measured P and L: {:.4} to {:.4} requests per second ({} %)\n",
            margin.max_rate_low_per_s,
            margin.max_rate_high_per_s,
            100.0 * margin.confidence
        ));
    }
    if !plan.answer.agreement.is_empty() {
        let rows = plan.answer.agreement.iter().map(|one| {
            [
                one.what.to_owned(),
                number(Some(one.analytic), 3),
                number(Some(one.simulated), 3),
                number(Some(one.half_width), 3),
            ]
        });
        sections.push(format!(
            "formula and simulation\n{}",
            plain_table(&["mean", "formula", "simulated", "±"], rows, format)
        ));
    }
    if args.curve.is_some() {
        let rows = plan.curve.iter().map(|one| {
            [
                number(Some(one.rate_per_s), 4),
                number(Some(one.load), 3),
                number(Some(one.wait_ms), 2),
                number(Some(one.ttft_ms), 2),
                number(one.tpot_ms, 3),
                number(Some(one.e2e_ms), 2),
            ]
        });
        sections.push(plain_table(
            &["rate of a replica", "load", "wait ms", "ttft ms", "tpot ms", "e2e ms"],
            rows,
            format,
        ));
    }
    if !plan.notes.is_empty() {
        sections.push(plan.notes.iter().map(|note| wrapped(&format!("note: {note}")) + "\n").collect());
    }
    sections.join("\n")
}

/// The objectives, and what would meet them.
fn objectives(slo: &Objective, format: Format) -> String {
    let rows = slo.limits.iter().map(|limit| {
        [
            limit.name.to_owned(),
            number(Some(limit.limit_ms), 3),
            number(limit.at_percentile_ms, 3),
            if limit.met { "met" } else { "missed" }.to_owned(),
        ]
    });
    let mut text = format!("objectives at p{}\n", slo.percentile);
    text += &plain_table(&["", "limit ms", "predicted ms", ""], rows, format);
    if let (Some(rate), None) = (slo.max_rate_per_replica_per_s, &slo.advice) {
        text += &format!("a replica meets them up to {rate:.4} requests per second\n");
    }
    if let Some(advice) = &slo.advice {
        text += &format!("{}\n", wrapped(advice));
    }
    text
}

fn headline(plan: &Plan) -> String {
    let answer = &plan.answer;
    let state = if answer.stable {
        format!("load {:.1} %", 100.0 * answer.load)
    } else {
        "NOT STABLE: the queue grows without bound".to_owned()
    };
    format!(
        "{:.4} requests per second on {} replica(s) ({}), at most {} active each: {state}\n\
         they hold up to {:.4} requests per second, {:.2} tok/s\n",
        answer.rate_per_s, plan.replicas, plan.balancer, plan.nmax, answer.max_rate_per_s, answer.max_tok_s
    )
}

fn times_table(answer: &Answer, format: Format) -> String {
    let rows = NAMES.iter().zip(times(answer)).map(|(name, one)| {
        let cell = |value: Option<f64>| number(value, 2);
        let value = one.map(|one| one.value);
        let method = one.map_or("-", |one| match one.method.mean {
            Source::Analytic => "formula",
            Source::Simulated => "simulated",
        });
        [
            (*name).to_owned(),
            cell(value.and_then(|v| v.mean)),
            method.to_owned(),
            cell(value.and_then(|v| v.p50)),
            cell(value.and_then(|v| v.p90)),
            cell(value.and_then(|v| v.p99)),
        ]
    });
    plain_table(&["", "mean", "mean by", "p50", "p90", "p99"], rows, format)
}

fn compared(plan: &Plan, format: Format) -> String {
    let rows = lines(plan).into_iter().map(|(name, answer)| {
        let mean = |times: &Option<Times>| number(times.as_ref().and_then(|one| one.value.mean), 2);
        let needed = answer.replicas_needed.first().and_then(|one| one.replicas);
        [
            name.to_owned(),
            number(Some(answer.max_rate_per_s), 4),
            mean(&answer.ttft_ms),
            mean(&answer.tpot_ms),
            mean(&answer.e2e_ms),
            needed.map_or_else(|| "-".to_owned(), |count| count.to_string()),
            number(answer.cost_per_million_tokens, 4),
            number(answer.cost_per_million_tokens_at_limit, 4),
        ]
    });
    let head = ["", "limit /s", "ttft ms", "tpot ms", "e2e ms", "replicas", "cost/M tok", "at the limit"];
    format!(
        "compared: {}; {}\n{}",
        plan.single_large.system,
        plan.whole_request.system,
        plain_table(&head, rows, format)
    )
}

fn active_table(plan: &Plan, format: Format) -> String {
    let rows = plan.thresholds.iter().zip(&plan.tok_s).enumerate().map(|(index, (thresholds, tok_s))| {
        let share = plan.answer.share_of_time.as_ref().and_then(|shares| shares.get(index + 1)).copied();
        [(index + 1).to_string(), thresholds.to_string(), number(Some(*tok_s), 2), number(share, 4)]
    });
    format!(
        "thresholds by active requests\n{}",
        plain_table(&["active", "thresholds", "tok/s", "share of time"], rows, format)
    )
}

/// A number for other programs; what is as good as nothing is 0.
fn plain(value: f64) -> String {
    if value.abs() < 1e-12 { "0".to_owned() } else { value.to_string() }
}

/// A table that ends its last line.
pub(super) fn plain_table<const N: usize>(
    headings: &[&str; N],
    rows: impl Iterator<Item = [String; N]>,
    format: Format,
) -> String {
    crate::terminal::plain_table(headings, rows, format).trim_end().to_owned() + "\n"
}
