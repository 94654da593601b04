//! Lists of layers: `0-12,19-29`.

use std::ops::Range;

/// Parses a list of layers and ranges, both ends included; the result is rising and without repetition.
pub(super) fn parse(text: &str) -> Result<Vec<usize>, String> {
    let mut layers = Vec::new();
    for part in text.split(',').map(str::trim) {
        let number = |text: &str| {
            let value = text.trim().parse::<usize>().ok().filter(|value| *value < 1024);
            value.ok_or_else(|| format!("`{part}` is no layer, allowed are numbers and ranges such as `0-12,19-29`"))
        };
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last {
            return Err(format!("`{part}` runs backwards, write `{last}-{first}`"));
        }
        if layers.last().is_some_and(|before| *before >= first) {
            return Err(format!("`{part}` is not above the layers before it; layers keep their order"));
        }
        layers.extend(first..=last);
    }
    Ok(layers)
}

/// The inverse of [`parse`].
pub(super) fn format(layers: &[usize]) -> String {
    let runs = layers.chunk_by(|a, b| a + 1 == *b);
    let run = |run: &[usize]| match run {
        [only] => only.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    };
    runs.map(run).collect::<Vec<_>>().join(",")
}

/// The runs of dropped layers that a kept layer follows: the layer after such a gap is `end`.
pub(super) fn gaps(keep: &[usize]) -> Vec<Range<usize>> {
    let mut next = 0;
    let mut gaps = Vec::new();
    for layer in keep {
        if *layer > next {
            gaps.push(next..*layer);
        }
        next = layer + 1;
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written() {
        let layers = parse("0-2, 5,7-8").expect("valid");
        assert_eq!(layers, [0, 1, 2, 5, 7, 8]);
        assert_eq!(format(&layers), "0-2,5,7-8");
        assert_eq!(gaps(&layers), [3..5, 6..7]);
        assert_eq!(gaps(&[2, 3, 5]), [0..2, 4..5]);
        assert!(gaps(&[0, 1]).is_empty());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, wanted) in [
            ("", "`` is no layer"),
            ("0-x", "`0-x` is no layer"),
            ("5-2", "write `2-5`"),
            ("0-3,3", "`3` is not above"),
            ("99999", "`99999` is no layer"),
        ] {
            let message = parse(text).expect_err("wrong");
            assert!(message.contains(wanted), "{message}");
        }
    }
}
