//! Checks of a configuration against this machine and against what `thresholds: auto` computes with: what a run would
//! refuse, found without loading anything.

use std::path::Path;

use tokenrouter_core::emulated::LatencyProfile;
use tokenrouter_core::routing::Matrix;
use tokenrouter_core::routing::registry::{self, SystemView};
use tokenrouter_dtmc::{DEFAULT_QUANTUM_MS, System};

use crate::adaptation::{batch_caps, latency};
use crate::config::{Config, ConfigError, DeviceConfig, Document, ModelConfig, Problem, ThresholdConfig};

/// Vocabulary of a stand-in for models that are not loaded.
const VOCABULARY: usize = 32_000;

/// The configuration of a document, if it can be run on this machine ([`Config::check_runnable`]).
///
/// # Errors
/// The key or override that is wrong.
pub fn check(document: &Document) -> Result<Config, ConfigError> {
    let config = Config::from_document(document)?;
    config.check_runnable().map_err(|problem| document.error_at(problem))?;
    Ok(config)
}

fn problem(path: &[&str], message: impl Into<String>) -> Problem {
    Problem { path: path.iter().map(|key| (*key).to_owned()).collect(), message: message.into() }
}

impl Config {
    /// Finds what a run on this machine would refuse although every value is allowed: files that are not there, cores that
    /// do not exist, thresholds that cannot be computed. Models under `source` are fetched when a run needs them and are
    /// not looked at.
    ///
    /// # Errors
    /// The first problem, with the key that is at fault.
    pub fn check_runnable(&self) -> Result<(), Problem> {
        for (name, model) in &self.models {
            model.check_files(name)?;
            model.check_cores(name)?;
        }
        for (name, endpoint) in &self.system.peer_endpoints {
            exists(endpoint.key_file.as_deref(), &["system", "peer_endpoints", name, "key_file"])?;
        }
        exists(self.server.api_key_file.as_deref(), &["server", "api_key_file"])?;
        for option in registry::find(&self.routing.method).map_or(&[][..], |entry| entry.paths) {
            let path = self.routing.options.get(*option).and_then(serde_json::Value::as_str);
            exists(path.map(Path::new), &["routing", option])?;
        }
        if self.batching.thresholds == ThresholdConfig::Auto && self.models.len() > 1 {
            self.check_auto()?;
        }
        Ok(())
    }

    /// Whether the throughput model has all that it needs for `thresholds: auto`.
    fn check_auto(&self) -> Result<(), Problem> {
        let problem = |why: String| {
            let message = format!("`batching.thresholds: auto` cannot be computed: {why}");
            problem(&["batching", "thresholds"], message)
        };
        let system = self.system_to_predict(self.transition_model()).map_err(problem)?;
        system.closed(self.system.max_active as u32).map(|_| ()).map_err(|error| problem(error.to_string()))
    }

    /// The matrices that the routing method knows of itself. Methods that read files of learned heads know none.
    fn transition_model(&self) -> Option<(Matrix, Matrix)> {
        let names = self.model_names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let view = SystemView { entry: self.entry_index(), ..SystemView::emulated(&names, VOCABULARY) };
        registry::build(&self.routing, &view).ok()?.transition_model()
    }

    /// The system to predict, from `batching.profile`, the emulated models and what the routing method knows.
    pub(crate) fn system_to_predict(&self, known: Option<(Matrix, Matrix)>) -> Result<System, String> {
        let models = self.models.len();
        let profile = self.batching.profile.as_ref();
        let own: Option<Vec<LatencyProfile>> =
            self.models.values().map(|model| model.emulated.as_ref().map(|e| e.latency_ms.clone())).collect();
        let latencies = profile
            .and_then(|profile| profile.latencies_ms.clone())
            .or(own)
            .ok_or("the step times are not known, give `batching.profile.latencies_ms`")?;
        if latencies.len() != models {
            return Err(format!(
                "`batching.profile.latencies_ms` is of {} models, there are {models}",
                latencies.len()
            ));
        }
        let routing = profile.and_then(|profile| profile.routing.clone());
        let commits = profile.and_then(|profile| profile.commit.clone());
        let (routing, commits) = match (routing, known) {
            (Some(routing), _) => (routing, commits.unwrap_or_else(|| vec![vec![1.0; models]; models])),
            (None, Some((routing, own_commits))) => (routing, commits.unwrap_or(own_commits)),
            (None, None) => {
                let method = &self.routing.method;
                return Err(format!(
                    "method `{method}` does not know its routing matrix, give `batching.profile.routing`"
                ));
            }
        };
        let max_active = self.system.max_active;
        let (system, notes) = System {
            commits: Some(commits),
            quantum_ms: profile.map_or(DEFAULT_QUANTUM_MS, |profile| profile.quantum_ms),
            max_batch: Some(batch_caps(self)),
            ..System::new(latencies.iter().map(|profile| latency(profile, max_active)), routing)
        }
        .normalised();
        notes.iter().for_each(|note| tracing::info!(target: "tokenrouter", "`batching.profile.routing`: {note}"));
        Ok(system)
    }
}

impl ModelConfig {
    fn check_files(&self, name: &str) -> Result<(), Problem> {
        exists(self.path.as_deref(), &["models", name, "path"])?;
        exists(self.patch.as_deref(), &["models", name, "patch"])?;
        exists(self.student.as_deref(), &["models", name, "student"])?;
        let known = |source: &&String| *source == "demo" || source.split('/').count() == 2;
        match self.source.as_ref().filter(|source| !known(source)) {
            None => Ok(()),
            Some(source) => {
                let hint = if source.ends_with(".gguf") { "; a file goes under `path`" } else { "" };
                let message =
                    format!("unknown model source `{source}`, allowed are `demo` and hub ids such as `org/name`{hint}");
                Err(problem(&["models", name, "source"], message))
            }
        }
    }

    /// Whether the cores that its threads are pinned to are there.
    pub(crate) fn check_cores(&self, name: &str) -> Result<(), Problem> {
        let real = self.emulated.is_none() && self.device == DeviceConfig::Cpu;
        let Some(cores) = self.cores.as_ref().filter(|_| real) else { return Ok(()) };
        let count = core_count();
        match cores.iter().position(|core| *core >= count) {
            None => Ok(()),
            Some(bad) => {
                let core = cores[bad];
                let message =
                    format!("`cores` of model `{name}` names core {core}, this machine has 0 to {}", count - 1);
                Err(problem(&["models", name, "cores", &bad.to_string()], message))
            }
        }
    }
}

/// One more than the highest number of a core. Those that this process may not use count: they exist.
fn core_count() -> usize {
    let present = std::fs::read_to_string("/sys/devices/system/cpu/present").unwrap_or_default();
    let highest = present.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    highest.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), |highest| highest + 1)
}

fn exists(path: Option<&Path>, key: &[&str]) -> Result<(), Problem> {
    let Some(path) = path else { return Ok(()) };
    let why = match path.try_exists() {
        Ok(true) => return Ok(()),
        Ok(false) => "does not exist".to_owned(),
        Err(error) => format!("cannot be read: {error}"),
    };
    let message = format!("`{}`: file `{}` {why}", key.join("."), path.display());
    Err(problem(key, message))
}
