//! Tables and numbers.

use clap::ValueEnum;
use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle, presets};

/// Most columns of a terminal that a table or a note below it takes.
pub(crate) const WIDTH: usize = 100;

/// A rule below the headings, none elsewhere.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Output formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables for people.
    Table,
    /// Everything, as JSON.
    Json,
    /// Data for other programs: plain numbers, a line for each row.
    Csv,
    /// Markdown tables.
    Md,
}

/// A number with this many digits, or a dash where there is none.
pub(crate) fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
}

/// A table for people or in Markdown: the first column to the left, the others to the right. Columns in which no row has
/// a value are left out. A table for people that is wider than [`WIDTH`] is turned over: a line for each heading, and its
/// rows side by side, as many as fit.
pub(crate) fn plain_table<const N: usize>(
    headings: &[&str; N],
    rows: impl Iterator<Item = [String; N]>,
    format: Format,
) -> String {
    let mut lines: Vec<Vec<String>> = vec![headings.iter().map(|heading| (*heading).to_owned()).collect()];
    lines.extend(rows.map(Vec::from));
    let lines = without_empty_columns(&lines);
    if format == Format::Md {
        return rendered(&lines, presets::ASCII_MARKDOWN, false);
    }
    let whole = rendered(&lines, STYLE, false);
    if width(&whole) <= WIDTH { whole } else { turned(&lines) }
}

/// Breaks a note between its words, so that no line is longer than [`WIDTH`].
pub(crate) fn wrapped(note: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in note.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

/// The first line has the headings. Without rows all columns stay.
fn without_empty_columns(lines: &[Vec<String>]) -> Vec<Vec<String>> {
    let has_value = |column: usize| lines.len() == 1 || lines[1..].iter().any(|row| row[column] != "-");
    let kept: Vec<usize> = (0..lines[0].len()).filter(|column| *column == 0 || has_value(*column)).collect();
    lines.iter().map(|line| kept.iter().map(|column| line[*column].clone()).collect()).collect()
}

/// Rows as columns, in blocks that fit.
fn turned(lines: &[Vec<String>]) -> String {
    let columns: Vec<usize> =
        lines.iter().map(|line| line.iter().map(|cell| cell.chars().count()).max().unwrap_or(0)).collect();
    let mut blocks: Vec<Vec<usize>> = Vec::new();
    let mut used = WIDTH;
    for (row, wide) in columns.iter().enumerate().skip(1) {
        // A space on either side of a cell.
        if used + wide + 2 > WIDTH {
            blocks.push(vec![0]);
            used = columns[0] + 2;
        }
        used += wide + 2;
        blocks.last_mut().expect("the first row opens a block").push(row);
    }
    let block = |rows: &Vec<usize>| {
        let part: Vec<Vec<String>> =
            (0..lines[0].len()).map(|column| rows.iter().map(|row| lines[*row][column].clone()).collect()).collect();
        rendered(&part, STYLE, true)
    };
    blocks.iter().map(block).collect::<Vec<_>>().join("\n\n")
}

fn rendered(lines: &[Vec<String>], style: TableStyle, fit: bool) -> String {
    let mut table = Table::new();
    table.load_style(style);
    table.set_header(&lines[0]).add_rows(&lines[1..]);
    if fit {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH as u16);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

fn width(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: usize) -> impl Iterator<Item = [String; 4]> {
        (0..count).map(|row| [format!("system-{row}"), format!("{}.25", row * 1000), "-".into(), format!("{row} %")])
    }

    const HEADINGS: [&str; 4] = ["system", "tokens/s", "failed", "share of the large model"];

    #[test]
    fn columns_without_a_value_and_rules_between_rows_are_left_out() {
        let table = plain_table(&HEADINGS, rows(3), Format::Table);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 5, "a heading, one rule, three rows: {table}");
        assert_eq!(lines.iter().filter(|line| line.contains('─')).count(), 1, "{table}");
        assert!(!table.contains("failed") && lines[4].contains("2000.25"), "{table}");
        let markdown = plain_table(&HEADINGS, rows(3), Format::Md);
        assert!(markdown.lines().all(|line| line.starts_with('|')) && !markdown.contains("failed"), "{markdown}");
    }

    #[test]
    fn wide_tables_are_turned_and_stacked() {
        let long = || {
            rows(7).map(|[system, rate, failed, share]| {
                [format!("{system}-{}", "x".repeat(20)), rate, failed, share.repeat(30)]
            })
        };
        let table = plain_table(&HEADINGS, long(), Format::Table);
        assert!(width(&table) <= WIDTH, "{table}");
        assert!(table.matches("tokens/s").count() > 1 && table.matches("system ").count() > 1, "blocks: {table}");
        for row in 0..7 {
            assert!(
                table.contains(&format!("{}.25", row * 1000)) && table.contains(&format!("system-{row}-")),
                "{table}"
            );
        }
        // A single cell that does not fit is broken.
        let one = [["s".repeat(300), "1".into(), "2".into(), "3".into()]];
        assert!(width(&plain_table(&HEADINGS, one.into_iter(), Format::Table)) <= WIDTH);
    }

    #[test]
    fn notes_are_broken_between_words() {
        let note = "word ".repeat(60);
        let broken = wrapped(&note);
        assert!(width(&broken) <= WIDTH && broken.split_whitespace().eq(note.split_whitespace()), "{broken}");
    }
}
