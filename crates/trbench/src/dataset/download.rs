//! `trbench datasets fetch`: a file from a hub, verified before it appears in the cache.

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use reqwest::Url;
use sha2::{Digest, Sha256};
use tokenrouter_engine::model::cache_dir;

use super::Kind;
use super::survey::survey;
use crate::error::{Interrupted, usage};

/// Names of unfinished files.
const WORK_PREFIX: &str = ".fetch-";
/// Age at which an unfinished file belongs to nobody.
const STALE: Duration = Duration::from_secs(3600);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest time without a byte.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Largest file that is accepted.
const MOST_BYTES: u64 = 16 << 30;
/// Formats by the end of the address.
const EXTENSIONS: [&str; 4] = ["parquet", "jsonl", "json", "traj"];

/// Arguments of `trbench datasets fetch`.
#[derive(Debug, Args)]
pub struct FetchArgs {
    /// What the file must hold, and its name in the cache.
    pub name: Known,
    /// Address of the file: `https://...`, or `hf://datasets/OWNER/NAME/PATH` (at a revision: `OWNER/NAME@REVISION`).
    #[arg(long)]
    pub url: String,
    /// SHA-256 of the file in hexadecimal, as its page on the hub shows it.
    #[arg(long)]
    pub sha256: String,
}

/// Public data sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Known {
    /// Problems of the AIME, any year.
    Aime,
    /// Trajectories of SWE-smith.
    SweSmith,
}

impl Known {
    fn file_stem(self) -> &'static str {
        match self {
            Self::Aime => "aime",
            Self::SweSmith => "swe-smith",
        }
    }

    fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Aime => &[Kind::Problem],
            Self::SweSmith => &[Kind::Trajectory, Kind::AgentHistory],
        }
    }
}

fn folder() -> PathBuf {
    cache_dir().join("datasets")
}

/// Files that were fetched.
pub(super) fn fetched() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder()).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_data = |path: &PathBuf| {
        let unfinished = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(WORK_PREFIX));
        !unfinished
            && path.extension().and_then(|e| e.to_str()).is_some_and(|extension| EXTENSIONS.contains(&extension))
    };
    let mut paths: Vec<_> = entries.filter(is_data).collect();
    paths.sort();
    paths
}

/// Downloads, verifies and checks a file; nothing appears in the cache before it is complete.
pub(super) fn fetch(args: &FetchArgs) -> anyhow::Result<PathBuf> {
    let url = address(&args.url)?;
    let expected = args.sha256.trim().to_ascii_lowercase();
    if expected.len() != 64 || !expected.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(usage(format!("--sha256 `{}` is not a SHA-256, expected 64 hexadecimal digits", args.sha256)));
    }
    let Some(extension) = EXTENSIONS.iter().find(|extension| url.path().ends_with(&format!(".{extension}"))) else {
        let allowed = EXTENSIONS.map(|extension| format!("`.{extension}`")).join(", ");
        return Err(usage(format!("--url `{url}` does not end like a data set, allowed are {allowed}")));
    };
    let dir = folder();
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot create the cache directory `{}`", dir.display()))?;
    remove_stale(&dir);
    // Removed when it goes out of scope, unless it is moved to its place.
    let file = tempfile::Builder::new().prefix(WORK_PREFIX).suffix(&format!(".{extension}")).tempfile_in(&dir);
    let mut file = file.with_context(|| format!("cannot write to the cache directory `{}`", dir.display()))?;
    let got = interruptible(&url, file.as_file_mut())?;
    if got != expected {
        bail!("`{url}` has SHA-256 {got}, expected {expected}: nothing was stored");
    }
    verify(file.path(), args.name).with_context(|| format!("`{url}` is not what was asked for, nothing was stored"))?;
    let target = dir.join(format!("{}-{}.{extension}", args.name.file_stem(), &got[..12]));
    file.persist(&target).with_context(|| format!("cannot move the file to `{}`", target.display()))?;
    Ok(target)
}

