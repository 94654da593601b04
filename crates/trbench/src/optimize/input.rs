//! From flags and files to a checked system and options.

use super::args::{MethodArg, ModelArgs, OptimizeArgs, StrategyArg};
use super::config::OptimizeConfig;
use anyhow::{Context, anyhow, bail};
use serde_json::Value;
use std::path::Path;
use tokenrouter_dtmc::{
    ClosedSystem, DEFAULT_QUANTUM_MS, Latency, Limits, Method, SearchOptions, SimulationOptions, SolveOptions,
    Strategy, System, Thresholds, Tolerance, Uncertainty,
};

/// Everything that was asked for, checked.
pub(super) struct Inputs {
    pub(super) system: ClosedSystem,
    pub(super) thresholds: Option<Thresholds>,
    pub(super) search: SearchOptions,
    /// Remarks for the user beyond those of the system.
    pub(super) notes: Vec<String>,
}

/// Merges flags over the config file and validates.
pub(super) fn read(args: &OptimizeArgs) -> anyhow::Result<Inputs> {
    let config = match &args.config {
        Some(path) => OptimizeConfig::read(path)?,
        None => OptimizeConfig::default(),
    };
    let (models, concurrency, given) = (config.models, config.concurrency, config.thresholds.clone());
    let (system, notes) = describe(&args.model, config)?;
    if let Some(models) = args.models.or(models)
        && models != system.latencies_ms.len()
    {
        bail!("`--M` says {models} models, but there are {} latencies", system.latencies_ms.len());
    }
    let Some(concurrency) = args.concurrency.or(concurrency) else {
        bail!("`--N` is missing: give the number of requests in the system, for example `--N 8`");
    };
    let system = system.closed(concurrency)?;
    let given = if args.thresholds.is_empty() { given } else { Some(args.thresholds.clone()) };
    let thresholds = given.map(Thresholds::new);
    if let Some(thresholds) = &thresholds {
        thresholds.check(&system)?;
    }
    Ok(Inputs { search: options(args)?, system, thresholds, notes })
}

/// The system that the flags describe, with remarks.
pub(crate) fn system(args: &ModelArgs) -> anyhow::Result<(System, Vec<String>)> {
    describe(args, OptimizeConfig::default())
}

fn describe(args: &ModelArgs, mut config: OptimizeConfig) -> anyhow::Result<(System, Vec<String>)> {
    if let Some(path) = &args.calibration {
        config.measured(&crate::predict::Calibration::read(path)?);
    }
    let mut notes = Vec::new();
    let latencies = if args.latencies.is_empty() { config.latencies_ms } else { latencies(&args.latencies)? };
    if latencies.is_empty() {
        bail!(
            "`--latencies` is missing: give one latency per model in milliseconds, for example `--latencies 6.0 27.9`"
        );
    }
    let routing = match (&args.routing, config.routing_matrix) {
        (Some(text), _) => matrix("--P", text)?,
        (None, Some(matrix)) => matrix,
        (None, None) if latencies.len() == 1 => vec![vec![1.0]],
        (None, None) => bail!("`--P` is missing: give the routing matrix, for example `--P '[[0.35, 0.65], [1, 0]]'`"),
    };
    let commits = match (&args.commits, config.commit_matrix) {
        (Some(text), _) => Some(matrix("--C", text)?),
        (None, given) => given,
    };
    let max_batch = if args.max_batch.is_empty() { config.max_batch } else { Some(caps(&args.max_batch)?) };
    let states = if args.routing_states.is_empty() { config.routing_states } else { Some(args.routing_states.clone()) };
    if commits.is_none() {
        notes.push("no `--C` given: every step commits one token".to_owned());
    }
    let system = System {
        commits,
        state_models: states,
        quantum_ms: args.delta.or(config.quantum_ms).unwrap_or(DEFAULT_QUANTUM_MS),
        max_batch,
        ..System::new(latencies, routing)
    };
    let (system, normalised) = system.normalised();
    notes.extend(normalised);
    Ok((system, notes))
}

fn options(args: &OptimizeArgs) -> anyhow::Result<SearchOptions> {
    if !(args.tolerance > 0.0 && args.tolerance < 1.0) {
        bail!("`--tolerance` is {}; allowed: above 0 and below 1", args.tolerance);
    }
    let method = match args.method {
        MethodArg::Auto => Method::Auto,
        MethodArg::Gth => Method::Gth,
        MethodArg::SparseLu => Method::SparseLu,
        MethodArg::CutSet => Method::CutSet,
        MethodArg::Sweeps => Method::Sweeps,
        MethodArg::Power => Method::Power,
    };
    let strategy = match args.strategy {
        StrategyArg::Auto if args.exact => Strategy::Exhaustive,
        StrategyArg::Auto => Strategy::Auto,
        StrategyArg::Exhaustive => Strategy::Exhaustive,
        StrategyArg::Screening => Strategy::Screening,
        StrategyArg::Local => Strategy::Local,
    };
    let solve = SolveOptions {
        method,
        tolerance: Tolerance { residual: args.tolerance, iterations: args.max_iterations },
        max_states: args.max_states,
        memory_limit: args.memory_limit_mb.map(|megabytes| megabytes.saturating_mul(1_000_000)),
        start: 0,
    };
    let simulation = SimulationOptions {
        seed: args.seed,
        confidence: args.confidence,
        relative_half_width: args.half_width,
        max_steps: args.max_steps,
        start: 0,
    };
    let defaults = SearchOptions::default();
    Ok(SearchOptions {
        limits: Limits { solve, simulation, coarse_tolerance: 0.0 },
        strategy,
        near_tie: args.near_tie,
        max_wait_ms: args.max_wait_ms,
        ..defaults
    })
}

