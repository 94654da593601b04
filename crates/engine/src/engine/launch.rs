//! From a plan to a running engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use super::limits::Limits;
use super::load::{Common, Runner, check_common_language, common, load_runners, open_models, runner_options};
use super::plan::{Driving, ModelPlan, Plan};
use super::resources::plan_kv;
use super::start::{Started, Watch, start};
use super::{Capacity, Engine, EngineError, Inner, LaunchInfo, node, thresholds};
use crate::adaptation::{Adapter, Worker};
use crate::config::{Config, EmulatedConfig};
use crate::driver::{Clients, DetachedStates, Inbound, ModelWorker, Shared};
use crate::heads;
use crate::model::ModelFiles;
use crate::node::{NodePlan, epoch_millis};
use crate::profile::Recorder;
use tokenrouter_core::request::ModelIndex;
use tokenrouter_core::routing::RoutingPolicy;
use tokenrouter_core::routing::registry::{BuiltPolicy, SystemView};
use tokenrouter_core::scheduler::{Core, CoreConfig, ThresholdTable};

/// Makes the policy of a system.
pub(super) type MakePolicy<'a> = &'a dyn Fn(&SystemView) -> BuiltPolicy;

/// What is known once the models' files are open.
pub(super) struct Resolved {
    pub(super) common: Common,
    pub(super) policy: Arc<dyn RoutingPolicy>,
    pub(super) thresholds: Arc<ThresholdTable>,
    /// KV blocks of each model.
    pub(super) kv_blocks: usize,
    /// Most tokens of a request, prompt and output.
    pub(super) token_limit: usize,
}

/// Carries out a plan.
pub(super) fn launch(plan: &Plan, config: &Config, make_policy: MakePolicy<'_>) -> Result<Engine, EngineError> {
    let files = open_models(config)?;
    let resolved = resolve(plan, config, &files, make_policy)?;
    let Resolved { common, policy, thresholds, kv_blocks, token_limit } = &resolved;
    let options = runner_options(config, &**policy, common, (*kv_blocks, config.kv.block_size))?;
    let vocabulary = files.first().map(|file| file.text.vocabulary_hash(policy.needs(0).extra_row));
    let facts = node::facts(config, thresholds, (common.vocab, vocabulary), (*kv_blocks, *token_limit));
    let warnings = [plan.warnings.clone(), file_warnings(plan, &files)].concat();
    let runners = load_runners(plan, config, files, &options)?;
    let info = LaunchInfo {
        warnings: warnings.into_iter().chain(ignored_costs(config)).collect(),
        ..launch_info(plan, config, &resolved)
    };
    let limits = limits(plan, &resolved);
    let (policy, detached) = detached(plan, policy);
    let (watch, epoch) = (Watch::new(), Instant::now());
    let recorder = || config.system.profile.then(Recorder::default);
    let shared: Vec<_> = plan.models.iter().map(|_| Arc::new(Shared::new(recorder()))).collect();
    let workers = runners.into_iter().map(|(model, runner): Runner| {
        let mut core = Core::new(core_config(plan, config, model, &resolved), Arc::clone(&policy));
        if plan.local().is_some() {
            core.begin_over_network(epoch_millis());
        }
        let remote = plan.local().is_some_and(|local| local != plan.entry);
        let clients = if remote { Clients::At(plan.entry) } else { Clients::Here(Arc::clone(&watch.streams)) };
        ModelWorker::new((model, plan.models.len()), core, runner, (clients, Arc::clone(&shared[model])), epoch)
    });
    let node_plan = plan.local().map(|local| NodePlan {
        config,
        local,
        vocab: common.vocab,
        token_limit: *token_limit,
        facts,
        start: epoch,
    });
    let Started { inboxes, threads, node } = start(plan, workers.collect(), node_plan.as_ref(), &watch)?;
    let worker = adaptation(plan, config, thresholds, &shared, &inboxes)?;
    let inner = Inner {
        names: config.model_names(),
        entry: plan.entry,
        inboxes,
        streams: watch.streams,
        shared,
        next_id: AtomicU64::new(0),
        accepting: AtomicBool::new(true),
        healthy: watch.healthy,
        failed: watch.failed,
        limits,
        detached,
        local: plan.local(),
    };
    let Common { text, texts, .. } = resolved.common;
    Ok(Engine { inner: Arc::new(inner), threads, node, worker, text, texts, info })
}

/// The policy as the cores know it, and what keeps its states while clients take requests from model to model.
pub(super) fn detached(
    plan: &Plan,
    policy: &Arc<dyn RoutingPolicy>,
) -> (Arc<dyn RoutingPolicy>, Option<Arc<DetachedStates>>) {
    let detached = (plan.driving == Driving::Alone).then(|| Arc::new(DetachedStates::new(Arc::clone(policy))));
    match &detached {
        Some(states) => (Arc::clone(states) as Arc<dyn RoutingPolicy>, detached),
        None => (Arc::clone(policy), None),
    }
}

/// Which requests the engine takes.
pub(super) fn limits(plan: &Plan, resolved: &Resolved) -> Limits {
    Limits {
        vocab: resolved.common.vocab,
        token_limit: resolved.token_limit,
        max_open: plan.max_open,
        has_texts: resolved.common.texts.is_some(),
        takes_threshold: resolved.policy.takes_threshold(),
    }
}

