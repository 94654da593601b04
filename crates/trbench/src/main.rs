//! The `trbench` binary: parses, runs, reports; everything else is in the library.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    trbench::cli::main(trbench::cli::Cli::parse())
}
