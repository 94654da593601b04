//! The `trbench` binary: parses, runs, reports; everything else is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    trbench::cli::main(trbench::cli::Cli::from_command_line())
}
