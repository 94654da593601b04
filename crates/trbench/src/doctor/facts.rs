//! What there is: read from the system, without a judgement.

use std::path::Path;
use std::process::{Command, Stdio};

use serde::Serialize;
use tokenrouter_engine::model::demo_gguf_path;
use tokenrouter_kernels::Isa;
use tokenrouter_kernels::cuda::Device;

use super::why_not_writable;
use crate::results::cpu_name;

/// All of it.
#[derive(Debug, Serialize)]
pub(super) struct Facts {
    version: &'static str,
    os: &'static str,
    arch: &'static str,
    /// Whether this binary can use GPUs.
    built_with_cuda: bool,
    pub(super) cpu: Cpu,
    /// Absent where the system does not tell.
    pub(super) memory: Option<Memory>,
    pub(super) gpus: Gpus,
    pub(super) cache: Cache,
    /// The Python with pip that fetches models.
    pub(super) python: Option<String>,
    /// Most files that this process may open.
    pub(super) open_files: Option<u64>,
    pub(super) why_folder_not_writable: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Cpu {
    pub(super) name: String,
    /// Of the machine.
    pub(super) cores: usize,
    /// After affinity and quota.
    pub(super) usable: usize,
    /// CPU time per time that the control group may use.
    pub(super) quota: Option<f64>,
    /// What this processor can do of what the kernels are compiled for, the best last.
    pub(super) instruction_sets: Vec<String>,
    pub(super) kernels_use: String,
}

#[derive(Debug, Serialize)]
pub(super) struct Memory {
    pub(super) total_mib: u64,
    pub(super) available_mib: u64,
    pub(super) cgroup_limit_mib: Option<u64>,
    /// `always`, `madvise` or `never`.
    pub(super) huge_pages: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Gpus {
    pub(super) found: Vec<Gpu>,
    pub(super) why_none: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Gpu {
    pub(super) name: String,
    pub(super) free_mib: Option<u64>,
    pub(super) total_mib: Option<u64>,
}

#[derive(Debug, Serialize)]
pub(super) struct Cache {
    pub(super) folder: String,
    pub(super) size_mib: u64,
    pub(super) why_not_writable: Option<String>,
    /// Where it is, if it is there.
    pub(super) demo_model: Option<String>,
}

impl Facts {
    pub(super) fn collect(cache: &Path) -> Self {
        let demo = demo_gguf_path(cache);
        let demo_model = demo.is_file().then(|| demo.display().to_string());
        Self {
            version: env!("CARGO_PKG_VERSION"),
            os: std::env::consts::OS,
            arch: std::env::consts::ARCH,
            built_with_cuda: cfg!(feature = "cuda"),
            cpu: cpu(),
            memory: memory(),
            gpus: gpus(),
            cache: Cache {
                folder: cache.display().to_string(),
                size_mib: size(cache, 0) >> 20,
                why_not_writable: why_not_writable(cache),
                demo_model,
            },
            python: python(),
            open_files: open_files(),
            why_folder_not_writable: why_not_writable(Path::new(".")),
        }
    }

    pub(super) fn build(&self) -> String {
        let cuda = if self.built_with_cuda { "with CUDA" } else { "without CUDA" };
        format!("trbench {} for {} on {}, built {cuda}", self.version, self.os, self.arch)
    }
}

fn text(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn cpu() -> Cpu {
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    let listed =
        text("/proc/cpuinfo").map_or(0, |info| info.lines().filter(|line| line.starts_with("processor")).count());
    Cpu {
        name: cpu_name(),
        cores: listed.max(usable),
        usable,
        quota: text("/sys/fs/cgroup/cpu.max").and_then(|text| quota(&text)),
        instruction_sets: Isa::available().iter().map(|isa| format!("{isa:?}")).collect(),
        kernels_use: format!("{:?}", Isa::detect()),
    }
}

/// `200000 100000` is a quota of two cores, `max 100000` is none.
fn quota(text: &str) -> Option<f64> {
    let (time, period) = text.trim().split_once(' ')?;
    let (time, period) = (time.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
    (period > 0.0).then(|| time / period)
}

fn memory() -> Option<Memory> {
    let info = text("/proc/meminfo")?;
    let mib = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib >> 10)
    };
    let limit = text("/sys/fs/cgroup/memory.max").and_then(|text| text.trim().parse::<u64>().ok());
    let setting = text("/sys/kernel/mm/transparent_hugepage/enabled");
    Some(Memory {
        total_mib: mib("MemTotal")?,
        available_mib: mib("MemAvailable")?,
        cgroup_limit_mib: limit.map(|bytes| bytes >> 20),
        huge_pages: setting.and_then(|text| chosen(&text)),
    })
}

/// The setting in brackets: `always [madvise] never`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(chosen, _)| chosen.to_owned())
}

fn gpus() -> Gpus {
    let count = match Device::count() {
        Ok(0) => return Gpus { found: Vec::new(), why_none: Some("the driver finds no device".into()) },
        Ok(count) => count,
        Err(why) => return Gpus { found: Vec::new(), why_none: Some(why.to_string()) },
    };
    let (mut found, mut why_none) = (Vec::new(), None);
    for ordinal in 0..count {
        match Device::cuda(ordinal) {
            Ok(device) => {
                let memory = device.memory().ok().flatten();
                let mib = |bytes: usize| (bytes >> 20) as u64;
                found.push(Gpu {
                    name: device.name(),
                    free_mib: memory.map(|(free, _)| mib(free)),
                    total_mib: memory.map(|(_, total)| mib(total)),
                });
            }
            Err(why) => why_none = Some(why.to_string()),
        }
    }
    Gpus { why_none: why_none.filter(|_| found.is_empty()), found }
}

/// Bytes of all files in a folder. A cache is flat; what is deeper is not counted.
fn size(folder: &Path, depth: usize) -> u64 {
    const DEEPEST: usize = 6;
    if depth > DEEPEST || folder.parent().is_none() {
        return 0;
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => size(&entry.path(), depth + 1),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

/// The first Python that has pip.
fn python() -> Option<String> {
    ["python3", "python"].into_iter().map(str::to_owned).find(|python| {
        let mut command = Command::new(python);
        command.args(["-c", "import importlib.util as u, sys; sys.exit(u.find_spec('pip') is None)"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}

fn open_files() -> Option<u64> {
    let limits = text("/proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_system_are_read() {
        assert_eq!(quota("200000 100000\n"), Some(2.0));
        assert_eq!(quota("max 100000\n"), None);
        assert_eq!(chosen("always [madvise] never\n").as_deref(), Some("madvise"));
    }
}
