//! What a configuration asks for, decided before any model is opened: what computes each model, which threads drive them,
//! how long queues are. [`super::launch`] carries it out.

use std::fmt;
use std::time::Duration;

use tokenrouter_core::request::ModelIndex;

use super::EngineError;
use crate::config::{Config, DeviceConfig, EmulatedConfig, ExecutionConfig, ModelConfig, ThresholdConfig};

/// Room in an inbox per active request, and on top of it.
const INBOX_PER_REQUEST: usize = 4;
const INBOX_EXTRA: usize = 1024;

/// What of the machine a plan depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Machine {
    pub(super) cores: usize,
    /// Whether CUDA MPS runs.
    pub(super) mps: bool,
}

impl Machine {
    pub(super) fn here() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // The control daemon leaves its pipes where clients look for them.
        let folder = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").unwrap_or_else(|| "/tmp/nvidia-mps".into());
        Self { cores, mps: std::path::Path::new(&folder).join("control").exists() }
    }
}

/// What computes a model.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Compute {
    /// A latency profile.
    Emulated { latency_ms: f64 },
    /// Threads of this process.
    Cpu { threads: usize },
    /// CUDA devices from `first` on.
    Cuda { first: usize, ranks: usize },
}

/// One model.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ModelPlan {
    pub(super) name: String,
    /// Where its weights come from, and how they are held; empty when emulated.
    weights: String,
    pub(super) compute: Compute,
    /// Whether it runs in this process.
    pub(super) hosted: bool,
    pub(super) max_batch: usize,
    pub(super) max_step_tokens: usize,
}

/// Who steps the models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Driving {
    /// One thread, all models in rounds.
    Lockstep,
    /// A subserver per model; they hand requests over.
    Subservers,
    /// A subserver per model that knows nothing of the others; the client takes requests from one to the next.
    Alone,
    /// The subserver of one model, and links to the nodes of the others.
    Node(ModelIndex),
}

/// How a configuration is served on a machine. Its `Display` is for people.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub(super) models: Vec<ModelPlan>,
    pub(super) entry: ModelIndex,
    pub(super) driving: Driving,
    pub(super) max_active: usize,
    /// Most requests that are admitted or queued.
    pub(super) max_open: usize,
    /// Messages that an inbox takes.
    pub(super) inbox: usize,
    /// How often thresholds are reconsidered.
    pub(super) adaptation: Option<Duration>,
    pub(super) warnings: Vec<String>,
}

impl Plan {
    /// The plan of all models of a valid configuration in this process, on this machine.
    pub fn new(config: &Config) -> Result<Self, EngineError> {
        Self::on(Machine::here(), config, None)
    }

    /// The plan of the node of one model.
    pub fn for_node(config: &Config, model: &str) -> Result<Self, EngineError> {
        Self::on(Machine::here(), config, Some(super::node::local_model(config, model)?))
    }

    fn on(machine: Machine, config: &Config, local: Option<ModelIndex>) -> Result<Self, EngineError> {
        config.validate().map_err(|problem| EngineError::Unusable(problem.message))?;
        let max_active = config.system.max_active;
        let max_open = max_active + config.system.max_queued;
        let hosted = |model: ModelIndex| local.is_none_or(|local| local == model);
        let share = if local.is_some() { machine.cores } else { (machine.cores / config.models.len()).max(1) };
        let models = config.models.iter().enumerate().map(|(index, (name, model))| ModelPlan {
            name: name.clone(),
            weights: weights(model),
            compute: compute(model, share),
            hosted: hosted(index),
            max_batch: if model.max_batch == 0 { max_active } else { model.max_batch },
            max_step_tokens: model.scheduler.max_step_tokens,
        });
        let models: Vec<_> = models.collect();
        let driving = match (local, config.system.execution) {
            (Some(local), _) => Driving::Node(local),
            (None, ExecutionConfig::Lockstep) => Driving::Lockstep,
            (None, ExecutionConfig::Standard) => Driving::Alone,
            (None, ExecutionConfig::Async) => Driving::Subservers,
        };
        let adapts = config.batching.thresholds == ThresholdConfig::Adaptive && models.len() > 1;
        if adapts && local.is_some() {
            return Err(EngineError::Unusable(
                "`batching.thresholds: adaptive` needs all models in one process; give nodes `auto`, or a list".into(),
            ));
        }
        Ok(Self {
            warnings: warnings(machine, config, &models, local.is_some()),
            models,
            entry: config.entry_index(),
            driving,
            max_active,
            max_open,
            inbox: INBOX_PER_REQUEST * max_open + INBOX_EXTRA,
            adaptation: adapts.then(|| Duration::from_secs_f64(config.batching.adaptation.period_s)),
        })
    }

    /// The model of this node, when each has its own.
    pub(super) fn local(&self) -> Option<ModelIndex> {
        match self.driving {
            Driving::Node(local) => Some(local),
            _ => None,
        }
    }
}

fn weights(model: &ModelConfig) -> String {
    if model.emulated.is_some() {
        return String::new();
    }
    let origin = model.path.as_ref().map(|path| path.display().to_string());
    let origin = origin.or_else(|| model.source.clone()).unwrap_or_default();
    let layers = model.layers.as_ref().map(|keep| format!(", {} layers kept", keep.len())).unwrap_or_default();
    let dtype = serde_json::to_value(model.dtype).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default();
    format!("{origin}{layers}, {dtype} weights")
}

fn compute(model: &ModelConfig, share: usize) -> Compute {
    match (&model.emulated, model.device) {
        (Some(EmulatedConfig { latency_ms, .. }), _) => Compute::Emulated { latency_ms: latency_ms.at(1) },
        (None, DeviceConfig::Cpu) => Compute::Cpu { threads: if model.threads == 0 { share } else { model.threads } },
        (None, DeviceConfig::Cuda(first)) => Compute::Cuda { first, ranks: model.tp_size },
    }
}

