//! What of the machine's memory each model gets.

use tokenrouter_core::kv::plan::common_capacity;
use tokenrouter_kernels::cuda;

use super::EngineError;
use crate::config::{Config, DeviceConfig};
use crate::memory;
use crate::model::{ModelFiles, Shape};

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
    let elements: usize = files.iter().map(|file| file.arch.kv_elements_per_token()).sum();
    let bytes_per_token = elements * config.kv.dtype.bytes();
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
