//! One memory budget for several models on a device: the largest number of tokens that all of them can hold at once.
//!
//! A routed request has keys and values at every model that it visited, so the models need the same capacity in tokens,
//! however different their sizes are.

use indexmap::IndexMap;

use crate::config::{Config, DeviceConfig, KvDtypeConfig, ModelConfig};
use crate::model::Shape;

/// What a model takes on its device, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelMemory {
    /// Its name.
    pub name: String,
    /// Weights.
    pub weights: u64,
    /// Activations of the largest step, logits included.
    pub workspace: u64,
    /// Keys and values of one token, over all layers.
    pub kv_per_token: u64,
}

/// A device and the models on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Its name, such as `cuda:0`.
    pub name: String,
    /// Bytes that may be used.
    pub budget: u64,
    /// The models on it.
    pub models: Vec<ModelMemory>,
}

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
        let memory = ModelMemory::of(name, model, config, shape, kv);
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

impl ModelMemory {
    /// What a model takes on its device, or on each of its devices.
    fn of(name: &str, model: &ModelConfig, config: &Config, shape: &Shape, kv: Option<KvDtypeConfig>) -> Self {
        let kv = kv.unwrap_or_else(|| model.kv_dtype(&config.kv));
        let rows = if model.max_batch == 0 { config.system.max_active } else { model.max_batch };
        Self {
            name: name.to_owned(),
            weights: shape.weight_bytes_per_rank(model.dtype, model.tp_size as u64),
            workspace: shape.workspace_bytes(model.scheduler.max_step_tokens.max(rows), rows),
            kv_per_token: (shape.arch.kv_elements_per_token() * kv.bytes() / model.tp_size) as u64,
        }
    }
}

/// The common capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Blocks of every model.
    pub blocks: u64,
    /// Tokens of every model: whole blocks.
    pub tokens: u64,
}

/// No capacity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{device}` has {budget_mib} MiB: weights and workspace of {models} take {taken_mib} MiB, and a block of {block_size} tokens {block_kib} KiB"
)]
pub struct DoesNotFit {
    /// The device.
    pub device: String,
    /// Its budget.
    pub budget_mib: u64,
    /// The models on it.
    pub models: String,
    /// What they take without keys and values.
    pub taken_mib: u64,
    /// Tokens of a block.
    pub block_size: u64,
    /// Keys and values of one block, over the models on the device.
    pub block_kib: u64,
}

impl DeviceMemory {
    /// Weights and workspace.
    pub fn taken(&self) -> u64 {
        self.models.iter().map(|model| model.weights + model.workspace).sum()
    }

    /// Keys and values of a token, over its models.
    pub fn kv_per_token(&self) -> u64 {
        self.models.iter().map(|model| model.kv_per_token).sum()
    }
}

/// The largest capacity that every device has for its models.
pub fn common_capacity(devices: &[DeviceMemory], block_size: u64) -> Result<Capacity, DoesNotFit> {
    let mut blocks = u64::MAX;
    for device in devices {
        let per_block = device.kv_per_token().saturating_mul(block_size).max(1);
        let fits = device.budget.saturating_sub(device.taken()) / per_block;
        if fits == 0 {
            let names: Vec<&str> = device.models.iter().map(|model| model.name.as_str()).collect();
            return Err(DoesNotFit {
                device: device.name.clone(),
                budget_mib: device.budget >> 20,
                models: names.join(", "),
                taken_mib: device.taken() >> 20,
                block_size,
                block_kib: per_block >> 10,
            });
        }
        blocks = blocks.min(fits);
    }
    Ok(Capacity { blocks, tokens: blocks.saturating_mul(block_size) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::WeightDtype;
    use crate::model::Shape;

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

    fn device(budget: u64, models: &[(u64, u64)]) -> DeviceMemory {
        let model = |(weights, kv): &(u64, u64)| ModelMemory {
            name: "m".into(),
            weights: *weights,
            workspace: 7,
            kv_per_token: *kv,
        };
        DeviceMemory { name: "d".into(), budget, models: models.iter().map(model).collect() }
    }

    #[test]
    fn what_does_not_fit_is_said_with_its_numbers() {
        let full = device(100 << 20, &[(99 << 20, 1 << 20), (1 << 20, 1)]);
        let why = common_capacity(&[full], 16).expect_err("too much").to_string();
        assert!(why.contains("100 MiB") && why.contains("m, m") && why.contains("16384 KiB"), "{why}");
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

    proptest! {
        /// The capacity fits on every device, and one block more does not fit on one of them.
        #[test]
        fn the_capacity_is_the_largest(
            devices in prop::collection::vec((1u64..1 << 40, prop::collection::vec((0u64..1 << 38, 1u64..1 << 20), 1..4)), 1..4),
            block_size in 1u64..64,
        ) {
            let devices: Vec<DeviceMemory> = devices.iter().map(|(budget, models)| device(*budget, models)).collect();
            let takes = |device: &DeviceMemory, blocks: u64| device.taken() + blocks * block_size * device.kv_per_token();
            match common_capacity(&devices, block_size) {
                Ok(capacity) => {
                    prop_assert!(devices.iter().all(|device| takes(device, capacity.blocks) <= device.budget));
                    prop_assert!(devices.iter().any(|device| takes(device, capacity.blocks + 1) > device.budget));
                    prop_assert_eq!(capacity.tokens, capacity.blocks * block_size);
                }
                Err(_) => prop_assert!(devices.iter().any(|device| takes(device, 1) > device.budget)),
            }
        }
    }
}
