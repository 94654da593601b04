//! From a configuration to running subservers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use candle_core::Device;
use tokenrouter_kernels::{Pool, cuda};

use super::resources::{EMULATED_KV_TOKENS, divide_threads, plan_kv};
use super::{Engine, EngineError, Inner, LaunchInfo, node, thresholds};
use crate::adaptation::{Adapter, Worker};
use crate::config::{
    ChatTemplateConfig, Config, DeviceConfig, EmulatedConfig, ExecutionConfig, ModelConfig, RunnerKind, ThresholdConfig,
};
use crate::driver::{Clients, Inbound, Lockstep, Outlet, Shared, Station, Streams, Subserver, Survivors};
use crate::heads;
use crate::model::{Decoder, ModelError, ModelFiles};
use crate::node::{Node, NodePlan, epoch_millis};
use crate::profile::Recorder;
use crate::runner::{
    CandleRunner, CudaRunner, CudaShapes, EmulatedModel, EmulatedRunner, ModelRunner, NativeRunner, RunnerOptions,
};
use crate::tokenizer::TextCodec;
use tokenrouter_core::request::ModelIndex;
use tokenrouter_core::routing::RoutingPolicy;
use tokenrouter_core::routing::registry::{BuiltPolicy, SystemView};
use tokenrouter_core::scheduler::{Core, CoreConfig, ThresholdTable};
use tokenrouter_core::token_texts::TokenTexts;

/// Vocabulary of emulated models.
const EMULATED_VOCAB: usize = 32_000;
/// Room in an inbox per active request, and on top of it.
const INBOX_PER_REQUEST: usize = 4;
const INBOX_EXTRA: usize = 1024;

/// What the models have in common.
struct Common {
    vocab: usize,
    context: usize,
    eos: Vec<u32>,
    text: Option<TextCodec>,
    texts: Option<Arc<TokenTexts>>,
}

/// Largest number of tokens of a request. Models and KV memory have room for `possible`.
fn token_limit(config: &Config, possible: usize) -> usize {
    match config.system.max_tokens_per_request {
        0 => possible,
        limit => limit.min(possible),
    }
}

/// Makes the policy of a system.
pub(super) type MakePolicy<'a> = &'a dyn Fn(&SystemView) -> BuiltPolicy;

