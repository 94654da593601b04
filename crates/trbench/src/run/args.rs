//! The command line of `trbench run`.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::Args;
use clap::builder::RangedU64ValueParser;

use crate::dataset::Lengths;
use crate::device::DeviceChoice;
use crate::spec::{self, Arrivals, Named, NumPrompts, RunSpec, System, Workload};
use crate::terminal::Format;

/// Arguments of `trbench run`. Every flag can also be set as `TRBENCH_<FLAG>` in the environment.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    #[command(flatten)]
    flags: SpecFlags,
    /// Header of every request to `--endpoint`, such as `api-key: SECRET`; once for every header. `OPENAI_API_KEY` in the
    /// environment is sent as `Authorization: Bearer` without it. Neither is written anywhere.
    #[arg(long, value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// Take everything that defines the run from this file (JSON or YAML) instead of from flags: the `spec` of
    /// `trbench scenario cells` or of a `manifest.json`. Only `--output-dir`, `--resume`, `--output`
    /// and `--header` go with it.
    #[arg(long, value_name = "FILE", conflicts_with = "SpecFlags")]
    spec: Option<PathBuf>,
    /// Folder for results [default: results/TIME-WORKLOAD].
    #[arg(long, env = "TRBENCH_OUTPUT_DIR")]
    pub(super) output_dir: Option<PathBuf>,
    /// Continue the run in this folder: requests that it has complete rows of are not sent again.
    #[arg(long, env = "TRBENCH_RESUME", value_name = "DIR", conflicts_with = "output_dir")]
    pub(super) resume: Option<PathBuf>,
    /// Format of the report on stdout.
    #[arg(long, env = "TRBENCH_OUTPUT", default_value = "table")]
    pub(super) output: Format,
}

