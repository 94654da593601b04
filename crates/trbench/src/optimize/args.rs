//! Flags of `trbench optimize`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Find the launch thresholds with the highest predicted throughput, or evaluate one vector.
///
/// Models `0..M` serve `N` requests; a step on model `i` takes its latency for the whole batch; each request then goes on
/// to model `j` with probability `P[i][j]`, and the step commits `C[i][j]` tokens. A model launches when it is idle and at
/// least `B_i` requests wait for it.
///
/// A note on stderr says when the answer hangs on the exact latencies: when one of them changed by one in a thousand, or by a
/// quantum, moves it by more than 2 %. This is left out where chains are too large to be solved so often.
#[derive(Debug, Clone, Args)]
#[command(allow_negative_numbers = true)]
pub struct OptimizeArgs {
    /// Number of models; defaults to the number of latencies.
    #[arg(long = "M", visible_alias = "models", value_name = "M", help_heading = "Model")]
    pub models: Option<usize>,
    /// Number of requests always in the system.
    #[arg(long = "N", visible_alias = "concurrency", value_name = "N", help_heading = "Model")]
    pub concurrency: Option<u32>,
    /// The models, and how requests move between them.
    #[command(flatten)]
    pub model: ModelArgs,
    /// YAML file with any of these keys; flags override it.
    #[arg(long, value_name = "FILE", help_heading = "Model")]
    pub config: Option<PathBuf>,

    /// Evaluate this one vector, for example `1,7`, instead of searching.
    #[arg(long, value_delimiter = ',', value_name = "B", help_heading = "Task")]
    pub thresholds: Vec<u32>,
    /// Also compute the best vector for every active count `1..=N`.
    #[arg(long, help_heading = "Task")]
    pub table: bool,
    /// Also compute the best launch policy of any kind, and the gap to it.
    #[arg(long, help_heading = "Task")]
    pub certify: bool,
    /// Also halve the quantum until throughput moves less than this relative amount.
    #[arg(long, value_name = "TOLERANCE", num_args = 0..=1, default_missing_value = "1e-4", help_heading = "Task")]
    pub delta_study: Option<f64>,
    /// Relative standard error of every latency, for example `0.02,0.03`: adds prediction intervals.
    #[arg(long, value_delimiter = ',', value_name = "SHARE", help_heading = "Task")]
    pub latency_error: Vec<f64>,
    /// Steps observed behind every row of `P`, for example `5000,1200`: adds prediction intervals.
    #[arg(long, value_delimiter = ',', value_name = "STEPS", help_heading = "Task")]
    pub routing_samples: Vec<f64>,
    /// Parameter draws behind prediction intervals.
    #[arg(long, default_value_t = 200, value_name = "DRAWS", help_heading = "Task")]
    pub draws: usize,
    /// Only vectors whose mean buffer wait is at most this at every model.
    #[arg(long, value_name = "MS", help_heading = "Task")]
    pub max_wait_ms: Option<f64>,
    /// Find the number of active requests and thresholds with the highest throughput at this mean time per token.
    #[arg(long, value_name = "MS", help_heading = "Task")]
    pub max_time_per_token_ms: Option<f64>,

    /// Stationary method.
    #[arg(long, value_enum, default_value_t = MethodArg::Auto, help_heading = "Computation")]
    pub method: MethodArg,
    /// How to search.
    #[arg(long, value_enum, default_value_t = StrategyArg::Auto, help_heading = "Computation")]
    pub strategy: StrategyArg,
    /// Largest residual `||pi P - pi||_1` of an answer.
    #[arg(long, default_value_t = 1e-12, value_name = "RESIDUAL", help_heading = "Computation")]
    pub tolerance: f64,
    /// Most iterations of an iterative method.
    #[arg(long, default_value_t = 100_000, value_name = "COUNT", help_heading = "Computation")]
    pub max_iterations: usize,
    /// Most states of an exact chain.
    #[arg(long, default_value_t = 20_000_000, value_name = "STATES", help_heading = "Computation")]
    pub max_states: usize,
    /// Most memory for exact chains, in MB [default: half of what is available].
    #[arg(long, value_name = "MB", help_heading = "Computation")]
    pub memory_limit_mb: Option<usize>,
    /// Never fall back to a coarser quantum or to simulation.
    #[arg(long, help_heading = "Computation")]
    pub exact: bool,
    /// Report every vector within this share of the best.
    #[arg(long, default_value_t = 0.001, value_name = "SHARE", help_heading = "Computation")]
    pub near_tie: f64,
    /// Seed of simulations and parameter draws.
    #[arg(long, default_value_t = 1, value_name = "SEED", help_heading = "Computation")]
    pub seed: u64,
    /// Confidence of intervals.
    #[arg(long, default_value_t = 0.95, value_name = "SHARE", help_heading = "Computation")]
    pub confidence: f64,
    /// Stop a simulation when its half width is below this share of the mean.
    #[arg(long, default_value_t = 0.0005, value_name = "SHARE", help_heading = "Computation")]
    pub half_width: f64,
    /// Most request steps of a simulation.
    #[arg(long, default_value_t = 50_000_000, value_name = "STEPS", help_heading = "Computation")]
    pub max_steps: u64,