/// Costs of an emulated profile that real time does not know.
fn ignored_costs(config: &Config) -> Option<String> {
    let costs = config.models.values().filter_map(|model| model.emulated.as_ref()).any(EmulatedConfig::has_costs);
    costs.then(|| {
        "`step_overhead_ms`, `prefix_ms_per_token`, `hop_ms` and `hop_ms_per_token` of emulated models count in virtual \
         time only (`trbench run --virtual-time`)"
            .into()
    })
}

pub(super) fn resolve(
    plan: &Plan,
    config: &Config,
    files: &[ModelFiles],
    make_policy: MakePolicy<'_>,
) -> Result<Resolved, EngineError> {
    let common = common(config, files)?;
    let each = |of: fn(&ModelFiles) -> usize, emulated: usize| -> Vec<usize> {
        if files.is_empty() { vec![emulated; plan.models.len()] } else { files.iter().map(of).collect() }
    };
    let view = SystemView {
        models: config.model_names(),
        entry: plan.entry,
        vocab: common.vocab,
        head_rows: each(|file| file.arch.vocab, common.vocab),
        hidden: each(|file| file.arch.d_model, 0),
        texts: common.texts.clone(),
        load_head: heads::load,
    };
    let policy: Arc<dyn RoutingPolicy> = Arc::from(make_policy(&view).map_err(EngineError::Unusable)?);
    check_common_language(config, files, &*policy)?;
    let (kv_blocks, token_limit) = room(config, files, &common)?;
    let thresholds = Arc::new(thresholds::table(config, &*policy)?);
    Ok(Resolved { common, policy, thresholds, kv_blocks, token_limit })
}

/// KV blocks of each model, and the most tokens of a request.
fn room(config: &Config, files: &[ModelFiles], common: &Common) -> Result<(usize, usize), EngineError> {
    let kv_blocks = plan_kv(config, files, common.context)?;
    let possible = common.context.min(kv_blocks * config.kv.block_size);
    let token_limit = match config.system.max_tokens_per_request {
        0 => possible,
        limit => limit.min(possible),
    };
    Ok((kv_blocks, token_limit))
}

/// How long the requests of a configuration may be, without loading its models.
pub(super) fn capacity(config: &Config) -> Result<Capacity, EngineError> {
    config.validate().map_err(|problem| EngineError::Unusable(problem.message))?;
    let files = open_models(config)?;
    let common = common(config, &files)?;
    let (kv_blocks, token_limit) = room(config, &files, &common)?;
    Ok(Capacity { kv_tokens: kv_blocks * config.kv.block_size, token_limit, text: common.text })
}

/// Follows the load with `thresholds: adaptive`.
fn adaptation(
    plan: &Plan,
    config: &Config,
    table: &Arc<ThresholdTable>,
    shared: &[Arc<Shared>],
    inboxes: &[SyncSender<Inbound>],
) -> Result<Option<Worker>, EngineError> {
    let Some(period) = plan.adaptation else { return Ok(None) };
    let adapter = Adapter::new(config, Arc::clone(table));
    let worker = Worker::start(adapter, shared.to_vec(), inboxes.to_vec(), period);
    worker.map(Some).map_err(|error| EngineError::Thread(error.to_string()))
}

pub(super) fn core_config(plan: &Plan, config: &Config, model: ModelIndex, resolved: &Resolved) -> CoreConfig {
    let settings = &plan.models[model];
    let alone = plan.driving == Driving::Alone;
    CoreConfig {
        model,
        models: plan.models.len(),
        entry: if alone { model } else { plan.entry },
        max_active: plan.max_active,
        max_batch: settings.max_batch,
        max_step_tokens: settings.max_step_tokens,
        max_wait: Duration::from_secs_f64(config.batching.max_wait_ms / 1e3),
        thresholds: Arc::clone(&resolved.thresholds),
        kv_blocks: resolved.kv_blocks,
        admission_blocks: resolved.kv_blocks,
        block_size: config.kv.block_size,
        prefix_cache: config.kv.prefix_cache,
        handoff_resume: config.system.handoff_resume,
        alone,
        eos: resolved.common.eos.clone(),
        texts: resolved.common.texts.clone(),
    }
}

/// What the files say and is not used, by model.
fn file_warnings(plan: &Plan, files: &[ModelFiles]) -> Vec<String> {
    let of_model = |(model, file): (&ModelPlan, &ModelFiles)| -> Vec<String> {
        file.warnings.iter().map(|warning| format!("model `{}`: {warning}", model.name)).collect()
    };
    plan.models.iter().zip(files).flat_map(of_model).collect()
}

pub(super) fn launch_info(plan: &Plan, config: &Config, resolved: &Resolved) -> LaunchInfo {
    LaunchInfo {
        models: plan.models.iter().map(ToString::to_string).collect(),
        local_model: plan.local().map(|local| plan.models[local].name.clone()),
        routing: config.routing.method.clone(),
        max_active: plan.max_active,
        thresholds: resolved.thresholds.row(plan.max_active),
        execution: config.system.execution,
        handoff_resume: config.system.handoff_resume,
        kv_tokens: resolved.kv_blocks * config.kv.block_size,
        token_limit: resolved.token_limit,
        emulated: config.is_emulated(),
        virtual_time: false,
        warnings: plan.warnings.clone(),
    }
}
