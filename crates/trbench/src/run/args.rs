//! The command line of `trbench run`.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::Args;
use clap::builder::RangedU64ValueParser;

use crate::dataset::Lengths;
use crate::device::DeviceChoice;
use crate::spec::{self, Arrivals, LatencyMetric, Named, NumPrompts, RunSpec, System, Workload};
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
    /// `trbench scenario cells` or of a `manifest.json`. Only `--out`, `--overwrite`, `--resume`, `--output` and `--header`
    /// go with it.
    #[arg(long, value_name = "FILE", conflicts_with = "SpecFlags")]
    spec: Option<PathBuf>,
    /// Folder for results [default: results/DATE-WORKLOAD, the date and time in UTC]. One that holds a run is refused.
    #[arg(
        long = "out",
        short = 'o',
        alias = "output-dir",
        visible_alias = "result-dir",
        env = "TRBENCH_OUT",
        value_name = "DIR"
    )]
    pub(super) output_dir: Option<PathBuf>,
    /// Replace the run that the output folder holds.
    #[arg(long, env = "TRBENCH_OVERWRITE", conflicts_with = "resume")]
    pub(super) overwrite: bool,
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
    /// Which workload [default: aime, and random with `--random-input-len` or `--random-output-len`].
    #[arg(long, env = "TRBENCH_WORKLOAD")]
    workload: Option<Workload>,
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
    /// Take a calibration of another system as well; what differs is said.
    #[arg(long, env = "TRBENCH_ANY_CALIBRATION", requires = "calibration")]
    any_calibration: bool,
    /// Systems to run: `config` (as configured), `delayed`, `async` (all thresholds 1), `async-no-resume`
    /// (blocks are given back at every handoff), `lockstep` (all models step in rounds), `standard` (one engine a model,
    /// and a client that hops), `single:MODEL`; a comma list.
    #[arg(long, env = "TRBENCH_SYSTEM", value_delimiter = ',', default_value = "config")]
    system: Vec<System>,
    /// Requests kept in flight (closed loop); a comma list runs one after the other. With `--rate`, the most that the
    /// engine decodes at the same time. Configured thresholds that are not feasible at a concurrency are shrunk, and every
    /// row says which it ran with.
    #[arg(long, env = "TRBENCH_CONCURRENCY", visible_alias = "max-concurrency", value_parser = count(spec::CONCURRENCY), value_delimiter = ',', default_value = "4")]
    concurrency: Vec<usize>,
    /// Open loop: sessions that arrive per second, however many are in flight. `inf` is the closed loop.
    #[arg(
        long,
        env = "TRBENCH_RATE",
        visible_alias = "request-rate",
        value_parser = rate,
        allow_negative_numbers = true
    )]
    rate: Option<f64>,
    /// Gaps between arrivals: `poisson`, or `gamma:CV` with a coefficient of variation (1 is Poisson, above it is burstier).
    #[arg(long, env = "TRBENCH_ARRIVALS", default_value = "poisson", requires = "rate")]
    arrivals: Arrivals,
    /// The same as vLLM says it: gamma gaps of this shape, that is of a coefficient of variation of 1 / sqrt(SHAPE). 1 is
    /// Poisson, below it is burstier.
    #[arg(
        long,
        env = "TRBENCH_BURSTINESS",
        value_name = "SHAPE",
        value_parser = burstiness,
        requires = "rate",
        conflicts_with = "arrivals",
        allow_negative_numbers = true
    )]
    burstiness: Option<Arrivals>,
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
    /// Goodput counts requests that ended within this time.
    #[arg(long, env = "TRBENCH_SLO_E2EL_MS", value_parser = above_zero, allow_negative_numbers = true)]
    slo_e2el_ms: Option<f64>,
    /// The three limits in vLLM's form: `ttft:MS`, `tpot:MS`, `e2el:MS`, one or several.
    #[arg(
        long,
        num_args = 1..,
        value_delimiter = ',',
        value_name = "METRIC:MS",
        conflicts_with_all = ["slo_ttft_ms", "slo_tpot_ms", "slo_e2el_ms"]
    )]
    goodput: Vec<Limit>,
    /// Latencies of which percentiles are reported: `ttft`, `tpot`, `itl`, `e2el`; a comma list. `itl` is the time between
    /// two tokens, each by itself, without those of rows that `--resume` keeps.
    #[arg(long, env = "TRBENCH_PERCENTILE_METRICS", value_delimiter = ',', default_value = "ttft,tpot,e2el")]
    percentile_metrics: Vec<LatencyMetric>,
    /// Write prompts and answers of all requests to `detailed.jsonl`.
    #[arg(long, env = "TRBENCH_SAVE_DETAILED")]
    save_detailed: bool,
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
    /// vLLM's name for `--workload random --input-len`.
    #[arg(long, value_name = "WORDS", conflicts_with = "input_len")]
    random_input_len: Option<Lengths>,
    /// vLLM's name for `--workload random --max-tokens`.
    #[arg(long, value_name = "TOKENS", value_parser = count(spec::COUNT), conflicts_with = "max_tokens")]
    random_output_len: Option<usize>,
    /// File with problems, prompts or conversations instead of the built-in ones: JSONL, JSON (ShareGPT's too), CSV, Parquet
    /// or .traj.
    #[arg(long, env = "TRBENCH_DATASET_PATH")]
    dataset_path: Option<PathBuf>,
    /// Repeat the routing decisions of a run with `--trace`: its folder or `trace.jsonl`. The method of the configuration
    /// is not used.
    #[arg(long, env = "TRBENCH_REPLAY", conflicts_with = "endpoint")]
    replay: Option<PathBuf>,
    /// Let emulated models run in virtual time: the same scheduler, policy and load under a clock that jumps from one event
    /// to the next. Hours take seconds, equal seeds give equal results to the last bit, and every report says so.
    #[arg(long, env = "TRBENCH_VIRTUAL_TIME", conflicts_with = "endpoint")]
    virtual_time: bool,
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
    /// Record what every subserver does when, and write it to `timeline.json` as a Chrome trace.
    #[arg(long, alias = "profile", env = "TRBENCH_TIMELINE", conflicts_with = "endpoint")]
    timeline: bool,
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

