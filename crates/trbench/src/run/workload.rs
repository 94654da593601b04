//! Which workload, and where its requests come from.

use clap::ValueEnum;

use super::{NumPrompts, RunArgs};
use crate::cli::usage;
use crate::dataset::{self, BuiltIn, Item, Kind, Lengths, Source};

/// Prompts of a random workload when `--num-prompts all` says nothing.
const RANDOM_PROMPTS: usize = 64;

/// Workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Competition problems: short in, long out.
    Aime,
    /// The same with room for 8192 tokens of output.
    #[value(name = "aime-8k")]
    Aime8k,
    /// Agentic coding sessions: long in, short out, the turns of a session one after the other.
    SweSmith,
    /// Random words, `--input-len` of them.
    Random,
    /// The prompts or conversations of `--dataset-path`.
    Custom,
}

impl Workload {
    /// Its name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Aime => "aime",
            Self::Aime8k => "aime-8k",
            Self::SweSmith => "swe-smith",
            Self::Random => "random",
            Self::Custom => "custom",
        }
    }
}

/// The requests of a run, and a name of their origin.
pub(super) fn items(args: &RunArgs) -> anyhow::Result<(String, Vec<Item>)> {
    let most = match args.num_prompts {
        NumPrompts::First(count) => Some(count),
        NumPrompts::All => None,
    };
    let source = source(args, most.unwrap_or(RANDOM_PROMPTS))?;
    let (name, sessions) = dataset::load(&source, most).map_err(|error| usage(error.to_string()))?;
    Ok((name, dataset::items(sessions)))
}

fn source(args: &RunArgs, count: usize) -> anyhow::Result<Source> {
    let workload = args.workload.name();
    if args.input_len.is_some() && args.workload != Workload::Random {
        return Err(usage(format!("--input-len is for `--workload random`, not for `{workload}`")));
    }
    let file = |kinds| args.dataset_path.clone().map(|path| Source::File(path, kinds));
    Ok(match args.workload {
        Workload::Aime | Workload::Aime8k => {
            file(&[Kind::Problem, Kind::Prompt]).unwrap_or(Source::BuiltIn(BuiltIn::AimeStyle))
        }
        Workload::SweSmith => file(&[Kind::Trajectory, Kind::AgentHistory, Kind::Conversation])
            .unwrap_or(Source::BuiltIn(BuiltIn::SweStyle)),
        Workload::Custom => file(&Kind::ALL)
            .ok_or_else(|| usage("--workload custom needs --dataset-path, a file of prompts or conversations"))?,
        Workload::Random if args.dataset_path.is_some() => {
            return Err(usage("--workload random makes its prompts, --dataset-path does not go with it"));
        }
        Workload::Random => {
            let lengths: Option<Lengths> = args.input_len;
            let lengths = lengths
                .ok_or_else(|| usage("--workload random needs --input-len, such as `512` or `256-1024` (words)"))?;
            Source::Random { count, lengths, seed: args.seed }
        }
    })
}
