//! A trace as a page without external assets.

use std::fmt::Write as _;

use super::{RequestTrace, TraceStep};

const STYLE: &str = "\
body{font:16px/1.6 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
pre{white-space:pre-wrap;font:15px/1.7 ui-monospace,monospace;border:1px solid #ddd;border-radius:6px;padding:1rem}
.m0{background:none}.m1{background:#fbd9a8}.m2{background:#bfe0f7}.m3{background:#b9e8d5}
del{color:#999}.key span{padding:.1rem .5rem;border-radius:4px;margin-right:.5rem;border:1px solid #ddd}
table{border-collapse:collapse;font-size:14px}td,th{padding:.15rem .8rem;border-bottom:1px solid #eee;text-align:left}
td.n{text-align:right;font-variant-numeric:tabular-nums}";

/// The whole page.
pub(super) fn page(trace: &RequestTrace) -> String {
    let title = escape(&trace.title());
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n<style>{STYLE}</style>\
         </head><body>\n<h1>Tokens by origin</h1>\n<p>{title}</p>\n<p class=\"key\">"
    );
    for (index, name) in trace.models.iter().enumerate() {
        let _ = write!(out, "<span class=\"m{}\">{}</span>", index % 4, escape(name));
    }
    out.push_str("<del>dropped candidate</del></p>\n<pre>");
    trace.steps.iter().for_each(|step| token(&mut out, trace, step));
    out.push_str("</pre>\n<h2>Switches</h2>\n<table><tr><th>position</th><th>from</th><th>to</th><th>score</th>");
    out.push_str("<th>candidate</th><th></th></tr>\n");
    for (index, to) in trace.switches() {
        let step = &trace.steps[index];
        let score = step.record.score.map(|score| format!("{score:.4}")).unwrap_or_default();
        let _ = writeln!(
            out,
            "<tr><td class=\"n\">{}</td><td>{}</td><td>{}</td><td class=\"n\">{score}</td><td><code>{}</code></td><td>{}</td></tr>",
            step.record.position,
            escape(&trace.models[step.record.model]),
            escape(&trace.models[to]),
            escape(&format!("{:?}", step.text)),
            if step.record.committed { "committed" } else { "dropped" },
        );
    }
    out.push_str("</table>\n</body></html>\n");
    out
}

fn token(out: &mut String, trace: &RequestTrace, step: &TraceStep) {
    let record = step.record;
    let score = record.score.map(|score| format!(", score {score:.4}")).unwrap_or_default();
    let hint = format!("{}: {}{score}", record.position, trace.models[record.model]);
    let (tag, text) = if record.committed {
        ("span", escape(&step.text))
    } else {
        // On one line, so that it is not taken for part of the text.
        ("del", escape(&step.text.replace('\n', "\\n")))
    };
    let _ = write!(out, "<{tag} class=\"m{}\" title=\"{}\">{text}</{tag}>", record.model % 4, escape(&hint));
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::testing::{step, trace};
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        let page = page(&trace(vec![
            step(0, "<script>alert(1)</script>", true, 0, None),
            step(0, "\"><b>", false, 1, Some(1.0)),
            step(1, "large", true, 0, None),
        ]));
        assert!(!page.contains("<script>") && !page.contains("<b>"), "{page}");
        assert!(
            page.contains("<del class=\"m0\"") && page.contains("<span class=\"m1\" title=\"1: large\">large</span>")
        );
    }
}
