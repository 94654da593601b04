//! Flags of `trbench plan`.

use crate::optimize::ModelArgs;
use crate::terminal::Format;
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use tokenrouter_dtmc::serving::Balancer;

/// Say how long requests take at a rate of arrivals, how many a server holds, and how many servers an objective needs.
///
/// Requests arrive, wait while `--max-active` others decode, read their prompts, and write. Means come from the throughput
/// model and a formula where that holds, percentiles from a simulation of the same system; every number says which. The plan
/// also answers for the large model alone and for routing of whole requests on the same hardware.
///
/// With `--map` it predicts where routing of tokens pays, for models that are not there yet.
#[derive(Debug, Clone, Args)]
#[command(allow_negative_numbers = true)]
pub struct PlanArgs {
    /// The models, and how requests move between them.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Milliseconds of a token beyond one a row, for every model: prompts, and what a request that comes back brings
    /// [default: 0].
    #[arg(long, num_args = 1.., value_delimiter = ',', value_name = "MS", help_heading = "Model")]
    pub prefill_latencies: Vec<f64>,
    /// Tokens of a step that cost nothing beyond its rows, for every model [default: 0].
    #[arg(long, num_args = 1.., value_delimiter = ',', value_name = "TOKENS", help_heading = "Model")]
    pub free_tokens: Vec<u32>,
    /// Most tokens that a step of any model takes: `scheduler.max_step_tokens` of the engine.
    #[arg(long, default_value_t = tokenrouter_dtmc::serving::DEFAULT_STEP_TOKENS, value_name = "TOKENS", help_heading = "Model")]
    pub step_tokens: u32,
    /// Most requests that a replica decodes at once; the others wait [default: 16, or as many of them as `--slo-tpot-ms`
    /// allows].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "Model")]
    pub max_active: Option<u32>,

    /// Requests that arrive, over all replicas: `4/s`, `4` (per second), `240/min` or `1000/h`.
    #[arg(long, allow_hyphen_values = true, value_parser = rate, value_name = "RATE", conflicts_with = "users", help_heading = "Load")]
    pub rate: Option<f64>,
    /// Coefficient of variation of the gaps between arrivals: 1 is Poisson, above 1 bursts.
    #[arg(long, default_value_t = 1.0, value_parser = variation, value_name = "CV", help_heading = "Load")]
    pub arrival_cv: f64,
    /// So many users instead of a rate, each of whom sends the next request some time after an answer.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100_000), requires = "think", help_heading = "Load")]
    pub users: Option<u32>,
    /// Mean of that time: `10s`, `500ms`, `2min`; a plain number is seconds.
    #[arg(long, allow_hyphen_values = true, value_parser = duration_ms, value_name = "TIME", requires = "users", help_heading = "Load")]
    pub think: Option<f64>,
    /// Mean tokens of a prompt.
    #[arg(long, default_value_t = 0.0, value_parser = prompt, value_name = "TOKENS", help_heading = "Load")]
    pub prompt_tokens: f64,
    /// Coefficient of variation of the prompts: 0 is always the same, 1 geometric.
    #[arg(long, default_value_t = 0.0, value_parser = variation, value_name = "CV", help_heading = "Load")]
    pub prompt_cv: f64,
    /// Mean tokens of an answer.
    #[arg(long, default_value_t = 256.0, value_parser = output, value_name = "TOKENS", help_heading = "Load")]
    pub output_tokens: f64,
    /// Coefficient of variation of the answers: 0 is always the same, 1 geometric.
    #[arg(long, default_value_t = 1.0, value_parser = variation, value_name = "CV", help_heading = "Load")]
    pub output_cv: f64,
    /// Lengths of answers as JSON or `@file`, a list of `[tokens, weight]`: in place of mean and variation.
    #[arg(long, value_name = "JSON", conflicts_with_all = ["output_tokens", "output_cv"], help_heading = "Load")]
    pub output_histogram: Option<String>,

    /// Longest time to the first token, at `--percentile`.
    #[arg(long, value_parser = positive_ms, value_name = "MS", help_heading = "Objective")]
    pub slo_ttft_ms: Option<f64>,
    /// Longest time between two tokens, a mean of each request, at `--percentile`.
    #[arg(long, value_parser = positive_ms, value_name = "MS", help_heading = "Objective")]
    pub slo_tpot_ms: Option<f64>,
    /// Percentage of requests that have to meet each objective.
    #[arg(long, default_value_t = 90.0, value_parser = percentile, value_name = "PERCENT", help_heading = "Objective")]
    pub percentile: f64,
    /// Replicas of the whole routed system.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "COUNT", help_heading = "Objective")]
    pub replicas: u32,
    /// How requests are spread over replicas.
    #[arg(long, value_enum, default_value_t = BalancerArg::Random, help_heading = "Objective")]
    pub balancer: BalancerArg,
    /// Price of the hardware of one replica for an hour, in any currency: adds the cost of a million tokens.
    #[arg(long, value_parser = price, value_name = "PRICE", help_heading = "Objective")]
    pub price_per_hour: Option<f64>,
    /// Copies of the large model that fit on the hardware of one replica [default: the number of models].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=64), help_heading = "Objective")]
    pub large_copies: Option<u32>,

