//! Plain text for measuring and fitting: documents with blank lines between them.

use std::path::PathBuf;

use tokenrouter_engine::tokenizer::{ChatMessage, TextCodec};

use super::LENGTH;
use crate::dataset::{self, BuiltIn, Source};
use crate::error::usage;

/// Words of a document that a model continues.
const OPENING_WORDS: usize = 6;

/// The text that ships with the project.
const PROSE: &str = include_str!("../../../../datasets/prose.txt");

/// Documents, and where they come from.
pub(crate) struct Texts {
    /// For messages and metadata.
    pub(crate) name: String,
    /// The documents, none of them empty.
    pub(crate) documents: Vec<String>,
    /// Problems to be answered: those that ship with the project, when its text is used.
    pub(crate) problems: Vec<String>,
}

/// The documents of a text: what lies between blank lines.
fn documents(text: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for line in text.lines() {
        if line.trim().is_empty() {
            documents.push(String::new());
        } else if let Some(last) = documents.last_mut() {
            if !last.is_empty() {
                last.push('\n');
            }
            last.push_str(line.trim_end());
        }
    }
    documents.retain(|document| !document.is_empty());
    documents
}

/// The documents of files, or of the text that ships with the project. At least two: one to fit, one to hold out.
pub(crate) fn built_in_or_files(paths: &[PathBuf]) -> anyhow::Result<Texts> {
    if paths.is_empty() {
        let (name, sessions) = dataset::load(&Source::BuiltIn(BuiltIn::AimeStyle), None)?;
        let problem = |session: &dataset::Session| {
            session.turns.first().and_then(|turn| turn.messages().last()).map(|message| message.content.clone())
        };
        return Ok(Texts {
            name: format!("datasets/prose.txt (built in), {name}"),
            documents: documents(PROSE),
            problems: sessions.iter().filter_map(problem).collect(),
        });
    }
    let name = paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    let mut found = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(path)
            .map_err(|error| usage(format!("cannot read text `{}`: {error}", path.display())))?;
        found.extend(documents(&text));
    }
    if found.len() < 2 {
        let message =
            format!("text `{name}` has {} documents, at least 2 are needed; blank lines separate them", found.len());
        return Err(usage(message));
    }
    Ok(Texts { name, documents: found, problems: Vec::new() })
}

/// The beginning of a document up to the end of its first sentence or line.
fn first_sentence(document: &str) -> &str {
    let line = document.lines().next().unwrap_or_default();
    let end = line
        .char_indices()
        .find(|(at, c)| matches!(c, '.' | '?' | '!') && line[at + 1..].chars().next().is_none_or(char::is_whitespace));
    end.map_or(line, |(at, _)| &line[..=at])
}

/// Prompts for a model to write from: the first sentences of documents and the problems as a user's message, if the model
/// has a chat template, and the first words of the documents.
pub(crate) fn openings(codec: &TextCodec, documents: &[&str], problems: &[&str]) -> anyhow::Result<Vec<Vec<u32>>> {
    let mut texts: Vec<String> = Vec::new();
    if codec.has_chat_template() {
        for content in documents.iter().map(|document| first_sentence(document)).chain(problems.iter().copied()) {
            let message = ChatMessage { role: "user".into(), content: content.to_owned() };
            texts.push(codec.apply_chat_template(&[message])?);
        }
    }
    texts.extend(documents.iter().map(|document| {
        let words = document.split_inclusive(' ').take(OPENING_WORDS);
        words.collect::<String>().trim_end().to_owned()
    }));
    let mut prompts = Vec::new();
    for text in texts {
        let mut tokens = codec.encode(&text)?;
        // What comes after is written by the model.
        tokens.truncate(LENGTH / 2);
        if !tokens.is_empty() {
            prompts.push(tokens);
        }
    }
    Ok(prompts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_separate_documents() {
        assert_eq!(documents("\n\na\nb  \n \t\n\nc\n"), ["a\nb", "c"]);
        assert!(documents(" \n\n").is_empty());
    }

    #[test]
    fn a_sentence_ends_before_a_space() {
        assert_eq!(first_sentence("Is 3.5 even? No."), "Is 3.5 even?");
        assert_eq!(first_sentence("no end\nsecond line."), "no end");
    }

    #[test]
    fn the_built_in_text_has_many_documents() {
        let texts = built_in_or_files(&[]).expect("the built-in text");
        assert!(texts.documents.len() >= 40, "{}", texts.documents.len());
        let words: usize = texts.documents.iter().map(|document| document.split_whitespace().count()).sum();
        assert!(words > 5000, "{words}");
    }
}
