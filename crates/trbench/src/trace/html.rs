//! A trace as a page without external assets.

use minijinja::Environment;
use serde::Serialize;

use super::{RequestTrace, TraceStep};

/// The name ends in `.html`, so that minijinja escapes what is put in.
const NAME: &str = "page.html";
const TEMPLATE: &str = include_str!("page.html");

/// What the template shows.
#[derive(Serialize)]
struct Page<'a> {
    title: String,
    models: &'a [String],
    steps: Vec<Step<'a>>,
    switches: Vec<Switch<'a>>,
}

#[derive(Serialize)]
struct Step<'a> {
    committed: bool,
    model: usize,
    hint: String,
    text: std::borrow::Cow<'a, str>,
}

#[derive(Serialize)]
struct Switch<'a> {
    position: usize,
    from: &'a str,
    to: &'a str,
    score: String,
    candidate: String,
    fate: &'static str,
}

/// The whole page.
pub(super) fn page(trace: &RequestTrace) -> anyhow::Result<String> {
    let switch = |(index, to): (usize, usize)| {
        let TraceStep { record, text } = &trace.steps[index];
        Switch {
            position: record.position,
            from: &trace.models[record.model],
            to: &trace.models[to],
            score: record.score.map(|score| format!("{score:.4}")).unwrap_or_default(),
            candidate: format!("{text:?}"),
            fate: if record.committed { "committed" } else { "dropped" },
        }
    };
    let page = Page {
        title: trace.title(),
        models: &trace.models,
        steps: trace.steps.iter().map(|step| Step::new(trace, step)).collect(),
        switches: trace.switches().map(switch).collect(),
    };
    let mut environment = Environment::new();
    environment.set_keep_trailing_newline(true);
    environment.add_template(NAME, TEMPLATE)?;
    Ok(environment.get_template(NAME)?.render(page)?)
}

impl<'a> Step<'a> {
    fn new(trace: &RequestTrace, step: &'a TraceStep) -> Self {
        let TraceStep { record, text } = step;
        let score = record.score.map(|score| format!(", score {score:.4}")).unwrap_or_default();
        Self {
            committed: record.committed,
            model: record.model,
            hint: format!("{}: {}{score}", record.position, trace.models[record.model]),
            // What was dropped stays on one line, so that it is not taken for part of the text.
            text: if record.committed { text.into() } else { text.replace('\n', "\\n").into() },
        }
    }
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
        ]))
        .expect("a page");
        assert!(!page.contains("<script>") && !page.contains("<b>"), "{page}");
        // Inside of `pre`, nothing but the text stands between two tokens.
        let tokens = "<pre><span class=\"m0\" title=\"0: small\">&lt;script&gt;alert(1)&lt;&#x2f;script&gt;</span>\
                      <del class=\"m0\" title=\"1: small, score 1.0000\">&quot;&gt;&lt;b&gt;</del>\
                      <span class=\"m1\" title=\"1: large\">large</span></pre>";
        assert!(page.contains(tokens), "{page}");
    }
}
