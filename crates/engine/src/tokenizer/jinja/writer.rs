//! Text that minijinja's grammar reads.

use minijinja::machinery::Span;
use minijinja::{Error, ErrorKind};

/// Operations in operations, as far as minijinja compiles them without running out of stack.
pub(super) const DEPTH: usize = 400;

/// A template that is being written.
pub(super) struct Writer<'s> {
    pub(super) source: &'s str,
    pub(super) out: String,
    pub(super) line: u16,
    pub(super) depth: usize,
}

pub(super) fn unsupported(what: &str, span: Span) -> Error {
    Error::new(ErrorKind::SyntaxError, format!("{what} in line {}: not supported in chat templates", span.start_line))
}

impl Writer<'_> {
    pub(super) fn put(&mut self, text: &str) {
        self.out.push_str(text);
    }

    /// The start of a tag, in the line where it was.
    pub(super) fn tag(&mut self, open: &str, span: Span) {
        self.put(open);
        while self.line < span.start_line {
            self.put("\n");
            self.line += 1;
        }
    }

    pub(super) fn list<T>(
        &mut self,
        items: &[T],
        each: impl Fn(&mut Self, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for (index, item) in items.iter().enumerate() {
            self.put(if index > 0 { ", " } else { "" });
            each(self, item)?;
        }
        Ok(())
    }

    pub(super) fn text(&mut self, text: &str) {
        self.put("\"");
        for character in text.chars() {
            match character {
                '\\' => self.put("\\\\"),
                '"' => self.put("\\\""),
                '\n' => self.put("\\n"),
                '\r' => self.put("\\r"),
                other => self.out.push(other),
            }
        }
        self.put("\"");
    }
}
