//! `trbench validate`: predicted and measured throughput side by side, over thresholds and numbers of requests.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use tokenrouter_dtmc::{DEFAULT_QUANTUM_MS, System};
use tokenrouter_engine::Config;

use super::calibrate::{check_load, measure, of_counters, window};
use super::calibration::Calibration;
use super::steady::{self, Steady, Window};
use super::{known_system, prediction};
use crate::error::usage;
use crate::files::write_file;
use crate::terminal::{Format, plain_table, spinner};

/// Arguments of `trbench validate`.
#[derive(Debug, Clone, Args)]
pub struct ValidateArgs {
    /// Configuration of the routed system.
    #[arg(long, short)]
    config: PathBuf,
    /// Numbers of requests in flight.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16")]
    concurrency: Vec<usize>,
    /// Seconds of each measurement. With `--virtual-time`, seconds of virtual time.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Tokens of a request. With real models, longer requests have longer contexts and slower steps.
    #[arg(long)]
    max_tokens: Option<usize>,
    /// A calibration of the same system; without it, emulated models are taken at their word and others calibrated first.
    #[arg(long)]
    calibration: Option<PathBuf>,
    /// Take a calibration of another system as well; what differs is said.
    #[arg(long, requires = "calibration")]
    any_calibration: bool,
    /// Run emulated models under the simulator's clock.
    #[arg(long)]
    virtual_time: bool,
    /// Quantum of the throughput model in milliseconds.
    #[arg(long, default_value_t = 0.1)]
    quantum_ms: f64,
    /// Seed of all draws.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Write the points as CSV to this file as well.
    #[arg(long, short, alias = "csv", value_name = "FILE")]
    out: Option<PathBuf>,
    /// Output format.
    #[arg(long, default_value = "table")]
    output: Format,
}

/// One measured point.
#[derive(Debug, Clone, Serialize)]
pub struct Point {
    /// Requests in flight.
    pub n: usize,
    /// Launch thresholds.
    pub thresholds: Vec<u32>,
    /// Tokens per second by the throughput model.
    pub predicted_tok_s: f64,
    /// The same with the step times and matrices that the measured run itself had, whatever the calibration says: what
    /// is left of the error is the model's, and not a machine's whose speed has changed since.
    pub in_run_tok_s: f64,
    /// Tokens per second of the system.
    pub measured_tok_s: f64,
    /// 95 % interval of the measurement.
    pub ci: [f64; 2],
}

impl Point {
    fn error(&self) -> f64 {
        (self.predicted_tok_s / self.measured_tok_s - 1.0).abs()
    }

    fn in_run_error(&self) -> f64 {
        (self.in_run_tok_s / self.measured_tok_s - 1.0).abs()
    }
}

/// The best thresholds for one number of requests.
#[derive(Debug, Clone, Serialize)]
pub struct Best {
    /// Requests in flight.
    pub n: usize,
    /// By the throughput model.
    pub predicted: Vec<u32>,
    /// By measurement.
    pub measured: Vec<u32>,
    /// Whether they are the same, or the predicted ones measured within the interval of the measured best.
    pub agrees: bool,
}

/// Predicted and measured throughput over a grid.
#[derive(Debug, Serialize)]
pub struct Validation {
    /// Whether latency profiles stood in for models.
    pub emulated: bool,
    /// Whether they ran under the simulator's clock.
    pub virtual_time: bool,
    /// Median of `|predicted / measured - 1|`.
    pub median_error: f64,
    /// Its largest value.
    pub max_error: f64,
    /// As `median_error`, of `in_run_tok_s`.
    pub in_run_median_error: f64,
    /// As `max_error`, of `in_run_tok_s`.
    pub in_run_max_error: f64,
    /// All points.
    pub points: Vec<Point>,
    /// The best thresholds by number of requests.
    pub best: Vec<Best>,
}

/// What to validate.
#[derive(Debug, Clone)]
pub struct ValidationTask {
    /// Configuration of the routed system.
    pub config: PathBuf,
    /// Numbers of requests in flight.
    pub concurrency: Vec<usize>,
    /// Seconds of each measurement.
    pub seconds: f64,
    /// Tokens of a request.
    pub max_tokens: Option<usize>,
    /// A calibration of the same system.
    pub calibration: Option<PathBuf>,
    /// Whether one of another system is taken as well.
    pub any_calibration: bool,
    /// Run emulated models under the simulator's clock.
    pub virtual_time: bool,
    /// Quantum of the throughput model in milliseconds.
    pub quantum_ms: f64,
    /// Seed of all draws.
    pub seed: u64,
}