/// The flags that define a run: those of [`RunSpec`].
#[derive(Debug, Clone, Args)]
struct SpecFlags {
    /// Which workload.
    #[arg(long, env = "TRBENCH_WORKLOAD", default_value = "aime")]
    workload: Workload,
    /// Configuration of the routed system [default: the built-in config/rstitch/demo.yaml].
    #[arg(long, short, env = "TRBENCH_CONFIG")]
    config: Option<PathBuf>,
    /// Change a key of the configuration, such as `batching.thresholds=[1,2]` or `routing.probability=0.2`; the value is YAML.
    /// Once for every key.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Where all models compute, instead of what the configuration says: `cpu`, `cuda:N`, or `auto`: the first GPU, or the
    /// CPU with a warning.
    #[arg(long, env = "TRBENCH_DEVICE")]
    device: Option<DeviceChoice>,
    /// A calibration of this system (`trbench calibrate`): thresholds of `config` and `delayed` are computed from it.
    #[arg(long, env = "TRBENCH_CALIBRATION", conflicts_with = "endpoint")]
    calibration: Option<PathBuf>,
    /// Systems to run: `config` (as configured), `delayed`, `async` (all thresholds 1), `async-no-resume`
    /// (blocks are given back at every handoff), `lockstep` (all models step in rounds), `standard` (one engine a model,
    /// and a client that hops), `single:MODEL`; a comma list.
    #[arg(long, env = "TRBENCH_SYSTEM", value_delimiter = ',', default_value = "config")]
    system: Vec<System>,
    /// Requests kept in flight (closed loop); a comma list runs one after the other. With `--rate`, the most that the
    /// engine decodes at the same time.
    #[arg(long, env = "TRBENCH_CONCURRENCY", value_parser = count(spec::CONCURRENCY), value_delimiter = ',', default_value = "4")]
    concurrency: Vec<usize>,
    /// Open loop: sessions that arrive per second, however many are in flight.
    #[arg(long, env = "TRBENCH_RATE", value_parser = above_zero, allow_negative_numbers = true)]
    rate: Option<f64>,
    /// Gaps between arrivals: `poisson`, or `gamma:CV` with a coefficient of variation (1 is Poisson, above it is burstier).
    #[arg(long, env = "TRBENCH_ARRIVALS", default_value = "poisson", requires = "rate")]
    arrivals: Arrivals,
    /// Requests before the measurement, at the same concurrency and with other prompts of the same lengths.
    #[arg(long, env = "TRBENCH_WARMUP", value_parser = count(spec::WARMUP), default_value_t = 0)]
    warmup: usize,
    /// Times that everything is measured, each with a fresh engine and the next seed; from 2 on, intervals are reported.
    #[arg(long, env = "TRBENCH_TRIALS", value_parser = count(spec::TRIALS), default_value_t = 1)]
    trials: usize,
    /// Goodput counts requests whose first token came within this time.
    #[arg(long, env = "TRBENCH_SLO_TTFT_MS", value_parser = above_zero, allow_negative_numbers = true)]
    slo_ttft_ms: Option<f64>,
    /// Goodput counts requests whose mean time between tokens is at most this.
    #[arg(long, env = "TRBENCH_SLO_TPOT_MS", value_parser = above_zero, allow_negative_numbers = true)]
    slo_tpot_ms: Option<f64>,
    /// Problems, prompts or sessions of the dataset to use, from its start: a number, or `all`.
    #[arg(long, env = "TRBENCH_NUM_PROMPTS", default_value = "16")]
    num_prompts: NumPrompts,
    /// Times that each item is asked.
    #[arg(long, env = "TRBENCH_REPEATS", value_parser = count(spec::COUNT), default_value_t = 1)]
    repeats: usize,
    /// Most tokens per answer [default: 256, and 8192 for `aime-8k`].
    #[arg(long, env = "TRBENCH_MAX_TOKENS", value_parser = count(spec::COUNT))]
    max_tokens: Option<usize>,
    /// Go on after the end token, so that every answer has `--max-tokens` tokens.
    #[arg(long, env = "TRBENCH_IGNORE_EOS")]
    ignore_eos: bool,
    /// Sampling temperature; 0 is greedy.
    #[arg(long, env = "TRBENCH_TEMPERATURE", default_value_t = 0.0)]
    temperature: f32,
    /// Words in a prompt of `--workload random`: a number such as 512, or a range such as 256-1024.
    #[arg(long, env = "TRBENCH_INPUT_LEN")]
    input_len: Option<Lengths>,
    /// File with problems or sessions instead of the built-in ones: JSONL, JSON, Parquet or .traj.
    #[arg(long, env = "TRBENCH_DATASET_PATH")]
    dataset_path: Option<PathBuf>,
    /// Repeat the routing decisions of a run with `--trace`: its folder or `trace.jsonl`. The method of the configuration
    /// is not used.
    #[arg(long, env = "TRBENCH_REPLAY", conflicts_with = "endpoint")]
    replay: Option<PathBuf>,
    /// OpenAI-compatible server to use instead of an engine in this process, such as http://127.0.0.1:30000. `MODEL=URL`,
    /// once for every model of `--config`: servers of single models, between which this client hops (system `standard`,
    /// methods `random`, `entropy` and `rstitch`, entropy over the 20 most likely tokens).
    #[arg(long, env = "TRBENCH_ENDPOINT", value_delimiter = ',', value_name = "[MODEL=]URL")]
    endpoint: Vec<Named>,
    /// Model name sent to the endpoint, or `MODEL=NAME` for that of a model [default: default].
    #[arg(long, env = "TRBENCH_MODEL", value_delimiter = ',', value_name = "[MODEL=]NAME")]
    model: Vec<Named>,
    /// Let this model of the configuration read the answers afterwards: how many of their tokens it would have written
    /// itself, and how likely they are to it.
    #[arg(long, env = "TRBENCH_JUDGE", value_name = "MODEL", conflicts_with = "endpoint")]
    judge: Option<String>,
    /// Write every step of every request to `trace.jsonl`, for `trbench trace`, `trbench sweep-threshold` and `--replay`.
    #[arg(long, env = "TRBENCH_TRACE", conflicts_with = "endpoint")]
    trace: bool,
    /// Record what every subserver does when, and write it to `profile.json` as a Chrome trace.
    #[arg(long, env = "TRBENCH_PROFILE", conflicts_with = "endpoint")]
    profile: bool,
    /// Seed of all draws.
    #[arg(long, env = "TRBENCH_SEED", default_value_t = 0)]
    seed: u64,
}

