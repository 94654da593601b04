//! Integers as people and models write them: with LaTeX, units, separators, as decimals and as fractions.

use super::closing;

/// Commands whose argument is text beside the number, or the number in another face.
const FACES: [&str; 13] = [
    "\\text",
    "\\textbf",
    "\\textit",
    "\\textrm",
    "\\textnormal",
    "\\mathrm",
    "\\mathbf",
    "\\mathsf",
    "\\mathit",
    "\\bm",
    "\\boldsymbol",
    "\\mbox",
    "\\operatorname",
];
/// Commands, signs and spaces that say nothing about the value.
const SILENT: [&str; 26] = [
    "\\left",
    "\\right",
    "\\displaystyle",
    "\\textstyle",
    "\\bigl",
    "\\bigr",
    "\\big",
    "\\Big",
    "\\quad",
    "\\qquad",
    "\\,",
    "\\!",
    "\\;",
    "\\:",
    "\\ ",
    "~",
    "^\\circ",
    "^{\\circ}",
    "^ \\circ",
    "\\circ",
    "\\degree",
    "°",
    "\\$",
    "\\%",
    "%",
    "$",
];
/// Words that may follow a number. Other letters are variables.
const UNITS: [&str; 40] = [
    "degree", "degrees", "deg", "cm", "mm", "m", "km", "meter", "meters", "metres", "inch", "inches", "foot", "feet",
    "ft", "mile", "miles", "unit", "units", "square", "cubic", "sq", "second", "seconds", "minute", "minutes", "hour",
    "hours", "day", "days", "dollar", "dollars", "cent", "cents", "way", "ways", "percent", "points", "kg", "mph",
];

/// The integer that a text is, if it is one: `336`, `$336^\circ$`, `1{,}234`, `336.0`, `\dfrac{672}{2}`,
/// `336\text{ cm}^2`, `m+n = 336`.
pub fn parse_integer(text: &str) -> Option<i64> {
    // Nothing that long is a number.
    if text.len() > 400 {
        return None;
    }
    let text = text.replace('−', "-").replace("{,}", ",").replace(",\\!", ",").replace("\\dfrac", "\\frac");
    let text = text.replace("\\tfrac", "\\frac").replace("\\cfrac", "\\frac");
    // Texts are units and remarks, unless all that there is stands in one.
    [false, true].into_iter().find_map(|keep| {
        let plain = SILENT.iter().fold(faces(&text, keep), |text, silent| text.replace(silent, " "));
        value(unwrapped(&plain))
    })
}

/// The text with the arguments of `\text` and its like, or without them and their exponents.
fn faces(text: &str, keep: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let face = FACES
            .iter()
            .filter_map(|face| rest.strip_prefix(face)?.trim_start().strip_prefix('{'))
            .min_by_key(|rest| rest.len());
        let Some((inner, end)) = face.and_then(|inner| Some((inner, closing(inner)?))) else {
            // The sign after a backslash belongs to it.
            let taken = rest.char_indices().nth(2).map_or(rest.len(), |(at, _)| at);
            out.push_str(&rest[..taken]);
            rest = &rest[taken..];
            continue;
        };
        rest = &inner[end + 1..];
        out.push(' ');
        if keep {
            out.push_str(&inner[..end]);
        } else {
            rest = without_exponent(rest);
        }
    }
    out.push_str(rest);
    out
}

/// `^2` and `^{2}` after a unit belong to it.
fn without_exponent(text: &str) -> &str {
    let Some(power) = text.trim_start().strip_prefix('^') else { return text };
    match power.strip_prefix('{') {
        Some(inner) => closing(inner).map_or(text, |end| &inner[end + 1..]),
        None => power.trim_start_matches(|c: char| c.is_ascii_digit()),
    }
}

/// Without the signs that surround all of it.
fn unwrapped(text: &str) -> &str {
    let mut text = text.trim();
    loop {
        let before = text;
        text = text.trim_end_matches(['.', ',', ';', ':', '!']).trim_matches(['*', '_', '`', '"']).trim();
        for (open, close) in [('(', ')'), ('[', ']'), ('{', '}')] {
            let inner = text.strip_prefix(open).and_then(|text| text.strip_suffix(close));
            text = inner.filter(|inner| !inner.contains([open, close])).unwrap_or(text).trim();
        }
        if text == before {
            return text;
        }
    }
}

