//! What a calibration was measured on, as names and values that can be compared: step times are those of these weights on
//! these cores, and a routing matrix is that of this method.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use serde_json::{Value, json};
use tokenrouter_core::routing::registry;
use tokenrouter_engine::Config;
use tokenrouter_engine::config::{DeviceConfig, ModelConfig};

use crate::digest::sha256_hex;
use crate::results::cpu_name;

/// Bytes at each end of a file that its digest covers: the header with the shapes, and the last weights.
const ENDS: u64 = 1 << 20;

/// The system of a configuration on this machine, by the keys of the configuration.
pub(super) fn system(config: &Config) -> IndexMap<String, Value> {
    let mut fields = IndexMap::new();
    for (name, model) in &config.models {
        for (key, value) in model_fields(model) {
            fields.insert(format!("models.{name}.{key}"), value);
        }
    }
    fields.insert("system.entry_model".into(), json!(config.model_names()[config.entry_index()]));
    fields.insert("kv.dtype".into(), json!(config.kv.dtype));
    fields.insert("routing".into(), routing(config));
    let computes = config.models.values().any(|model| model.emulated.is_none());
    if computes {
        fields.insert("processor".into(), json!(cpu_name()));
        fields
            .insert("cores of the machine".into(), json!(std::thread::available_parallelism().map_or(1, usize::from)));
    }
    fields
}

fn model_fields(model: &ModelConfig) -> Vec<(&'static str, Value)> {
    if let Some(emulated) = &model.emulated {
        return vec![("emulated", json!(emulated))];
    }
    let mut fields = vec![
        ("weights", weights(model)),
        ("layers", json!(model.layers)),
        ("patch", json!(model.patch.as_deref().and_then(file_digest))),
        ("student", json!(model.student.as_deref().and_then(file_digest))),
        ("dtype", json!(model.dtype)),
        ("device", json!(model.device.to_string())),
    ];
    match model.device {
        DeviceConfig::Cpu => fields.extend([("threads", json!(model.threads)), ("cores", json!(model.cores))]),
        DeviceConfig::Cuda(_) => fields.push(("tp_size", json!(model.tp_size))),
    }
    fields
}

/// The method with its options; files of learned heads by their content, wherever they are.
fn routing(config: &Config) -> Value {
    let mut options = config.routing.options.clone();
    for option in registry::find(&config.routing.method).map_or(&[][..], |entry| entry.paths) {
        if let Some(Value::String(path)) = options.get_mut(*option)
            && let Some(digest) = file_digest(Path::new(path.as_str()))
        {
            *path = digest;
        }
    }
    options.sort_keys();
    json!({"method": config.routing.method, "options": options})
}

/// The weights of a model by the content of their files; those under `source` that are not fetched yet by its name.
fn weights(model: &ModelConfig) -> Value {
    let demo = model.source.as_deref() == Some("demo");
    let cached = || tokenrouter_engine::model::demo_gguf_path(&tokenrouter_engine::model::cache_dir());
    match model.path.clone().or_else(|| demo.then(cached)) {
        Some(path) => json!(content(&path)),
        None => json!(model.source),
    }
}

fn content(path: &Path) -> Option<String> {
    if !path.is_dir() {
        return file_digest(path);
    }
    let entries = std::fs::read_dir(path).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let used = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "safetensors") || path.ends_with("config.json")
    };
    let mut files: Vec<PathBuf> = entries.filter(used).collect();
    files.sort();
    let digests: Vec<String> = files.iter().filter_map(|path| file_digest(path)).collect();
    Some(crate::digest::text_sha256(&digests.join(" ")))
}

/// Digest of a file's length and its two ends: weights are too long to be read for this.
fn file_digest(path: &Path) -> Option<String> {
    let mut file = std::fs::File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    let mut ends = length.to_le_bytes().to_vec();
    file.by_ref().take(ENDS).read_to_end(&mut ends).ok()?;
    file.seek(SeekFrom::Start(length.saturating_sub(ENDS))).ok()?;
    file.take(ENDS).read_to_end(&mut ends).ok()?;
    sha256_hex(&mut ends.as_slice()).ok().map(|digest| digest[..16].to_owned())
}

/// In what two systems differ, field by field.
pub(super) fn differences(measured: &IndexMap<String, Value>, here: &IndexMap<String, Value>) -> Vec<String> {
    let shown = |value: Option<&Value>| value.map_or_else(|| "absent".to_owned(), Value::to_string);
    let keys = measured.keys().chain(here.keys().filter(|key| !measured.contains_key(*key)));
    let differ = keys.filter(|key| measured.get(*key) != here.get(*key));
    differ.map(|key| format!("`{key}` was {}, is {}", shown(measured.get(key)), shown(here.get(key)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systems_differ_by_what_changes_their_times_and_shares() {
        let dir = tempfile::tempdir().expect("a folder");
        let weights = dir.path().join("a.gguf");
        std::fs::write(&weights, "one").expect("writable");
        let of = |model: &str, routing: &str| {
            let yaml = format!(
                "models: {{a: {{{model}}}, b: {{path: '{}'}}}}\nrouting: {{method: entropy, {routing}}}\n",
                weights.display()
            );
            system(&Config::from_yaml(&yaml, "x.yaml").expect("valid"))
        };
        let path = format!("path: '{}'", weights.display());
        let (plain, options) = (of(&path, ""), "entropy_threshold: 0.5");
        assert_eq!(differences(&plain, &of(&path, "")), [""; 0]);
        for (model, routing, key) in [
            (format!("{path}, threads: 3"), "", "`models.a.threads` was 0, is 3"),
            (format!("{path}, cores: [0]"), "", "`models.a.cores` was null, is [0]"),
            (format!("{path}, dtype: f32"), "", "`models.a.dtype` was \"native\", is \"f32\""),
            (path.clone(), options, "`routing` was"),
        ] {
            let found = differences(&plain, &of(&model, routing));
            assert!(found.len() == 1 && found[0].starts_with(key), "{found:?}");
        }
        std::fs::write(&weights, "two").expect("writable");
        let found = differences(&plain, &of(&path, ""));
        assert!(found.len() == 2 && found[0].starts_with("`models.a.weights` was"), "{found:?}");
    }
}
