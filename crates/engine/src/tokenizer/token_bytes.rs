//! The bytes that each token of a tokenizer stands for.

use tokenizers::{DecoderWrapper, Tokenizer};
use tokenrouter_core::token_texts::TokenTexts;

/// Bytes of every token; special tokens have none.
pub(super) fn token_texts(tokenizer: &Tokenizer) -> TokenTexts {
    let byte_level = match tokenizer.get_decoder() {
        Some(DecoderWrapper::ByteLevel(_)) => true,
        Some(DecoderWrapper::Sequence(sequence)) => {
            sequence.get_decoders().iter().any(|decoder| matches!(decoder, DecoderWrapper::ByteLevel(_)))
        }
        _ => false,
    };
    let added = tokenizer.get_added_tokens_decoder();
    let vocabulary = tokenizer.get_vocab(true);
    let size = vocabulary.values().max().map_or(0, |id| id + 1);
    let mut names: Vec<Option<&str>> = vec![None; size as usize];
    for (name, id) in &vocabulary {
        names[*id as usize] = Some(name);
    }
    TokenTexts::new((0u32..).zip(names).map(|(id, name)| match added.get(&id) {
        Some(token) if token.special => Vec::new(),
        Some(token) => token.content.as_bytes().to_vec(),
        None => plain_bytes(name.unwrap_or_default(), byte_level),
    }))
}

fn plain_bytes(name: &str, byte_level: bool) -> Vec<u8> {
    if byte_level {
        return name.chars().filter_map(byte_of).collect();
    }
    // SentencePiece: a marked space, and bytes written as `<0x0A>`.
    let byte = name.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    match byte.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
        Some(byte) => vec![byte],
        None => name.replace('\u{2581}', " ").into_bytes(),
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
}