    /// Relative standard error of every latency, for example `0.02,0.03`: adds the margin that it leaves.
    #[arg(long, value_delimiter = ',', value_name = "SHARE", help_heading = "Computation")]
    pub latency_error: Vec<f64>,
    /// Steps observed behind every row of `P`, for example `5000,1200`: adds the margin that they leave.
    #[arg(long, value_delimiter = ',', value_name = "STEPS", help_heading = "Computation")]
    pub routing_samples: Vec<f64>,
    /// Parameter draws behind margins.
    #[arg(long, default_value_t = 100, value_name = "DRAWS", help_heading = "Computation")]
    pub draws: usize,
    /// Only the formula: no percentiles.
    #[arg(long, conflicts_with_all = ["slo_ttft_ms", "slo_tpot_ms"], help_heading = "Computation")]
    pub no_simulation: bool,
    /// Independent simulations, which give the intervals.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=1000), value_name = "COUNT", help_heading = "Computation")]
    pub replications: u32,
    /// Requests of each of them.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(50..=1_000_000), value_name = "COUNT", help_heading = "Computation")]
    pub requests: u32,
    /// Seed of simulations and parameter draws.
    #[arg(long, default_value_t = 1, value_name = "SEED", help_heading = "Computation")]
    pub seed: u64,
    /// Confidence of intervals.
    #[arg(long, default_value_t = 0.95, value_name = "SHARE", help_heading = "Computation")]
    pub confidence: f64,

    /// Format of standard output.
    #[arg(long, value_enum, default_value_t = Format::Table, help_heading = "Output")]
    pub output: Format,
    /// Add so many rates up to the limit, by formula.
    #[arg(long, num_args = 0..=1, default_missing_value = "100", value_parser = clap::value_parser!(u32).range(2..=10_000), value_name = "COUNT", help_heading = "Output")]
    pub curve: Option<u32>,
    /// Draw times over rates, or the map, into this SVG file.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub plot: Option<PathBuf>,

    /// Predict where routing of tokens pays, over the values of the next flags; no other model is needed.
    #[arg(long, conflicts_with_all = ["rate", "users", "slo_ttft_ms", "slo_tpot_ms", "curve"], help_heading = "Map")]
    pub map: bool,
    /// Shares of tokens that the large model writes.
    #[arg(long, value_delimiter = ',', default_values_t = [0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7], value_parser = share, value_name = "SHARE", help_heading = "Map")]
    pub map_shares: Vec<f64>,
    /// Step times of the large model over those of the small one.
    #[arg(long, value_delimiter = ',', default_values_t = [2.0, 3.0, 5.0, 8.0, 13.0, 20.0], value_parser = ratio, value_name = "RATIO", help_heading = "Map")]
    pub map_step_ratios: Vec<f64>,
    /// Time of a decoded token over that of a prompt token, at a batch of one.
    #[arg(long, value_delimiter = ',', default_values_t = [5.0, 20.0, 100.0], value_parser = ratio, value_name = "RATIO", help_heading = "Map")]
    pub map_prefill_ratios: Vec<f64>,
    /// Numbers of active requests.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 8], value_parser = clap::value_parser!(u32).range(1..=64), value_name = "N", help_heading = "Map")]
    pub map_active: Vec<u32>,
    /// What the large model writes when a request comes to it.
    #[arg(long, value_enum, default_value_t = SemanticsArg::Borrow, help_heading = "Map")]
    pub map_semantics: SemanticsArg,
    /// Mean tokens of a visit to the large model, for `--map-semantics span`.
    #[arg(long, default_value_t = 8.0, value_parser = output, value_name = "TOKENS", help_heading = "Map")]
    pub map_run: f64,
}

/// Names of balancing rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BalancerArg {
    /// Any replica.
    Random,
    /// The one with fewer requests of two drawn at random.
    LeastOfTwo,
    /// The one with the fewest requests.
    LeastLoaded,
}

impl BalancerArg {
    pub(super) const ALL: [Self; 3] = [Self::Random, Self::LeastOfTwo, Self::LeastLoaded];

