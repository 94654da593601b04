//! What people see while a command runs and when it has ended: progress and notes on stderr, tables on stdout.

mod progress;
mod table;

use std::io::{IsTerminal as _, Write as _};

pub(crate) use progress::{requests, spinner};
pub use table::Format;
pub(crate) use table::{number, plain_table};

/// A line for the person at the terminal; nothing when stderr is not one.
pub(crate) fn note(line: &str) {
    if std::io::stderr().is_terminal() {
        let _best_effort = writeln!(std::io::stderr(), "{line}");
    }
}

/// A line that whoever reads stderr must see, at a terminal or in a log.
pub(crate) fn say(line: &str) {
    let _best_effort = writeln!(std::io::stderr(), "{line}");
}
