//! Numbers and lists as bytes. A reader never takes more than is there, and never reserves memory for more.

use std::time::Duration;

/// Bytes are not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// Something is cut off.
    #[error("it ends in the middle of {0}")]
    Short(&'static str),
    /// Something goes on after the end.
    #[error("{0} bytes follow its end")]
    Long(usize),
    /// The other end speaks another version.
    #[error("protocol version {theirs}, here it is {ours}")]
    Version {
        /// Here.
        ours: u16,
        /// There.
        theirs: u16,
    },
    /// A value that cannot be.
    #[error("{what} is {value}, allowed is {allowed}")]
    Value {
        /// The field.
        what: &'static str,
        /// What it says.
        value: u64,
        /// What it may say.
        allowed: String,
    },
}

/// An error about a field.
pub(super) fn bad(what: &'static str, value: u64, allowed: impl Into<String>) -> CodecError {
    CodecError::Value { what, value, allowed: allowed.into() }
}

/// Appends values.
pub(super) trait Put {
    fn byte(&mut self, value: u8);
    fn bytes(&mut self, value: &[u8]);

    /// Seven bits a byte, the lowest first.
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8);
    }

    fn size(&mut self, value: usize) {
        self.number(value as u64);
    }

    fn flag(&mut self, value: bool) {
        self.byte(u8::from(value));
    }

    fn float(&mut self, value: f32) {
        self.bytes(&value.to_bits().to_le_bytes());
    }

    fn double(&mut self, value: f64) {
        self.bytes(&value.to_bits().to_le_bytes());
    }

    fn blob(&mut self, value: &[u8]) {
        self.size(value.len());
        self.bytes(value);
    }

    fn tokens(&mut self, value: &[u32]) {
        self.size(value.len());
        value.iter().for_each(|token| self.number(u64::from(*token)));
    }

    fn time(&mut self, value: Duration) {
        self.number(u64::try_from(value.as_nanos()).unwrap_or(u64::MAX));
    }

    /// 0 is none.
    fn option(&mut self, value: Option<u64>) {
        self.flag(value.is_some());
        if let Some(value) = value {
            self.number(value);
        }
    }
}

impl Put for Vec<u8> {
    fn byte(&mut self, value: u8) {
        self.push(value);
    }

    fn bytes(&mut self, value: &[u8]) {
        self.extend_from_slice(value);
    }
}

/// Takes values from the front.
pub(super) struct Take<'a>(pub(super) &'a [u8]);

impl<'a> Take<'a> {
    pub(super) fn bytes(&mut self, count: usize, what: &'static str) -> Result<&'a [u8], CodecError> {
        let (head, rest) = self.0.split_at_checked(count).ok_or(CodecError::Short(what))?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], CodecError> {
        Ok(self.bytes(N, what)?.try_into().expect("as many bytes as asked for"))
    }

    pub(super) fn byte(&mut self, what: &'static str) -> Result<u8, CodecError> {
        Ok(self.bytes(1, what)?[0])
    }

    pub(super) fn short(&mut self, what: &'static str) -> Result<u16, CodecError> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }

    pub(super) fn number(&mut self, what: &'static str) -> Result<u64, CodecError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte(what)?;
            let bits = u64::from(byte & 0x7f);
            // One form per number: no bits beyond the 64th, no empty last byte.
            if (shift == 63 && bits > 1) || (shift > 0 && byte == 0) {
                return Err(bad(what, u64::from(byte), "a number in its shortest form"));
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(bad(what, value, "a number of 64 bits"))
    }

    /// A number up to `most`.
    pub(super) fn upto(&mut self, most: u64, what: &'static str) -> Result<u64, CodecError> {
        let value = self.number(what)?;
        if value > most { Err(bad(what, value, format!("0 to {most}"))) } else { Ok(value) }
    }

    pub(super) fn size(&mut self, most: usize, what: &'static str) -> Result<usize, CodecError> {
        Ok(self.upto(most as u64, what)? as usize)
    }

    /// The length of a list whose elements have a byte at least.
    pub(super) fn length(&mut self, most: usize, what: &'static str) -> Result<usize, CodecError> {
        let count = self.size(most, what)?;
        if count > self.0.len() { Err(CodecError::Short(what)) } else { Ok(count) }
    }

    pub(super) fn flag(&mut self, what: &'static str) -> Result<bool, CodecError> {
        match self.byte(what)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(bad(what, u64::from(other), "0 or 1")),
        }
    }

    pub(super) fn float(&mut self, what: &'static str) -> Result<f32, CodecError> {
        Ok(f32::from_bits(u32::from_le_bytes(self.array(what)?)))
    }

    pub(super) fn double(&mut self, what: &'static str) -> Result<f64, CodecError> {
        Ok(f64::from_bits(u64::from_le_bytes(self.array(what)?)))
    }

    pub(super) fn blob(&mut self, most: usize, what: &'static str) -> Result<Vec<u8>, CodecError> {
        let count = self.length(most, what)?;
        Ok(self.bytes(count, what)?.to_vec())
    }

    pub(super) fn text(&mut self, most: usize, what: &'static str) -> Result<String, CodecError> {
        let bytes = self.blob(most, what)?;
        String::from_utf8(bytes).map_err(|error| bad(what, error.utf8_error().valid_up_to() as u64, "UTF-8"))
    }

    /// At most `most` tokens, each below `vocab`.
    pub(super) fn tokens(&mut self, most: usize, vocab: usize, what: &'static str) -> Result<Vec<u32>, CodecError> {
        let count = self.length(most, what)?;
        (0..count).map(|_| Ok(self.upto((vocab - 1).min(u32::MAX as usize) as u64, what)? as u32)).collect()
    }

    pub(super) fn time(&mut self, what: &'static str) -> Result<Duration, CodecError> {
        Ok(Duration::from_nanos(self.number(what)?))
    }

    pub(super) fn option(&mut self, most: u64, what: &'static str) -> Result<Option<u64>, CodecError> {
        if self.flag(what)? { Ok(Some(self.upto(most, what)?)) } else { Ok(None) }
    }

    pub(super) fn end(&self) -> Result<(), CodecError> {
        if self.0.is_empty() { Ok(()) } else { Err(CodecError::Long(self.0.len())) }
    }
}
