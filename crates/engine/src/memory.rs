//! What the models of a configuration take on each device.

use indexmap::IndexMap;
use tokenrouter_core::kv::plan::{DeviceMemory, ModelMemory};

use crate::config::{Config, DeviceConfig, KvDtypeConfig, ModelConfig};
use crate::model::Shape;

/// What the models of a configuration take on each device, in the order in which devices are first named. `shapes` are in
/// the order of the models; `budget` says how much of a device may be used. `kv` is how keys and values are held, where that
/// is not what the engine would do.
pub fn devices(
    config: &Config,
    shapes: &[Shape],
    kv: Option<KvDtypeConfig>,
    mut budget: impl FnMut(DeviceConfig) -> u64,
) -> Vec<DeviceMemory> {
    let mut devices: IndexMap<DeviceConfig, DeviceMemory> = IndexMap::new();
    for ((name, model), shape) in config.models.iter().zip(shapes) {
        let memory = model_memory(name, model, config, shape, kv);
        for rank in 0..model.tp_size {
            let device = match model.device {
                DeviceConfig::Cpu => DeviceConfig::Cpu,
                DeviceConfig::Cuda(first) => DeviceConfig::Cuda(first + rank),
            };
            let entry = devices.entry(device).or_insert_with(|| DeviceMemory {
                name: device.to_string(),
                budget: budget(device),
                models: Vec::new(),
            });
            entry.models.push(memory.clone());
        }
    }
    devices.into_values().collect()
}

/// What a model takes on its device, or on each of its devices.
fn model_memory(
    name: &str,
    model: &ModelConfig,
    config: &Config,
    shape: &Shape,
    kv: Option<KvDtypeConfig>,
) -> ModelMemory {
    let kv = kv.unwrap_or(config.kv.dtype);
    let rows = if model.max_batch == 0 { config.system.max_active } else { model.max_batch };
    ModelMemory {
        name: name.to_owned(),
        weights: shape.weight_bytes_per_rank(model.dtype, model.tp_size as u64),
        workspace: shape.workspace_bytes(model.scheduler.max_step_tokens.max(rows), rows),
        kv_per_token: (shape.arch.kv_elements_per_token() * kv.bytes() / model.tp_size) as u64,
    }
}

#[cfg(test)]
mod tests {
    use tokenrouter_core::kv::plan::{Capacity, common_capacity};

    use super::*;
    use crate::config::WeightDtype;

    /// Counted by hand from the published shapes, in bf16 with bf16 keys and values.
    #[test]
    fn qwen3_as_counted_by_hand() {
        let of = |name: &str| {
            let shape = Shape::known(name).expect("a known shape");
            let kv = 2 * shape.arch.kv_elements_per_token() as u64;
            (shape.parameters(), shape.weight_bytes(WeightDtype::Bf16), kv)
        };
        // 0.6B: embedding 151936 * 1024 (tied); per layer q and o 2 * 1024 * 2048, k and v 2 * 1024 * 1024, ffn
        // 3 * 1024 * 3072, norms 2 * 1024 + 2 * 128; 28 layers; last norm 1024.
        let layer = 2 * 1024 * 2048 + 2 * 1024 * 1024 + 3 * 1024 * 3072 + 2 * 1024 + 2 * 128;
        let small = 151_936 * 1024 + 28 * layer + 1024;
        assert_eq!(of("Qwen/Qwen3-0.6B"), (small, 2 * small, 28 * 2 * 8 * 128 * 2));
        assert_eq!(small, 596_049_920);
        let large = of("Qwen/Qwen3-8B");
        assert_eq!((large.0, large.2), (8_190_735_360, 147_456));
        let larger = of("Qwen/Qwen3-32B");
        assert_eq!((larger.0, larger.2), (32_762_123_264, 262_144));
        // 80 GiB, 0.6B and 8B together, nothing else: (85,899,345,920 - 1,192,099,840 - 16,381,470,720) bytes over
        // (114,688 + 147,456) * 16 bytes a block of 16 tokens.
        let device = DeviceMemory {
            name: "cuda:0".into(),
            budget: 80 << 30,
            models: [("small", of("Qwen/Qwen3-0.6B")), ("large", large)]
                .map(|(name, (_, weights, kv))| ModelMemory {
                    name: name.into(),
                    weights,
                    workspace: 0,
                    kv_per_token: kv,
                })
                .to_vec(),
        };
        let want = (85_899_345_920 - 1_192_099_840 - 16_381_470_720) / (262_144 * 16);
        assert_eq!(common_capacity(&[device], 16).expect("fits"), Capacity { blocks: want, tokens: 16 * want });
        assert_eq!(want, 16_290);
    }

    /// A model over two devices beside one on the first of them: each rank has all of embedding and head, half of the
    /// layers, and half of the keys and values.
    #[test]
    fn ranks_share_their_devices_with_other_models() {
        let yaml = "models:\n  small: {source: Qwen/Qwen3-0.6B, device: 'cuda:1', dtype: bf16}\n  \
                    large: {source: Qwen/Qwen3-8B, device: 'cuda:0', tp_size: 2, dtype: bf16}\n\
                    routing: {method: random, probability: 0.3}\nkv: {dtype: bf16, memory_mib: 0}\n";
        let config = Config::from_yaml(yaml, "plan.yaml").expect("a valid configuration");
        let shapes: Vec<Shape> =
            ["Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B"].iter().map(|id| Shape::known(id).expect("known")).collect();
        let devices = devices(&config, &shapes, None, |_| 80 << 30);
        let names: Vec<(&str, Vec<&str>)> =
            devices.iter().map(|d| (d.name.as_str(), d.models.iter().map(|m| m.name.as_str()).collect())).collect();
        assert_eq!(names, [("cuda:1", vec!["small", "large"]), ("cuda:0", vec!["large"])]);
        let large = &devices[1].models[0];
        assert_eq!(&devices[0].models[1], large);
        // 8,190,735,360 numbers, of which 2 * 151,936 * 4,096 are embedding and head.
        let tables = 2 * 151_936 * 4096;
        assert_eq!(large.weights, 2 * (tables + (8_190_735_360 - tables) / 2));
        assert_eq!(large.kv_per_token, 147_456 / 2);
        assert_eq!(devices[0].kv_per_token(), 114_688 + 147_456 / 2);
    }
}
