//! `manifest.json`: where numbers come from, so that any of them can be traced and repeated.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Map, Value, json};
use tokenrouter_engine::config::Document;

use crate::dataset::Item;
use crate::digest::{file_sha256, text_sha256};
use crate::spec::{self, RunSpec};

/// Where numbers come from.
#[derive(Debug, Clone, Serialize)]
pub struct Manifest {
    schema_version: u32,
    date_unix_s: u64,
    command: Vec<String>,
    version: &'static str,
    git_revision: Option<String>,
    /// What was to be measured; a cell's manifest has the cell's system and concurrency alone.
    spec: RunSpec,
    config: String,
    config_sha256: String,
    config_text: String,
    dataset: String,
    dataset_sha256: String,
    items: usize,
    seed: u64,
    max_tokens: usize,
    temperature: f32,
    repeats: usize,
    ignore_eos: bool,
    load: String,
    warmup: usize,
    replay_sha256: Option<String>,
    calibration_sha256: Option<String>,
    cpu: String,
    cores: usize,
    os: &'static str,
}

/// What a run reads.
#[derive(Debug)]
pub struct Inputs<'a> {
    /// The configuration, with the changes of `set`.
    pub document: &'a Document,
    /// Name of the dataset.
    pub dataset: String,
    /// What is asked.
    pub items: &'a [Item],
}

/// A setting in which two runs differ.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// Its name in a spec or a manifest.
    pub field: String,
    /// Its value in the earlier run.
    pub old: Value,
    /// Its value in this one.
    pub new: Value,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { field, old, new } = self;
        write!(f, "`{field}` is {old}, this run has {new}")
    }
}

/// Settings that may change between the parts of a run: they do not change what is measured.
pub(super) const FREE: [&str; 12] = [
    "version",
    "endpoint",
    "trials",
    "slo-ttft-ms",
    "slo-tpot-ms",
    "slo-e2el-ms",
    "percentile-metrics",
    "save-detailed",
    "any-calibration",
    "judge",
    "trace",
    "timeline",
];

/// Digests of what is read, and the settings that say what is read. Those matter only where the content differs: a file
/// may have moved.
pub(super) const CONTENTS: [(&str, &[&str]); 4] = [
    ("config_sha256", &["config", "set"]),
    ("dataset_sha256", &["workload", "dataset-path", "num-prompts", "input-len"]),
    ("replay_sha256", &["replay"]),
    ("calibration_sha256", &["calibration"]),
];

/// What must be equal where the earlier manifest is from before specs.
pub(super) const BEFORE_SPECS: [&str; 11] = [
    "config_sha256",
    "dataset_sha256",
    "seed",
    "max_tokens",
    "temperature",
    "repeats",
    "ignore_eos",
    "load",
    "warmup",
    "replay_sha256",
    "calibration_sha256",
];

impl Manifest {
    /// Describes this process, this machine and these inputs.
    pub fn collect(spec: &RunSpec, inputs: &Inputs<'_>) -> Self {
        let text = inputs.document.text();
        let mut problems = String::new();
        for item in inputs.items {
            let contents = item.prompt.messages().iter().map(|message| message.content.as_str());
            problems.extend([item.id.as_str()].into_iter().chain(contents).flat_map(|text| [text, "\n"]));
        }
        Self {
            schema_version: 1,
            date_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            command: spec::without_secrets(std::env::args()),
            version: env!("CARGO_PKG_VERSION"),
            git_revision: git_revision(),
            spec: RunSpec { max_tokens: Some(spec.max_tokens()), ..spec.clone() },
            config: inputs.document.origin().path().display().to_string(),
            config_sha256: text_sha256(&text),
            config_text: text,
            dataset: inputs.dataset.clone(),
            dataset_sha256: text_sha256(&problems),
            items: inputs.items.len(),
            seed: spec.seed,
            max_tokens: spec.max_tokens(),
            temperature: spec.temperature,
            repeats: spec.repeats,
            ignore_eos: spec.ignore_eos,
            load: spec.load(),
            warmup: spec.warmup,
            replay_sha256: spec.replay.as_deref().and_then(file_sha256),
            calibration_sha256: spec.calibration.as_deref().and_then(file_sha256),
            cpu: cpu_name(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            os: std::env::consts::OS,
        }
    }

    /// The manifest of a part of the run.
    pub fn of(&self, spec: &RunSpec) -> Self {
        Self { spec: RunSpec { max_tokens: Some(spec.max_tokens()), ..spec.clone() }, ..self.clone() }
    }

    /// In which settings an earlier run, given its `manifest.json`, measured something else than this one.
    ///
    /// # Errors
    /// Says why the spec in that manifest cannot be read.
    pub fn differences(&self, earlier: &Value) -> Result<Vec<Difference>, String> {
        // Through text, because a single-precision number is written shorter than it is as a double.
        let text = serde_json::to_string(self).map_err(|error| error.to_string())?;
        let ours: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let difference = |field: &str, old: &Value, new: &Value| {
            (old != new).then(|| Difference { field: field.to_owned(), old: old.clone(), new: new.clone() })
        };
        if earlier["spec"].is_null() {
            let keys = BEFORE_SPECS.iter();
            return Ok(keys.filter_map(|key| difference(key, &earlier[*key], &ours[*key])).collect());
        }
        let old: RunSpec =
            serde_json::from_value(earlier["spec"].clone()).map_err(|error| format!("`spec`: {error}"))?;
        let (old, new) = (spec::fields(&old), spec::fields(&self.spec));
        let of = |key: &str| difference(key, &old[key], &new[key]);
        let mut found = Vec::new();
        for (digest, keys) in CONTENTS {
            if let Some(content) = difference(digest, &earlier[digest], &ours[digest]) {
                let named: Vec<_> = keys.iter().filter_map(|key| of(key)).collect();
                found.extend(if named.is_empty() { vec![content] } else { named });
            }
        }
        let of_contents = |key: &str| CONTENTS.iter().any(|(_, keys)| keys.contains(&key));
        found.extend(
            new.keys().filter(|key| !FREE.contains(&key.as_str()) && !of_contents(key)).filter_map(|key| of(key)),
        );
        Ok(found)
    }
}

/// Where the numbers of a command come from that has no single run: this process, this machine, the files that it read.
pub(crate) fn origin(files: &[PathBuf]) -> Value {
    let digests: Map<String, Value> =
        files.iter().map(|path| (path.display().to_string(), json!(file_sha256(path)))).collect();
    json!({
        "schema_version": 1,
        "date_unix_s": SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        "command": spec::without_secrets(std::env::args()),
        "version": env!("CARGO_PKG_VERSION"),
        "git_revision": git_revision(),
        "files_sha256": digests,
        "cpu": cpu_name(),
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "os": std::env::consts::OS,
    })
}

fn git_revision() -> Option<String> {
    let output = std::process::Command::new("git").args(["describe", "--always", "--dirty"]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

pub(crate) fn cpu_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    line.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.to_owned())
}
