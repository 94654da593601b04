//! `--device`: where the models of a configuration compute.

use std::io::Write as _;
use std::str::FromStr;

use serde_json::json;
use tokenrouter_engine::Config;
use tokenrouter_engine::config::DeviceConfig;
use tokenrouter_kernels::cuda::Device;

use crate::error::usage;

/// `--device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A GPU where there is one.
    Auto,
    /// This one, or none.
    Only(DeviceConfig),
}

impl FromStr for DeviceChoice {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let device = serde_json::from_value(json!(text));
        device.map(Self::Only).map_err(|_| "expected `auto`, `cpu`, `cuda` or `cuda:N`".into())
    }
}

impl std::fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Only(device) => write!(f, "{device}"),
        }
    }
}

/// Puts all models of a configuration on the chosen device. Emulated ones are nowhere.
pub(crate) fn place(config: &mut Config, choice: Option<DeviceChoice>) -> anyhow::Result<()> {
    let Some(choice) = choice else { return Ok(()) };
    let device = match choice {
        DeviceChoice::Only(device) => device,
        DeviceChoice::Auto => match Device::cuda(0) {
            Ok(_) => DeviceConfig::Cuda(0),
            Err(why) => {
                let _best_effort = writeln!(std::io::stderr(), "warning: --device auto: the CPU is used: {why}");
                DeviceConfig::Cpu
            }
        },
    };
    if let DeviceConfig::Cuda(ordinal) = device {
        // Whoever asks for a GPU must not get a CPU.
        Device::cuda(ordinal).map_err(|why| anyhow::anyhow!("--device {device}: {why}"))?;
    }
    for model in config.models.values_mut().filter(|model| model.emulated.is_none()) {
        model.device = device;
        if device == DeviceConfig::Cpu {
            model.tp_size = 1;
        }
    }
    config.validate().map_err(|problem| usage(format!("--device {device}: `{}`: {problem}", problem.key())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_as_in_configurations() {
        let parsed = |text: &str| text.parse::<DeviceChoice>();
        assert_eq!(parsed("auto"), Ok(DeviceChoice::Auto));
        assert_eq!(parsed("cpu"), Ok(DeviceChoice::Only(DeviceConfig::Cpu)));
        assert_eq!(parsed("cuda"), Ok(DeviceChoice::Only(DeviceConfig::Cuda(0))));
        assert_eq!(parsed("cuda:3"), Ok(DeviceChoice::Only(DeviceConfig::Cuda(3))));
        assert!(parsed("gpu").expect_err("no such device").contains("cuda:N"));
    }
}
