//! Answers of competition problems: found in the text, compared as integers.
//!
//! The rules are those that public graders share (MATH's `math_equivalence`, Minerva's prompt, Qwen2.5-Math, Math-Verify):
//! the last box is the answer, whatever is written around its number. A box that holds no integer is a wrong answer, and
//! no number elsewhere takes its place.

mod number;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

pub use number::parse_integer;

/// Commands whose argument is the answer.
const BOXES: [&str; 3] = ["\\boxed", "\\fbox", "\\framebox"];
/// What announces an answer where there is no box.
const ANNOUNCED: [&str; 4] = ["answer is", "answer:", "answer =", "####"];

/// How far from its announcement an answer may be, in characters.
const NEAR: usize = 300;

/// The integer that a response gives as its answer: in its last box, after its last `answer is`, else its last number.
pub fn extract_answer(text: &str) -> Option<i64> {
    if let Some(content) = last_box(text) {
        return parse_integer(content);
    }
    // What was thought before the answer is no answer, unless there is nothing else.
    let said =
        text.rsplit_once("</think>").map(|(_, said)| said).filter(|said| !said.trim().is_empty()).unwrap_or(text);
    announced(said).or_else(|| number::last(said))
}

/// The content of the last box that is closed and not empty.
pub fn last_box(text: &str) -> Option<&str> {
    let opens = BOXES.iter().flat_map(|command| text.match_indices(command));
    let mut arguments: Vec<usize> = opens.map(|(at, command)| at + command.len()).collect();
    arguments.sort_unstable();
    // Once for all boxes: an answer may be long, and have a box in every line.
    let braces = if arguments.is_empty() { HashMap::new() } else { braces(text) };
    let mut contents = arguments.iter().rev().filter_map(|at| content(text, *at, &braces));
    contents.find(|content| !content.trim().is_empty())
}

/// The argument at a place of a text: in braces, or up to the next space.
fn content<'a>(text: &'a str, at: usize, braces: &HashMap<usize, usize>) -> Option<&'a str> {
    let rest = text[at..].trim_start_matches([' ', '\t']);
    let start = text.len() - rest.len();
    if rest.starts_with('{') {
        return braces.get(&start).map(|end| &text[start + 1..*end]);
    }
    // `\boxed 336`; `\boxedfoo` is another command.
    let spaced = start > at || rest.starts_with(|c: char| c.is_ascii_digit());
    let end = rest.find([' ', '\n', '$', '}']).unwrap_or(rest.len());
    spaced.then_some(&rest[..end])
}

/// Where every brace that is closed is closed. Braces with a backslash are signs like others.
fn braces(text: &str) -> HashMap<usize, usize> {
    let (mut open, mut closed, mut escaped) = (Vec::new(), HashMap::new(), false);
    for (at, sign) in text.char_indices() {
        match sign {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => open.push(at),
            '}' => closed.extend(open.pop().map(|open| (open, at))),
            _ => {}
        }
    }
    closed
}

/// Where the brace that was opened before a text is closed. Braces with a backslash are signs like others.
pub(crate) fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut escaped) = (0usize, false);
    for (at, sign) in text.char_indices() {
        match sign {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => depth += 1,
            '}' if depth == 0 => return Some(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// The integer right after the last announcement that has one.
fn announced(text: &str) -> Option<i64> {
    let lower = text.to_ascii_lowercase();
    let ends = ANNOUNCED.iter().flat_map(|words| lower.match_indices(words).map(|(at, words)| at + words.len()));
    let mut ends: Vec<_> = ends.collect();
    ends.sort_unstable();
    ends.iter().rev().find_map(|end| {
        let rest = &text[*end..];
        let near = rest.char_indices().nth(NEAR).map_or(rest, |(at, _)| &rest[..at]);
        let line = near.lines().find(|line| !line.trim_matches(decoration).is_empty())?;
        // `m+n = 336` is 336.
        let said = line.split(". ").next().unwrap_or(line);
        let said = said.rsplit_once('=').map_or(said, |(_, value)| value);
        number::first(said.trim_start_matches(decoration))
    })
}

/// Signs around an answer that are no part of it.
fn decoration(sign: char) -> bool {
    sign.is_whitespace() || matches!(sign, '*' | '_' | '`' | '$' | ':' | '"' | '\'' | '(' | '[' | '{')
}
