//! Where a model's files are: a path, the demo in the cache, or a hub.

use std::path::{Path, PathBuf};

use super::ModelError;
use crate::config::ModelConfig;

/// Name of the demo model's file inside its package.
const DEMO_FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// The cache directory: `TRBENCH_CACHE`, else the platform's cache directory.
pub fn cache_dir() -> PathBuf {
    match std::env::var_os("TRBENCH_CACHE") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir),
        _ => dirs::cache_dir().unwrap_or_else(std::env::temp_dir).join("trbench"),
    }
}

/// Where the demo model lies once it is fetched.
pub fn demo_gguf_path(cache: &Path) -> PathBuf {
    cache.join("demo").join(DEMO_FILE)
}

/// The file or directory of a configured model. A hub id is downloaded when there is network.
pub fn locate(config: &ModelConfig) -> Result<PathBuf, ModelError> {
    if let Some(path) = &config.path {
        return match path.try_exists() {
            Ok(true) => Ok(path.clone()),
            Ok(false) => Err(ModelError::NotFound(format!("model file `{}` does not exist", path.display()))),
            Err(error) => Err(ModelError::io(path, error)),
        };
    }
    match config.source.as_deref() {
        Some("demo") => {
            let path = demo_gguf_path(&cache_dir());
            if path.is_file() {
                return Ok(path);
            }
            let message = format!("the demo model is not at `{}`: run `trbench models fetch demo`", path.display());
            Err(ModelError::NotFound(message))
        }
        Some(file) if looks_like_a_path(file) => {
            let message =
                format!("`source: {file}` looks like a file or folder: these go under `path`, as `path: {file}`");
            Err(ModelError::NotFound(message))
        }
        Some(id) if id.split('/').count() == 2 => from_hub(id),
        Some(other) => {
            let message = format!("unknown model source `{other}`, allowed are `demo` and hub ids such as `org/name`");
            Err(ModelError::NotFound(message))
        }
        None => Err(ModelError::NotFound("an emulated model has no files".into())),
    }
}

/// Whether a source is meant for `path`: hub ids have no such endings or beginnings.
fn looks_like_a_path(source: &str) -> bool {
    let ends = [".gguf", ".safetensors", ".json", ".bin"].iter().any(|end| source.to_lowercase().ends_with(end));
    let begins = ["/", "./", "../", "~", ".\\"].iter().any(|start| source.starts_with(start));
    ends || begins || source.contains('\\') || (source.split('/').count() != 2 && Path::new(source).exists())
}

/// Downloads the configuration, tokenizer and weights of a hub model into the hub library's own cache.
fn from_hub(id: &str) -> Result<PathBuf, ModelError> {
    let failed = |what: &str, error: hf_hub::api::sync::ApiError| {
        ModelError::NotFound(format!(
            "model `{id}`: {what} cannot be fetched from the hub ({error}); use `path` for local files"
        ))
    };
    let api = hf_hub::api::sync::ApiBuilder::from_env().with_progress(false).build();
    let repo = api.map_err(|error| failed("the hub client", error))?.model(id.to_owned());
    let info = repo.info().map_err(|error| failed("the list of files", error))?;
    // Weights in folders, and in other forms, belong to other programs.
    let weights =
        |name: &str| name.ends_with(".safetensors") && !name.contains('/') && !name.starts_with("consolidated");
    let wanted = |name: &str| {
        weights(name)
            || [
                "config.json",
                "generation_config.json",
                "tokenizer.json",
                "tokenizer_config.json",
                "chat_template.jinja",
                "model.safetensors.index.json",
            ]
            .contains(&name)
    };
    let mut dir = None;
    for file in info.siblings.iter().filter(|file| wanted(&file.rfilename)) {
        let path = repo.get(&file.rfilename).map_err(|error| failed(&format!("file `{}`", file.rfilename), error))?;
        dir = path.parent().map(Path::to_owned);
    }
    dir.ok_or_else(|| ModelError::NotFound(format!("model `{id}` has no safetensors files")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_as_source_is_told_to_go_under_path() {
        for source in ["x.gguf", "models/x.GGUF", "./folder", "/models/qwen", "~/models/qwen", "a/b/x.safetensors"] {
            let config = ModelConfig { source: Some(source.into()), ..ModelConfig::default() };
            let message = locate(&config).expect_err("no hub id").to_string();
            assert!(message.contains(&format!("these go under `path`, as `path: {source}`")), "{message}");
        }
        assert!(
            !looks_like_a_path("Qwen/Qwen3-0.6B") && !looks_like_a_path("demo") && !looks_like_a_path("org/my.model")
        );
    }
}
