//! Checks of what the types cannot express: ranges, and values that do not go together.

use serde_json::Value;
use tokenrouter_dtmc::MAX_MODELS;

use super::error::{Problem, in_range};
use super::{
    Config, DeviceConfig, ExecutionConfig, LatencyProfile, ModelConfig, RoutingConfig, ThresholdConfig, list, nearest,
};
use tokenrouter_core::routing::registry::{self, MethodEntry};

/// Longest cost of an emulated model.
const MOST_COST_MS: f64 = 1e6;

impl Config {
    /// Checks what the types cannot express.
    pub fn validate(&self) -> Result<(), Problem> {
        if self.models.is_empty() {
            return Err(Problem::new(["models"], "at least one model is needed"));
        }
        if self.models.len() > 16 {
            let message = format!("{} models given, at most 16 are supported", self.models.len());
            return Err(Problem::new(["models"], message));
        }
        validate_routing(&self.routing)?;
        self.validate_targets()?;
        for (name, model) in &self.models {
            model.validate(name)?;
        }
        self.validate_emulation()?;
        self.validate_system()?;
        self.server.validate()?;
        self.validate_batching()
    }

    /// The models that rules name.
    fn validate_targets(&self) -> Result<(), Problem> {
        for (model, rules) in self.routing.options.get("rules").and_then(Value::as_object).into_iter().flatten() {
            let one = std::slice::from_ref(rules);
            let rules = rules.as_array().map_or(one, Vec::as_slice);
            let targets = rules.iter().filter_map(|rule| rule["to"].as_str());
            let named = [("", model.as_str())].into_iter().chain(targets.map(|to| (".to", to)));
            if let Some((key, name)) = named.into_iter().find(|(_, name)| !self.models.contains_key(*name)) {
                let names = self.model_names();
                let hint = nearest(name, names.iter().map(String::as_str));
                let known = list(&names);
                let message = format!("`routing.rules.{model}{key}` names model `{name}`, known are {known}{hint}");
                return Err(Problem::new(["routing", "rules", model], message));
            }
        }
        Ok(())
    }

    /// All models are emulated or none; the mistake is in the smaller group, or in what differs from the first model.
    fn validate_emulation(&self) -> Result<(), Problem> {
        let emulated = self.models.values().filter(|model| model.emulated.is_some()).count();
        let real = self.models.len() - emulated;
        if emulated == 0 || real == 0 {
            return Ok(());
        }
        let first_is_emulated = self.models[0].emulated.is_some();
        let odd_is_emulated = if emulated == real { !first_is_emulated } else { emulated < real };
        let odd = self.models.iter().find(|(_, model)| model.emulated.is_some() == odd_is_emulated);
        let (name, model) = odd.expect("both kinds are there");
        let key = model.origins().next().unwrap_or("emulated");
        let is = if odd_is_emulated { "is" } else { "is not" };
        let message =
            format!("either all models are emulated or none: emulated models write no text (`{name}` {is} emulated)");
        Err(Problem::new(["models", name, key], message))
    }

    fn validate_system(&self) -> Result<(), Problem> {
        let entry = &self.system.entry_model;
        if !entry.is_empty() && !self.models.contains_key(entry) {
            let names = self.model_names();
            let hint = nearest(entry, names.iter().map(String::as_str));
            let message = format!("unknown model `{entry}`, known are {}{hint}", list(&names));
            return Err(Problem::new(["system", "entry_model"], message));
        }
        in_range(["system", "max_active"], self.system.max_active, [1, 4096])?;
        if ![16, 32, 64].contains(&self.kv.block_size) {
            let message = format!("`block_size` is {}, allowed are 16, 32, 64", self.kv.block_size);
            return Err(Problem::new(["kv", "block_size"], message));
        }
        let share = self.kv.device_utilization;
        if !(share > 0.0 && share <= 1.0) {
            let message = format!("`device_utilization` is {share}, allowed is above 0 up to 1");
            return Err(Problem::new(["kv", "device_utilization"], message));
        }
        let on_cpu = self.models.iter().find(|(_, model)| model.device == DeviceConfig::Cpu);
        if let Some((name, _)) = on_cpu.filter(|_| self.kv.memory_mib == 0) {
            let message = format!("`memory_mib` of 0 is for models on CUDA devices, and `{name}` is on the CPU");
            return Err(Problem::new(["kv", "memory_mib"], message));
        }
        self.validate_peers()
    }

    fn validate_peers(&self) -> Result<(), Problem> {
        in_range(["system", "peer_timeout_ms"], self.system.peer_timeout_ms, [100, 600_000])?;
        for (name, endpoint) in &self.system.peer_endpoints {
            if !self.models.contains_key(name) {
                let names = self.model_names();
                let hint = nearest(name, names.iter().map(String::as_str));
                let message = format!("unknown model `{name}` in `peer_endpoints`, known are {}{hint}", list(&names));
                return Err(Problem::new(["system", "peer_endpoints", name], message));
            }
            endpoint.validate(name)?;
        }
        self.validate_ports()
    }

