//! Answers of competition problems: found in the text, compared as integers.
//!
//! The rules are those that public graders share (MATH's `math_equivalence`, Minerva's prompt, Qwen2.5-Math, Math-Verify):
//! the last box is the answer, whatever is written around its number. A box that holds no integer is a wrong answer, and
//! no number elsewhere takes its place.

mod number;
#[cfg(test)]
mod tests;

pub use number::parse_integer;

/// Commands whose argument is the answer.
const BOXES: [&str; 3] = ["\\boxed", "\\fbox", "\\framebox"];
/// What announces an answer where there is no box.
const ANNOUNCED: [&str; 4] = ["answer is", "answer:", "answer =", "####"];

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
    let mut boxes: Vec<_> =
        opens.filter_map(|(at, command)| Some((at, content(&text[at + command.len()..])?))).collect();
    boxes.retain(|(_, content)| !content.trim().is_empty());
    boxes.sort_unstable_by_key(|(at, _)| *at);
    boxes.last().map(|(_, content)| *content)
}

/// The argument at the start of a text: in braces, or up to the next space.
fn content(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches([' ', '\t']);
    if let Some(inner) = rest.strip_prefix('{') {
        return Some(&inner[..closing(inner)?]);
    }
    // `\boxed 336`; `\boxedfoo` is another command.
    let spaced = rest.len() < text.len() || text.starts_with(|c: char| c.is_ascii_digit());
    let end = rest.find([' ', '\n', '$', '}']).unwrap_or(rest.len());
    spaced.then_some(&rest[..end])
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
        let line = text[*end..].lines().find(|line| !line.trim_matches(decoration).is_empty())?;
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
