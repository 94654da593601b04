//! Configurations: the shipped files, the generated reference, and what bad ones are told.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tokenrouter_engine::Config;
use tokenrouter_engine::config::{Document, Place, reference_yaml};

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
    let want = tokenrouter_core::routing::registry::reference_markdown();
    assert_eq!(text, want, "run `trbench config algorithms > docs/reference/algorithms.md`");
}

/// Both models have the same keys, so that an error about one can be mistaken for an error about the other.
const BASE: &str = "\
# Two emulated models.
models:
  small:
    emulated:
      latency_ms: 6
    device: cpu
    threads: 1
  large:
    emulated: {latency_ms: [20, 22.5]}
    device: cpu
    threads: 1
routing:
  method: random
  probability: 0.3
system:
  max_active: 4
batching:
  thresholds: [1, 3]
";

const SYSTEM_KEYS: &str = "`entry_model`, `max_active`, `max_queued`, `max_tokens_per_request`, `chat_template`, \
                           `execution`, `handoff_resume`, `profile`, `peer_endpoints`, `peer_timeout_ms`, \
                           `allow_remote_peers`";
const METHODS: &str = "`rstitch`, `r2r`, `citer`, `collm`, `glimp`, `ensemble`, `entropy`, `aleatoric`, `query`, \
                       `random`, `rule`";

/// The error of the text.
fn error_of(text: &str) -> String {
    Config::from_yaml(text, "bad.yaml").expect_err("a bad configuration").to_string()
}

