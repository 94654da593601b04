//! The arguments of `trbench run`.

use std::path::PathBuf;

use crate::gpu::DeviceChoice;
use clap::Args;

use super::{Arrivals, System, Workload};
use crate::cli::usage;
use crate::dataset::Lengths;
use crate::report::Format;

/// Arguments of `trbench run`. Every flag can also be set as `TRBENCH_<FLAG>` in the environment.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Which workload.
    #[arg(long, env = "TRBENCH_WORKLOAD", default_value = "aime")]
    pub workload: Workload,
    /// Configuration of the routed system [default: the built-in config/rstitch/demo.yaml].
    #[arg(long, short, env = "TRBENCH_CONFIG")]
    pub config: Option<PathBuf>,
    /// Change a key of the configuration, such as `batching.thresholds=[1,2]` or `routing.probability=0.2`; the value is YAML.
    /// Once for every key.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Where all models compute, instead of what the configuration says: `cpu`, `cuda:N`, or `auto`: the first GPU, or the
    /// CPU with a warning.
    #[arg(long, env = "TRBENCH_DEVICE")]
    pub device: Option<DeviceChoice>,
    /// A calibration of this system (`trbench calibrate`): thresholds of `config` and `delayed` are computed from it.
    #[arg(long, env = "TRBENCH_CALIBRATION", conflicts_with = "endpoint")]
    pub calibration: Option<PathBuf>,
    /// Systems to run: `config` (as configured), `delayed`, `async` (all thresholds 1), `async-no-resume`
    /// (blocks are given back at every handoff), `lockstep` (all models step in rounds), `standard` (one engine a model,
    /// and a client that hops), `single:MODEL`; a comma list.
    #[arg(long, env = "TRBENCH_SYSTEM", value_delimiter = ',', default_value = "config")]
    pub system: Vec<System>,
    /// Requests kept in flight (closed loop); a comma list runs one after the other. With `--rate`, the most that the
    /// engine decodes at the same time.
    #[arg(long, env = "TRBENCH_CONCURRENCY", value_delimiter = ',', default_value = "4")]
    pub concurrency: Vec<usize>,
    /// Open loop: sessions that arrive per second, however many are in flight.
    #[arg(long, env = "TRBENCH_RATE", allow_negative_numbers = true)]
    pub rate: Option<f64>,
    /// Gaps between arrivals: `poisson`, or `gamma:CV` with a coefficient of variation (1 is Poisson, above it is burstier).
    #[arg(long, env = "TRBENCH_ARRIVALS", default_value = "poisson", requires = "rate")]
    pub arrivals: Arrivals,
    /// Requests before the measurement, at the same concurrency and with other prompts of the same lengths.
    #[arg(long, env = "TRBENCH_WARMUP", default_value_t = 0)]
    pub warmup: usize,
    /// Times that everything is measured, each with a fresh engine and the next seed; from 2 on, intervals are reported.
    #[arg(long, env = "TRBENCH_TRIALS", default_value_t = 1)]
    pub trials: usize,
    /// Goodput counts requests whose first token came within this time.
    #[arg(long, env = "TRBENCH_SLO_TTFT_MS", allow_negative_numbers = true)]
    pub slo_ttft_ms: Option<f64>,
    /// Goodput counts requests whose mean time between tokens is at most this.
    #[arg(long, env = "TRBENCH_SLO_TPOT_MS", allow_negative_numbers = true)]
    pub slo_tpot_ms: Option<f64>,
    /// Problems, prompts or sessions of the dataset to use, from its start: a number, or `all`.
    #[arg(long, env = "TRBENCH_NUM_PROMPTS", default_value = "16")]
    pub num_prompts: NumPrompts,
    /// Times that each item is asked.
    #[arg(long, env = "TRBENCH_REPEATS", default_value_t = 1)]
    pub repeats: usize,
    /// Most tokens per answer [default: 256, and 8192 for `aime-8k`].
    #[arg(long, env = "TRBENCH_MAX_TOKENS")]
    pub max_tokens: Option<usize>,
    /// Go on after the end token, so that every answer has `--max-tokens` tokens.
    #[arg(long, env = "TRBENCH_IGNORE_EOS")]
    pub ignore_eos: bool,
    /// Sampling temperature; 0 is greedy.
    #[arg(long, env = "TRBENCH_TEMPERATURE", default_value_t = 0.0)]
    pub temperature: f32,
    /// Words in a prompt of `--workload random`: a number such as 512, or a range such as 256-1024.
    #[arg(long, env = "TRBENCH_INPUT_LEN")]
    pub input_len: Option<Lengths>,
    /// File with problems or sessions instead of the built-in ones: JSONL, JSON, Parquet or .traj.
    #[arg(long, env = "TRBENCH_DATASET_PATH")]
    pub dataset_path: Option<PathBuf>,
    /// Repeat the routing decisions of a run with `--trace`: its folder or `trace.jsonl`. The method of the configuration
    /// is not used.
    #[arg(long, env = "TRBENCH_REPLAY", conflicts_with = "endpoint")]
    pub replay: Option<PathBuf>,
    /// OpenAI-compatible server to use instead of an engine in this process, such as http://127.0.0.1:30000. `MODEL=URL`,
    /// once for every model of `--config`: servers of single models, between which this client hops (system `standard`,
    /// methods `random`, `entropy` and `rstitch`, entropy over the 20 most likely tokens).
    #[arg(long, env = "TRBENCH_ENDPOINT", value_delimiter = ',', value_name = "[MODEL=]URL")]
    pub endpoint: Vec<Named>,
    /// Model name sent to the endpoint, or `MODEL=NAME` for that of a model [default: default].
    #[arg(long, env = "TRBENCH_MODEL", value_delimiter = ',', value_name = "[MODEL=]NAME")]
    pub model: Vec<Named>,
    /// Folder for results [default: results/TIME-WORKLOAD].
    #[arg(long, env = "TRBENCH_OUTPUT_DIR")]
    pub output_dir: Option<PathBuf>,
    /// Continue the run in this folder: requests that it has complete rows of are not sent again.
    #[arg(long, env = "TRBENCH_RESUME", value_name = "DIR", conflicts_with = "output_dir")]
    pub resume: Option<PathBuf>,
    /// Let this model of the configuration read the answers afterwards: how many of their tokens it would have written
    /// itself, and how likely they are to it.
    #[arg(long, env = "TRBENCH_JUDGE", value_name = "MODEL", conflicts_with = "endpoint")]
    pub judge: Option<String>,
    /// Write every step of every request to `trace.jsonl`, for `trbench trace`, `trbench sweep-threshold` and `--replay`.
    #[arg(long, env = "TRBENCH_TRACE", conflicts_with = "endpoint")]
    pub trace: bool,
    /// Record what every subserver does when, and write it to `profile.json` as a Chrome trace.
    #[arg(long, env = "TRBENCH_PROFILE", conflicts_with = "endpoint")]
    pub profile: bool,
    /// Seed of all draws.
    #[arg(long, env = "TRBENCH_SEED", default_value_t = 0)]
    pub seed: u64,
    /// Format of the report on stdout.
    #[arg(long, env = "TRBENCH_OUTPUT", default_value = "table")]
    pub output: Format,
}

