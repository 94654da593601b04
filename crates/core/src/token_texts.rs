//! The text of single tokens, as bytes: a token may hold part of a character.

/// Bytes of every token of a vocabulary. Special tokens that never show in decoded text have none.
#[derive(Debug, Default)]
pub struct TokenTexts {
    bytes: Vec<u8>,
    /// `ends[id]`: where the bytes of `id` end; they begin where those of `id - 1` end.
    ends: Vec<u32>,
}

impl TokenTexts {
    /// From the bytes of tokens 0, 1, 2 and so on; at most 4 GiB together.
    pub fn new<T: AsRef<[u8]>>(tokens: impl IntoIterator<Item = T>) -> Self {
        let mut all = Self::default();
        for token in tokens {
            all.bytes.extend_from_slice(token.as_ref());
            all.ends.push(u32::try_from(all.bytes.len()).unwrap_or(u32::MAX));
        }
        all
    }

    /// Bytes of a token; none for ids outside the vocabulary.
    pub fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..*end as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_by_id() {
        let texts = TokenTexts::new(["a", "", ".\n\n"]);
        assert_eq!([0, 1, 2, 3].map(|id| texts.get(id)), [&b"a"[..], b"", b".\n\n", b""]);
    }
}
