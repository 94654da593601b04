//! Code points that `conversation.rs` puts into texts of clients. What looks at the ends of a text looks past them.

use super::values::is_space;

/// Unicode's noncharacters: no text that is exchanged has any reason to contain them. The even ones stand in front of a
/// token that the client wrote out, and the odd ones where no token reaches over.
pub(in super::super) const MARKS: std::ops::RangeInclusive<char> = '\u{fdd0}'..='\u{fdef}';

fn is_mark(character: char) -> bool {
    MARKS.contains(&character)
}

/// The mark of an edge that goes with a mark in front of a token.
pub(in super::super) fn edge_of(mark: char) -> char {
    char::from_u32(u32::from(mark) | 1).unwrap_or(mark)
}

/// The marks at the start of a text, and the rest.
pub(super) fn after_marks(text: &str) -> (&str, &str) {
    let rest = text.trim_start_matches(is_mark);
    text.split_at(text.len() - rest.len())
}

/// Python's `strip` on the left, on the right or on both sides. Marks stay. One whose token is gone from here becomes an
/// edge: the token that the template writes next is its own.
pub(super) fn strip(text: &str, chars: Option<&str>, left: bool, right: bool) -> String {
    let stripped = |character: char| chars.map_or_else(|| is_space(character), |chars| chars.contains(character));
    let outer = |character: char| is_mark(character) || stripped(character);
    let rest = if left { text.trim_start_matches(outer) } else { text };
    let lead = &text[..text.len() - rest.len()];
    let inner = if right { rest.trim_end_matches(outer) } else { rest };
    let trail = &rest[inner.len()..];
    // Marks that touch what is left still stand in front of its first character.
    let touching = if inner.is_empty() { 0 } else { lead.len() - lead.trim_end_matches(is_mark).len() };
    let (lost, kept) = lead.split_at(lead.len() - touching);
    let edges = |text: &str| text.chars().filter(|character| is_mark(*character)).map(edge_of).collect::<String>();
    format!("{}{kept}{inner}{}", edges(lost), edges(trail))
}