/// A value, with the model that it is for where one is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// Name of the model; empty when none is given.
    pub model: String,
    /// The value.
    pub value: String,
}

impl std::str::FromStr for Named {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        // An address may have a `=` of its own, after its scheme.
        let named = text.split_once('=').filter(|(model, _)| !model.contains([':', '/']));
        match named {
            Some((model, value)) if model.is_empty() || value.is_empty() => {
                Err("expected a value, or `MODEL=VALUE`".into())
            }
            Some((model, value)) => Ok(Self { model: model.to_owned(), value: value.to_owned() }),
            None => Ok(Self { model: String::new(), value: text.to_owned() }),
        }
    }
}

/// How many items of a dataset to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumPrompts {
    /// All of them, once.
    All,
    /// This many, from the start.
    First(usize),
}

impl std::str::FromStr for NumPrompts {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "all" => Ok(Self::All),
            Ok(0) | Err(_) => Err("expected a number above 0, or `all`".into()),
            Ok(number) => Ok(Self::First(number)),
        }
    }
}

impl RunArgs {
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
    pub(super) fn hops(&self) -> bool {
        self.endpoint.iter().any(|endpoint| !endpoint.model.is_empty())
    }

    fn check_endpoints(&self) -> anyhow::Result<()> {
        for list in [&self.endpoint, &self.model] {
            let twice = list.iter().enumerate().find(|(at, named)| list[..*at].iter().any(|n| n.model == named.model));
            if let Some((_, named)) = twice {
                return Err(usage(format!("`{}` is the second value for `{}`", named.value, named.model)));
            }
        }
        if self.endpoint.is_empty() {
            return Ok(());
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

    /// Checks ranges, and flags that do not go together.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        if let Some(bad) = self.concurrency.iter().find(|n| !(1..=4096).contains(*n)) {
            return Err(usage(format!("--concurrency {bad} is not allowed, allowed are 1 to 4096")));
        }
        for (flag, value) in [("--repeats", self.repeats), ("--max-tokens", self.max_tokens())] {
            if !(1..=1_000_000).contains(&value) {
                return Err(usage(format!("{flag} {value} is not allowed, allowed are 1 to 1000000")));
            }
        }
        if !(1..=1000).contains(&self.trials) {
            return Err(usage(format!("--trials {} is not allowed, allowed are 1 to 1000", self.trials)));
        }
        if self.warmup > 100_000 {
            return Err(usage(format!("--warmup {} is not allowed, allowed are 0 to 100000", self.warmup)));
        }
        self.check_endpoints()?;
        let numbers = [("--rate", self.rate), ("--slo-ttft-ms", self.slo_ttft_ms), ("--slo-tpot-ms", self.slo_tpot_ms)];
        for (flag, value) in numbers {
            if let Some(bad) = value.filter(|value| !(*value > 0.0 && *value <= 1e6)) {
                return Err(usage(format!("{flag} {bad} is not allowed, allowed is above 0 up to 1000000")));
            }
        }
        for (flag, given) in [("--trace", self.trace), ("--profile", self.profile)] {
            if given && (self.trials > 1 || self.resume.is_some()) {
                return Err(usage(format!(
                    "{flag} describes one trial from its beginning, without --trials and --resume"
                )));
            }
        }
        Ok(())
    }
}