/// JSON text, or the text of `@file`.
pub(crate) fn text_of(flag: &str, given: &str) -> anyhow::Result<String> {
    match given.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path).with_context(|| format!("`{flag}`: reading `{path}`")),
        None => Ok(given.to_owned()),
    }
}

fn matrix(flag: &str, given: &str) -> anyhow::Result<Vec<Vec<f64>>> {
    let text = text_of(flag, given)?;
    serde_json::from_str(&text)
        .map_err(|error| anyhow!("`{flag}` is not a matrix of numbers like `[[0.35, 0.65], [1, 0]]`: {error}"))
}

fn caps(given: &[String]) -> anyhow::Result<Vec<Option<u32>>> {
    given
        .iter()
        .map(|text| match text.trim() {
            "none" => Ok(None),
            number => number
                .parse()
                .map(Some)
                .map_err(|_| anyhow!("`--max-batch`: `{number}` is neither a whole number nor `none`")),
        })
        .collect()
}

fn latencies(given: &[String]) -> anyhow::Result<Vec<Latency>> {
    if let [single] = given
        && let Some(path) = single.strip_prefix('@')
    {
        return latency_file(Path::new(path));
    }
    given
        .iter()
        .flat_map(|text| text.split(','))
        .filter(|text| !text.trim().is_empty())
        .map(|text| match text.trim().parse::<f64>() {
            Ok(ms) => Ok(Latency::Constant(ms)),
            Err(_) => Err(anyhow!("`--latencies`: `{text}` is not a number of milliseconds")),
        })
        .collect()
}

/// Latencies by batch size: CSV with columns `model,batch,ms`, or JSON, one entry per model, each a number, a list of
/// `[batch, ms]`, or an object from batch size to milliseconds.
fn latency_file(path: &Path) -> anyhow::Result<Vec<Latency>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("`--latencies`: reading `{}`", path.display()))?;
    let parsed = if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv")) {
        latency_csv(&text)
    } else {
        latency_json(&text)
    };
    parsed.with_context(|| format!("`--latencies`: `{}`", path.display()))
}

fn latency_json(text: &str) -> anyhow::Result<Vec<Latency>> {
    let value: Value = serde_json::from_str(text)?;
    let Value::Array(models) = value else {
        bail!("expected a JSON list with one entry per model");
    };
    models
        .iter()
        .enumerate()
        .map(|(index, entry)| latency_entry(entry).with_context(|| format!("model {index}")))
        .collect()
}

fn latency_entry(entry: &Value) -> anyhow::Result<Latency> {
    let mut points: Vec<(u32, f64)> = match entry {
        Value::Number(ms) => return Ok(Latency::Constant(ms.as_f64().unwrap_or(f64::NAN))),
        Value::Array(_) => serde_json::from_value(entry.clone()).context("expected a list of `[batch, ms]`")?,
        Value::Object(table) => table
            .iter()
            .map(|(batch, ms)| {
                let batch = batch.parse().map_err(|_| anyhow!("`{batch}` is not a batch size"))?;
                Ok((batch, ms.as_f64().ok_or_else(|| anyhow!("batch size {batch}: `{ms}` is not a number"))?))
            })
            .collect::<anyhow::Result<_>>()?,
        other => bail!("`{other}` is neither a number nor a table by batch size"),
    };
    points.sort_by_key(|&(batch, _)| batch);
    Ok(Latency::Table(points))
}

fn latency_csv(text: &str) -> anyhow::Result<Vec<Latency>> {
    #[derive(serde::Deserialize)]
    struct Row {
        model: usize,
        batch: u32,
        ms: f64,
    }
    let mut tables: Vec<Vec<(u32, f64)>> = Vec::new();
    for row in csv::Reader::from_reader(text.as_bytes()).deserialize() {
        let row: Row = row.context("expected the columns `model,batch,ms`")?;
        if row.model >= tokenrouter_dtmc::MAX_MODELS {
            bail!("model {} is out of range; allowed: 0 to {}", row.model, tokenrouter_dtmc::MAX_MODELS - 1);
        }
        if tables.len() <= row.model {
            tables.resize(row.model + 1, Vec::new());
        }
        tables[row.model].push((row.batch, row.ms));
    }
    tables.iter_mut().for_each(|table| table.sort_by_key(|&(batch, _)| batch));
    Ok(tables.into_iter().map(Latency::Table).collect())
}

/// What is known of the measurements: relative errors of latencies and steps behind rows of `P`, for so many `(models,
/// states)`. `None` where nothing was said of either; what nothing was said of is exact.
pub(crate) fn uncertainty(
    (latency_error, routing_samples): (&[f64], &[f64]),
    (models, states): (usize, usize),
    (draws, seed, confidence): (usize, u64, f64),
) -> Option<Uncertainty> {
    if latency_error.is_empty() && routing_samples.is_empty() {
        return None;
    }
    let latency_relative_error = if latency_error.is_empty() { vec![0.0; models] } else { latency_error.to_vec() };
    let routing_samples = match routing_samples {
        [] => vec![None; states],
        samples => samples.iter().copied().map(Some).collect(),
    };
    Some(Uncertainty { latency_relative_error, routing_samples, draws, seed, confidence })
}
