//! Workloads: what is asked, in which order, and what the right answers are.
//!
//! Everything becomes sessions of turns. A competition problem is a session of one turn; a recorded trajectory has one
//! turn for each place where the assistant wrote, and its history keeps what was recorded, so that every system gets the
//! same prompts whatever it answers.

mod command;
mod conversation;
mod csv;
mod download;
mod error;
mod parquet;
mod problem;
mod random;
mod records;
mod stats;
mod survey;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value};
use tokenrouter_engine::tokenizer::ChatMessage;

pub use command::{DatasetsCommand, run};
pub use error::{DatasetError, Place};
pub use random::Lengths;
pub use records::Container;

use crate::terminal::say;
use records::Records;

/// Fields that some kind of record uses; other columns of Parquet files are not read.
const FIELDS: [&str; 18] = [
    "problem",
    "Problem",
    "question",
    "Question",
    "prompt",
    "answer",
    "Answer",
    "solution",
    "Solution",
    "id",
    "ID",
    "unique_id",
    "problem_id",
    "messages",
    "conversations",
    "history",
    "traj_id",
    "instance_id",
];

/// A conversation that is replayed turn by turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Its name in results.
    pub id: String,
    /// In order; never empty.
    pub turns: Vec<Turn>,
}

/// A point at which the assistant must write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// All messages of the session, shared by its turns.
    history: Arc<[ChatMessage]>,
    /// How many of them come before this turn's answer.
    end: usize,
    /// The right answer, when there is one.
    pub answer: Option<i64>,
    /// Whether the record has an answer that is no integer: it cannot be graded.
    pub ungradable: bool,
}

impl Turn {
    /// What is sent: the messages so far, with the recorded answers to earlier turns.
    pub fn messages(&self) -> &[ChatMessage] {
        &self.history[..self.end]
    }

    /// A prompt of the same length that shares no beginning with this one: the words of every message in reverse.
    pub fn reversed(&self) -> Self {
        let reverse = |message: &ChatMessage| {
            let words: Vec<&str> = message.content.split_inclusive(char::is_whitespace).rev().collect();
            ChatMessage { role: message.role.clone(), content: words.concat() }
        };
        Self { history: self.messages().iter().map(reverse).collect(), end: self.end, answer: None, ungradable: false }
    }

    /// What the assistant wrote here when the session was recorded.
    pub fn recorded(&self) -> Option<&ChatMessage> {
        self.history.get(self.end)
    }

    /// Characters of all messages that are sent.
    pub fn characters(&self) -> usize {
        self.messages().iter().map(|message| message.content.chars().count()).sum()
    }
}

/// One request of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Name of its session in results.
    pub id: String,
    /// Which turn of the session, from 1.
    pub turn: usize,
    /// What is sent, and the right answer.
    pub prompt: Turn,
}

/// The turns of sessions in order: those of one session stand together, the first with `turn` 1.
pub fn items(sessions: Vec<Session>) -> Vec<Item> {
    let turns = sessions.into_iter().flat_map(|session| {
        session.turns.into_iter().zip(1..).map(move |(prompt, turn)| Item { id: session.id.clone(), turn, prompt })
    });
    turns.collect()
}

/// Where a workload comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A data set that is part of the program.
    BuiltIn(BuiltIn),
    /// A file, of which these kinds are accepted.
    File(PathBuf, &'static [Kind]),
    /// Made up.
    Random {
        /// Number of prompts.
        count: usize,
        /// Their lengths in words.
        lengths: Lengths,
        /// Seed of all draws.
        seed: u64,
    },
}

/// The data sets that ship with the project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuiltIn {
    /// Competition problems.
    AimeStyle,
    /// Agentic coding sessions.
    SweStyle,
}

impl BuiltIn {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::AimeStyle, Self::SweStyle];

    /// Its file in the repository.
    pub fn file(self) -> &'static str {
        match self {
            Self::AimeStyle => "datasets/aime_style.jsonl",
            Self::SweStyle => "datasets/swe_style.jsonl",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::AimeStyle => include_str!("../../../../datasets/aime_style.jsonl"),
            Self::SweStyle => include_str!("../../../../datasets/swe_style.jsonl"),
        }
    }
}

/// What a record describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A problem, with an answer where the file has one.
    Problem,
    /// A prompt.
    Prompt,
    /// A conversation that the assistant goes on with.
    Conversation,
    /// A conversation that was recorded, in ShareGPT's form.
    ShareGpt,
    /// A recorded session of an agent, as in SWE-smith.
    Trajectory,
    /// A recorded session of an agent, as SWE-agent writes it.
    AgentHistory,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Problem, Self::Prompt, Self::Conversation, Self::ShareGpt, Self::Trajectory, Self::AgentHistory];

    /// In words.
    pub fn label(self) -> &'static str {
        match self {
            Self::Problem => "problems",
            Self::Prompt => "custom prompts",
            Self::Conversation => "custom conversations",
            Self::ShareGpt => "ShareGPT conversations",
            Self::Trajectory => "SWE-smith trajectories",
            Self::AgentHistory => "SWE-agent trajectory",
        }
    }

    /// The kind of a record, by its fields.
    fn of(record: &Map<String, Value>) -> Result<Self, String> {
        let has = |name: &str| record.get(name).is_some_and(|value| !value.is_null());
        match () {
            () if problem::PROBLEM.iter().any(|name| has(name)) => Ok(Self::Problem),
            () if has(conversation::MESSAGES) && conversation::TRAJECTORY_ID.iter().any(|name| has(name)) => {
                Ok(Self::Trajectory)
            }
            () if has(conversation::MESSAGES) => Ok(Self::Conversation),
            () if has(conversation::SHARE_GPT) => Ok(Self::ShareGpt),
            () if has(conversation::HISTORY) => Ok(Self::AgentHistory),
            () if has("prompt") => Ok(Self::Prompt),
            () => {
                let found: Vec<_> = record.keys().take(12).map(|name| format!("`{name}`")).collect();
                let found = if found.is_empty() { "no fields".into() } else { format!("fields {}", found.join(", ")) };
                Err(format!(
                    "no text under {}, and none of `prompt`, `messages`, `conversations`, `history`; found {found}",
                    problem::listed(&problem::PROBLEM)
                ))
            }
        }
    }
}

