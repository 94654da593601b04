//! What is stored of a cell while it is measured: a row, and with `--save-detailed` prompt and answer, as each request
//! ends.

use std::collections::HashSet;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tokenrouter_engine::tokenizer::ChatMessage;

use crate::dataset::Item;
use crate::files::write_file;
use crate::record::Record;
use crate::results::{DETAILED, Log, ROWS, csv_of};

/// The files that grow during a trial.
#[derive(Debug)]
pub(super) struct RunLog {
    rows: Log,
    detailed: Option<Log>,
}

/// A line of `detailed.jsonl`.
#[derive(Debug, Serialize)]
struct Detail<'a> {
    id: u64,
    trial: usize,
    item: &'a str,
    turn: usize,
    repeat: usize,
    /// What was sent: messages with `role` and `content`.
    prompt: Vec<Message<'a>>,
    /// What came back, up to where the request ended.
    text: &'a str,
    prompt_tokens: Option<u64>,
    completion_tokens: u64,
    ttft_ms: Option<f64>,
    e2el_ms: Option<f64>,
    finish_reason: &'a str,
    error: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct Message<'a> {
    role: &'a str,
    content: &'a str,
}

impl<'a> Message<'a> {
    fn of(message: &'a ChatMessage) -> Self {
        Self { role: &message.role, content: &message.content }
    }
}

/// Which request a line is of.
#[derive(Debug, PartialEq, Eq, Hash, Deserialize)]
struct Key {
    id: u64,
    trial: usize,
}

impl RunLog {
    /// Begins the files of a cell with the rows that are kept of an earlier run.
    pub(super) fn begin(dir: &Path, kept: &[&Record], detailed: bool) -> anyhow::Result<()> {
        write_file(&dir.join(ROWS), &csv_of(kept.iter().copied(), true)?)?;
        let path = dir.join(DETAILED);
        if detailed && path.is_file() {
            let kept: HashSet<Key> = kept.iter().map(|row| Key { id: row.id, trial: row.trial }).collect();
            let bytes = std::fs::read(&path)?;
            let lines = bytes.split_inclusive(|byte| *byte == b'\n');
            let is_kept = |line: &&[u8]| serde_json::from_slice(line).is_ok_and(|key: Key| kept.contains(&key));
            write_file(&path, &lines.filter(is_kept).collect::<Vec<_>>().concat())?;
        }
        Ok(())
    }

    /// Opens them to append to.
    pub(super) fn open(dir: &Path, detailed: bool) -> anyhow::Result<Self> {
        let detailed = detailed.then(|| Log::open(dir.join(DETAILED))).transpose()?;
        Ok(Self { rows: Log::open(dir.join(ROWS))?, detailed })
    }

    /// Stores a request that has ended.
    pub(super) fn append(&self, record: &Record, item: &Item, text: &str) {
        // Neither form can fail in memory.
        self.rows.append(&csv_of([record].into_iter(), false).unwrap_or_default());
        let Some(detailed) = &self.detailed else { return };
        let detail = Detail {
            id: record.id,
            trial: record.trial,
            item: &item.id,
            turn: item.turn,
            repeat: record.repeat,
            prompt: item.prompt.messages().iter().map(Message::of).collect(),
            text,
            prompt_tokens: record.prompt_tokens,
            completion_tokens: record.completion_tokens,
            ttft_ms: record.ttft_ms,
            e2el_ms: record.e2el_ms,
            finish_reason: &record.finish_reason,
            error: record.error.as_deref(),
        };
        let mut line = serde_json::to_vec(&detail).unwrap_or_default();
        line.push(b'\n');
        detailed.append(&line);
    }

    /// Whether something could not be written.
    pub(super) fn failed(&self) -> bool {
        self.rows.failed() || self.detailed.as_ref().is_some_and(Log::failed)
    }

    /// The first error.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        self.rows.finish()?;
        self.detailed.map_or(Ok(()), Log::finish)
    }
}
