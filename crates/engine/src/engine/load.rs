//! From a configuration to loaded models that speak the same tokens.

use std::sync::Arc;

use tokenrouter_core::emulated::EmulatedModel;
use tokenrouter_core::request::ModelIndex;
use tokenrouter_core::routing::RoutingPolicy;
use tokenrouter_core::step::ModelRunner;
use tokenrouter_core::token_texts::TokenTexts;
use tokenrouter_kernels::{Pool, cuda};

use super::EngineError;
use super::plan::{Compute, ModelPlan, Plan};
use super::resources::EMULATED_KV_TOKENS;
use crate::config::{ChatTemplateConfig, Config, EmulatedConfig, ModelConfig};
use crate::model::{ModelError, ModelFiles};
use crate::runner::{CudaRunner, CudaShapes, EmulatedRunner, NativeRunner, RunnerOptions};
use crate::tokenizer::TextCodec;

/// Vocabulary of emulated models.
const EMULATED_VOCAB: usize = 32_000;

/// What the models have in common.
pub(super) struct Common {
    pub(super) vocab: usize,
    pub(super) context: usize,
    pub(super) eos: Vec<u32>,
    pub(super) text: Option<TextCodec>,
    pub(super) texts: Option<Arc<TokenTexts>>,
}

pub(super) fn open_models(config: &Config) -> Result<Vec<ModelFiles>, EngineError> {
    let real = config.models.iter().filter(|(_, model)| model.emulated.is_none());
    real.map(|(name, model)| {
        ModelFiles::open(model).map_err(|reason| EngineError::Model { name: name.clone(), reason: Box::new(reason) })
    })
    .collect()
}

/// What all models share.
pub(super) fn common(config: &Config, files: &[ModelFiles]) -> Result<Common, EngineError> {
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
pub(super) fn check_common_language(
    config: &Config,
    files: &[ModelFiles],
    policy: &dyn RoutingPolicy,
) -> Result<(), EngineError> {
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
pub(super) fn runner_options(
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
pub(super) type Runner = (ModelIndex, Box<dyn ModelRunner>);

/// The emulated models of a configuration.
pub(super) fn emulated_models(config: &Config, options: &[RunnerOptions]) -> Vec<EmulatedModel> {
    let profiles = config.models.values().filter_map(|model| model.emulated.as_ref()).zip(options);
    let model = |(emulated, options): (&EmulatedConfig, &RunnerOptions)| {
        let (blocks, block_size) = options.kv;
        EmulatedModel::new(emulated.latency_ms.clone(), EMULATED_VOCAB as u32, blocks, block_size)
            .with_prefill(emulated.prefill_ms_per_token)
    };
    profiles.map(model).collect()
}

/// Loads all models of this process at the same time.
pub(super) fn load_runners(
    plan: &Plan,
    config: &Config,
    files: Vec<ModelFiles>,
    options: &[RunnerOptions],
) -> Result<Vec<Runner>, EngineError> {
    if files.is_empty() {
        let models = emulated_models(config, options).into_iter().enumerate();
        let runner = |(index, model)| -> Runner { (index, Box::new(EmulatedRunner(model))) };
        return Ok(models.filter(|(index, _)| plan.models[*index].hosted).map(runner).collect());
    }
    std::thread::scope(|scope| {
        let models = plan.models.iter().zip(config.models.values()).zip(files).enumerate();
        let loads: Vec<_> = models
            .filter(|(_, ((plan, _), _))| plan.hosted)
            .map(|(index, ((plan, model), file))| {
                let load = scope.spawn(move || {
                    load_runner(plan, model, &file, &options[index])
                        .map_err(|reason| EngineError::Model { name: plan.name.clone(), reason: Box::new(reason) })
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
    plan: &ModelPlan,
    model: &ModelConfig,
    files: &ModelFiles,
    options: &RunnerOptions,
) -> Result<Box<dyn ModelRunner>, ModelError> {
    let path = files.weights.path();
    let failed = |error: tokenrouter_kernels::Error| ModelError::invalid(path, error.to_string());
    let weights = (&files.weights, &files.patches);
    match plan.compute {
        Compute::Cpu { threads } => {
            let pool = Pool::new(threads, model.cores.clone()).map_err(failed)?;
            Ok(Box::new(NativeRunner::load(&files.arch, weights, model.dtype, options, pool)?))
        }
        Compute::Cuda { first, ranks } => {
            let devices = (first..first + ranks).map(cuda::Device::cuda).collect::<Result<Vec<_>, _>>();
            let tokens = plan.max_step_tokens + plan.max_batch;
            let shapes = CudaShapes { tokens, rows: plan.max_batch, graphs: model.cuda_graphs.shapes() };
            let devices = devices.map_err(failed)?;
            Ok(Box::new(CudaRunner::load(&files.arch, weights, model.dtype, options, (&devices, &shapes))?))
        }
        Compute::Emulated { .. } => unreachable!("real and emulated models are not mixed (`Config::validate`)"),
    }
}
