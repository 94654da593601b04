//! `/metrics`: well-formed, documented, and what the dashboard asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use crate::client::get;
use crate::running::{GOES, emulated};

fn file(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)).expect(name)
}

/// Words of a text that are names of metrics, without the suffixes of histograms.
fn names<'a>(text: &'a str, types: &BTreeMap<String, String>) -> BTreeSet<&'a str> {
    let words =
        text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|word| word.contains("tokenrouter_"));
    words
        .map(|word| {
            let bare = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| word.strip_suffix(suffix));
            bare.filter(|bare| types.get(*bare).is_some_and(|kind| kind == "histogram")).unwrap_or(word)
        })
        .collect()
}

#[test]
fn metrics_are_well_formed_documented_and_those_of_the_dashboard() {
    let server = emulated("");
    assert_eq!(server.ask(GOES, 20, &json!({"stream": false})).status, 200);
    server.baseline();
    let text = get(server.address, "/metrics").text();
    let mut types = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} is declared twice");
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            assert!(value.parse::<f64>().is_ok_and(|value| value >= 0.0), "{line}");
            assert!(seen.insert(series), "{series} is there twice");
            let name = series.split('{').next().expect("a name");
            let name = names(name, &types).into_iter().next().expect("a name");
            assert!(types.contains_key(name), "{name} has no type");
        }
    }
    let value = |series: &str| -> f64 {
        let line = text.lines().find(|line| line.starts_with(series) && line.as_bytes()[series.len()] == b' ');
        line.and_then(|line| line.rsplit_once(' ')?.1.parse().ok()).unwrap_or_else(|| panic!("{series}"))
    };
    let small = value("tokenrouter_committed_tokens_total{subserver=\"small\"}");
    assert_eq!((small, value("tokenrouter_committed_tokens_total{subserver=\"large\"}")), (1.0, 19.0));
    assert_eq!(value("tokenrouter_handoffs_total{from=\"small\",to=\"large\"}"), 1.0);
    assert_eq!(value("tokenrouter_requests_completed_total{reason=\"length\"}"), 1.0);
    assert_eq!(value("tokenrouter_time_to_first_token_seconds_count{model=\"small\"}"), 1.0);
    assert_eq!(value("tokenrouter_inter_token_latency_seconds_count{model=\"small\"}"), 19.0);
    assert_eq!(value("tokenrouter_prompt_tokens_total{subserver=\"small\"}"), 3.0);

    let dashboard = file("config/grafana/tokenrouter.json");
    let _valid: Value = serde_json::from_str(&dashboard).expect("JSON");
    for name in names(&dashboard, &types) {
        assert!(types.contains_key(name), "the dashboard asks for {name}");
    }
    let docs = file("docs/reference/http-api.md");
    let table = docs.split("## Metrics").nth(1).expect("a section");
    for (name, kind) in &types {
        let name = name.strip_prefix("tokenrouter_").expect("the prefix");
        assert!(table.contains(&format!("`{name}`")), "{name} ({kind}) is not documented");
    }
}
