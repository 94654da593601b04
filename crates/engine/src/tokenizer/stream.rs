//! Incremental decoding: a piece of text is given out only when its bytes are complete, and when it cannot be the beginning
//! of a stop text.
//!
//! What is decoded continues a prompt. Decoders made for SentencePiece (Llama 2) take the first space off a text, which
//! here is a space between two words: a token before the first one keeps it.

use super::{TextCodec, TextError};

/// Turns a growing token sequence into text pieces that never split a character. Text ends before the first stop text.
#[derive(Debug)]
pub struct StreamDecoder {
    codec: TextCodec,
    ids: Vec<u32>,
    /// Tokens before this one are needed as context only.
    context: usize,
    /// Tokens before this one have been decoded.
    decoded: usize,
    stop: Stop,
}

impl StreamDecoder {
    pub(super) fn new(codec: TextCodec, stop: &[String]) -> Self {
        let stop = Stop { texts: stop.to_vec(), ..Stop::default() };
        let ids: Vec<u32> = word(&codec).into_iter().collect();
        Self { codec, context: 0, decoded: ids.len(), ids, stop }
    }

    /// Takes a token; returns the text that became certain (possibly empty).
    pub fn push(&mut self, id: u32) -> Result<String, TextError> {
        self.ids.push(id);
        let piece = self.advance(false)?;
        Ok(self.stop.push(piece))
    }

    /// The rest, with U+FFFD for bytes that never became a character.
    pub fn finish(&mut self) -> Result<String, TextError> {
        let piece = self.advance(true)?;
        let mut text = self.stop.push(piece);
        text.push_str(&std::mem::take(&mut self.stop.held));
        Ok(text)
    }

    fn advance(&mut self, last: bool) -> Result<String, TextError> {
        let before = self.codec.decode(&self.ids[self.context..self.decoded])?;
        let now = self.codec.decode(&self.ids[self.context..])?;
        if !last && now.ends_with('\u{fffd}') {
            return Ok(String::new());
        }
        let Some(piece) = now.strip_prefix(before.as_str()) else { return Ok(String::new()) };
        // Old context can go: byte-level decoding of a token depends on no more than an unfinished character before it.
        self.context = self.decoded;
        self.decoded = self.ids.len();
        Ok(piece.to_owned())
    }
}

/// A token that stands for a plain letter wherever it is.
fn word(codec: &TextCodec) -> Option<u32> {
    let is_letter = |text: String| text.trim().chars().eq(['a']);
    let ids = ["a", "\u{2581}a", "\u{120}a"].into_iter().filter_map(|name| codec.tokenizer.token_to_id(name));
    ids.into_iter().find(|id| codec.decode(&[*id]).is_ok_and(is_letter))
}

/// Ends a text before the first stop text.
#[derive(Debug, Default)]
struct Stop {
    texts: Vec<String>,
    /// Text that may be the beginning of a stop text.
    held: String,
    found: bool,
}

impl Stop {
    fn push(&mut self, piece: String) -> String {
        if self.found || self.texts.is_empty() {
            return if self.found { String::new() } else { piece };
        }
        self.held.push_str(&piece);
        if let Some(at) = self.texts.iter().filter_map(|stop| self.held.find(stop)).min() {
            self.found = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let held = (0..self.held.len())
            .filter(|at| self.held.is_char_boundary(*at))
            .find(|at| self.texts.iter().any(|stop| stop.starts_with(&self.held[*at..])));
        let rest = self.held.split_off(held.unwrap_or(self.held.len()));
        std::mem::replace(&mut self.held, rest)
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::{Value, json};
    use tokenizers::Tokenizer;

    use super::*;

    /// The decoders of the families, over a vocabulary that spells spaces as they do.
    fn codec(space: &str, decoder: &Value) -> TextCodec {
        let names = ["a", "b", "?", "<0xF0>", "<0x9F>", "<0xA6>", "<0x80>"].map(str::to_owned);
        let spaced = ["world", "a"].map(|word| format!("{space}{word}"));
        let names = names.into_iter().chain(spaced);
        let vocab: serde_json::Map<String, Value> = names.zip(0u32..).map(|(name, id)| (name, id.into())).collect();
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": null, "post_processor": null, "decoder": decoder,
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "?"},
        });
        let tokenizer = Tokenizer::from_str(&file.to_string()).expect("a tokenizer");
        TextCodec {
            tokenizer: Arc::new(tokenizer),
            template: None,
            add_bos: None,
            controls: Arc::default(),
            longest: Arc::default(),
        }
    }

    #[test]
    fn a_continuation_keeps_its_first_space() {
        let llama = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]});
        let metaspace =
            json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true});
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        for (space, decoder) in [("\u{2581}", &llama), ("\u{2581}", &metaspace), ("\u{120}", &bytes)] {
            let codec = codec(space, decoder);
            let text = |names: &[&str], stop: &[String]| {
                let mut stream = codec.stream(stop);
                let id = |name: &str| codec.tokenizer.token_to_id(&name.replace(' ', space)).expect("a token");
                let mut pieces: Vec<String> =
                    names.iter().map(|name| stream.push(id(name)).expect("decodes")).collect();
                pieces.push(stream.finish().expect("decodes"));
                pieces
            };
            assert_eq!(text(&[" world", " world"], &[]), [" world", " world", ""], "{decoder}");
            assert_eq!(text(&["a", " a", "b"], &[]), ["a", " a", "b", ""], "{decoder}");
            assert_eq!(text(&[" a"], &[]), [" a", ""], "{decoder}");
            // The stop text begins with the space.
            assert_eq!(text(&[" world", "a"], &[" world".into()]), ["", "", ""], "{decoder}");
        }
        let codec = codec("\u{2581}", &llama);
        let mut stream = codec.stream(&[]);
        let pieces: Vec<String> = (3..7).map(|id| stream.push(id).expect("decodes")).collect();
        assert_eq!(pieces, ["", "", "", "\u{1f980}"]);
    }

    proptest! {
        /// In whatever pieces a text comes, what is given out is the text before the first stop, and nothing that is
        /// given out has to be taken back.
        #[test]
        fn text_ends_before_the_first_stop(pieces in prop::collection::vec("[abé]{0,3}", 0..8), stops in
            prop::collection::vec("[abé]{1,3}", 0..3)) {
            let mut stop = Stop { texts: stops.clone(), ..Stop::default() };
            let mut out: String = pieces.iter().map(|piece| stop.push(piece.clone())).collect();
            out.push_str(&stop.held);
            let whole = pieces.concat();
            // The first end of a stop decides, as it does in the engine; of those ending there, the earliest begin.
            let end = (1..=whole.len()).filter(|end| whole.is_char_boundary(*end)).find(|end| {
                stops.iter().any(|s| whole[..*end].ends_with(s.as_str()))
            });
            match end {
                None => prop_assert_eq!(out, whole),
                Some(end) => {
                    prop_assert!(whole.starts_with(&out) && out.len() < end);
                    prop_assert!(stops.iter().any(|s| whole[out.len()..].starts_with(s.as_str())));
                }
            }
        }
    }
}