/// Replaces a part of the valid configuration, and compares the error, without the file's name, as a whole.
fn check(cases: &[[&str; 3]]) {
    Config::from_yaml(BASE, "base.yaml").unwrap_or_else(|error| panic!("{error}"));
    for [from, to, want] in cases {
        assert!(BASE.contains(from), "{from}");
        let want = want.replace("{SYSTEM_KEYS}", SYSTEM_KEYS).replace("{METHODS}", METHODS);
        assert_eq!(error_of(&BASE.replacen(from, to, 1)), format!("bad.yaml:{want}"), "{from} -> {to}");
    }
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table of cases")]
fn mistakes_in_models_point_at_the_model() {
    let large = "large:\n    emulated: {latency_ms: [20, 22.5]}\n    device: cpu\n    threads: 1";
    let with = |keys: &str| format!("large:\n    emulated: {{latency_ms: 1}}\n{keys}");
    let cases = [
        (large, "large:", "8:3: `large` is empty, allowed is a section of keys"),
        (large, "large: 7b", "8:3: `large` is `7b`, allowed is a section of keys"),
        (large, "large: {}", "8:3: model `large` needs exactly one of `path`, `source`, `emulated`"),
        (
            large,
            "large: {emulated: {latency_ms: 1}, source: demo}",
            "8:11: model `large` needs exactly one of `path`, `source`, `emulated`",
        ),
        (
            large,
            "large: {source: demo}",
            "8:11: either all models are emulated or none: emulated models write no text (`large` is not emulated)",
        ),
        (
            large,
            &with("    thread: 2"),
            "10:5: unknown key `thread`, allowed are `path`, `source`, `emulated`, `layers`, \
          `patch`, `student`, `dtype`, `device`, `tp_size`, `cuda_graphs`, `threads`, `cores`, `max_batch`, `scheduler`; \
          did you mean `threads`?",
        ),
        (large, &with("    device: tpu"), "10:5: unknown device `tpu`, allowed are `cpu` and `cuda:N`"),
        (large, &with("    device:"), "10:5: `device` is empty, allowed is text"),
        (large, &with("    threads: two"), "10:5: `threads` is `two`, allowed is a whole number, 0 or more"),
        (large, &with("    threads: -1"), "10:5: `threads` is `-1`, allowed is a whole number, 0 or more"),
        (large, &with("    threads: 1.5"), "10:5: `threads` is `1.5`, allowed is a whole number, 0 or more"),
        (large, &with("    'threads': [1]"), "10:5: `threads` is a list of 1, allowed is a whole number, 0 or more"),
        (large, &with("    cores: 3"), "10:5: `cores` is `3`, allowed is a list"),
        (
            large,
            &with("    cores:\n    - 0\n    - one"),
            "12:7: entry 2 of `cores` is `one`, allowed is a whole number, 0 or more",
        ),
        (
            large,
            &with("    layers: [0, 2, 1]"),
            "10:20: `layers` of model `large` must be a rising list of layer indices",
        ),
        (large, &with("    layers: []"), "10:5: `layers` of model `large` must be a rising list of layer indices"),
        (large, &with("    patch: x"), "10:5: `patch` of model `large` needs `layers`: it stands in for dropped ones"),
        (
            large,
            &with("    dtype: f33"),
            "10:5: unknown value `f33`, allowed are `native`, `f32`, `bf16`, `f16`; did you mean `f32`?",
        ),
        (
            large,
            &with("    dtype: [f32]"),
            "10:5: `dtype` is a list of 1, allowed is one of `native`, `f32`, `bf16`, `f16`",
        ),
        (large, &with("    tp_size: 0"), "10:5: model `large`: `tp_size` is 0, allowed are 1 to 64"),
        (large, &with("    tp_size: 2"), "10:5: model `large`: `tp_size` above 1 needs `device: cuda:N`"),
        (large, &with("    scheduler: {max_step_tokens: 0}"), "10:17: `max_step_tokens` is 0, allowed are 1 to 8192"),
        (
            large,
            &with("    cuda_graphs:\n      extend: [[1, 4], [4, 2]]"),
            "11:24: model `large`: a graph for 4 requests and 2 tokens is not possible, allowed are 1 to 512 tokens, and at \
             least one per request",
        ),
        (
            large,
            &with("    cuda_graphs: {extend: [[1, 4, 5]]}"),
            "10:28: entry 1 of `extend` is a list of 3, allowed is a list of length 2",
        ),
        ("22.5", "-1", "9:33: `latency_ms` of model `large` must be above 0, got [20.0, -1.0]"),
        ("22.5", "fast", "9:33: entry 2 of `latency_ms` is `fast`, allowed is a number"),
        (
            "[20, 22.5]",
            "27.9 ms",
            "9:16: `latency_ms` is `27.9 ms`, allowed is milliseconds, or a list of milliseconds by batch size",
        ),
        ("latency_ms: 6", "latency_ms: 0", "5:7: `latency_ms` of model `small` must be above 0, got [0.0]"),
        ("latency_ms: 6", "prefill_ms_per_token: 6", "4:5: key `latency_ms` is missing"),
        ("latency_ms: 6", "latency_ms: .inf", "5:19: `.inf` is not a finite number"),
    ];
    check(&cases.map(|(from, to, want)| [from, to, want]));
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table of cases")]
fn mistakes_in_other_sections_point_at_their_keys() {
    check(&[
        [
            "max_active: 4",
            "max_actve: 4",
            "16:3: unknown key `max_actve`, allowed are {SYSTEM_KEYS}; did you mean `max_active`?",
        ],
        ["max_active: 4", "max_active: 0", "16:3: `max_active` is 0, allowed are 1 to 4096"],
        ["max_active: 4", "\"max_active\": many", "16:3: `max_active` is `many`, allowed is a whole number, 0 or more"],
        [
            "system:\n  max_active: 4",
            "system: {max_queued: 1, max_active: 4k}",
            "15:25: `max_active` is `4k`, allowed is a whole number, 0 or more",
        ],
        [
            "max_active: 4",
            "max_active: >\n    4\n    5",
            "16:3: `max_active` is `4 5...`, allowed is a whole number, 0 or more",
        ],
        [
            "max_active: 4",
            "max_active: 4\n  profile: maybe",
            "17:3: `profile` is `maybe`, allowed is `true` or `false`",
        ],
        [
            "max_active: 4",
            "max_active: 4\n  entry_model: smal",
            "17:3: unknown model `smal`, known are `small`, `large`; did you mean `small`?",
        ],
        [
            "max_active: 4",
            "max_active: 4\n  execution: lockstep",
            "19:3: `system.execution` is `lockstep`, which launches eagerly: `batching.thresholds` must be `eager`",
        ],
        [
            "max_active: 4",
            "max_active: 4\n  peer_endpoints:\n    smal: {bind: 'tcp://h:1', public_key: x}",
            "18:5: unknown model `smal` in `peer_endpoints`, known are `small`, `large`; did you mean `small`?",
        ],
        [
            "max_active: 4",
            "max_active: 4\n  peer_endpoints:\n    small:\n      bind: localhost:1\n      public_key: x",
            "19:7: `peer_endpoints.small.bind` is `localhost:1`, allowed is `tcp://HOST:PORT`",
        ],
        [
            "max_active: 4",
            "max_active: 4\n  peer_endpoints:\n    large: {bind: 'tcp://h:1'}",
            "18:5: key `public_key` is missing",
        ],
        [
            "max_active: 4",
            "max_active: 4\n  peer_timeout_ms: 5",
            "17:3: `peer_timeout_ms` is 5, allowed are 100 to 600000",
        ],
        ["system:", "kv: {block_size: 20}\nsystem:", "15:6: `block_size` is 20, allowed are 16, 32, 64"],
        [
            "system:",
            "kv: {device_utilization: 1.5}\nsystem:",
            "15:6: `device_utilization` is 1.5, allowed is above 0 up to 1",
        ],
        [
            "system:",
            "kv: {memory_mib: 0}\nsystem:",
            "15:6: `memory_mib` of 0 is for models on CUDA devices, and `small` is on the CPU",
        ],
        ["system:", "kv:\nsystem:", "15:1: `kv` is empty, allowed is a section of keys"],
        [
            "system:",
            "server: {port: 70000}\nsystem:",
            "15:10: `port` is `70000`, allowed is a whole number from 0 to 65535",
        ],
        ["system:", "server:\n  host: localhost\nsystem:", "16:3: `host` is `localhost`: invalid IP address syntax"],
        ["system:", "server: {max_choices: 0}\nsystem:", "15:10: `max_choices` is 0, allowed are 1 to 128"],
        [
            "system:",
            "server: {cors_origins: https://x}\nsystem:",
            "15:10: `cors_origins` is `https://x`, allowed is a list",
        ],
        ["system:", "server: {model_name: ''}\nsystem:", "15:10: `model_name` is empty"],
        ["[1, 3]", "[1, x]", "18:19: entry 2 of `thresholds` is `x`, allowed is a whole number from 0 to 4294967295"],
        ["[1, 3]", "[0, 1]", "18:16: a threshold of 0 is not allowed, the smallest is 1"],
        ["[1, 3]", "[1]", "18:3: `thresholds` has 1 entries, the configuration has 2 models"],
        [
            "[1, 3]",
            "[2, 4]",
            "18:3: `thresholds` [2, 4] can deadlock: 4 waiting requests may launch nothing (each model idle, one below its \
             threshold), and only 4 are active at a time (`max_active`, concurrency); feasible vectors have \
             sum(B_i - 1) < 4",
        ],
        [
            "[1, 3]",
            "sometimes",
            "18:3: `thresholds` is `sometimes`, allowed is `auto`, `adaptive`, `eager`, or a list with one threshold per \
             model, such as `[1, 3]`",
        ],
        ["[1, 3]", "[1, 3]\n  max_wait_ms: 0", "19:3: `max_wait_ms` is 0, it must be above 0"],
        ["[1, 3]", "[1, 3]\n  adaptation: {period_s: 0.01}", "19:16: `period_s` is 0.01, allowed are 0.05 to 3600"],
        [
            "[1, 3]",
            "[1, 3]\n  profile: {routing: [[0.5, x]]}",
            "19:29: entry 2 of entry 1 of `routing` is `x`, allowed is a number",
        ],
    ]);
}

#[test]
fn mistakes_in_routing_point_at_the_option() {
    check(&[
        [
            "method: random",
            "method: randm",
            "13:3: unknown routing method `randm`, known are {METHODS}; did you mean `random`?",
        ],
        ["method: random", "method:", "13:3: unknown routing method `null`, known are {METHODS}"],
        ["  method: random\n", "", "12:1: key `method` is missing in `routing`, allowed are {METHODS}"],
        [
            "routing:\n  method: random\n  probability: 0.3",
            "routing: random",
            "12:1: `routing` is `random`, allowed is a section of keys",
        ],
        [
            "probability: 0.3",
            "probabilty: 0.3",
            "14:3: unknown key `probabilty` for method `random`, allowed are `semantics`, `probability`, `weights`; did you \
             mean `probability`?",
        ],
        ["probability: 0.3", "probability: 1.3", "14:3: `routing.probability` is 1.3, allowed is 0 to 1"],
        [
            "probability: 0.3",
            "semantics: borrow\n  probability: high",
            "15:3: `routing.probability`: invalid type: string \"high\", expected f64",
        ],
        [
            "method: random\n  probability: 0.3",
            "entropy_threshold: 1\n  prompt_tokens_threshold: 2\n  method: query",
            "14:3: `routing.entropy_threshold` and `routing.prompt_tokens_threshold` exclude each other",
        ],
    ]);
    let rules =
        "method: rule\n  rules:\n    small: {when: entropy > 1, to: large}\n    large: {when: 'entropy >', to: small}";
    let error = error_of(&BASE.replace("method: random\n  probability: 0.3", rules));
    assert!(error.starts_with("bad.yaml:16:5: ") && error.contains("large"), "{error}");
}

#[test]
fn broken_yaml_is_named() {
    check(&[
        ["  small:\n", "\tsmall:\n", "3:2: tabs disallowed within this context (block indentation)"],
        [
            "max_active: 4",
            "max_active:4",
            "15:1: `system` is `max_active:4`, allowed is a section of keys; is a space missing after `:`?",
        ],
        ["probability: 0.3", "probability: 0.3\n  probability: 0.4", "15:3: key `probability` is given twice"],
        ["  large:", "  small:", "8:3: key `small` is given twice"],
        ["  large:", "  ~:", "8:3: a key is empty; names of keys and models are text"],
        ["[1, 3]", "[1, 3", "18:15: unclosed bracket '['"],
        ["[1, 3]", "*both", "18:15: alias references unknown anchor"],
        ["batching:", "---\nbatching:", "18:1: a second YAML document begins here; a configuration is one"],
        ["routing:\n  method: random\n  probability: 0.3\n", "", "2:1: key `routing` is missing"],
    ]);
    assert_eq!(error_of(""), "bad.yaml:1:1: the configuration is empty, allowed is a section of keys");
    assert_eq!(error_of("hello"), "bad.yaml:1:1: the configuration is `hello`, allowed is a section of keys");
    let missing = Config::from_file("/no/such/file.yaml").expect_err("missing").to_string();
    assert!(missing.starts_with("/no/such/file.yaml: cannot read the configuration: "), "{missing}");
}

#[test]
fn a_mistake_behind_an_alias_is_where_it_is_written() {
    let text =
        "models:\n  small: &s\n    emulated: {latency_ms: 5}\n    threads: x\n  large: *s\nrouting: {method: random}\n";
    assert_eq!(error_of(text), "bad.yaml:4:5: `threads` is `x`, allowed is a whole number, 0 or more");
    let text = "models:\n  small: &s {emulated: {latency_ms: 5}}\n  large:\n    <<: *s\n    device: tpu\n\
                routing: {method: random}\n";
    assert_eq!(error_of(text), "bad.yaml:5:5: unknown device `tpu`, allowed are `cpu` and `cuda:N`");
    let text = "models:\n  small: {emulated: {latency_ms: &n -1}, threads: 1}\nrouting: {method: random}\n\
                system:\n  max_active: *n\n";
    assert_eq!(error_of(text), "bad.yaml:5:3: `max_active` is `-1`, allowed is a whole number, 0 or more");
}

#[test]
fn line_ends_and_byte_order_marks_change_no_place() {
    let bad = BASE.replace("max_active: 4", "max_active: 0");
    let want = error_of(&bad);
    assert_eq!(error_of(&bad.replace('\n', "\r\n")), want);
    assert_eq!(error_of(&format!("\u{feff}{bad}")), want);
    // Columns count characters.
    let text = BASE.replace("system:\n  max_active: 4", "system: {entry_model: größe, max_active: 0}");
    assert_eq!(error_of(&text.replace("small", "größe")), "bad.yaml:15:30: `max_active` is 0, allowed are 1 to 4096");
}

/// The error of the valid configuration with these keys set.
fn error_with(sets: &[&str]) -> String {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let document = Document::from_yaml(BASE, "base.yaml").and_then(|document| document.set(&sets));
    document.and_then(|document| Config::from_document(&document)).expect_err("a bad override").to_string()
}

#[test]
fn an_error_that_an_override_causes_names_it() {
    for (sets, want) in [
        (&["system.max_active=0"][..], "--set `system.max_active=0`: `max_active` is 0, allowed are 1 to 4096"),
        (
            &["models.huge.threads=1"],
            "--set `models.huge.threads=1`: model `huge` needs exactly one of `path`, `source`, `emulated`",
        ),
        (&["routing={method: randm}"], "--set `routing={method: randm}`: unknown routing method `randm`"),
        // The file's thresholds are fine without it.
        (
            &["system.max_active=1", "models.large.threads=2"],
            "--set `system.max_active=1`: `thresholds` [1, 3] can deadlock",
        ),
        (&["batching.thresholds.1=9"], "--set `batching.thresholds.1=9`: `thresholds` [1, 9] can deadlock"),
        (&["kv.memory_mib=0"], "--set `kv.memory_mib=0`: `memory_mib` of 0"),
        (&["a"], "--set `a`: expected KEY=VALUE, such as models.large.emulated.latency_ms=27.9"),
        (&["a..b=1"], "--set `a..b=1`: expected KEY=VALUE"),
        (&["kv.block_size=["], "--set `kv.block_size=[`: unclosed bracket '['"),
        (&["batching.thresholds.7=1"], "--set `batching.thresholds.7=1`: `7` is not an index of a list of 2"),
        (&["models.large.threads.x=1"], "--set `models.large.threads.x=1`: `x` is below a value that is not a section"),
    ] {
        let error = error_with(sets);
        assert!(error.starts_with(want), "{error}");
    }
    // A mistake of the file stays one, whatever is set besides.
    let text = BASE.replace("device: cpu", "device: tpu");
    let document = Document::from_yaml(&text, "bad.yaml").and_then(|it| it.set(&["models.large.threads=2".into()]));
    let error = Config::from_document(&document.expect("YAML")).expect_err("a bad device").to_string();
    assert_eq!(error, "bad.yaml:6:5: unknown device `tpu`, allowed are `cpu` and `cuda:N`");
}

#[test]
fn overrides_keep_the_order_of_keys() {
    let text =
        "models:\n  small: {emulated: {latency_ms: 6}}\n  large: {threads: 1}\nbatching:\n  thresholds: [1, 4]\n";
    let sets = ["models.large.emulated.latency_ms=[27.9, 28]", "batching.thresholds.1=2", "routing={method: random}"];
    let document = Document::from_yaml(text, "x").expect("YAML");
    assert_eq!(document.text(), text);
    let set = document.set(&sets.map(str::to_owned)).expect("applies");
    let value: serde_json::Value = serde_json::from_str(&set.text()).expect("JSON");
    let want = r#"{"models":{"small":{"emulated":{"latency_ms":6}},"large":{"threads":1,"emulated":{"latency_ms":[27.9,28]}}},"batching":{"thresholds":[1,2]},"routing":{"method":"random"}}"#;
    assert_eq!(value.to_string(), want);
    assert_eq!(Config::from_document(&set).expect("valid").model_names(), ["small", "large"]);
}

#[test]
fn built_in_configurations_say_so() {
    let error = Config::built_in("config/x.yaml", &BASE.replace("max_active: 4", "max_active: 0")).expect_err("bad");
    let want = "built-in configuration config/x.yaml:16:3: `max_active` is 0, allowed are 1 to 4096";
    assert_eq!(error.to_string(), want);
}

#[test]
fn values_in_quotes_are_taken_as_before() {
    let text = BASE.replace("threads: 1", "threads: '1'").replace("probability: 0.3", "probability: 3e-1");
    let mut text = text.replace("max_active: 4", "max_active: 4\n  profile: yes");
    text.push_str("server: {model_name: 12, api_key_file: ~}\n");
    let config = Config::from_yaml(&text, "x.yaml").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.models["large"].threads, 1);
    assert!(config.system.profile);
    assert_eq!(config.server.model_name, "12");
    assert_eq!(config.server.api_key_file, None);
}

/// Lines of the valid configuration that hold one key and its value.
fn key_lines() -> Vec<usize> {
    let holds_a_value = |line: &str| line.split_once(": ").is_some_and(|(_, value)| !value.is_empty());
    BASE.lines().enumerate().filter(|(_, line)| holds_a_value(line)).map(|(index, _)| index).collect()
}

proptest! {
    /// A section in place of a value, or a key that nobody knows, anywhere: the line is that line, whatever comments,
    /// blank lines and line ends surround it.
    #[test]
    fn the_line_of_a_mistake_is_the_line_that_holds_it(
        at in proptest::sample::select(key_lines()),
        wrong_key in any::<bool>(),
        quoted in any::<bool>(),
        before in proptest::collection::vec(proptest::sample::select(vec!["", "# threads: x", "    # device: tpu"]), 18),
        crlf in any::<bool>(),
    ) {
        let mut text = String::new();
        let mut want = None;
        for (index, (line, comment)) in BASE.lines().zip(before).enumerate() {
            text.push_str(comment);
            text.push('\n');
            if index != at {
                text.push_str(line);
            } else {
                want = Some(text.matches('\n').count() + 1);
                let (key, value) = line.split_once(": ").expect("a key line");
                // Without its method, the section says that the method is missing.
                let wrong_key = wrong_key && !key.ends_with("method");
                let (indent, key) = key.split_at(key.len() - key.trim_start().len());
                let key = if wrong_key { "nonsense" } else { key };
                let key = if quoted { format!("'{key}'") } else { key.to_owned() };
                let value = if wrong_key { value } else { "{x: [1]}" };
                text.push_str(&format!("{indent}{key}: {value}"));
            }
            text.push('\n');
        }
        let text = if crlf { text.replace('\n', "\r\n") } else { text };
        let error = Config::from_yaml(&text, "bad.yaml").expect_err("a bad configuration");
        let Place::Text { line, .. } = error.place else { panic!("{error}") };
        prop_assert_eq!(Some(line as usize), want, "{}\n{}", error, text);
    }
}