/// Launches all models, or on a node of its own the model `local`.
pub(super) fn launch(
    config: &Config,
    make_policy: MakePolicy<'_>,
    local: Option<ModelIndex>,
) -> Result<Engine, EngineError> {
    config.validate().map_err(|problem| EngineError::Unusable(problem.message))?;
    let names = config.model_names();
    let files = open_models(config)?;
    let common = common(config, &files)?;
    let view = SystemView {
        models: names.clone(),
        entry: config.entry_index(),
        vocab: common.vocab,
        head_rows: if files.is_empty() {
            vec![common.vocab; names.len()]
        } else {
            files.iter().map(|f| f.arch.vocab).collect()
        },
        hidden: if files.is_empty() { vec![0; names.len()] } else { files.iter().map(|f| f.arch.d_model).collect() },
        texts: common.texts.clone(),
        load_head: heads::load,
    };
    let policy: Arc<dyn RoutingPolicy> = Arc::from(make_policy(&view).map_err(EngineError::Unusable)?);
    check_common_language(config, &files, &*policy)?;
    let kv_blocks = plan_kv(config, &files, common.context)?;
    let block_size = config.kv.block_size;
    let token_limit = token_limit(config, common.context.min(kv_blocks * block_size));
    let thresholds = Arc::new(thresholds::table(config, &*policy)?);
    let (threads, mut warnings) = divide_threads(config, local);
    warnings.extend(file_warnings(&names, &files));
    let options = runner_options(config, &*policy, &common, (kv_blocks, block_size))?;
    let vocabulary = files.first().map(|file| file.text.vocabulary_hash(policy.needs(0).extra_row));
    let facts = node::facts(config, &thresholds, (common.vocab, vocabulary), (kv_blocks, token_limit));
    let runners = load_runners(config, files, (&options, &threads), local)?;
    let info = launch_info(config, &thresholds, (&threads, warnings), (kv_blocks * block_size, token_limit), local);
    let takes_threshold = policy.takes_threshold();
    let survivors =
        (config.system.execution == ExecutionConfig::Standard).then(|| Arc::new(Survivors::new(policy.clone())));
    let policy = survivors.clone().map_or(policy, |survivors| survivors);
    let streams = Arc::new(Streams::default());
    let epoch = Instant::now();
    let recorder = || config.system.profile.then(Recorder::default);
    let shared: Vec<_> = names.iter().map(|_| Arc::new(Shared::new(names.len(), recorder()))).collect();
    let stations = runners.into_iter().map(|(model, runner)| {
        let mut core = Core::new(core_config(config, model, (&common, &thresholds, kv_blocks)), Arc::clone(&policy));
        if local.is_some() {
            core.begin_over_network(epoch_millis());
        }
        let remote = local.is_some_and(|local| local != view.entry);
        let clients = if remote { Clients::At(view.entry) } else { Clients::Here(Arc::clone(&streams)) };
        Station::new((model, names.len()), core, runner, (clients, Arc::clone(&shared[model])), epoch)
    });
    let watch: Watch = (Arc::clone(&streams), Arc::new(AtomicBool::new(true)), Arc::new(OnceLock::new()));
    let plan = local.map(|local| NodePlan { config, local, vocab: common.vocab, token_limit, facts, start: epoch });
    let Started { inboxes, threads, node } = start(config, stations.collect(), plan.as_ref(), &watch)?;
    let (_, healthy, failed) = watch;
    let worker = adaptation(config, local, &thresholds, &shared, &inboxes)?;
    let inner = Inner {
        names,
        entry: view.entry,
        inboxes,
        streams,
        shared,
        next_id: AtomicU64::new(0),
        accepting: AtomicBool::new(true),
        healthy,
        failed,
        max_open: config.system.max_active + config.system.max_queued,
        vocab: common.vocab,
        token_limit,
        has_texts: common.texts.is_some(),
        takes_threshold,
        survivors,
        local,
    };
    Ok(Engine { inner: Arc::new(inner), threads, node, worker, text: common.text, texts: common.texts, info })
}

/// Follows the load with `thresholds: adaptive`.
fn adaptation(
    config: &Config,
    local: Option<ModelIndex>,
    table: &Arc<ThresholdTable>,
    shared: &[Arc<Shared>],
    inboxes: &[SyncSender<Inbound>],
) -> Result<Option<Worker>, EngineError> {
    if config.batching.thresholds != ThresholdConfig::Adaptive || config.models.len() == 1 {
        return Ok(None);
    }
    if local.is_some() {
        return Err(EngineError::Unusable(
            "`batching.thresholds: adaptive` needs all models in one process; give nodes `auto`, or a list".into(),
        ));
    }
    let adapter = Adapter::new(config, Arc::clone(table));
    let period = Duration::from_secs_f64(config.batching.adaptation.period_s);
    let worker = Worker::start(adapter, shared.to_vec(), inboxes.to_vec(), period);
    worker.map(Some).map_err(|error| EngineError::Thread(error.to_string()))
}

fn core_config(
    config: &Config,
    model: usize,
    (common, thresholds, kv_blocks): (&Common, &Arc<ThresholdTable>, usize),
) -> CoreConfig {
    let settings = &config.models[model];
    let max_active = config.system.max_active;
    let alone = config.system.execution == ExecutionConfig::Standard;
    CoreConfig {
        model,
        models: config.models.len(),
        entry: if alone { model } else { config.entry_index() },
        max_active,
        max_batch: if settings.max_batch == 0 { max_active } else { settings.max_batch },
        max_step_tokens: settings.scheduler.max_step_tokens,
        max_wait: Duration::from_secs_f64(config.batching.max_wait_ms / 1e3),
        thresholds: Arc::clone(thresholds),
        kv_blocks,
        admission_blocks: kv_blocks,
        block_size: config.kv.block_size,
        prefix_cache: config.kv.prefix_cache,
        handoff_resume: config.system.handoff_resume,
        alone,
        eos: common.eos.clone(),
        texts: common.texts.clone(),
    }
}

