//! Configurations: the shipped files, the generated reference, and what bad ones are told.

use std::path::{Path, PathBuf};

use tokenrouter_engine::Config;
use tokenrouter_engine::config::reference_yaml;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config")
}

#[test]
fn shipped_configurations_are_valid() {
    let mut count = 0;
    for folder in std::fs::read_dir(root()).expect("config/").filter_map(Result::ok).filter(|e| e.path().is_dir()) {
        for file in std::fs::read_dir(folder.path()).expect("a folder").filter_map(Result::ok) {
            if file.path().extension().is_none_or(|extension| extension != "yaml") {
                continue;
            }
            Config::from_file(file.path()).unwrap_or_else(|error| panic!("{error}"));
            count += 1;
        }
    }
    assert!(count >= 3);
}

#[test]
fn the_reference_is_generated_from_the_types_and_valid() {
    let text = std::fs::read_to_string(root().join("reference.yaml")).expect("config/reference.yaml");
    assert_eq!(text, reference_yaml(), "run `trbench config reference > config/reference.yaml`");
    Config::from_yaml(&text, "reference.yaml").unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn the_table_of_algorithms_is_generated_from_the_registry() {
    let path = root().join("../docs/reference/algorithms.md");
    let text = std::fs::read_to_string(path).expect("docs/reference/algorithms.md");
    let want = tokenrouter_engine::routing::registry::reference_markdown();
    assert_eq!(text, want, "run `trbench config algorithms > docs/reference/algorithms.md`");
}

const BASE: &str = "\
models:
  small: {emulated: {latency_ms: 6}}
  large: {emulated: {latency_ms: [20, 22.5]}}
routing:
  method: random
  probability: 0.3
system:
  max_active: 4
batching:
  thresholds: [1, 3]
";

fn message(from: &str, to: &str) -> String {
    assert!(BASE.contains(from), "{from}");
    let text = BASE.replacen(from, to, 1);
    Config::from_yaml(&text, "bad.yaml").expect_err("a bad configuration").to_string()
}

#[test]
fn errors_name_the_place_the_value_and_what_is_allowed() {
    assert!(Config::from_yaml(BASE, "base.yaml").is_ok());
    for (from, to, wanted) in [
        ("max_active", "max_actve", vec!["bad.yaml:8:", "unknown key `max_actve`", "did you mean `max_active`?"]),
        ("probability: 0.3", "probabilty: 0.3", vec!["bad.yaml:", "`probabilty`", "did you mean `probability`?"]),
        (
            "method: random",
            "method: randm",
            vec!["bad.yaml:", "unknown routing method `randm`", "did you mean `random`?"],
        ),
        ("max_active: 4", "max_active: many", vec!["bad.yaml:8:"]),
        ("max_active: 4", "max_active: 4\n  entry_model: smal", vec!["bad.yaml:9:", "`smal`", "did you mean `small`?"]),
        ("probability: 0.3", "probability: 1.3", vec!["bad.yaml:", "`routing.probability` is 1.3", "0 to 1"]),
        ("[1, 3]", "[2, 4]", vec!["bad.yaml:10:", "[2, 4]", "deadlock", "sum(B_i - 1) < 4"]),
        ("[1, 3]", "[1]", vec!["bad.yaml:10:", "1 entries", "2 models"]),
        ("[1, 3]", "[0, 1]", vec!["bad.yaml:", "smallest is 1"]),
        ("[1, 3]", "sometimes", vec!["bad.yaml:", "`auto`", "`eager`"]),
        ("latency_ms: 6", "latency_ms: -6", vec!["bad.yaml:", "`latency_ms`", "above 0"]),
        ("{emulated: {latency_ms: 6}}", "{source: demo}", vec!["bad.yaml:", "either all models are emulated or none"]),
        ("{emulated: {latency_ms: 6}}", "{source: demo, path: x}", vec!["exactly one of"]),
        (
            "{emulated: {latency_ms: 6}}",
            "{emulated: {latency_ms: 6}, device: tpu}",
            vec!["bad.yaml:2:", "`tpu`", "`cpu`"],
        ),
        (
            "{emulated: {latency_ms: 6}}",
            "{emulated: {latency_ms: 6}, device: 'cuda:0', runner: candle}",
            vec!["bad.yaml:2:", "`small`", "`runner: candle` computes on `cpu`"],
        ),
        (
            "{emulated: {latency_ms: 6}}",
            "{emulated: {latency_ms: 6}, tp_size: 2}",
            vec!["bad.yaml:2:", "`tp_size` above 1 needs `device: cuda:N`"],
        ),
        (
            "{emulated: {latency_ms: 6}}",
            "{emulated: {latency_ms: 6}, tp_size: 0}",
            vec!["bad.yaml:2:", "`tp_size` is 0", "1 to 64"],
        ),
        (
            "{emulated: {latency_ms: 6}}",
            "{emulated: {latency_ms: 6}, cuda_graphs: {extend: [[4, 2]]}}",
            vec!["bad.yaml:2:", "4 requests and 2 tokens", "at least one per request"],
        ),
        ("system:\n", "kv: {memory_mib: 0}\nsystem:\n", vec!["bad.yaml:7:", "`memory_mib` of 0", "`small`"]),
        ("system:\n", "kv: {device_utilization: 1.5}\nsystem:\n", vec!["bad.yaml:7:", "1.5", "up to 1"]),
        ("  method: random\n", "", vec!["bad.yaml:", "`method` is missing"]),
    ] {
        let message = message(from, to);
        for part in wanted {
            assert!(message.contains(part), "`{part}` is not in: {message}");
        }
    }
    let missing = Config::from_file("/no/such/file.yaml").expect_err("missing").to_string();
    assert!(missing.contains("/no/such/file.yaml"), "{missing}");
    assert!(Config::from_yaml("models: [", "x.yaml").expect_err("syntax").to_string().starts_with("x.yaml:"));
}
