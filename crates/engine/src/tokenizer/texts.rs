//! The text of single tokens, as bytes: a token may hold part of a character.

use tokenizers::{DecoderWrapper, Tokenizer};

/// Bytes of every token of a vocabulary. Special tokens that never show in decoded text have none.
#[derive(Debug, Default)]
pub struct TokenTexts {
    bytes: Vec<u8>,
    /// `ends[id]`: where the bytes of `id` end; they begin where those of `id - 1` end.
    ends: Vec<u32>,
}

impl TokenTexts {
    pub(super) fn of(tokenizer: &Tokenizer) -> Self {
        let byte_level = match tokenizer.get_decoder() {
            Some(DecoderWrapper::ByteLevel(_)) => true,
            Some(DecoderWrapper::Sequence(sequence)) => {
                sequence.get_decoders().iter().any(|decoder| matches!(decoder, DecoderWrapper::ByteLevel(_)))
            }
            _ => false,
        };
        let added = tokenizer.get_added_tokens_decoder();
        let mut texts = Self::default();
        let vocabulary = tokenizer.get_vocab(true);
        let size = vocabulary.values().max().map_or(0, |id| id + 1);
        let mut names: Vec<Option<&str>> = vec![None; size as usize];
        for (name, id) in &vocabulary {
            names[*id as usize] = Some(name);
        }
        for (id, name) in (0u32..).zip(names) {
            match added.get(&id) {
                Some(token) if token.special => {}
                Some(token) => texts.bytes.extend_from_slice(token.content.as_bytes()),
                None => push_plain(&mut texts.bytes, name.unwrap_or_default(), byte_level),
            }
            texts.ends.push(u32::try_from(texts.bytes.len()).unwrap_or(u32::MAX));
        }
        texts
    }

    /// From the texts of tokens 0, 1, 2 and so on.
    pub fn from_texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut all = Self::default();
        for text in texts {
            all.bytes.extend_from_slice(text.as_bytes());
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

fn push_plain(bytes: &mut Vec<u8>, name: &str, byte_level: bool) {
    if byte_level {
        bytes.extend(name.chars().filter_map(byte_of));
        return;
    }
    // SentencePiece: a marked space, and bytes written as `<0x0A>`.
    let byte = name.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    match byte.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
        Some(byte) => bytes.push(byte),
        None => bytes.extend_from_slice(name.replace('\u{2581}', " ").as_bytes()),
    }
}

/// The byte that a character of a byte-level vocabulary stands for (GPT-2's table): printable Latin-1 characters are
/// themselves, the other 68 bytes follow from U+0100 on.
fn byte_of(character: char) -> Option<u8> {
    let printable = |byte: &u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let code = character as u32;
    if printable(&code) {
        return u8::try_from(code).ok();
    }
    let index = code.checked_sub(0x100)?;
    (0u32..=0xff).filter(|byte| !printable(byte)).nth(index as usize).and_then(|byte| u8::try_from(byte).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_table_is_a_bijection() {
        let mut seen: Vec<u8> = (0u32..0x200).filter_map(|code| byte_of(char::from_u32(code)?)).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..=255).collect::<Vec<u8>>());
        assert_eq!((byte_of('Ġ'), byte_of('Ċ'), byte_of('A')), (Some(b' '), Some(b'\n'), Some(b'A')));
    }

    #[test]
    fn texts_are_found_by_id() {
        let texts = TokenTexts::from_texts(["a", "", ".\n\n"]);
        assert_eq!([0, 1, 2, 3].map(|id| texts.get(id)), [&b"a"[..], b"", b".\n\n", b""]);
    }
}
