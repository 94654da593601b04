//! The description of a run: everything that decides what is measured, in one value. Command lines, cells of scenarios and
//! spec files become a [`RunSpec`]; manifests record it.

mod arrivals;
mod headers;
mod lenient;
mod overrides;
mod system;
#[cfg(test)]
pub(crate) mod tests;
mod values;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tokenrouter_engine::config::{ConfigError, Document};

use crate::dataset::Lengths;
use crate::device::DeviceChoice;
use crate::error::usage;

pub use arrivals::Arrivals;
pub(crate) use headers::without_secrets;
pub use headers::{Headers, KEY_VARIABLE};
pub use overrides::Overrides;
pub(crate) use overrides::fields;
pub use system::System;
pub use values::{LatencyMetric, Named, NumPrompts, Workload};

/// Layout of specs that this program writes and reads.
pub const VERSION: u32 = 1;

/// Requests in flight.
pub const CONCURRENCY: RangeInclusive<u64> = 1..=4096;
/// Repeats of an item, and tokens of an answer.
pub const COUNT: RangeInclusive<u64> = 1..=1_000_000;
/// Trials.
pub const TRIALS: RangeInclusive<u64> = 1..=1000;
/// Requests before the measurement.
pub const WARMUP: RangeInclusive<u64> = 0..=100_000;
/// Largest rate (sessions per second) and longest limit (milliseconds).
const LARGEST: f64 = 1e6;

/// Latencies of which percentiles are reported when nothing is said.
const DEFAULT_PERCENTILES: [LatencyMetric; 3] = [LatencyMetric::Ttft, LatencyMetric::Tpot, LatencyMetric::E2el];

/// The configuration used when none is given.
const DEFAULT_CONFIG: (&str, &str) = ("config/rstitch/demo.yaml", include_str!("../../../../config/rstitch/demo.yaml"));

