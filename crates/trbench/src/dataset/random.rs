//! Prompts of given lengths, made of common words: most tokenizers have one token for each.

use std::sync::Arc;

use tokenrouter_core::keyed::{Purpose, draw_u64};
use tokenrouter_engine::tokenizer::ChatMessage;

use super::{Session, Turn};

const WORDS: [&str; 64] = [
    "about",
    "after",
    "again",
    "air",
    "all",
    "along",
    "also",
    "animal",
    "another",
    "answer",
    "any",
    "around",
    "ask",
    "away",
    "back",
    "because",
    "before",
    "between",
    "big",
    "book",
    "both",
    "boy",
    "call",
    "change",
    "city",
    "close",
    "country",
    "day",
    "different",
    "does",
    "each",
    "earth",
    "end",
    "even",
    "every",
    "example",
    "eye",
    "face",
    "family",
    "far",
    "father",
    "few",
    "find",
    "first",
    "follow",
    "food",
    "form",
    "found",
    "give",
    "good",
    "great",
    "group",
    "grow",
    "hand",
    "hard",
    "head",
    "help",
    "here",
    "high",
    "home",
    "house",
    "idea",
    "just",
    "kind",
];

/// Longest prompt, in words.
const MOST_WORDS: usize = 1_000_000;

/// A length, or a range of lengths of which each is equally likely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    /// The smallest.
    pub least: usize,
    /// The largest.
    pub most: usize,
}

impl std::str::FromStr for Lengths {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (least, most) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| text.trim().parse().ok().filter(|n| (1..=MOST_WORDS).contains(n));
        match (number(least), number(most)) {
            (Some(least), Some(most)) if least <= most => Ok(Self { least, most }),
            _ => Err(format!("expected a number such as `512` or a range such as `256-1024`, from 1 to {MOST_WORDS}")),
        }
    }
}

impl std::fmt::Display for Lengths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self { least, most } if least == most => write!(f, "{least}"),
            Self { least, most } => write!(f, "{least}-{most}"),
        }
    }
}

/// Sessions of one turn each. The same seed gives the same prompts, whatever their number.
pub(super) fn sessions(count: usize, lengths: Lengths, seed: u64) -> Vec<Session> {
    (0..count as u64)
        .map(|index| {
            let draw = |position| draw_u64(seed, index, position, Purpose::Workload);
            let span = (lengths.most - lengths.least + 1) as u64;
            let length = lengths.least as u64 + draw(0) % span;
            let words: Vec<_> = (1..=length).map(|at| WORDS[draw(at) as usize % WORDS.len()]).collect();
            let history: Arc<[_]> = [ChatMessage { role: "user".into(), content: words.join(" ") }].into();
            Session {
                id: format!("random-{index}"),
                turns: vec![Turn { history, end: 1, answer: None, ungradable: false }],
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_kept_and_prompts_depend_on_the_seed_only() {
        let lengths: Lengths = "20-30".parse().expect("a range");
        let some = sessions(50, lengths, 1);
        let words = |session: &Session| session.turns[0].messages()[0].content.split(' ').count();
        assert!(some.iter().all(|session| (20..=30).contains(&words(session))));
        assert_eq!((20..=30).filter(|n| some.iter().any(|s| words(s) == *n)).count(), 11, "every length comes up");
        assert_eq!(sessions(10, lengths, 1), some[..10]);
        assert_ne!(sessions(10, lengths, 2), some[..10]);
    }

    #[test]
    fn bad_lengths_are_refused() {
        for text in ["", "0", "5-", "9-3", "-4", "many", "1000001"] {
            assert!(text.parse::<Lengths>().is_err(), "{text}");
        }
    }
}