/// A parser of numbers in a range.
fn count(allowed: RangeInclusive<u64>) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(allowed)
}

/// A parser of rates and time limits.
fn above_zero(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().map_err(|error| error.to_string())?;
    spec::above_zero(value)
}

impl RunArgs {
    /// The run that is asked for.
    ///
    /// # Errors
    /// A usage error when a spec file cannot be read.
    pub fn spec(&self) -> anyhow::Result<RunSpec> {
        let mut spec = match &self.spec {
            Some(path) => RunSpec::read(path)?,
            None => self.flags.clone().into(),
        };
        spec.headers = spec::Headers::parse(&self.header).map_err(crate::error::usage)?;
        Ok(spec)
    }
}

impl From<SpecFlags> for RunSpec {
    fn from(flags: SpecFlags) -> Self {
        let SpecFlags {
            workload,
            config,
            set,
            device,
            calibration,
            system,
            concurrency,
            rate,
            arrivals,
            warmup,
            trials,
            slo_ttft_ms,
            slo_tpot_ms,
            num_prompts,
            repeats,
            max_tokens,
            ignore_eos,
            temperature,
            input_len,
            dataset_path,
            replay,
            endpoint,
            model,
            judge,
            trace,
            profile,
            seed,
        } = flags;
        Self {
            version: spec::VERSION,
            workload,
            config,
            set,
            device,
            calibration,
            system,
            concurrency,
            rate,
            arrivals,
            warmup,
            trials,
            slo_ttft_ms,
            slo_tpot_ms,
            num_prompts,
            repeats,
            max_tokens,
            ignore_eos,
            temperature,
            input_len,
            dataset_path,
            replay,
            endpoint,
            model,
            headers: spec::Headers::default(),
            judge,
            trace,
            profile,
            seed,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use proptest::prelude::*;

    use super::*;
    use crate::spec::tests::{overrides_of, specs};

    #[derive(Debug, Parser)]
    #[command(no_binary_name = true)]
    struct CommandLine {
        #[command(flatten)]
        run: RunArgs,
    }

    fn parse(args: &[String]) -> Result<RunSpec, String> {
        let parsed = CommandLine::try_parse_from(args).map_err(|error| error.to_string())?;
        parsed.run.spec().map_err(|error| error.to_string())
    }

    proptest! {
        #[test]
        fn a_spec_is_that_of_its_flags(spec in specs()) {
            prop_assert_eq!(parse(&overrides_of(&spec).flags()).expect("flags"), spec);
        }
    }

    #[test]
    fn defaults_of_flags_are_those_of_specs() {
        assert_eq!(parse(&[]).expect("no flags"), RunSpec::default());
    }

    #[test]
    fn a_spec_file_goes_with_no_flag_that_defines_the_run() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(&file, "{version: 1, seed: 7, system: [async, delayed]}").expect("writable");
        let path = format!("--spec={}", file.path().display());
        let spec = parse(&[path.clone(), "--output-dir=x".into(), "--output=json".into()]).expect("a spec");
        assert_eq!(spec, RunSpec { seed: 7, system: vec![System::Async, System::Delayed], ..RunSpec::default() });
        for flag in ["--seed=7", "--trace", "--workload=aime"] {
            let why = parse(&[path.clone(), flag.into()]).expect_err("refused");
            assert!(why.contains("cannot be used with"), "{flag}: {why}");
        }
        std::fs::write(&file, "{sede: 7}").expect("writable");
        assert!(parse(&[path]).expect_err("refused").contains("did you mean `seed`?"));
    }
}