/// A parser of `--rate`.
fn rate(text: &str) -> Result<f64, String> {
    if text == "inf" { Ok(f64::INFINITY) } else { above_zero(text) }
}

/// A parser of `--burstiness`.
fn burstiness(text: &str) -> Result<Arrivals, String> {
    let shape = above_zero(text)?;
    let named = if shape == 1.0 { "poisson".to_owned() } else { format!("gamma:{}", 1.0 / shape.sqrt()) };
    named.parse().map_err(|_| format!("{shape} is not allowed, allowed are 0.01 to 400"))
}

/// A limit of `--goodput`.
#[derive(Debug, Clone, Copy)]
struct Limit(LatencyMetric, f64);

impl std::str::FromStr for Limit {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected `ttft:MS`, `tpot:MS` or `e2el:MS`".to_owned();
        let (metric, ms) = text.split_once(':').ok_or_else(expected)?;
        let metric = metric.parse().ok().filter(|metric| *metric != LatencyMetric::Itl).ok_or_else(expected)?;
        Ok(Self(metric, above_zero(ms)?))
    }
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
        let random = flags.random_input_len.is_some() || flags.random_output_len.is_some();
        let limit = |metric: LatencyMetric| {
            let given = flags.goodput.iter().rev().find(|limit| limit.0 == metric);
            given.map(|limit| limit.1)
        };
        Self {
            version: spec::VERSION,
            workload: flags.workload.unwrap_or(if random { Workload::Random } else { Workload::Aime }),
            slo_ttft_ms: flags.slo_ttft_ms.or(limit(LatencyMetric::Ttft)),
            slo_tpot_ms: flags.slo_tpot_ms.or(limit(LatencyMetric::Tpot)),
            slo_e2el_ms: flags.slo_e2el_ms.or(limit(LatencyMetric::E2el)),
            config: flags.config,
            set: flags.set,
            device: flags.device,
            calibration: flags.calibration,
            any_calibration: flags.any_calibration,
            system: flags.system,
            concurrency: flags.concurrency,
            rate: flags.rate.filter(|rate| rate.is_finite()),
            arrivals: flags.burstiness.filter(|_| flags.rate.is_some_and(f64::is_finite)).unwrap_or(flags.arrivals),
            warmup: flags.warmup,
            trials: flags.trials,
            percentile_metrics: flags.percentile_metrics,
            save_detailed: flags.save_detailed,
            num_prompts: flags.num_prompts,
            repeats: flags.repeats,
            max_tokens: flags.max_tokens.or(flags.random_output_len),
            ignore_eos: flags.ignore_eos,
            temperature: flags.temperature,
            input_len: flags.input_len.or(flags.random_input_len),
            dataset_path: flags.dataset_path,
            replay: flags.replay,
            virtual_time: flags.virtual_time,
            endpoint: flags.endpoint,
            model: flags.model,
            headers: spec::Headers::default(),
            judge: flags.judge,
            trace: flags.trace,
            timeline: flags.timeline,
            seed: flags.seed,
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
    fn flags_of_vllm_bench_say_the_same_as_our_own() {
        for (theirs, ours) in [
            ("--max-concurrency=2", "--concurrency=2"),
            ("--request-rate=3 --burstiness=0.25", "--rate=3 --arrivals=gamma:2"),
            ("--request-rate=3 --burstiness=1", "--rate=3"),
            ("--request-rate=inf --burstiness=0.25", ""),
            ("--random-input-len=64 --random-output-len=8", "--workload=random --input-len=64 --max-tokens=8"),
            ("--goodput ttft:500 tpot:50 --seed=1", "--slo-ttft-ms=500 --slo-tpot-ms=50 --seed=1"),
            ("--goodput e2el:9000", "--slo-e2el-ms=9000"),
        ] {
            let spec = |text: &str| {
                parse(&text.split(' ').filter(|arg| !arg.is_empty()).map(str::to_owned).collect::<Vec<_>>())
            };
            assert_eq!(spec(theirs).expect(theirs), spec(ours).expect(ours), "{theirs}");
        }
        let args = ["--result-dir=x", "--percentile-metrics=ttft,itl", "--save-detailed"];
        let run = CommandLine::try_parse_from(args).expect("flags").run;
        assert_eq!(run.output_dir.as_deref(), Some(std::path::Path::new("x")));
        let spec = run.spec().expect("flags");
        assert_eq!(
            (spec.percentile_metrics, spec.save_detailed),
            (vec![LatencyMetric::Ttft, LatencyMetric::Itl], true)
        );
        for (bad, says) in [
            ("--goodput=itl:3", "expected `ttft:MS`, `tpot:MS` or `e2el:MS`"),
            ("--goodput=ttft:0", "allowed is above 0"),
            ("--percentile-metrics=p99", "expected `ttft`, `tpot`, `itl` or `e2el`"),
            ("--burstiness=2", "--rate"),
        ] {
            let why = parse(&[bad.to_owned()]).expect_err("refused");
            assert!(why.contains(says), "{bad}: {why}");
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
        let spec = parse(&[path.clone(), "--out=x".into(), "--output=json".into()]).expect("a spec");
        assert_eq!(spec, RunSpec { seed: 7, system: vec![System::Async, System::Delayed], ..RunSpec::default() });
        for flag in ["--seed=7", "--trace", "--workload=aime"] {
            let why = parse(&[path.clone(), flag.into()]).expect_err("refused");
            assert!(why.contains("cannot be used with"), "{flag}: {why}");
        }
        std::fs::write(&file, "{sede: 7}").expect("writable");
        assert!(parse(&[path]).expect_err("refused").contains("did you mean `seed`?"));
    }
}