impl Default for ValidationTask {
    fn default() -> Self {
        Self {
            config: PathBuf::new(),
            concurrency: vec![1, 2, 4, 8, 16],
            seconds: 10.0,
            max_tokens: None,
            calibration: None,
            any_calibration: false,
            virtual_time: false,
            quantum_ms: DEFAULT_QUANTUM_MS,
            seed: 0,
        }
    }
}

/// Measures the grid and prints the comparison.
pub fn run(args: &ValidateArgs) -> anyhow::Result<ExitCode> {
    let task = ValidationTask {
        config: args.config.clone(),
        concurrency: args.concurrency.clone(),
        seconds: args.seconds,
        max_tokens: args.max_tokens,
        calibration: args.calibration.clone(),
        any_calibration: args.any_calibration,
        virtual_time: args.virtual_time,
        quantum_ms: args.quantum_ms,
        seed: args.seed,
    };
    let validation = task.run()?;
    if let Some(path) = &args.out {
        write_file(path, &csv_of(&validation.points)?)?;
    }
    print(&validation, args.output)?;
    Ok(ExitCode::SUCCESS)
}

/// One point of the grid.
struct Load {
    requests: usize,
    thresholds: Vec<u32>,
}

impl ValidationTask {
    /// Measures the grid.
    pub fn run(&self) -> anyhow::Result<Validation> {
        check_load(&self.concurrency, self.seconds)?;
        let config = Config::from_file(&self.config)?;
        if self.virtual_time && !config.is_emulated() {
            return Err(usage("--virtual-time needs emulated models"));
        }
        if config.models.len() < 2 {
            return Err(usage("a single model has no thresholds to validate"));
        }
        crate::fetch::ensure_sources(&config)?;
        let max_tokens = self.max_tokens.unwrap_or(if config.is_emulated() { 100_000 } else { 256 });
        let window = window(self.seconds, max_tokens, self.seed);
        let system = self.system(&config, &window)?;
        let mut points = Vec::new();
        for requests in &self.concurrency {
            for thresholds in grid(config.models.len(), *requests) {
                points.push(self.point(&config, &system, Load { requests: *requests, thresholds }, &window)?);
            }
        }
        let [(median_error, max_error), (in_run_median_error, in_run_max_error)] =
            [Point::error, Point::in_run_error].map(|error| middle_and_most(points.iter().map(error)));
        Ok(Validation {
            emulated: config.is_emulated(),
            virtual_time: self.virtual_time,
            median_error,
            max_error,
            in_run_median_error,
            in_run_max_error,
            best: self.concurrency.iter().map(|n| best(*n, &points)).collect(),
            points,
        })
    }

    fn point(
        &self,
        config: &Config,
        system: &System,
        Load { requests, thresholds }: Load,
        window: &Window,
    ) -> anyhow::Result<Point> {
        let bar = spinner(&format!("{requests} requests, thresholds {thresholds:?}"));
        let predicted = prediction(system, requests, &thresholds)?.throughput_tok_s();
        let Steady { tok_s, interval, models } = if self.virtual_time {
            // As many tokens as the prediction says will take the time.
            let tokens = (predicted * self.seconds * 1.2 / requests as f64).ceil() as usize;
            let window = Window { max_tokens: tokens.max(100), ..*window };
            steady::virtual_time(config, requests, &thresholds, &window)?
        } else {
            steady::real(&steady::at(config, requests, &thresholds), requests, window)?
        };
        bar.finish_and_clear();
        let in_run = of_counters(config, "this run", &[requests], &models)?.system();
        let in_run = System { quantum_ms: self.quantum_ms, ..in_run };
        let in_run_tok_s = prediction(&in_run, requests, &thresholds)?.throughput_tok_s();
        let (predicted_tok_s, measured_tok_s) = (predicted, tok_s);
        Ok(Point { n: requests, thresholds, predicted_tok_s, in_run_tok_s, measured_tok_s, ci: interval })
    }