/// What the end of a thread by a fault changes: open streams, the engine's health, and who it was.
type Watch = (Arc<Streams>, Arc<AtomicBool>, Arc<OnceLock<String>>);

/// What runs.
struct Started {
    /// By model.
    inboxes: Vec<SyncSender<Inbound>>,
    threads: Vec<std::thread::JoinHandle<()>>,
    node: Option<Node>,
}

/// Starts the threads that drive the stations.
fn start(
    config: &Config,
    mut stations: Vec<Station>,
    plan: Option<&NodePlan<'_>>,
    watch: &Watch,
) -> Result<Started, EngineError> {
    let capacity = INBOX_PER_REQUEST * (config.system.max_active + config.system.max_queued) + INBOX_EXTRA;
    if config.system.execution == ExecutionConfig::Lockstep {
        let (sender, inbox) = sync_channel(capacity);
        let inboxes = vec![sender; stations.len()];
        let lockstep = Lockstep { stations, entry: config.entry_index(), inbox };
        return Ok(Started { inboxes, threads: vec![spawn("lockstep", move || lockstep.run(), watch)?], node: None });
    }
    if let Some((plan, station)) = plan.zip(stations.pop_if(|_| plan.is_some())) {
        let (sender, inbox) = sync_channel(capacity);
        let (node, links) = Node::start(plan, &sender, capacity)?;
        let outlet =
            |link: Option<_>| link.map_or_else(|| Outlet::Inbox(sender.clone()), |link| Outlet::Node(Arc::new(link)));
        let subserver = Subserver { station, inbox, peers: links.into_iter().map(outlet).collect() };
        let name = &config.model_names()[plan.local];
        let threads = vec![spawn(name, move || subserver.run(), watch)?];
        return Ok(Started { inboxes: vec![sender; config.models.len()], threads, node: Some(node) });
    }
    let (inboxes, receivers): (Vec<_>, Vec<_>) = stations.iter().map(|_| sync_channel(capacity)).unzip();
    let alone = config.system.execution == ExecutionConfig::Standard;
    let peers: Vec<_> = inboxes.iter().filter(|_| !alone).cloned().map(Outlet::Inbox).collect();
    let threads = stations.into_iter().zip(receivers).zip(config.models.keys());
    let threads = threads.map(|((station, inbox), name)| {
        let subserver = Subserver { station, inbox, peers: peers.clone() };
        spawn(name, move || subserver.run(), watch)
    });
    Ok(Started { threads: threads.collect::<Result<_, _>>()?, inboxes, node: None })
}

fn spawn(
    name: &str,
    body: impl FnOnce() + Send + 'static,
    watch: &Watch,
) -> Result<std::thread::JoinHandle<()>, EngineError> {
    let ((streams, healthy, failed), label) = (watch.clone(), name.to_owned());
    let body = move || {
        // A bug in a scheduler must not leave clients waiting for ever.
        if catch_unwind(AssertUnwindSafe(body)).is_err() {
            let message = format!("the subserver of model `{label}` failed");
            let _first = failed.set(label);
            healthy.store(false, Ordering::Release);
            streams.fail_all(&message);
        }
    };
    let builder = std::thread::Builder::new().name(format!("subserver-{name}"));
    builder.spawn(body).map_err(|error| EngineError::Thread(error.to_string()))
}

fn launch_info(
    config: &Config,
    thresholds: &ThresholdTable,
    (threads, mut warnings): (&[usize], Vec<String>),
    (kv_tokens, token_limit): (usize, usize),
    local: Option<ModelIndex>,
) -> LaunchInfo {
    if config.is_emulated() {
        warnings.push("emulated: latency profiles stand in for the models".into());
    }
    let models = config.models.iter().zip(threads);
    LaunchInfo {
        models: models.map(|((name, model), threads)| describe(name, model, *threads)).collect(),
        local_model: local.map(|local| config.model_names()[local].clone()),
        routing: config.routing.method.clone(),
        max_active: config.system.max_active,
        thresholds: thresholds.row(config.system.max_active),
        execution: config.system.execution,
        handoff_resume: config.system.handoff_resume,
        kv_tokens,
        token_limit,
        emulated: config.is_emulated(),
        warnings,
    }
}

