//! Names in error messages: lists of what is allowed, and the nearest to what was given.

/// `a`, `b` and `c` in backticks, separated by commas.
pub fn list<S: AsRef<str>>(names: &[S]) -> String {
    names.iter().map(|name| format!("`{}`", name.as_ref())).collect::<Vec<_>>().join(", ")
}

/// `; did you mean ...` with the most similar candidate, or nothing when none is close.
pub fn nearest<'a>(given: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    candidates
        .map(|candidate| (strsim::normalized_damerau_levenshtein(given, candidate), candidate))
        .filter(|(similarity, _)| *similarity > 0.5)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| format!("; did you mean `{candidate}`?"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_suggested_only_when_it_is_close() {
        assert_eq!(nearest("tresholds", ["thresholds", "max_wait_ms"].into_iter()), "; did you mean `thresholds`?");
        assert_eq!(nearest("abc", ["thresholds"].into_iter()), "");
        assert_eq!(list(&["a", "b"]), "`a`, `b`");
    }
}
