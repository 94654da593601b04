//! The systems under comparison, as changes of one configuration.

use indexmap::IndexMap;
use serde_json::json;
use tokenrouter_core::routing::RoutingConfig;
use tokenrouter_core::scheduler::check_thresholds;
use tokenrouter_engine::Config;
use tokenrouter_engine::config::{ExecutionConfig, ThresholdConfig};

/// A system to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum System {
    /// As the configuration says.
    Config,
    /// Delayed batching at the configured thresholds; they must not all be 1.
    Delayed,
    /// Asynchronous subservers with handoff-resume, launching eagerly.
    Async,
    /// `Async` without handoff-resume: a request that returns is matched again like a new one.
    AsyncNoResume,
    /// One thread that steps all models in rounds.
    Lockstep,
    /// One engine for each model, and a client that hops between them.
    Standard,
    /// One model, no routing.
    Single(String),
}

impl std::str::FromStr for System {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("single", model)) if !model.is_empty() => Ok(Self::Single(model.to_owned())),
            None if text == "config" => Ok(Self::Config),
            None if text == "delayed" => Ok(Self::Delayed),
            None if text == "async" => Ok(Self::Async),
            None if text == "async-no-resume" => Ok(Self::AsyncNoResume),
            None if text == "lockstep" => Ok(Self::Lockstep),
            None if text == "standard" => Ok(Self::Standard),
            _ => Err(
                "expected `config`, `delayed`, `async`, `async-no-resume`, `lockstep`, `standard` or `single:MODEL`"
                    .into(),
            ),
        }
    }
}

impl std::fmt::Display for System {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Config => f.write_str("config"),
            Self::Delayed => f.write_str("delayed"),
            Self::Async => f.write_str("async"),
            Self::AsyncNoResume => f.write_str("async-no-resume"),
            Self::Lockstep => f.write_str("lockstep"),
            Self::Standard => f.write_str("standard"),
            Self::Single(model) => write!(f, "single:{model}"),
        }
    }
}

impl System {
    /// The configuration of this system at a concurrency.
    pub fn apply(&self, base: &Config, concurrency: usize) -> Result<Config, String> {
        let mut config = base.clone();
        config.system.max_active = concurrency;
        match self {
            Self::Config => {}
            Self::Async | Self::AsyncNoResume | Self::Lockstep | Self::Standard => {
                config.batching.thresholds = ThresholdConfig::Eager;
                config.system.handoff_resume = *self != Self::AsyncNoResume;
                config.system.execution = match self {
                    Self::Lockstep => ExecutionConfig::Lockstep,
                    Self::Standard => ExecutionConfig::Standard,
                    _ => ExecutionConfig::Async,
                };
            }
            Self::Delayed => {
                if config.batching.thresholds == ThresholdConfig::Eager {
                    return Err("system `delayed` needs `batching.thresholds`, which is `eager`".into());
                }
            }
            Self::Single(name) => {
                let model = config.models.get(name).cloned().ok_or_else(|| {
                    format!("system `single:{name}`: unknown model, known are {}", base.model_names().join(", "))
                })?;
                config.models = IndexMap::from([(name.clone(), model)]);
                config.system.entry_model.clone_from(name);
                config.routing = RoutingConfig::new("random", json!({"semantics": "mixture"}));
                config.batching.thresholds = ThresholdConfig::Eager;
            }
        }
        if let ThresholdConfig::Fixed(vector) = &config.batching.thresholds {
            check_thresholds(vector, config.models.len(), concurrency)?;
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_bad_ones_are_refused() {
        for name in ["config", "delayed", "async", "async-no-resume", "lockstep", "standard", "single:large"] {
            assert_eq!(name.parse::<System>().expect("valid").to_string(), name);
        }
        assert!("single:".parse::<System>().is_err());
        assert!("lockstepp".parse::<System>().is_err());
    }
}