fn warnings(machine: Machine, config: &Config, models: &[ModelPlan], node: bool) -> Vec<String> {
    let here = || models.iter().filter(|model| model.hosted);
    let mut warnings = Vec::new();
    if node && !machine.mps && here().any(|model| matches!(model.compute, Compute::Cuda { .. })) {
        warnings.push(
            "CUDA MPS does not run: processes that share a GPU take turns on it instead of running side by side \
             (docs/guides/gpu.md)"
                .into(),
        );
    }
    let threads = |model: &ModelPlan| if let Compute::Cpu { threads } = model.compute { threads } else { 0 };
    let (total, cores) = (here().map(threads).sum::<usize>(), machine.cores);
    if total > cores {
        warnings.push(format!("models use {total} threads on {cores} cores: they will slow each other down"));
    }
    let missing_cores = config.models.iter().filter_map(|(name, model)| model.check_cores(name).err());
    warnings.extend(missing_cores.map(|problem| format!("{}: its threads are not pinned there", problem.message)));
    if config.is_emulated() {
        warnings.push("emulated: latency profiles stand in for the models".into());
    }
    warnings
}

impl fmt::Display for ModelPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, weights, .. } = self;
        match self.compute {
            Compute::Emulated { latency_ms } => write!(f, "{name}: emulated, {latency_ms:.3} ms at batch 1"),
            Compute::Cpu { threads: 1 } => write!(f, "{name}: {weights}, 1 thread on cpu"),
            Compute::Cpu { threads } => write!(f, "{name}: {weights}, {threads} threads on cpu"),
            Compute::Cuda { first, ranks: 1 } => write!(f, "{name}: {weights}, cuda:{first}"),
            Compute::Cuda { first, ranks } => {
                write!(f, "{name}: {weights}, cuda:{first} to cuda:{}", first + ranks - 1)
            }
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for model in &self.models {
            let place = if model.hosted { "" } else { ", on another node" };
            writeln!(f, "{model}, batches of up to {}{place}", model.max_batch)?;
        }
        let entry = &self.models[self.entry].name;
        match self.driving {
            Driving::Lockstep => writeln!(f, "one thread steps all models in rounds, {entry} first")?,
            Driving::Subservers => writeln!(f, "one subserver per model; requests enter at {entry}")?,
            Driving::Alone => writeln!(f, "one engine per model; clients take requests from one to the next")?,
            Driving::Node(local) => {
                writeln!(f, "the node of {}; requests enter at {entry}", self.models[local].name)?;
            }
        }
        write!(f, "up to {} requests active, {} open", self.max_active, self.max_open)?;
        if let Some(period) = self.adaptation {
            write!(f, "; thresholds are reconsidered every {} s", period.as_secs_f64())?;
        }
        self.warnings.iter().try_for_each(|warning| write!(f, "\nwarning: {warning}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: Machine = Machine { cores: 2, mps: false };

    fn config(yaml: &str) -> Config {
        Config::from_yaml(yaml, "test.yaml").expect("valid")
    }

    #[test]
    fn the_demo_pair_shares_two_cores() {
        let yaml = include_str!("../../../../config/rstitch/demo.yaml");
        let plan = Plan::on(TWO, &config(yaml), None).expect("a plan");
        assert_eq!(
            plan.models.iter().map(|model| &model.compute).collect::<Vec<_>>(),
            [&Compute::Cpu { threads: 1 }; 2]
        );
        assert_eq!((plan.driving, plan.local(), plan.warnings.len()), (Driving::Subservers, None, 0));
        let text = plan.to_string();
        assert!(text.starts_with("small: demo, "), "{text}");
        assert!(
            text.contains("1 thread on cpu, batches of up to") && text.contains("requests enter at small"),
            "{text}"
        );
    }

    #[test]
    fn too_many_threads_are_a_warning_and_adaptive_nodes_an_error() {
        let yaml = "models: {a: {source: demo, threads: 2}, b: {source: demo, threads: 1}}\nrouting: {method: random}";
        let plan = Plan::on(TWO, &config(yaml), None).expect("a plan");
        assert_eq!(plan.warnings, ["models use 3 threads on 2 cores: they will slow each other down"]);
        // A node computes one model only.
        assert_eq!(Plan::on(TWO, &config(yaml), Some(0)).expect("a plan").warnings, [""; 0]);
        let adaptive = format!("{yaml}\nbatching: {{thresholds: adaptive}}");
        let error = Plan::on(TWO, &config(&adaptive), Some(0)).expect_err("refused").to_string();
        assert!(error.contains("adaptive"), "{error}");
    }

    #[test]
    fn emulated_models_say_so_and_inboxes_hold_every_request() {
        let yaml = "models: {a: {emulated: {latency_ms: 2.5}}, b: {emulated: {latency_ms: 9}, max_batch: 4}}\n\
                    routing: {method: random}\nsystem: {max_active: 6, max_queued: 10, execution: lockstep}";
        let plan = Plan::on(TWO, &config(yaml), None).expect("a plan");
        assert_eq!((plan.max_open, plan.inbox), (16, 4 * 16 + INBOX_EXTRA));
        assert_eq!((plan.models[0].max_batch, plan.models[1].max_batch), (6, 4));
        let text = plan.to_string();
        assert!(text.contains("a: emulated, 2.500 ms at batch 1") && text.contains("warning: emulated"), "{text}");
        assert!(text.contains("in rounds, a first"), "{text}");
    }
}