    /// Format of standard output.
    #[arg(long, value_enum, default_value_t = OutputArg::Table, help_heading = "Output")]
    pub output: OutputArg,
    /// Candidates shown in the table; `--output json` and `csv` have all.
    #[arg(long, default_value_t = 10, value_name = "ROWS", help_heading = "Output")]
    pub top: usize,
    /// Add a card of the chain: states, classes, period, residual, time.
    #[arg(long, help_heading = "Output")]
    pub explain: bool,
    /// Draw throughput over thresholds into this SVG file.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub plot: Option<PathBuf>,
    /// Models whose thresholds span the plot, one or two, for example `1`; the others are at their best.
    #[arg(long, value_delimiter = ',', value_name = "MODEL", help_heading = "Output")]
    pub plot_over: Vec<usize>,
    /// Write the chain for another tool.
    #[arg(long, value_enum, value_name = "FORMAT", requires = "export_to", help_heading = "Output")]
    pub export: Option<ExportArg>,
    /// File for `--export`; for `prism` the prefix of five files.
    #[arg(long, value_name = "PATH", requires = "export", help_heading = "Output")]
    pub export_to: Option<PathBuf>,
}

/// Flags that describe the models and how requests move between them.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// Milliseconds per step of every model, or one `@file` (JSON or CSV) with latencies by batch size.
    #[arg(long, visible_alias = "latencies-ms", num_args = 1.., value_name = "MS", help_heading = "Model")]
    pub latencies: Vec<String>,
    /// Routing matrix as JSON or `@file`: rows sum to 1.
    #[arg(long = "P", visible_alias = "routing-matrix", value_name = "JSON", help_heading = "Model")]
    pub routing: Option<String>,
    /// Commit matrix as JSON or `@file`; without it every step commits one token.
    #[arg(long = "C", visible_alias = "commit-matrix", value_name = "JSON", help_heading = "Model")]
    pub commits: Option<String>,
    /// Quantum of time in milliseconds [default: 0.1].
    #[arg(long, visible_alias = "quantum-ms", value_name = "MS", help_heading = "Model")]
    pub delta: Option<f64>,
    /// Largest batch of every model, for example `32,16`; `none` for no cap.
    #[arg(long, value_delimiter = ',', value_name = "B", help_heading = "Model")]
    pub max_batch: Vec<String>,
    /// Model of every routing state, for example `0,0,1`; `P` and `C` are then over routing states.
    #[arg(long, value_delimiter = ',', value_name = "MODEL", help_heading = "Model")]
    pub routing_states: Vec<usize>,
    /// A calibration (`trbench calibrate`): latencies, P and C as measured; flags override it.
    #[arg(long, value_name = "FILE", help_heading = "Model")]
    pub calibration: Option<PathBuf>,
}

/// Names of stationary methods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MethodArg {
    /// GTH for tiny chains, cut-set Krylov otherwise.
    Auto,
    /// Dense elimination without subtraction.
    Gth,
    /// Sparse LU.
    SparseLu,
    /// Sweeps in time order, accelerated by GMRES.
    CutSet,
    /// The same sweeps without acceleration.
    Sweeps,
    /// Lazy power iteration.
    Power,
}

/// Names of search strategies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StrategyArg {
    /// The most thorough that is affordable.
    Auto,
    /// Every vector, exactly.
    Exhaustive,
    /// Every vector by simulation, the best ones exactly where they fit.
    Screening,
    /// Hill climbing.
    Local,
}

/// Names of output formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputArg {
    /// A short table.
    Table,
    /// One JSON object.
    Json,
    /// One line per candidate.
    Csv,
}

/// Names of export formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportArg {
    /// PRISM explicit files.
    Prism,
    /// Storm's direct encoding.
    Drn,
    /// Graphviz.
    Dot,
    /// JSON.
    Json,
}
