//! Counts and lengths of a data set.

use std::collections::{BTreeMap, HashSet};

use super::{Parsed, Session};
use crate::stats::{mean, quantile};

/// What `check` and `list` report.
#[derive(Debug, Default)]
pub(super) struct Stats {
    pub(super) sessions: usize,
    pub(super) answers: usize,
    /// Requests whose answers are no integers.
    pub(super) ungradable: usize,
    /// Names that came up before.
    pub(super) repeated: usize,
    /// Records by (purpose, field).
    pub(super) fields: BTreeMap<(&'static str, &'static str), usize>,
    ids: HashSet<String>,
    turns: Vec<usize>,
    prompts: Vec<usize>,
    recorded: Vec<usize>,
}

impl Stats {
    pub(super) fn add(&mut self, parsed: &Parsed) {
        for used in &parsed.used {
            *self.fields.entry(*used).or_default() += 1;
        }
        self.add_session(&parsed.session);
    }

    fn add_session(&mut self, session: &Session) {
        self.sessions += 1;
        self.repeated += usize::from(!self.ids.insert(session.id.clone()));
        self.turns.push(session.turns.len());
        for turn in &session.turns {
            self.answers += usize::from(turn.answer.is_some());
            self.ungradable += usize::from(turn.ungradable);
            self.prompts.push(turn.characters());
            self.recorded.extend(turn.recorded().map(|message| message.content.chars().count()));
        }
    }

    /// Turns of all sessions.
    pub(super) fn requests(&self) -> usize {
        self.prompts.len()
    }

    /// Characters of the longest prompt.
    pub(super) fn longest_prompt(&self) -> usize {
        self.prompts.iter().max().copied().unwrap_or(0)
    }

    /// Rows of a table: name, least, median, mean, most.
    pub(super) fn lengths(&self) -> Vec<[String; 5]> {
        let rows = [
            ("turns of a session", &self.turns),
            ("characters of a prompt", &self.prompts),
            ("characters of a recorded answer", &self.recorded),
        ];
        rows.into_iter().filter(|(_, values)| !values.is_empty()).map(|(name, values)| row(name, values)).collect()
    }
}

fn row(name: &str, values: &[usize]) -> [String; 5] {
    let values: Vec<f64> = values.iter().map(|value| *value as f64).collect();
    let show = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.0}"));
    let at = |q: f64| show(quantile(&values, q));
    [name.to_owned(), at(0.0), at(0.5), show(mean(&values)), at(1.0)]
}
