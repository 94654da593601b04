//! Where the requests of a workload come from.

use std::io::Write as _;

use crate::dataset::{self, BuiltIn, Item, Kind, Source};
use crate::error::usage;
use crate::spec::{NumPrompts, RunSpec, Workload};

/// Prompts of a random workload when `--num-prompts all` says nothing.
const RANDOM_PROMPTS: usize = 64;

/// The requests of a run, and a name of their origin.
pub(super) fn items(spec: &RunSpec) -> anyhow::Result<(String, Vec<Item>)> {
    let most = match spec.num_prompts {
        NumPrompts::First(count) => Some(count),
        NumPrompts::All => None,
    };
    let source = source(spec, most.unwrap_or(RANDOM_PROMPTS))?;
    let (name, sessions) = dataset::load(&source, most).map_err(|error| usage(error.to_string()))?;
    let items = dataset::items(sessions);
    let ungradable = items.iter().filter(|item| item.prompt.ungradable).count();
    if ungradable > 0 {
        let line =
            format!("warning: {name}: {ungradable} of {} answers are no integers, they are not graded", items.len());
        let _nowhere_to_complain = writeln!(std::io::stderr(), "{line}");
    }
    Ok((name, items))
}

fn source(spec: &RunSpec, count: usize) -> anyhow::Result<Source> {
    let workload = spec.workload.name();
    if spec.input_len.is_some() && spec.workload != Workload::Random {
        return Err(usage(format!("--input-len is for `--workload random`, not for `{workload}`")));
    }
    let file = |kinds| spec.dataset_path.clone().map(|path| Source::File(path, kinds));
    Ok(match spec.workload {
        Workload::Aime | Workload::Aime8k => {
            file(&[Kind::Problem, Kind::Prompt]).unwrap_or(Source::BuiltIn(BuiltIn::AimeStyle))
        }
        Workload::SweSmith => file(&[Kind::Trajectory, Kind::AgentHistory, Kind::Conversation])
            .unwrap_or(Source::BuiltIn(BuiltIn::SweStyle)),
        Workload::Custom => file(&Kind::ALL)
            .ok_or_else(|| usage("--workload custom needs --dataset-path, a file of prompts or conversations"))?,
        Workload::Random if spec.dataset_path.is_some() => {
            return Err(usage("--workload random makes its prompts, --dataset-path does not go with it"));
        }
        Workload::Random => {
            let lengths = spec
                .input_len
                .ok_or_else(|| usage("--workload random needs --input-len, such as `512` or `256-1024` (words)"))?;
            Source::Random { count, lengths, seed: spec.seed }
        }
    })
}
