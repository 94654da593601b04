//! What the model continues.

use std::path::Path;

use serde::Deserialize;
use tokenrouter_engine::tokenizer::{ChatMessage, TextCodec};

use super::shown;
use crate::error::usage;
use crate::offline::{built_in_or_files, openings};

/// A prompt, and what is appended where the model ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Prompt {
    pub(super) tokens: Vec<u32>,
    pub(super) then: Vec<Vec<u32>>,
}

/// A line of a file of prompts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prompt: Option<String>,
    messages: Option<Vec<ChatMessage>>,
    tokens: Option<Vec<u32>>,
    #[serde(default)]
    then: Vec<String>,
}

/// The prompts of a file. Each is cut so that at least one token can follow.
pub(super) fn read(path: &Path, text: &TextCodec, (length, vocab): (usize, usize)) -> anyhow::Result<Vec<Prompt>> {
    let content = std::fs::read_to_string(path)
        .map_err(|error| usage(format!("cannot read prompts `{}`: {error}", shown(path))))?;
    let mut prompts = Vec::new();
    for (number, line) in content.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let place = |message: String| usage(format!("{}:{}: {message}", shown(path), number + 1));
        let line: Line = serde_json::from_str(line).map_err(|error| place(error.to_string()))?;
        prompts.push(prompt(line, text, (length, vocab)).map_err(place)?);
    }
    if prompts.is_empty() {
        return Err(usage(format!("`{}` has no prompts", shown(path))));
    }
    Ok(prompts)
}

fn prompt(line: Line, text: &TextCodec, (length, vocab): (usize, usize)) -> Result<Prompt, String> {
    let encode = |content: &str| text.encode(content).map_err(|error| error.to_string());
    let mut tokens = match (line.prompt, line.messages, line.tokens) {
        (Some(prompt), None, None) => encode(&prompt)?,
        (None, Some(messages), None) => {
            let rendered = text.apply_chat_template(&messages).map_err(|error| error.to_string())?;
            encode(&rendered)?
        }
        (None, None, Some(tokens)) => tokens,
        _ => return Err("exactly one of `prompt`, `messages` and `tokens` is needed".into()),
    };
    if let Some(bad) = tokens.iter().find(|token| **token as usize >= vocab) {
        return Err(format!("`tokens` holds {bad}, allowed are ids below {vocab}"));
    }
    tokens.truncate(length - 1);
    if tokens.is_empty() {
        return Err("the prompt has no token".into());
    }
    let then = line.then.iter().map(|text| encode(text)).collect::<Result<_, _>>()?;
    Ok(Prompt { tokens, then })
}

/// Beginnings of the text that ships with the project, and its problems.
pub(super) fn built_in(text: &TextCodec, length: usize) -> anyhow::Result<Vec<Prompt>> {
    let texts = built_in_or_files(&[])?;
    let documents: Vec<&str> = texts.documents.iter().map(String::as_str).collect();
    let problems: Vec<&str> = texts.problems.iter().map(String::as_str).collect();
    let prompts = openings(text, &documents, &problems)?;
    let cut = |mut tokens: Vec<u32>| {
        tokens.truncate(length - 1);
        Prompt { tokens, then: Vec::new() }
    };
    Ok(prompts.into_iter().map(cut).collect())
}