/// Everything that defines a measured run. Keys are the flags of `trbench run` without their dashes; absent keys have the
/// flags' defaults. Paths are relative to the current folder. Lists may be written as one value, numbers as text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct RunSpec {
    /// Version of this layout.
    pub version: u32,

    /// Configuration file of the routed system; the built-in demo when absent.
    #[serde(deserialize_with = "lenient::optional")]
    pub config: Option<PathBuf>,
    /// Changes of the configuration, `KEY=VALUE` with the value as YAML, applied in order.
    #[serde(deserialize_with = "lenient::whole_list")]
    pub set: Vec<String>,
    /// Where all models compute; as the configuration says when absent.
    #[serde(deserialize_with = "lenient::optional")]
    pub device: Option<DeviceChoice>,
    /// Calibration of this system, from which thresholds of `config` and `delayed` are computed.
    #[serde(deserialize_with = "lenient::optional")]
    pub calibration: Option<PathBuf>,
    /// Whether a calibration of another system is taken as well.
    #[serde(deserialize_with = "lenient::one")]
    pub any_calibration: bool,
    /// Systems to measure, each at every concurrency.
    #[serde(deserialize_with = "lenient::list")]
    pub system: Vec<System>,
    /// Trace (a result folder or `trace.jsonl`) whose routing decisions are repeated.
    #[serde(deserialize_with = "lenient::optional")]
    pub replay: Option<PathBuf>,
    /// Whether emulated models run in virtual time.
    #[serde(deserialize_with = "lenient::one")]
    pub virtual_time: bool,
    /// OpenAI-compatible servers to use instead of an engine in this process: one address, or one for each model.
    #[serde(deserialize_with = "lenient::list")]
    pub endpoint: Vec<Named>,
    /// Names of the models at these servers.
    #[serde(deserialize_with = "lenient::list")]
    pub model: Vec<Named>,
    /// What is sent to servers besides. It is never written, so a spec file has none.
    #[serde(skip)]
    pub headers: Headers,

    /// Which workload.
    #[serde(deserialize_with = "lenient::one")]
    pub workload: Workload,
    /// File with problems, prompts or sessions; the workload's built-in ones when absent.
    #[serde(deserialize_with = "lenient::optional")]
    pub dataset_path: Option<PathBuf>,
    /// Items of the dataset to use, from its start.
    #[serde(deserialize_with = "lenient::one")]
    pub num_prompts: NumPrompts,
    /// Words in a prompt of the workload `random`.
    #[serde(deserialize_with = "lenient::optional")]
    pub input_len: Option<Lengths>,
    /// Times that each item is asked.
    #[serde(deserialize_with = "lenient::one")]
    pub repeats: usize,

    /// Requests in flight; with a rate, the most that the engine decodes at the same time. Each is measured by itself.
    #[serde(deserialize_with = "lenient::list")]
    pub concurrency: Vec<usize>,
    /// Open loop: sessions that arrive per second. Closed loop when absent.
    #[serde(deserialize_with = "lenient::optional")]
    pub rate: Option<f64>,
    /// Distribution of the gaps between arrivals.
    #[serde(deserialize_with = "lenient::one")]
    pub arrivals: Arrivals,
    /// Requests before each trial that are not measured.
    #[serde(deserialize_with = "lenient::one")]
    pub warmup: usize,
    /// Times that everything is measured, each with a fresh engine and the next seed.
    #[serde(deserialize_with = "lenient::one")]
    pub trials: usize,

    /// Most tokens per answer; 8192 for `aime-8k` and 256 for other workloads when absent.
    #[serde(deserialize_with = "lenient::optional")]
    pub max_tokens: Option<usize>,
    /// Whether answers go on after the end token.
    #[serde(deserialize_with = "lenient::one")]
    pub ignore_eos: bool,
    /// Sampling temperature; 0 is greedy.
    #[serde(deserialize_with = "lenient::one")]
    pub temperature: f32,
    /// Seed of all draws.
    #[serde(deserialize_with = "lenient::one")]
    pub seed: u64,

    /// Goodput counts requests whose first token came within this many milliseconds.
    #[serde(deserialize_with = "lenient::optional")]
    pub slo_ttft_ms: Option<f64>,
    /// Goodput counts requests whose mean time between tokens is at most this many milliseconds.
    #[serde(deserialize_with = "lenient::optional")]
    pub slo_tpot_ms: Option<f64>,
    /// Goodput counts requests that ended within this many milliseconds.
    #[serde(deserialize_with = "lenient::optional")]
    pub slo_e2el_ms: Option<f64>,
    /// Latencies of which percentiles are reported.
    #[serde(deserialize_with = "lenient::list")]
    pub percentile_metrics: Vec<LatencyMetric>,
    /// Whether prompts and answers of all requests are written to `detailed.jsonl`.
    #[serde(deserialize_with = "lenient::one")]
    pub save_detailed: bool,
    /// Model of the configuration that reads the answers afterwards.
    #[serde(deserialize_with = "lenient::optional")]
    pub judge: Option<String>,
    /// Whether every step of every request is written to `trace.jsonl`.
    #[serde(deserialize_with = "lenient::one")]
    pub trace: bool,
    /// Whether what every subserver does when is written to `timeline.json`; earlier specs call it `profile`.
    #[serde(deserialize_with = "lenient::one", alias = "profile")]
    pub timeline: bool,
}

impl Default for RunSpec {
    fn default() -> Self {
        Self {
            version: VERSION,
            config: None,
            set: Vec::new(),
            device: None,
            calibration: None,
            any_calibration: false,
            system: vec![System::Config],
            replay: None,
            virtual_time: false,
            endpoint: Vec::new(),
            model: Vec::new(),
            headers: Headers::default(),
            workload: Workload::Aime,
            dataset_path: None,
            num_prompts: NumPrompts::First(16),
            input_len: None,
            repeats: 1,
            concurrency: vec![4],
            rate: None,
            arrivals: Arrivals::Poisson,
            warmup: 0,
            trials: 1,
            max_tokens: None,
            ignore_eos: false,
            temperature: 0.0,
            seed: 0,
            slo_ttft_ms: None,
            slo_tpot_ms: None,
            slo_e2el_ms: None,
            percentile_metrics: DEFAULT_PERCENTILES.to_vec(),
            save_detailed: false,
            judge: None,
            trace: false,
            timeline: false,
        }
    }
}