    pub(super) const fn rule(self) -> Balancer {
        match self {
            Self::Random => Balancer::Random,
            Self::LeastOfTwo => Balancer::LeastOfTwo,
            Self::LeastLoaded => Balancer::LeastLoaded,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::LeastOfTwo => "least-of-two",
            Self::LeastLoaded => "least-loaded",
        }
    }
}

/// What the large model writes where the small one's candidate is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SemanticsArg {
    /// One token.
    Borrow,
    /// A run of tokens.
    Span,
}

fn number(text: &str) -> Result<f64, String> {
    text.trim().parse().map_err(|_| format!("`{text}` is not a number"))
}

fn within(text: &str, allowed: impl Fn(f64) -> bool, words: &str) -> Result<f64, String> {
    number(text).and_then(|value| if allowed(value) { Ok(value) } else { Err(format!("allowed: {words}")) })
}

/// Requests per second.
fn rate(text: &str) -> Result<f64, String> {
    const WORDS: &str = "a number above 0 and up to 1000000 per second, with `/s`, `/min` or `/h`, for example `4/s`";
    let (value, per_s) = match text.split_once('/') {
        None => (text, 1.0),
        Some((value, unit)) => match unit.trim() {
            "s" | "sec" | "second" => (value, 1.0),
            "min" | "m" | "minute" => (value, 1.0 / 60.0),
            "h" | "hour" => (value, 1.0 / 3600.0),
            unit => return Err(format!("`{unit}` is not a unit of time; allowed: {WORDS}")),
        },
    };
    let value = number(value).map_err(|why| format!("{why}; allowed: {WORDS}"))? * per_s;
    if value > 0.0 && value <= 1e6 { Ok(value) } else { Err(format!("allowed: {WORDS}")) }
}

/// Milliseconds.
fn duration_ms(text: &str) -> Result<f64, String> {
    const WORDS: &str = "0 or above with `ms`, `s`, `min` or `h`, at most a day, for example `10s`";
    let text = text.trim();
    let units = [("ms", 1.0), ("min", 60e3), ("h", 3.6e6), ("s", 1e3)];
    let (value, factor) =
        units.iter().find_map(|(unit, ms)| text.strip_suffix(unit).map(|value| (value, *ms))).unwrap_or((text, 1e3));
    let ms = number(value).map_err(|why| format!("{why}; allowed: {WORDS}"))? * factor;
    if (0.0..=86.4e6).contains(&ms) { Ok(ms) } else { Err(format!("allowed: {WORDS}")) }
}

fn variation(text: &str) -> Result<f64, String> {
    within(text, |cv| (0.0..=20.0).contains(&cv), "0 to 20")
}

fn prompt(text: &str) -> Result<f64, String> {
    within(text, |tokens| (0.0..=1e6).contains(&tokens), "0 to 1000000 tokens, without a unit")
}

fn output(text: &str) -> Result<f64, String> {
    within(text, |tokens| (1.0..=1e6).contains(&tokens), "1 to 1000000 tokens, without a unit")
}

fn positive_ms(text: &str) -> Result<f64, String> {
    within(text, |ms| ms > 0.0 && ms <= 1e9, "above 0 and up to 1000000000 milliseconds, without a unit")
}

fn percentile(text: &str) -> Result<f64, String> {
    within(text, |percent| (1.0..=99.9).contains(&percent), "1 to 99.9, in percent")
}

fn price(text: &str) -> Result<f64, String> {
    within(text, |price| price > 0.0 && price < 1e9, "a number above 0")
}

fn share(text: &str) -> Result<f64, String> {
    within(text, |share| share > 0.0 && share < 1.0, "above 0 and below 1")
}

fn ratio(text: &str) -> Result<f64, String> {
    within(text, |ratio| (1.0..=1000.0).contains(&ratio), "1 to 1000")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_times_have_units() {
        for (text, expected) in [("4/s", 4.0), ("4", 4.0), ("240/min", 4.0), ("14400/h", 4.0), (" 0.5 /s", 0.5)] {
            assert!((rate(text).expect("a rate") - expected).abs() < 1e-12, "{text}");
        }
        for (text, expected) in [("10s", 1e4), ("500ms", 500.0), ("2min", 12e4), ("10", 1e4), ("0s", 0.0)] {
            assert!((duration_ms(text).expect("a time") - expected).abs() < 1e-9, "{text}");
        }
        for bad in ["-1", "0", "nan", "inf", "4/day", "4 s", "", "4/ms", "1e9"] {
            assert!(rate(bad).expect_err(bad).contains("allowed"), "{bad}");
        }
        for bad in ["-1s", "nan", "10/s", "", "1e30s"] {
            assert!(duration_ms(bad).expect_err(bad).contains("allowed"), "{bad}");
        }
    }
}