fn describe(name: &str, model: &ModelConfig, threads: usize) -> String {
    if let Some(EmulatedConfig { latency_ms, .. }) = &model.emulated {
        return format!("{name}: emulated, {:.3} ms at batch 1", latency_ms.at(1));
    }
    let origin = model.path.as_ref().map(|path| path.display().to_string());
    let origin = origin.or_else(|| model.source.clone()).unwrap_or_default();
    let layers = model.layers.as_ref().map(|keep| format!(", {} layers kept", keep.len())).unwrap_or_default();
    let dtype = serde_json::to_value(model.dtype).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default();
    let place = match (model.device, model.tp_size) {
        (DeviceConfig::Cpu, _) => format!("{threads} {} on cpu", if threads == 1 { "thread" } else { "threads" }),
        (device, 1) => device.to_string(),
        (DeviceConfig::Cuda(first), ranks) => format!("cuda:{first} to cuda:{}", first + ranks - 1),
    };
    format!("{name}: {origin}{layers}, {dtype} weights, {place}")
}

fn open_models(config: &Config) -> Result<Vec<ModelFiles>, EngineError> {
    let real = config.models.iter().filter(|(_, model)| model.emulated.is_none());
    real.map(|(name, model)| {
        ModelFiles::open(model).map_err(|reason| EngineError::Model { name: name.clone(), reason: Box::new(reason) })
    })
    .collect()
}

/// What the files say and is not used, by model.
fn file_warnings(names: &[String], files: &[ModelFiles]) -> Vec<String> {
    let of_model = |(name, file): (&String, &ModelFiles)| -> Vec<String> {
        file.warnings.iter().map(|warning| format!("model `{name}`: {warning}")).collect()
    };
    names.iter().zip(files).flat_map(of_model).collect()
}

/// What all models share.
fn common(config: &Config, files: &[ModelFiles]) -> Result<Common, EngineError> {
    let Some(first) = files.first() else {
        return Ok(Common {
            vocab: EMULATED_VOCAB,
            context: EMULATED_KV_TOKENS,
            eos: Vec::new(),
            text: None,
            texts: None,
        });
    };
    let smallest = |value: fn(&ModelFiles) -> usize| files.iter().map(value).min().unwrap_or_default();
    Ok(Common {
        vocab: smallest(|file| file.arch.vocab),
        context: smallest(|file| file.arch.context),
        eos: first.eos.clone(),
        text: Some(files[config.entry_index()].text.clone()),
        texts: Some(Arc::new(first.text.token_texts())),
    })
}

/// Checks that all models speak the same tokens, and read conversations in the same form.
fn check_common_language(config: &Config, files: &[ModelFiles], policy: &dyn RoutingPolicy) -> Result<(), EngineError> {
    let names = config.model_names();
    // An extra row of a head may have a name in that model's vocabulary: it is never sent.
    let hash = |index: usize| files[index].text.vocabulary_hash(policy.needs(index).extra_row);
    let Some(first) = files.first() else { return Ok(()) };
    for (index, file) in files.iter().enumerate().skip(1) {
        let (a, b) = (&names[0], &names[index]);
        if hash(index) != hash(0) || file.eos != first.eos {
            return Err(EngineError::Unusable(format!(
                "models `{a}` and `{b}` do not share a vocabulary ({} and {} tokens, end tokens {:?} and {:?}): they \
                 cannot exchange tokens",
                first.arch.vocab, file.arch.vocab, first.eos, file.eos
            )));
        }
        let differs = file.text.chat_template_source() != first.text.chat_template_source();
        if differs && config.system.chat_template == ChatTemplateConfig::Shared {
            return Err(EngineError::Unusable(format!(
                "models `{a}` and `{b}` have different chat templates; set `system.chat_template: entry` to render \
                 conversations with that of the entry model"
            )));
        }
    }
    Ok(())
}