fn value(text: &str) -> Option<i64> {
    if let Some((name, value)) = text.rsplit_once('=') {
        // Two numbers that are said to be equal, or a name and its number.
        return if name.trim().is_empty() { None } else { self::value(unwrapped(value)) };
    }
    let (sign, rest) = signed(text);
    let (number, rest) = match rest.strip_prefix("\\frac") {
        Some(rest) => {
            let (top, rest) = argument(rest)?;
            let (bottom, rest) = argument(rest)?;
            (quotient(value(unwrapped(top))?, value(unwrapped(bottom))?)?, rest)
        }
        None => {
            let (top, rest) = unsigned(rest)?;
            match rest.trim_start().strip_prefix('/') {
                Some(after) => {
                    let (bottom, rest) = unsigned(after.trim_start())?;
                    (quotient(top.whole()?, bottom.whole()?)?, rest)
                }
                None => (top.whole()?, rest),
            }
        }
    };
    are_units(rest).then_some(sign * number)
}

fn signed(text: &str) -> (i64, &str) {
    match text.strip_prefix('-') {
        Some(rest) => (-1, rest.trim_start()),
        None => (1, text.strip_prefix('+').unwrap_or(text).trim_start()),
    }
}

fn quotient(top: i64, bottom: i64) -> Option<i64> {
    (bottom != 0 && top.checked_rem(bottom)? == 0).then(|| top / bottom)
}

/// An argument of `\frac`: in braces, or one sign.
fn argument(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    match text.strip_prefix('{') {
        Some(inner) => closing(inner).map(|end| (&inner[..end], &inner[end + 1..])),
        None => text.starts_with(|c: char| c.is_ascii_digit()).then(|| text.split_at(1)),
    }
}

/// Digits of a number.
struct Digits {
    whole: String,
    /// After the point.
    part: String,
}

impl Digits {
    /// The integer that it is.
    fn whole(&self) -> Option<i64> {
        if self.part.bytes().all(|digit| digit == b'0') { self.whole.parse().ok() } else { None }
    }
}

/// A number at the start of a text, without a sign; thousands are separated by commas or single spaces.
fn unsigned(text: &str) -> Option<(Digits, &str)> {
    let run = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let first = run(text);
    let (mut whole, mut rest) = text.split_at(first);
    let mut digits = whole.to_owned();
    if (1..=3).contains(&first) {
        while let Some(group) = rest.strip_prefix([',', ' ']).filter(|group| run(group) == 3) {
            (whole, rest) = group.split_at(3);
            digits.push_str(whole);
        }
    }
    let part = rest.strip_prefix('.').map_or(0, run);
    let (part, rest) = if part > 0 { (&rest[1..=part], &rest[part + 1..]) } else { ("", rest) };
    (!digits.is_empty() || !part.is_empty()).then(|| {
        let whole = if digits.is_empty() { "0".into() } else { digits };
        (Digits { whole, part: part.to_owned() }, rest)
    })
}

/// Whether what follows a number are words for what it counts.
fn are_units(text: &str) -> bool {
    let mut words = unwrapped(text).split(|c: char| c.is_whitespace() || c == '-').filter(|word| !word.is_empty());
    words.all(|word| {
        let unit = word.split('^').next().unwrap_or(word).trim_matches(['.', '(', ')']).to_ascii_lowercase();
        // A power without a unit is another number.
        UNITS.contains(&unit.as_str()) || (unit.is_empty() && !word.contains('^'))
    })
}

/// The integer at the start of a text; what comes after it does not matter, unless it makes it another number.
pub(super) fn first(text: &str) -> Option<i64> {
    if let Some(whole) = parse_integer(text) {
        return Some(whole);
    }
    let (sign, rest) = signed(text);
    let (digits, rest) = unsigned(rest)?;
    let goes_on = rest.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '/' | '^' | '*' | '+' | '\\'));
    digits.whole().filter(|_| !goes_on).map(|value| sign * value)
}

/// The last number of a text, where it is an integer.
pub(super) fn last(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let end = bytes.iter().rposition(u8::is_ascii_digit)? + 1;
    let part = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b',' | b'.' | b'/');
    let start = bytes[..end].iter().rposition(|byte| !part(byte)).map_or(0, |at| at + 1);
    let written = text[start..end].trim_start_matches([',', '.', '/']);
    let start = end - written.len();
    let negative = start > 0 && bytes[start - 1] == b'-' && (start == 1 || !bytes[start - 2].is_ascii_alphanumeric());
    // `1,2` is a list; its last number counts.
    let number = parse_integer(written).or_else(|| parse_integer(written.rsplit_once(',')?.1));
    number.map(|value| if negative { -value } else { value })
}
