//! Tables and numbers.

use clap::ValueEnum;
use comfy_table::{CellAlignment, Table, presets};

/// Output formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables for people.
    Table,
    /// Everything, as JSON.
    Json,
    /// One line per system.
    Csv,
    /// Markdown tables.
    Md,
}

/// A number with this many digits, or a dash where there is none.
pub(crate) fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
}

/// A table for people or in Markdown: the first column to the left, the others to the right.
pub(crate) fn plain_table<const N: usize>(
    headings: &[&str; N],
    rows: impl Iterator<Item = [String; N]>,
    format: Format,
) -> Table {
    let mut table = Table::new();
    table.load_style(if format == Format::Md { presets::ASCII_MARKDOWN } else { presets::UTF8_HORIZONTAL_ONLY });
    table.set_header(headings);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
