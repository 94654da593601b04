//! What people see while a command runs and when it has ended: progress and notes on stderr, tables on stdout.

mod progress;
mod table;

use std::io::{IsTerminal as _, Write as _};

pub(crate) use progress::{Requests, Spinner, counted, requests, spinner};
pub use table::Format;
pub(crate) use table::{number, plain_table, wrapped};

/// Whether colours are wanted on a stream: not where `NO_COLOR` is set (to anything but nothing), nor elsewhere than on a
/// terminal.
pub(crate) fn colors(stream: &impl std::io::IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A line on stderr that must not be missed, terminal or not.
pub(crate) fn say(line: &str) {
    let _best_effort = writeln!(std::io::stderr(), "{line}");
}

/// A line for the person at the terminal; nothing when stderr is not one.
pub(crate) fn note(line: &str) {
    if std::io::stderr().is_terminal() {
        let _best_effort = writeln!(std::io::stderr(), "{line}");
    }
}
