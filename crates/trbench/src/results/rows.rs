//! `result.csv`: rows are appended as requests end, so that whatever ends the process costs one line at most, and a line
//! that was cut is not read.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::error::usage;
use crate::record::Record;
use crate::terminal::say;

/// A file that grows by whole lines. An error is kept for the end: the requests in flight have no use for it.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    file: RefCell<File>,
    error: RefCell<Option<std::io::Error>>,
}

impl Log {
    /// Opens a file to append to it, and makes it where it is not there.
    pub(crate) fn open(path: PathBuf) -> anyhow::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let file = file.with_context(|| format!("cannot write `{}`", path.display()))?;
        Ok(Self { path, file: RefCell::new(file), error: RefCell::default() })
    }

    /// Appends a line, its end included, in one write.
    pub(crate) fn append(&self, line: &[u8]) {
        if self.failed() {
            return;
        }
        if let Err(error) = self.file.borrow_mut().write_all(line) {
            self.error.replace(Some(error));
        }
    }

    /// Whether a line could not be written; none is after it.
    pub(crate) fn failed(&self) -> bool {
        self.error.borrow().is_some()
    }

    /// The first error.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        let error = self.error.into_inner();
        error.map_or(Ok(()), |error| Err(error).with_context(|| format!("cannot write `{}`", self.path.display())))
    }
}

/// Rows as CSV, with the header or without.
pub(crate) fn csv_of<'a>(records: impl Iterator<Item = &'a Record>, header: bool) -> anyhow::Result<Vec<u8>> {
    let mut csv = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    if header {
        csv.write_record(columns())?;
    }
    for record in records {
        csv.serialize(record)?;
    }
    csv.into_inner().context("cannot format result.csv")
}

/// Names of the columns, in order.
fn columns() -> Vec<String> {
    // Every field of a row is a column.
    let row = serde_json::to_value(Record::default()).unwrap_or_default();
    row.as_object().map(|row| row.keys().cloned().collect()).unwrap_or_default()
}

/// Reads the rows of a `result.csv`. A last line without its end was cut off while it was written: it is left out, and
/// that is said.
pub fn read_records(path: &Path) -> anyhow::Result<Vec<Record>> {
    let bytes = std::fs::read(path).map_err(|error| usage(format!("cannot read `{}`: {error}", path.display())))?;
    let whole = whole_lines(&bytes);
    if whole.len() < bytes.len() {
        say(&format!("note: `{}`: its last line was cut off and is left out", path.display()));
    }
    parse(whole).map_err(|what| usage(format!("`{}`: {what}", path.display())))
}

/// The lines that have their ends. A line of CSV may hold line breaks, in quotes; a quote is written twice within them.
pub(crate) fn whole_lines(bytes: &[u8]) -> &[u8] {
    let (mut quoted, mut end) = (false, 0);
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'"' => quoted = !quoted,
            b'\n' if !quoted => end = at + 1,
            _ => {}
        }
    }
    &bytes[..end]
}

fn parse(csv: &[u8]) -> Result<Vec<Record>, String> {
    let mut reader = csv::Reader::from_reader(csv);
    let headers = reader.headers().map_err(|error| error.to_string())?.clone();
    if headers.is_empty() {
        return Err("it has no header".into());
    }
    let rows = reader.deserialize().map(|row| row.map_err(|error| explain(&error, &headers)));
    rows.collect()
}

/// What is wrong with a row: its line, and the name of the column.
fn explain(error: &csv::Error, headers: &csv::StringRecord) -> String {
    let csv::ErrorKind::Deserialize { pos, err } = error.kind() else { return error.to_string() };
    let line = pos.as_ref().map(|pos| format!("line: {}, ", pos.line())).unwrap_or_default();
    let column = err.field().and_then(|field| headers.get(usize::try_from(field).ok()?));
    let column = column.map(|name| format!("column `{name}`: ")).unwrap_or_default();
    format!("{line}{column}{}", err.kind())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: u64, error: Option<&str>) -> Record {
        Record {
            id,
            item: "a".into(),
            error: error.map(str::to_owned),
            finish_reason: "stop".into(),
            ..Record::default()
        }
    }

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), bytes).expect("writable");
        file
    }

    #[test]
    fn a_file_cut_anywhere_gives_the_rows_that_are_whole() {
        let rows = [row(0, None), row(1, Some("two\nlines, and a \"quote\"")), row(2, None)];
        let all = csv_of(rows.iter(), true).expect("formatted");
        let header = csv_of([].into_iter(), true).expect("formatted").len();
        let mut seen = std::collections::BTreeSet::new();
        for end in header..=all.len() {
            let read = parse(whole_lines(&all[..end])).expect("whole rows");
            assert_eq!(read, rows[..read.len()], "cut at {end}");
            seen.insert(read.len());
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(parse(whole_lines(&all)).expect("whole"), rows);
    }

    #[test]
    fn rows_are_those_that_were_appended() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("result.csv");
        std::fs::write(&path, csv_of([row(0, None)].iter(), true).expect("formatted")).expect("writable");
        let log = Log::open(path.clone()).expect("opened");
        log.append(&csv_of([row(1, None)].iter(), false).expect("formatted"));
        log.finish().expect("written");
        assert_eq!(read_records(&path).expect("read"), [row(0, None), row(1, None)]);
    }

    #[test]
    fn a_broken_row_is_named_with_its_line_and_its_field() {
        let text = String::from_utf8(csv_of([row(0, None)].iter(), true).expect("formatted")).expect("text");
        let bad = file(text.replacen("\n0,a,0,", "\n0,a,many,", 1).as_bytes());
        let why = read_records(bad.path()).expect_err("refused").to_string();
        assert!(why.contains("line: 2") && why.contains("column `repeat`"), "{why}");
        let short = file(format!("{text}1,a\n").as_bytes());
        let why = read_records(short.path()).expect_err("refused").to_string();
        assert!(why.contains("line: 3"), "{why}");
        let why = read_records(file(b"").path()).expect_err("refused").to_string();
        assert!(why.contains("no header"), "{why}");
    }
}
