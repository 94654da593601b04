//! The list of routing methods.

use schemars::{JsonSchema, Schema};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{RoutingPolicy, entropy, query, random, rstitch};
use crate::config::RoutingConfig;
use crate::request::ModelIndex;

/// What a method can know about the system when it is built.
#[derive(Debug, Clone)]
pub struct SystemView {
    /// Names of the models, in order.
    pub models: Vec<String>,
    /// The model at which requests start.
    pub entry: ModelIndex,
    /// Vocabulary size.
    pub vocab: usize,
}

impl SystemView {
    /// The two models of a small/large method as (small, large): the entry model is the small one.
    pub fn pair(&self, method: &str) -> Result<(ModelIndex, ModelIndex), String> {
        match self.models.len() {
            2 => Ok((self.entry, 1 - self.entry)),
            n => Err(format!("routing method `{method}` needs exactly 2 models, the configuration has {n}")),
        }
    }
}

/// One routing method: its name, options and constructor.
#[derive(Debug)]
pub struct MethodEntry {
    /// Name in `routing.method`.
    pub name: &'static str,
    /// One sentence for lists and for the reference.
    pub summary: &'static str,
    /// Names of its options.
    pub option_names: fn() -> Vec<String>,
    /// Schema of its options.
    pub schema: fn() -> Schema,
    /// Its options with their defaults.
    pub defaults: fn() -> Value,
    /// Checks types and ranges of the options.
    pub check: fn(&RoutingConfig) -> Result<(), String>,
    /// Builds the policy.
    pub build: Build,
}

/// Constructor of a policy from its options.
pub type Build = fn(&RoutingConfig, &SystemView) -> Result<Box<dyn RoutingPolicy>, String>;

/// Options of a method: a plain struct with defaults and a range check.
pub(super) trait Options: Serialize + DeserializeOwned + JsonSchema + Default {
    fn check(&self) -> Result<(), String>;
}

const fn entry<O: Options>(name: &'static str, summary: &'static str, build: Build) -> MethodEntry {
    MethodEntry {
        name,
        summary,
        option_names: || match serde_json::to_value(O::default()) {
            Ok(Value::Object(map)) => map.into_iter().map(|(key, _)| key).collect(),
            _ => Vec::new(),
        },
        schema: || schemars::schema_for!(O),
        defaults: || serde_json::to_value(O::default()).unwrap_or(Value::Null),
        check: |config| config.parse::<O>()?.check(),
        build,
    }
}

static METHODS: [MethodEntry; 4] = [
    entry::<rstitch::RStitchOptions>(
        "rstitch",
        "R-Stitch: the small model hands over when its entropy is high, the large one hands back when its own is low.",
        rstitch::build,
    ),
    entry::<entropy::EntropyOptions>(
        "entropy",
        "Entropy router: the large model is borrowed for one token where the small model's entropy is high.",
        entropy::build,
    ),
    entry::<query::QueryOptions>(
        "query",
        "Query-level routing: one choice per request, before the first token is committed.",
        query::build,
    ),
    entry::<random::RandomOptions>(
        "random",
        "Random routing, keyed by (seed, request, position): a load whose P and C are known exactly.",
        random::build,
    ),
];

/// All methods.
pub fn entries() -> &'static [MethodEntry] {
    &METHODS
}

/// The names of all methods.
pub fn names() -> Vec<&'static str> {
    METHODS.iter().map(|method| method.name).collect()
}

/// A method by name.
pub fn find(name: &str) -> Option<&'static MethodEntry> {
    METHODS.iter().find(|method| method.name == name)
}

/// Builds the configured policy.
pub fn build(config: &RoutingConfig, system: &SystemView) -> Result<Box<dyn RoutingPolicy>, String> {
    let entry = find(&config.method).ok_or_else(|| format!("unknown routing method `{}`", config.method))?;
    (entry.build)(config, system)
}