/// A record that was understood.
#[derive(Debug)]
struct Parsed {
    session: Session,
    /// What was taken from which field.
    used: Vec<(&'static str, &'static str)>,
}

fn parse(record: &Map<String, Value>, kind: Kind, fallback: &str) -> Result<Parsed, String> {
    match kind {
        Kind::Problem => problem::parse(record, &problem::PROBLEM, fallback),
        Kind::Prompt => problem::parse(record, &problem::PROMPT, fallback),
        Kind::Conversation => conversation::parse(record, conversation::MESSAGES, false, fallback),
        Kind::ShareGpt => conversation::parse(record, conversation::SHARE_GPT, true, fallback),
        Kind::Trajectory => conversation::parse(record, conversation::MESSAGES, true, fallback),
        Kind::AgentHistory => conversation::parse(record, conversation::HISTORY, true, fallback),
    }
}

/// The records of a file one after the other, understood or with the reason why not. The first one decides what kind all
/// must be.
struct Reader {
    file: String,
    records: Records,
    kind: Option<Kind>,
    /// Recorded conversations in which nobody asks anything.
    skipped: usize,
}

impl Reader {
    fn new(file: String, records: Records) -> Self {
        Self { file, records, kind: None, skipped: 0 }
    }

    fn name_of(&self, place: Place) -> String {
        match place {
            Place::File => {
                let stem = std::path::Path::new(&self.file).file_stem().unwrap_or_default();
                stem.to_string_lossy().into_owned()
            }
            Place::Line(number) => format!("line-{number}"),
            Place::Entry(number) => format!("entry-{number}"),
            Place::Row(number) => format!("row-{number}"),
        }
    }
}

impl Iterator for Reader {
    type Item = Result<Parsed, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (place, record) = loop {
            match self.records.iter.next()? {
                Ok((_, record)) if conversation::asks_nothing(&record) => self.skipped += 1,
                Ok(located) => break located,
                Err(error) => return Some(Err(error)),
            }
        };
        let parsed = Kind::of(&record).and_then(|kind| {
            let expected = *self.kind.get_or_insert(kind);
            if kind != expected {
                return Err(format!("a record of {} among {}", kind.label(), expected.label()));
            }
            parse(&record, kind, &self.name_of(place))
        });
        Some(parsed.map_err(|what| DatasetError::new(&self.file, place, what)))
    }
}

/// The sessions of a source and a name for the manifest: all, or as many from the start.
pub fn load(source: &Source, most: Option<usize>) -> Result<(String, Vec<Session>), DatasetError> {
    let (name, reader, kinds) = match source {
        Source::Random { count, lengths, seed } => {
            let name = format!("random ({} to {} words, seed {seed})", lengths.least, lengths.most);
            return Ok((name, random::sessions(*count, *lengths, *seed)));
        }
        Source::BuiltIn(built_in) => {
            let file = built_in.file();
            (format!("{file} (built in)"), Reader::new(file.into(), records::from_text(built_in.text(), file)?), None)
        }
        Source::File(path, kinds) => {
            let file = path.display().to_string();
            (file.clone(), Reader::new(file, records::open(path)?), Some(*kinds))
        }
    };
    Ok((name, take(reader, kinds, most)?))
}

fn take(mut reader: Reader, kinds: Option<&[Kind]>, most: Option<usize>) -> Result<Vec<Session>, DatasetError> {
    let mut sessions = Vec::new();
    while most.is_none_or(|most| sessions.len() < most) {
        let Some(parsed) = reader.next().transpose()? else { break };
        if let (Some(kinds), Some(kind)) = (kinds, reader.kind)
            && !kinds.contains(&kind)
        {
            let allowed: Vec<_> = kinds.iter().map(|kind| kind.label()).collect();
            let what = format!("holds {}, this workload takes {}", kind.label(), allowed.join(" or "));
            return Err(DatasetError::new(&reader.file, Place::File, what));
        }
        sessions.push(parsed.session);
    }
    if reader.skipped > 0 {
        say(&format!(
            "note: {}: {} conversations in which nobody asks anything are left out",
            reader.file, reader.skipped
        ));
    }
    if sessions.is_empty() {
        return Err(DatasetError::new(&reader.file, Place::File, "the data set is empty"));
    }
    Ok(sessions)
}