    /// The system to predict, for batches of up to the most requests.
    fn system(&self, config: &Config, window: &Window) -> anyhow::Result<System> {
        let largest = self.concurrency.iter().copied().max().unwrap_or(1);
        let system = if let Some(path) = &self.calibration {
            Calibration::read_for(path, config, self.any_calibration)?.continued_system(largest)
        } else if let Some(known) = known_system(config, largest) {
            known
        } else {
            measure(config, &self.config.display().to_string(), &self.concurrency, window)?.system()
        };
        Ok(System { quantum_ms: self.quantum_ms, ..system })
    }
}

/// Median and largest of at least one number.
fn middle_and_most(numbers: impl Iterator<Item = f64>) -> (f64, f64) {
    let numbers: Vec<f64> = numbers.collect();
    let at = |q: f64| crate::stats::quantile(&numbers, q).expect("a number");
    (at(0.5), at(1.0))
}

/// The last model's threshold from 1 to `requests`, the others eager: for two models, all vectors that make sense where
/// the first model is the fast one.
fn grid(models: usize, requests: usize) -> Vec<Vec<u32>> {
    let vector = |last: usize| {
        let mut vector = vec![1; models];
        vector[models - 1] = last as u32;
        vector
    };
    (1..=requests).map(vector).collect()
}

fn best(requests: usize, points: &[Point]) -> Best {
    let here: Vec<&Point> = points.iter().filter(|point| point.n == requests).collect();
    let top = |key: fn(&Point) -> f64| here.iter().max_by(|a, b| key(a).total_cmp(&key(b))).copied().expect("a grid");
    let (predicted, measured) = (top(|point| point.predicted_tok_s), top(|point| point.measured_tok_s));
    Best {
        n: requests,
        predicted: predicted.thresholds.clone(),
        measured: measured.thresholds.clone(),
        agrees: predicted.ci[1] >= measured.ci[0],
    }
}

/// The points as CSV.
pub fn csv_of(points: &[Point]) -> anyhow::Result<Vec<u8>> {
    let mut csv = csv::Writer::from_writer(Vec::new());
    let head = ["n", "thresholds", "predicted_tok_s", "measured_tok_s", "ci_low", "ci_high", "error", "in_run_tok_s"];
    csv.write_record(head)?;
    for point in points {
        csv.write_record([
            point.n.to_string(),
            vector(&point.thresholds),
            format!("{:.4}", point.predicted_tok_s),
            format!("{:.4}", point.measured_tok_s),
            format!("{:.4}", point.ci[0]),
            format!("{:.4}", point.ci[1]),
            format!("{:.5}", point.error()),
            format!("{:.4}", point.in_run_tok_s),
        ])?;
    }
    Ok(csv.into_inner()?)
}

fn vector(thresholds: &[u32]) -> String {
    thresholds.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn print(validation: &Validation, format: Format) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match format {
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(validation)?)?,
        Format::Csv => out.write_all(&csv_of(&validation.points)?)?,
        Format::Table | Format::Md => {
            let row = |point: &Point| {
                [
                    point.n.to_string(),
                    vector(&point.thresholds),
                    format!("{:.1}", point.predicted_tok_s),
                    format!("{:.1}", point.measured_tok_s),
                    format!("{:.1}", (point.ci[1] - point.ci[0]) / 2.0),
                    format!("{:.2} %", 100.0 * point.error()),
                    format!("{:.2} %", 100.0 * point.in_run_error()),
                ]
            };
            let headings =
                ["N", "thresholds", "predicted tok/s", "measured tok/s", "±", "error", "with step times of the run"];
            writeln!(out, "{}", plain_table(&headings, validation.points.iter().map(row), format))?;
            let row = |best: &Best| {
                let agrees = if best.agrees { "yes" } else { "no" };
                [best.n.to_string(), vector(&best.predicted), vector(&best.measured), agrees.to_owned()]
            };
            let headings = ["N", "predicted best", "measured best", "agrees"];
            writeln!(out, "\n{}", plain_table(&headings, validation.best.iter().map(row), format))?;
            writeln!(
                out,
                "\nerror of the prediction: median {:.2} %, largest {:.2} %; with the step times of each run itself: median \
                 {:.2} %, largest {:.2} %",
                100.0 * validation.median_error,
                100.0 * validation.max_error,
                100.0 * validation.in_run_median_error,
                100.0 * validation.in_run_max_error
            )?;
            if validation.emulated {
                let clock = if validation.virtual_time { "virtual" } else { "real" };
                writeln!(out, "emulated: latency profiles stand in for the models, in {clock} time.")?;
            }
        }
    }
    Ok(())
}
