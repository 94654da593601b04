//! Against Python's Jinja with Hugging Face's settings (`scripts/chat_templates.py`).

use std::io::Read as _;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Local, TimeZone as _};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::super::messages::forms;
use super::super::{ChatTemplate, Conversation};

#[derive(Deserialize)]
pub(in super::super) struct Real {
    clock: String,
    pub(in super::super) bos: String,
    pub(in super::super) eos: String,
    pub(in super::super) conversations: Map<String, Value>,
    pub(in super::super) templates: Vec<Template>,
    pub(in super::super) texts: Vec<String>,
}

#[derive(Deserialize)]
pub(in super::super) struct Template {
    pub(in super::super) name: String,
    pub(in super::super) source: String,
    /// For every conversation, how many forms of its messages Python refused, and the text of the next one.
    pub(in super::super) results: Vec<(Option<usize>, Option<usize>)>,
}

#[derive(Deserialize)]
struct Expressions {
    values: Map<String, Value>,
    expressions: Vec<(String, Option<String>)>,
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/templates").join(name)
}

/// The real templates and Python's texts.
pub(in super::super) fn real() -> Real {
    let packed = std::fs::File::open(fixture("real.json.gz")).expect("the fixture");
    let mut text = String::new();
    flate2::read::GzDecoder::new(packed).read_to_string(&mut text).expect("unpacks");
    serde_json::from_str(&text).expect("JSON")
}

/// The time of the fixtures.
pub(in super::super) fn clock() -> DateTime<Local> {
    Local.with_ymd_and_hms(2026, 3, 5, 14, 7, 9).single().expect("a time that is once")
}

/// How many forms are refused, and the text of the next one.
fn render(template: &ChatTemplate, source: &str, conversation: &Value) -> (usize, Result<String, String>) {
    let messages = conversation["messages"].as_array().expect("messages");
    let (mut refused, mut why) = (0, String::new());
    for messages in forms(messages, source) {
        let conversation = Conversation {
            messages,
            tools: conversation.get("tools").cloned(),
            variables: conversation["variables"].as_object().cloned().unwrap_or_default(),
        };
        match template.render_conversation(&conversation) {
            Ok(text) => return (refused, Ok(text)),
            Err(error) => (refused, why) = (refused + 1, error.to_string()),
        }
    }
    (refused, Err(why))
}

/// Where two texts differ, with some of what follows.
pub(in super::super) fn difference(want: &str, got: &str) -> String {
    let at = want.chars().zip(got.chars()).take_while(|(a, b)| a == b).count();
    let from = |text: &str| text.chars().skip(at.saturating_sub(20)).take(80).collect::<String>();
    format!("at {at}: {:?}, in Python {:?}", from(got), from(want))
}

#[test]
fn real_templates_give_the_text_of_python_or_are_refused_as_there() {
    let real = real();
    assert_eq!(real.clock, clock().format("%Y-%m-%dT%H:%M:%S").to_string());
    let (mut differences, mut texts, mut refusals) = (Vec::new(), 0, 0);
    for Template { name, source, results } in &real.templates {
        let template = ChatTemplate::at(source.clone(), real.bos.clone(), real.eos.clone(), clock);
        assert_eq!(results.len(), real.conversations.len());
        for ((label, conversation), (refused, text)) in real.conversations.iter().zip(results) {
            let want = text.map(|index| real.texts[index].as_str());
            let got = match &template {
                Ok(template) => render(template, source, conversation),
                Err(why) => (0, Err(why.to_string())),
            };
            let what = match (got, want) {
                ((_, Err(_)), None) => {
                    refusals += 1;
                    continue;
                }
                ((forms, Ok(text)), Some(want)) if text == want && Some(forms) == *refused => {
                    texts += 1;
                    continue;
                }
                ((_, Err(why)), Some(_)) => format!("refused: {why}"),
                ((_, Ok(_)), None) => "not refused".to_owned(),
                ((forms, Ok(text)), Some(want)) => {
                    format!("{forms} forms refused, {refused:?} in Python; {}", difference(want, &text))
                }
            };
            differences.push(format!("{name}, {label}: {what}"));
        }
    }
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
    // The script prints the same numbers.
    assert_eq!((real.templates.len(), real.conversations.len(), texts, refusals), (148, 49, 6447, 805));
}

#[test]
fn expressions_give_the_text_of_python_or_are_refused_as_there() {
    let text = std::fs::read_to_string(fixture("expressions.json")).expect("the fixture");
    let table: Expressions = serde_json::from_str(&text).expect("JSON");
    assert!(table.expressions.len() > 180);
    let mut differences = Vec::new();
    for (source, want) in table.expressions {
        let conversation = Conversation { variables: table.values.clone(), ..Conversation::default() };
        let got = ChatTemplate::at(source.clone(), String::new(), String::new(), clock)
            .and_then(|template| template.render_conversation(&conversation));
        match (got, want) {
            (Err(_), None) => {}
            (Ok(got), Some(want)) if got == want => {}
            (Err(why), Some(_)) => differences.push(format!("{source}: refused: {why}")),
            (Ok(got), None) => differences.push(format!("{source}: not refused, but {got:?}")),
            (Ok(got), Some(want)) => differences.push(format!("{source}: {}", difference(&want, &got))),
        }
    }
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn errors_name_the_line_of_the_template() {
    let refused = |source: &str| {
        ChatTemplate::new(source.into(), String::new(), String::new())
            .and_then(|template| template.render_conversation(&Conversation::default()))
            .map_err(|error| error.to_string())
    };
    let source = "a\n{% if true %}\n  {{ x }}\n  {%- for i in none %}{% endfor %}\n{% endif %}";
    assert!(refused(source).is_err_and(|why| why.contains("not iterable") && why.contains("chat:4")));
    assert!(refused("\n{{ 1 + }}").is_err_and(|why| why.contains("chat:2")));
    assert!(refused("\n\n{% do x.y() %}").is_err_and(|why| why.contains("line 3")));
}

#[test]
fn long_chains_and_deep_values_are_no_danger() {
    let render = |source: String| {
        ChatTemplate::new(source, String::new(), String::new())
            .and_then(|template| template.render_conversation(&Conversation::default()))
    };
    let chain = |length| format!("{{{{ {} }}}}", vec!["'a'"; length].join(" ~ "));
    assert_eq!(render(chain(300)).expect("renders"), "a".repeat(300));
    assert!(render(chain(1000)).is_err_and(|why| why.to_string().contains("more than 400 operations")));
    let branches = "{% elif false %}x".repeat(100);
    assert_eq!(render(format!("{{% if false %}}{branches}{{% else %}}y{{% endif %}}")).expect("renders"), "y");
    let deep = "{% set ns = namespace(x=[]) %}{% for i in range(200) %}{% set ns.x = [ns.x] %}{% endfor %}";
    for print in ["{{ ns.x }}", "{{ ns.x | tojson }}"] {
        assert!(render(format!("{deep}{print}")).is_err());
    }
    for source in ["{{ 'a' * 999999999 }}", "{{ '%999999999d' % 1 }}", "{{ 'a'.center(999999999) }}", "{{ 10 ** 99 }}"]
    {
        assert!(render(source.into()).is_err(), "{source}");
    }
}
