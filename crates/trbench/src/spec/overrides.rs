//! Some settings of a run by name: a scenario's cell is made of them, and a spec file holds them.

use std::path::Path;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{RunSpec, VERSION};

/// Keys whose values are paths.
const PATHS: [&str; 4] = ["config", "calibration", "dataset-path", "replay"];

/// Keys of earlier spec files, and what they are called now.
const RENAMED: [(&str, &str); 1] = [("profile", "timeline")];

/// Settings by their keys in [`RunSpec`], in the order in which they were given. All others keep their defaults.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Overrides(IndexMap<String, Value>);

impl Overrides {
    /// The value under a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// Sets a value.
    pub(crate) fn insert(&mut self, key: &str, value: Value) {
        self.0.insert(key.to_owned(), value);
    }

    /// Forgets a value.
    pub(crate) fn remove(&mut self, key: &str) {
        self.0.shift_remove(key);
    }

    /// All keys with their values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Adds a setting: a list grows by a list, anything else is replaced.
    pub(crate) fn add(&mut self, key: &str, value: &Value) {
        match (self.0.get_mut(key), value) {
            (Some(Value::Array(list)), Value::Array(more)) => list.extend(more.iter().cloned()),
            _ => self.insert(key, value.clone()),
        }
    }

    /// Makes paths that are relative to a folder relative to the current one.
    pub(crate) fn join_paths(&mut self, folder: &Path) {
        for key in PATHS {
            if let Some(Value::String(path)) = self.0.get_mut(key) {
                *path = folder.join(&*path).display().to_string();
            }
        }
    }

    /// The run with these settings.
    ///
    /// # Errors
    /// Names the key that is not known, with the nearest one that is, or whose value is refused.
    pub(crate) fn spec(&self) -> Result<RunSpec, String> {
        let known = fields_of_default();
        for (key, value) in &self.0 {
            if !known.contains_key(key) && !RENAMED.iter().any(|(old, _)| old == key) {
                return Err(unknown(key, known.keys().map(String::as_str)));
            }
            let alone = serde_json::from_value::<RunSpec>(json!({ key: value }));
            alone.map_err(|error| format!("`{key}`: {error}"))?;
        }
        // An empty list says nothing.
        let given = self.0.iter().filter(|(_, value)| **value != Value::Array(Vec::new()));
        let all: Map<String, Value> = given.map(|(key, value)| (key.clone(), value.clone())).collect();
        serde_json::from_value(Value::Object(all)).map_err(|error| error.to_string())
    }

    /// What `trbench run` would be given for the same run.
    pub(crate) fn flags(&self) -> Vec<String> {
        let mut flags = Vec::new();
        for (key, value) in self.0.iter().filter(|(key, _)| *key != "version") {
            let values = match value {
                Value::Array(list) => list.as_slice(),
                value => std::slice::from_ref(value),
            };
            for value in values {
                match value {
                    Value::String(text) => flags.push(format!("--{key}={text}")),
                    Value::Number(number) => flags.push(format!("--{key}={number}")),
                    Value::Bool(true) => flags.push(format!("--{key}")),
                    _ => {}
                }
            }
        }
        flags
    }

    /// As the content of a spec file.
    pub(crate) fn file(&self) -> Value {
        let mut file = Map::from_iter([("version".to_owned(), json!(VERSION))]);
        file.extend(self.0.iter().map(|(key, value)| (key.clone(), value.clone())));
        Value::Object(file)
    }
}

/// All settings of a run by name.
pub(crate) fn fields(spec: &RunSpec) -> Map<String, Value> {
    // Through text, because a single-precision number is written shorter than it is as a double.
    let text = serde_json::to_string(spec).expect("a spec has text keys");
    serde_json::from_str(&text).expect("what was written can be read")
}

fn fields_of_default() -> Map<String, Value> {
    fields(&RunSpec::default())
}

fn unknown<'a>(key: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let nearest = known.clone().max_by(|a, b| strsim::jaro_winkler(a, key).total_cmp(&strsim::jaro_winkler(b, key)));
    let nearest = nearest.filter(|nearest| strsim::jaro_winkler(nearest, key) > 0.7);
    let hint = nearest.map_or_else(|| ".".into(), |nearest| format!(", did you mean `{nearest}`?"));
    format!("unknown key `{key}`{hint} Known are {}", known.collect::<Vec<_>>().join(", "))
}
