//! Incremental decoding: a piece of text is given out only when its bytes are complete.

use super::{TextCodec, TextError};

/// Turns a growing token sequence into text pieces that never split a character.
#[derive(Debug)]
pub struct StreamDecoder {
    codec: TextCodec,
    ids: Vec<u32>,
    /// Tokens before this one are needed as context only.
    context: usize,
    /// Tokens before this one have been given out.
    given: usize,
}

impl StreamDecoder {
    pub(super) fn new(codec: TextCodec) -> Self {
        Self { codec, ids: Vec::new(), context: 0, given: 0 }
    }

    /// Takes a token; returns the text that became certain (possibly empty).
    pub fn push(&mut self, id: u32) -> Result<String, TextError> {
        self.ids.push(id);
        self.advance(false)
    }

    /// The rest, with U+FFFD for bytes that never became a character.
    pub fn finish(&mut self) -> Result<String, TextError> {
        self.advance(true)
    }

    fn advance(&mut self, last: bool) -> Result<String, TextError> {
        let before = self.codec.decode(&self.ids[self.context..self.given])?;
        let now = self.codec.decode(&self.ids[self.context..])?;
        if !last && now.ends_with('\u{fffd}') {
            return Ok(String::new());
        }
        let Some(piece) = now.strip_prefix(before.as_str()) else { return Ok(String::new()) };
        // Old context can go: byte-level decoding of a token depends on no more than an unfinished character before it.
        self.context = self.given;
        self.given = self.ids.len();
        Ok(piece.to_owned())
    }
}