    /// No two nodes of one machine accept connections at the same place, and none where the HTTP server does. Nodes of
    /// several machines may all have the same address of their own.
    fn validate_ports(&self) -> Result<(), Problem> {
        let own = format!("tcp://{}:{}", self.server.host, self.server.port);
        let mut taken = vec![("server.port", own.as_str())];
        for (name, endpoint) in &self.system.peer_endpoints {
            let free = endpoint.bind.ends_with(":0") || !endpoint.bind.starts_with("tcp://127.");
            if let Some((by, _)) = taken.iter().find(|(_, bind)| *bind == endpoint.bind).filter(|_| !free) {
                let message = format!("`peer_endpoints.{name}.bind` is `{}`, which `{by}` has already", endpoint.bind);
                return Err(Problem::new(["system", "peer_endpoints", name, "bind"], message));
            }
            taken.push((name, &endpoint.bind));
        }
        Ok(())
    }

    fn validate_batching(&self) -> Result<(), Problem> {
        let batching = &self.batching;
        if !(batching.max_wait_ms.is_finite() && batching.max_wait_ms > 0.0) {
            let message = format!("`max_wait_ms` is {}, it must be above 0", batching.max_wait_ms);
            return Err(Problem::new(["batching", "max_wait_ms"], message));
        }
        batching.adaptation.validate()?;
        if let Some(profile) = &batching.profile {
            profile.validate(self.models.len())?;
        }
        let problem = |message| Problem::new(["batching", "thresholds"], message);
        match &batching.thresholds {
            ThresholdConfig::Eager => Ok(()),
            _ if self.system.execution != ExecutionConfig::Async => Err(problem(format!(
                "`system.execution` is `{}`, which launches eagerly: `batching.thresholds` must be `eager`",
                format!("{:?}", self.system.execution).to_lowercase()
            ))),
            ThresholdConfig::Adaptive if self.models.len() > MAX_MODELS => Err(problem(format!(
                "`adaptive` is for at most {MAX_MODELS} models, the configuration has {}",
                self.models.len()
            ))),
            ThresholdConfig::Auto | ThresholdConfig::Adaptive => Ok(()),
            ThresholdConfig::Fixed(vector) => {
                if let Some(zero) = vector.iter().position(|threshold| *threshold == 0) {
                    return Err(problem("a threshold of 0 is not allowed, the smallest is 1".into()).entry(zero));
                }
                tokenrouter_core::scheduler::check_thresholds(vector, self.models.len(), self.system.max_active)
                    .map_err(problem)
            }
        }
    }
}

impl ModelConfig {
    /// Which of the three keys that say what runs are given.
    fn origins(&self) -> impl DoubleEndedIterator<Item = &'static str> {
        let given =
            [("path", self.path.is_some()), ("source", self.source.is_some()), ("emulated", self.emulated.is_some())];
        given.into_iter().filter_map(|(key, given)| given.then_some(key))
    }

    fn validate(&self, name: &str) -> Result<(), Problem> {
        let at = |key: &str, message: String| Problem::new(["models", name, key], message);
        if self.origins().count() != 1 {
            let message = format!("model `{name}` needs exactly one of `path`, `source`, `emulated`");
            return Err(match self.origins().next_back() {
                Some(last) => at(last, message),
                None => Problem::new(["models", name], message),
            });
        }
        self.validate_layers(name)?;
        if let Some((twice, core)) =
            self.cores.iter().flatten().enumerate().find_map(|(at, core)| {
                self.cores.as_ref().filter(|cores| cores[..at].contains(core)).map(|_| (at, core))
            })
        {
            return Err(at("cores", format!("`cores` of model `{name}` names core {core} twice")).entry(twice));
        }
        in_range(["models", name, "scheduler", "max_step_tokens"], self.scheduler.max_step_tokens, [1, 8192])?;
        self.validate_latency(name)?;
        if self.tp_size == 0 || self.tp_size > 64 {
            let message = format!("model `{name}`: `tp_size` is {}, allowed are 1 to 64", self.tp_size);
            return Err(at("tp_size", message));
        }
        if self.tp_size > 1 && self.device == DeviceConfig::Cpu {
            return Err(at("tp_size", format!("model `{name}`: `tp_size` above 1 needs `device: cuda:N`")));
        }
        self.cuda_graphs.validate(name)
    }

    fn validate_layers(&self, name: &str) -> Result<(), Problem> {
        if self.student.is_some() {
            let other = [
                ("layers", self.layers.is_some()),
                ("patch", self.patch.is_some()),
                ("emulated", self.emulated.is_some()),
            ];
            if let Some((other, _)) = other.iter().find(|(_, given)| *given) {
                let message =
                    format!("`student` of model `{name}` brings its own layers: `{other}` cannot be beside it");
                return Err(Problem::new(["models", name, "student"], message));
            }
        }
        let Some(layers) = &self.layers else {
            if self.patch.is_none() {
                return Ok(());
            }
            let message = format!("`patch` of model `{name}` needs `layers`: it stands in for dropped ones");
            return Err(Problem::new(["models", name, "patch"], message));
        };
        let message = || format!("`layers` of model `{name}` must be a rising list of layer indices");
        let problem = || Problem::new(["models", name, "layers"], message());
        if layers.is_empty() {
            return Err(problem());
        }
        let falls = layers.windows(2).position(|pair| pair[0] >= pair[1]);
        falls.map_or(Ok(()), |before| Err(problem().entry(before + 1)))
    }

    fn validate_latency(&self, name: &str) -> Result<(), Problem> {
        let Some(emulated) = &self.emulated else { return Ok(()) };
        let problem = |values: &[f64]| {
            let message = format!("`latency_ms` of model `{name}` must be above 0, got {values:?}");
            Problem::new(["models", name, "emulated", "latency_ms"], message)
        };
        let costs = emulated.costs().into_iter().chain([("prefill_ms_per_token", emulated.prefill_ms_per_token)]);
        if let Some((key, value)) = costs.into_iter().find(|(_, value)| !(0.0..=MOST_COST_MS).contains(value)) {
            let message = format!("`{key}` of model `{name}` is {value}, allowed are 0 to {MOST_COST_MS}");
            return Err(Problem::new(["models", name, "emulated", key], message));
        }
        let good = |value: &f64| value.is_finite() && *value > 0.0;
        match &emulated.latency_ms {
            LatencyProfile::Constant(value) if !good(value) => Err(problem(&[*value])),
            LatencyProfile::Table(values) if values.is_empty() => Err(problem(values)),
            LatencyProfile::Table(values) => match values.iter().position(|value| !good(value)) {
                Some(bad) => Err(problem(values).entry(bad)),
                None => Ok(()),
            },
            LatencyProfile::Constant(_) => Ok(()),
        }
    }
}

