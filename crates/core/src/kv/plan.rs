//! One memory budget for several models on a device: the largest number of tokens that all of them can hold at once.
//!
//! A routed request has keys and values at every model that it visited, so the models need the same capacity in tokens,
//! however different their sizes are.

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