impl RunSpec {
    /// Reads a spec file, JSON or YAML.
    ///
    /// # Errors
    /// A usage error that names the file, and the key where one is wrong.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| usage(format!("cannot read spec `{}`: {error}", path.display())))?;
        let refuse = |why: String| usage(format!("spec `{}`: {why}", path.display()));
        let overrides: Overrides = serde_saphyr::from_str(&text).map_err(|error| refuse(error.to_string()))?;
        overrides.spec().map_err(refuse)
    }

    /// Most tokens per answer.
    pub(crate) fn max_tokens(&self) -> usize {
        let of_workload = if self.workload == Workload::Aime8k { 8192 } else { 256 };
        self.max_tokens.unwrap_or(of_workload)
    }

    /// What the load is, in words.
    pub(crate) fn load(&self) -> String {
        match self.rate {
            None => "closed loop".into(),
            Some(rate) => format!("open loop, {rate}/s, {}", self.arrivals),
        }
    }

    /// Whether servers of single models stand in for an engine.
    pub(crate) fn hops(&self) -> bool {
        self.endpoint.iter().any(|endpoint| !endpoint.model.is_empty())
    }

    /// The part of the run that measures one system at one concurrency.
    pub(crate) fn cell(&self, system: &System, concurrency: usize) -> Self {
        Self { system: vec![system.clone()], concurrency: vec![concurrency], ..self.clone() }
    }

    /// The configuration with the changes of `set`.
    pub(crate) fn document(&self) -> Result<Document, ConfigError> {
        let document = match &self.config {
            Some(path) => Document::from_file(path)?,
            None => Document::built_in(DEFAULT_CONFIG.0, DEFAULT_CONFIG.1)?,
        };
        document.set(&self.set)
    }

    /// Checks ranges, and settings that do not go together.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.version != VERSION {
            return Err(usage(format!("`version` {} of a spec is not known, known is {VERSION}", self.version)));
        }
        if self.system.is_empty() || self.concurrency.is_empty() {
            return Err(usage("a run needs at least one `system` and one `concurrency`"));
        }
        let counts = self.concurrency.iter().map(|count| ("concurrency", *count, CONCURRENCY)).chain([
            ("repeats", self.repeats, COUNT),
            ("max-tokens", self.max_tokens(), COUNT),
            ("trials", self.trials, TRIALS),
            ("warmup", self.warmup, WARMUP),
        ]);
        for (key, value, allowed) in counts {
            if !allowed.contains(&(value as u64)) {
                let (least, most) = (allowed.start(), allowed.end());
                return Err(usage(format!("--{key} {value} is not allowed, allowed are {least} to {most}")));
            }
        }
        let numbers = [
            ("rate", self.rate),
            ("slo-ttft-ms", self.slo_ttft_ms),
            ("slo-tpot-ms", self.slo_tpot_ms),
            ("slo-e2el-ms", self.slo_e2el_ms),
        ];
        for (key, value) in numbers {
            if let Some(why) = value.and_then(|value| above_zero(value).err()) {
                return Err(usage(format!("--{key} {why}")));
            }
        }
        for (key, given) in [("trace", self.trace), ("timeline", self.timeline)] {
            if given && self.trials > 1 {
                return Err(usage(format!("--{key} describes one trial from its beginning, without --trials")));
            }
        }
        if self.rate.is_none() && self.arrivals != Arrivals::Poisson {
            return Err(usage("--arrivals is for an open loop, it needs --rate"));
        }
        self.check_endpoints()
    }

    fn check_endpoints(&self) -> anyhow::Result<()> {
        for list in [&self.endpoint, &self.model] {
            let twice = list.iter().enumerate().find(|(at, named)| list[..*at].iter().any(|n| n.model == named.model));
            if let Some((_, named)) = twice {
                return Err(usage(format!("`{}` is the second value for `{}`", named.value, named.model)));
            }
        }
        if self.endpoint.is_empty() {
            if !self.headers.is_empty() {
                return Err(usage("--header is for servers, it needs --endpoint"));
            }
            return Ok(());
        }
        let engines = [
            ("calibration", self.calibration.is_some()),
            ("replay", self.replay.is_some()),
            ("virtual-time", self.virtual_time),
            ("judge", self.judge.is_some()),
            ("trace", self.trace),
            ("timeline", self.timeline),
        ];
        if let Some((key, _)) = engines.iter().find(|(_, given)| *given) {
            return Err(usage(format!("--{key} needs an engine in this process, it does not go with --endpoint")));
        }
        if self.hops() && self.endpoint.iter().any(|endpoint| endpoint.model.is_empty()) {
            return Err(usage("--endpoint: give one address, or `MODEL=URL` for every model"));
        }
        if self.hops() != self.config.is_some() {
            return Err(usage(
                "--endpoint: `MODEL=URL` needs --config for models and routing, a plain address takes none",
            ));
        }
        if self.system != [System::Config] {
            return Err(usage("--endpoint: servers are one system, without --system"));
        }
        Ok(())
    }
}

/// A rate or a time limit in range.
pub(crate) fn above_zero(value: f64) -> Result<f64, String> {
    if value > 0.0 && value <= LARGEST {
        return Ok(value);
    }
    Err(format!("{value} is not allowed, allowed is above 0 up to {LARGEST}"))
}