/// Checks the method and its options.
fn validate_routing(routing: &RoutingConfig) -> Result<(), Problem> {
    let name = &routing.method;
    let Some(entry) = registry::find(name) else {
        let names = registry::names();
        let hint = nearest(name, names.iter().copied());
        let message = format!("unknown routing method `{name}`, known are {}{hint}", list(&names));
        return Err(Problem::new(["routing", "method"], message));
    };
    let known = (entry.option_names)();
    if let Some(key) = routing.options.keys().find(|key| !known.contains(key)) {
        let hint = nearest(key, known.iter().map(String::as_str));
        let message = format!("unknown key `{key}` for method `{name}`, allowed are {}{hint}", list(&known));
        return Err(Problem::new(["routing", key], message));
    }
    (entry.check)(routing).map_err(|message| {
        let mut problem = Problem::new(["routing"], message);
        problem.path.extend(guilty_option(entry, routing, &problem.message));
        // Messages of serde name no option.
        if let Some(why) = problem.message.strip_prefix(&format!("routing method `{name}`: ")) {
            problem.message = format!("`{}`: {why}", problem.key());
        }
        problem
    })
}

/// The option about which a method complains: that without which its message would be another one. Where that holds for
/// several, such as two that exclude each other, the last. Sections and lists in the option are narrowed down likewise
/// while there is one answer.
fn guilty_option(entry: &MethodEntry, routing: &RoutingConfig, message: &str) -> Vec<String> {
    let mut path: Vec<String> = Vec::new();
    loop {
        let without = |key: &str| {
            let mut options = Value::Object(routing.options.clone());
            remove(value_at(&mut options, &path), key);
            RoutingConfig::new(&routing.method, options)
        };
        let mut keys = keys_of(value_at(&mut Value::Object(routing.options.clone()), &path));
        keys.retain(|key| (entry.check)(&without(key)).err().as_deref() != Some(message));
        match keys.len() {
            0 => return path,
            1 => path.append(&mut keys),
            _ => {
                path.extend(keys.pop().filter(|_| path.is_empty()));
                return path;
            }
        }
    }
}

/// The value at a path that `keys_of` gave.
fn value_at<'a>(value: &'a mut Value, path: &[String]) -> &'a mut Value {
    path.iter().fold(value, |value, key| match value {
        Value::Array(items) => &mut items[key.parse::<usize>().expect("an index")],
        section => &mut section[key.as_str()],
    })
}

/// Keys of a section, or indices of a list.
fn keys_of(value: &Value) -> Vec<String> {
    match value {
        Value::Object(map) => map.keys().cloned().collect(),
        Value::Array(items) => (0..items.len()).map(|index| index.to_string()).collect(),
        _ => Vec::new(),
    }
}

fn remove(value: &mut Value, key: &str) {
    match value {
        Value::Array(items) => drop(items.remove(key.parse().expect("an index"))),
        section => drop(section.as_object_mut().and_then(|map| map.shift_remove(key))),
    }
}