/// Unfinished files of fetches that were killed long ago.
fn remove_stale(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let age = entry.metadata().and_then(|meta| meta.modified()).ok().and_then(|time| time.elapsed().ok());
        let unfinished = entry.file_name().to_string_lossy().starts_with(WORK_PREFIX);
        if unfinished && age.is_some_and(|age| age > STALE) {
            // Tidying up is no reason to fail.
            let _best_effort = std::fs::remove_file(entry.path());
        }
    }
}

fn verify(path: &Path, name: Known) -> anyhow::Result<()> {
    let report = survey(path)?;
    if !report.is_valid() {
        return Err(report.refusal());
    }
    match report.kind {
        Some(kind) if name.kinds().contains(&kind) => Ok(()),
        kind => {
            let allowed: Vec<_> = name.kinds().iter().map(|kind| kind.label()).collect();
            let found = kind.map_or("nothing", Kind::label);
            Err(usage(format!("it holds {found}, `{}` means {}", name.file_stem(), allowed.join(" or "))))
        }
    }
}

/// An address for HTTP from what the user wrote.
fn address(text: &str) -> anyhow::Result<Url> {
    let hub = std::env::var("HF_ENDPOINT").ok().filter(|hub| !hub.is_empty());
    let hub = hub.as_deref().unwrap_or("https://huggingface.co").trim_end_matches('/');
    let text = match text.strip_prefix("hf://datasets/") {
        Some(rest) => {
            let parts: Vec<_> = rest.splitn(3, '/').collect();
            let [owner, name, path] = parts[..] else {
                return Err(usage(format!("--url `{text}`: expected `hf://datasets/OWNER/NAME/PATH`")));
            };
            let (name, revision) = name.split_once('@').unwrap_or((name, "main"));
            format!("{hub}/datasets/{owner}/{name}/resolve/{revision}/{path}")
        }
        None => text.to_owned(),
    };
    let url = Url::parse(&text).map_err(|error| usage(format!("--url `{text}`: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(usage(format!("--url `{url}`: allowed are `https://`, `http://` and `hf://datasets/`")));
    }
    Ok(url)
}

/// Downloads unless Ctrl-C comes first.
fn interruptible(url: &Url, file: &mut std::fs::File) -> anyhow::Result<String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    runtime.block_on(async {
        tokio::select! {
            biased;
            () = crate::interrupt::asked() => Err(Interrupted("nothing was stored".into()).into()),
            done = download(url, file) => done,
        }
    })
}

/// Writes the body to a file and returns its SHA-256.
async fn download(url: &Url, file: &mut std::fs::File) -> anyhow::Result<String> {
    let client = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).read_timeout(READ_TIMEOUT).build()?;
    let unreachable = || {
        format!(
            "cannot fetch `{url}`, nothing was stored; without a network, copy the file here and name it with \
             `--dataset-path`"
        )
    };
    let mut response = client.get(url.clone()).send().await.with_context(unreachable)?;
    if !response.status().is_success() {
        bail!("`{url}` answered {}, nothing was stored", response.status());
    }
    let announced = response.content_length();
    let bar = crate::terminal::spinner(&format!("fetching {url}"));
    let mut hasher = Sha256::new();
    let mut size = 0;
    while let Some(chunk) = response.chunk().await.with_context(unreachable)? {
        size += chunk.len() as u64;
        if size > MOST_BYTES {
            bail!("`{url}` is larger than {MOST_BYTES} bytes, nothing was stored");
        }
        hasher.update(&chunk);
        file.write_all(&chunk).context("cannot write to the cache directory")?;
        if let Some(total) = announced.filter(|_| std::io::stderr().is_terminal()) {
            bar.set_message(format!("fetching {url}: {} %", size * 100 / total.max(1)));
        }
    }
    bar.finish_and_clear();
    file.sync_all().context("cannot write to the cache directory")?;
    Ok(hex::encode(hasher.finalize()))
}
