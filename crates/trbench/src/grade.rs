//! Answers of competition problems: found in the text, compared as integers.

/// The answer that a response gives: the last `\boxed{...}` that holds an integer, else the last integer.
pub fn extract_answer(text: &str) -> Option<i64> {
    let boxed = text.match_indices("\\boxed{").filter_map(|(at, open)| {
        let inner = &text[at + open.len()..];
        parse_integer(&inner[..inner.find('}')?])
    });
    boxed.last().or_else(|| last_integer(text))
}

/// An integer written with optional spaces, `$`, thousands commas and sign.
pub fn parse_integer(text: &str) -> Option<i64> {
    let cleaned: String = text.trim().trim_matches('$').trim().replace(',', "");
    cleaned.parse().ok()
}

fn last_integer(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let end = bytes.iter().rposition(u8::is_ascii_digit)? + 1;
    let start = bytes[..end].iter().rposition(|b| !(b.is_ascii_digit() || *b == b',')).map_or(0, |at| at + 1);
    let negative = start > 0 && bytes[start - 1] == b'-' && (start == 1 || !bytes[start - 2].is_ascii_alphanumeric());
    parse_integer(text[start..end].trim_start_matches(',')).map(|value| if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_boxed_before_loose_integers() {
        assert_eq!(extract_answer("so \\boxed{ 042 } and 7 more"), Some(42));
        assert_eq!(extract_answer("\\boxed{x+1} \\boxed{12} \\boxed{}"), Some(12));
        assert_eq!(extract_answer("The answer is 1,234."), Some(1234));
        assert_eq!(extract_answer("x = -5"), Some(-5));
        assert_eq!(extract_answer("see 3-5"), Some(5));
        assert_eq!(extract_answer("none"), None);
        assert_eq!(extract_answer("unclosed \\boxed{9"), Some(9));
    }
}
