//! Which safetensors files of a folder are a model's: those of the index, if there is one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::ModelError;

const INDEX: &str = "model.safetensors.index.json";

/// A file, and the names of the tensors that it is read for; all of them where nothing says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shard {
    pub(super) path: PathBuf,
    pub(super) tensors: Option<BTreeSet<String>>,
}

impl Shard {
    /// All tensors of a file.
    pub(super) fn whole(path: PathBuf) -> Self {
        Self { path, tensors: None }
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The files of a model, and a warning about others that lie beside them.
pub(super) fn choose(dir: &Path) -> Result<(Vec<Shard>, Option<String>), ModelError> {
    let names = names(dir)?;
    let index = dir.join(INDEX);
    match std::fs::read_to_string(&index) {
        Ok(text) => of_index(dir, &index, &text, &names),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if names.is_empty() {
                return Err(ModelError::invalid(dir, "no `*.safetensors` file in this directory"));
            }
            check_complete(dir, &names)?;
            Ok((names.iter().map(|name| Shard::whole(dir.join(name))).collect(), None))
        }
        Err(error) => Err(ModelError::io(&index, error)),
    }
}

/// Names of safetensors files. Those that begin with a dot belong to the system that copied the others, such as the
/// AppleDouble files of macOS.
fn names(dir: &Path) -> Result<BTreeSet<String>, ModelError> {
    let io = |error| ModelError::io(dir, error);
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        let name = name.to_string_lossy();
        if name.ends_with(".safetensors") && !name.starts_with('.') {
            names.insert(name.into_owned());
        }
    }
    Ok(names)
}

fn of_index(
    dir: &Path,
    path: &Path,
    text: &str,
    names: &BTreeSet<String>,
) -> Result<(Vec<Shard>, Option<String>), ModelError> {
    let index: Index =
        serde_json::from_str(text).map_err(|error| ModelError::invalid(path, format!("cannot be read: {error}")))?;
    if index.weight_map.is_empty() {
        return Err(ModelError::invalid(path, "`weight_map` names no tensor"));
    }
    let mut shards: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (tensor, file) in index.weight_map {
        // A file of this folder, and nothing else on this machine.
        if Path::new(&file).file_name() != Some(file.as_ref()) || file.contains('\\') {
            let message = format!("tensor `{tensor}` is in `{file}`, allowed are names of files in this directory");
            return Err(ModelError::invalid(path, message));
        }
        shards.entry(file).or_default().insert(tensor);
    }
    if let Some((missing, tensors)) = shards.iter().find(|(file, _)| !dir.join(file).is_file()) {
        let first = tensors.first().map(String::as_str).unwrap_or_default();
        let message = format!("file `{missing}` is missing, which has {} tensors such as `{first}`", tensors.len());
        return Err(ModelError::invalid(path, message));
    }
    let strays: Vec<_> = names.iter().filter(|name| !shards.contains_key(*name)).collect();
    let warning = (!strays.is_empty()).then(|| {
        let list: Vec<_> = strays.iter().map(|name| format!("`{name}`")).collect();
        format!("{} not read: {INDEX} does not name them", list.join(", "))
    });
    let shards = shards.into_iter().map(|(file, tensors)| Shard { path: dir.join(file), tensors: Some(tensors) });
    Ok((shards.collect(), warning))
}

/// Files that are numbered, such as `model-00001-of-00002.safetensors`, must all be there.
fn check_complete(dir: &Path, names: &BTreeSet<String>) -> Result<(), ModelError> {
    for name in names {
        let Some((start, part, count)) = numbered(name) else { continue };
        let all = (1..=count).map(|part| format!("{start}-{part:05}-of-{count:05}.safetensors"));
        if let Some(missing) = all.into_iter().find(|name| !names.contains(name)) {
            return Err(ModelError::invalid(
                dir,
                format!("file `{missing}` is missing: `{name}` is part {part} of {count}"),
            ));
        }
    }
    Ok(())
}

fn numbered(name: &str) -> Option<(&str, usize, usize)> {
    let (rest, count) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (start, part) = rest.rsplit_once('-')?;
    let number = |text: &str| (text.len() == 5).then(|| text.parse().ok()).flatten();
    Some((start, number(part)?, number(count)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn folder(files: &[&str], index: Option<serde_json::Value>) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a folder");
        for name in files {
            std::fs::write(dir.path().join(name), b"").expect("writable");
        }
        if let Some(index) = index {
            std::fs::write(dir.path().join(INDEX), index.to_string()).expect("writable");
        }
        dir
    }

    fn chosen(dir: &tempfile::TempDir) -> Result<(Vec<String>, Option<String>), String> {
        let (shards, warning) = choose(dir.path()).map_err(|error| error.to_string())?;
        let name = |shard: &Shard| shard.path.file_name().expect("a name").to_string_lossy().into_owned();
        Ok((shards.iter().map(name).collect(), warning))
    }

    #[test]
    fn the_index_decides_and_strays_are_named() {
        let index = json!({"metadata": {"total_size": 8}, "weight_map": {"a": "x.safetensors", "b": "y.safetensors", "c": "x.safetensors"}});
        let dir = folder(&["x.safetensors", "y.safetensors", "z.safetensors", "._x.safetensors"], Some(index.clone()));
        let (names, warning) = chosen(&dir).expect("complete");
        assert_eq!(names, ["x.safetensors", "y.safetensors"]);
        assert_eq!(
            warning.as_deref(),
            Some("`z.safetensors` not read: model.safetensors.index.json does not name them")
        );
        let message = chosen(&folder(&["x.safetensors"], Some(index))).expect_err("a missing file");
        assert!(message.contains("file `y.safetensors` is missing, which has 1 tensors such as `b`"), "{message}");
    }

    #[test]
    fn an_index_names_files_of_its_folder_only() {
        for (index, wanted) in [
            (json!({"weight_map": {"a": "../x.safetensors"}}), "tensor `a` is in `../x.safetensors`"),
            (json!({"weight_map": {"a": "/etc/passwd"}}), "allowed are names of files in this directory"),
            (json!({"weight_map": {"a": ""}}), "allowed are names"),
            (json!({"weight_map": {}}), "names no tensor"),
            (json!({"weight_map": {"a": 1}}), "cannot be read"),
            (json!({}), "missing field `weight_map`"),
        ] {
            let message = chosen(&folder(&["x.safetensors"], Some(index))).expect_err("refused");
            assert!(message.contains(wanted) && message.contains(INDEX), "{message}");
        }
    }

    #[test]
    fn without_an_index_all_parts_must_be_there_and_system_files_are_skipped() {
        let dir = folder(&["a-00001-of-00002.safetensors", "a-00002-of-00002.safetensors", "._a.safetensors"], None);
        assert_eq!(chosen(&dir).expect("complete").0.len(), 2);
        let message = chosen(&folder(&["a-00002-of-00002.safetensors"], None)).expect_err("incomplete");
        assert!(message.contains("file `a-00001-of-00002.safetensors` is missing"), "{message}");
        let message = chosen(&folder(&["._model.safetensors"], None)).expect_err("empty");
        assert!(message.contains("no `*.safetensors` file"), "{message}");
    }
}