/// What each model's runner has to know.
fn runner_options(
    config: &Config,
    policy: &dyn RoutingPolicy,
    common: &Common,
    kv: (usize, usize),
) -> Result<Vec<RunnerOptions>, EngineError> {
    let models = config.models.iter().enumerate();
    models
        .map(|(index, (name, model))| {
            let needs = policy.needs(index);
            match tokenrouter_core::emulated::missing_signal(&needs) {
                Some(signal) if model.emulated.is_some() => Err(EngineError::Unusable(format!(
                    "routing method `{}` reads {signal} of model `{name}`, which is emulated and has none",
                    config.routing.method
                ))),
                _ => Ok(RunnerOptions {
                    needs,
                    vocab: common.vocab,
                    eos: common.eos.clone(),
                    kv,
                    kv_dtype: config.kv.dtype,
                    head: policy.head(index),
                }),
            }
        })
        .collect()
}

/// A runner, and the model that it is for.
type Runner = (ModelIndex, Box<dyn ModelRunner>);

/// Loads all models of this process at the same time.
fn load_runners(
    config: &Config,
    files: Vec<ModelFiles>,
    (options, threads): (&[RunnerOptions], &[usize]),
    local: Option<ModelIndex>,
) -> Result<Vec<Runner>, EngineError> {
    let here = |model: &ModelIndex| local.is_none_or(|local| local == *model);
    if files.is_empty() {
        let profiles = config.models.values().filter_map(|model| model.emulated.as_ref()).zip(options);
        let runner = |(model, (emulated, options)): (usize, (&EmulatedConfig, &RunnerOptions))| -> Runner {
            let (blocks, block_size) = options.kv;
            let emulated = EmulatedModel::new(emulated.latency_ms.clone(), EMULATED_VOCAB as u32, blocks, block_size)
                .with_prefill(emulated.prefill_ms_per_token);
            (model, Box::new(EmulatedRunner(emulated)))
        };
        return Ok(profiles.enumerate().filter(|(model, _)| here(model)).map(runner).collect());
    }
    std::thread::scope(|scope| {
        let models = config.models.iter().zip(files).enumerate().filter(|(index, _)| here(index));
        let loads: Vec<_> = models
            .map(|(index, ((name, model), file))| {
                let load = scope.spawn(move || {
                    load_runner(model, &file, &options[index], (threads[index], config.system.max_active))
                        .map_err(|reason| EngineError::Model { name: name.clone(), reason: Box::new(reason) })
                });
                (index, load)
            })
            .collect();
        loads
            .into_iter()
            .map(|(index, load)| {
                let loaded = load.join();
                let loaded = loaded.unwrap_or_else(|_| Err(EngineError::Thread("loading a model panicked".into())));
                Ok((index, loaded?))
            })
            .collect()
    })
}

fn load_runner(
    model: &ModelConfig,
    files: &ModelFiles,
    options: &RunnerOptions,
    (threads, max_active): (usize, usize),
) -> Result<Box<dyn ModelRunner>, ModelError> {
    let path = files.weights.path();
    let failed = |error: tokenrouter_kernels::Error| ModelError::invalid(path, error.to_string());
    let weights = (&files.weights, &files.patches);
    match (model.runner, model.device) {
        (RunnerKind::Native, DeviceConfig::Cpu) => {
            let pool = Pool::new(threads, model.cores.clone()).map_err(failed)?;
            Ok(Box::new(NativeRunner::load(&files.arch, weights, model.dtype, options, pool)?))
        }
        (RunnerKind::Native, DeviceConfig::Cuda(first)) => {
            let devices = (first..first + model.tp_size).map(cuda::Device::cuda).collect::<Result<Vec<_>, _>>();
            let rows = if model.max_batch == 0 { max_active } else { model.max_batch.min(max_active) };
            let shapes =
                CudaShapes { tokens: model.scheduler.max_step_tokens + rows, rows, graphs: model.cuda_graphs.shapes() };
            let devices = devices.map_err(failed)?;
            Ok(Box::new(CudaRunner::load(&files.arch, weights, model.dtype, options, (&devices, &shapes))?))
        }
        (RunnerKind::Candle, _) => {
            let decoder = Decoder::load(&files.arch, weights, model.dtype, &Device::Cpu, options.kv)?;
            let runner = CandleRunner::new(decoder, options, threads, model.cores.clone())
                .map_err(|error| ModelError::NotFound(format!("cannot start {threads} threads: {error}")))?;
            Ok(Box::new(runner))
        }
    }
}
