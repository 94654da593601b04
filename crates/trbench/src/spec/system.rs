//! The systems under comparison, as changes of one configuration.

use indexmap::IndexMap;
use serde_json::json;
use tokenrouter_core::routing::RoutingConfig;
use tokenrouter_core::scheduler::ThresholdTable;
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
    /// The configuration of this system at a concurrency. Thresholds that are not feasible there are shrunk as they are
    /// while fewer requests are active than allowed.
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
        // Those of the configuration are for its own `max_active`.
        if let ThresholdConfig::Fixed(vector) = &mut config.batching.thresholds {
            *vector = ThresholdTable::from_vector(vector, concurrency).row(concurrency);
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every configuration that ships with the project, by its path.
    fn shipped() -> Vec<(std::path::PathBuf, Config)> {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config");
        let below = |folder: &std::path::Path| -> Vec<std::path::PathBuf> {
            std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect()
        };
        let folders = below(&folder).into_iter().filter(|path| path.is_dir());
        let mut files: Vec<_> = folders.flat_map(|folder| below(&folder)).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
        assert!(files.len() > 20, "{files:?}");
        files.sort();
        files.into_iter().map(|path| (path.clone(), Config::from_file(path).expect("valid"))).collect()
    }

    #[test]
    fn shipped_configurations_run_at_every_concurrency() {
        for (path, config) in shipped() {
            for concurrency in [1, 2, 4, 8] {
                let applied = System::Config.apply(&config, concurrency).expect("feasible");
                applied.validate().unwrap_or_else(|why| panic!("{} at {concurrency}: {why}", path.display()));
                // The same with nothing to load: its thresholds, the number of its models, another method.
                let emulated = json!({"emulated": {"latency_ms": 0.01}});
                let mut light = applied.clone();
                for model in light.models.values_mut() {
                    *model = serde_json::from_value(emulated.clone()).expect("a model");
                }
                light.kv.memory_mib = 64;
                light.routing = RoutingConfig::new("random", json!({"semantics": "mixture"}));
                let engine = tokenrouter_engine::Engine::launch(&light)
                    .unwrap_or_else(|why| panic!("{} at {concurrency}: {why}", path.display()));
                let waiting: u32 = engine.info().thresholds.iter().map(|threshold| threshold - 1).sum();
                assert!((waiting as usize) < concurrency, "{}: {:?}", path.display(), engine.info().thresholds);
            }
        }
    }

    #[test]
    fn thresholds_shrink_only_where_they_must() {
        let yaml = "models: {a: {emulated: {latency_ms: 1}}, b: {emulated: {latency_ms: 1}}}\n\
                    routing: {method: random}\nbatching: {thresholds: [2, 4]}\n";
        let config = Config::from_yaml(yaml, "x.yaml").expect("valid");
        for (concurrency, wanted) in [(1, [1, 1]), (2, [2, 1]), (3, [2, 2]), (4, [2, 3]), (5, [2, 4]), (9, [2, 4])] {
            let applied = System::Delayed.apply(&config, concurrency).expect("shrunk");
            assert_eq!(applied.batching.thresholds, ThresholdConfig::Fixed(wanted.to_vec()), "{concurrency}");
        }
    }

    #[test]
    fn names_round_trip_and_bad_ones_are_refused() {
        for name in ["config", "delayed", "async", "async-no-resume", "lockstep", "standard", "single:large"] {
            assert_eq!(name.parse::<System>().expect("valid").to_string(), name);
        }
        assert!("single:".parse::<System>().is_err());
        assert!("lockstepp".parse::<System>().is_err());
    }
}
