//! What of the machine's memory and cores each model gets.

use tokenrouter_core::kv::plan::common_capacity;
use tokenrouter_kernels::cuda;

use super::EngineError;
use crate::config::{Config, DeviceConfig, ModelConfig};
use crate::memory;
use crate::model::{ModelFiles, Shape};
use tokenrouter_core::request::ModelIndex;

/// Tokens that an emulated model's KV cache holds.
pub(super) const EMULATED_KV_TOKENS: usize = 1 << 20;

/// Blocks per model: the budget divided so that every model holds the same number of tokens, but no more than all
/// active requests at full length can use.
pub(super) fn plan_kv(config: &Config, files: &[ModelFiles], context: usize) -> Result<usize, EngineError> {
    let block_size = config.kv.block_size;
    let limit = match config.system.max_tokens_per_request {
        0 => context,
        limit => limit.min(context),
    };
    let useful = config.system.max_active * limit.div_ceil(block_size);
    if files.is_empty() {
        return Ok(useful.min(EMULATED_KV_TOKENS / block_size));
    }
    let on_devices = device_capacity(config, files)?;
    if config.kv.memory_mib == 0 {
        return Ok(useful.min(on_devices));
    }
    let element = |model: &ModelConfig| model.kv_dtype(&config.kv).bytes();
    let models = files.iter().zip(config.models.values());
    let bytes_per_token: usize = models.map(|(file, model)| file.arch.kv_elements_per_token() * element(model)).sum();
    let affordable = config.kv.memory_mib * (1 << 20) / (bytes_per_token * block_size);
    if affordable == 0 {
        return Err(EngineError::Unusable(format!(
            "`kv.memory_mib` is {}: one block of {block_size} tokens takes {} KiB over all models",
            config.kv.memory_mib,
            bytes_per_token * block_size / 1024
        )));
    }
    Ok(useful.min(affordable).min(on_devices))
}

/// Blocks that CUDA devices have room for beside weights and workspace, as `trbench plan-memory` computes it; no limit
/// where there are none.
fn device_capacity(config: &Config, files: &[ModelFiles]) -> Result<usize, EngineError> {
    if config.models.values().all(|model| model.device == DeviceConfig::Cpu) {
        return Ok(usize::MAX);
    }
    let unusable = |error: &dyn std::fmt::Display| EngineError::Unusable(error.to_string());
    let shapes = files.iter().map(Shape::of).collect::<Result<Vec<_>, _>>().map_err(|error| unusable(&error))?;
    let mut free = Ok(());
    let devices = memory::devices(config, &shapes, None, |device| {
        let DeviceConfig::Cuda(ordinal) = device else { return u64::MAX };
        let memory = cuda::Device::cuda(ordinal).and_then(|device| device.memory());
        let bytes = memory.map(|memory| memory.map_or(u64::MAX, |(free, _)| free as u64));
        let bytes = bytes.unwrap_or_else(|error| {
            free = Err(unusable(&format!("`device: {device}`: {error}")));
            0
        });
        (bytes as f64 * config.kv.device_utilization) as u64
    });
    free?;
    let capacity = common_capacity(&devices, config.kv.block_size as u64).map_err(|error| unusable(&error))?;
    Ok(usize::try_from(capacity.blocks).unwrap_or(usize::MAX))
}

/// Threads of each model, and warnings where they are more than the machine's cores.
pub(super) fn divide_threads(config: &Config, local: Option<ModelIndex>) -> (Vec<usize>, Vec<String>) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let share = if local.is_some() { cores } else { (cores / config.models.len()).max(1) };
    let threads: Vec<usize> =
        config.models.values().map(|model| if model.threads == 0 { share } else { model.threads }).collect();
    let real = config.models.values().zip(&threads).enumerate();
    let real = real.filter(|(index, (model, _))| model.emulated.is_none() && local.is_none_or(|local| local == *index));
    let on_cpu = real.clone().filter(|(_, (model, _))| model.device == DeviceConfig::Cpu);
    let total: usize = on_cpu.map(|(_, (_, threads))| threads).sum();
    let mut warnings = Vec::new();
    let shares_gpu = local.is_some() && real.clone().any(|(_, (model, _))| model.device != DeviceConfig::Cpu);
    if shares_gpu && !mps_runs() {
        warnings.push(
            "CUDA MPS does not run: processes that share a GPU take turns on it instead of running side by side \
             (docs/guides/gpu.md)"
                .into(),
        );
    }
    if total > cores {
        warnings.push(format!("models use {total} threads on {cores} cores: they will slow each other down"));
    }
    (threads, warnings)
}

/// Whether the control daemon of CUDA MPS has left its pipes where clients look for them.
fn mps_runs() -> bool {
    let folder = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").unwrap_or_else(|| "/tmp/nvidia-mps".into());
    std::path::Path::new(&folder).join("control").exists()
}
