//! `trbench optimize`: the throughput model on the command line.

mod args;
mod config;
mod explain;
mod files;
pub(crate) mod input;
mod machine;
mod plot;
mod sensitivity;
mod table;
mod tasks;

pub use args::{ExportArg, MethodArg, ModelArgs, OptimizeArgs, OutputArg, StrategyArg};

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// Exit code for input that can't be used.
const BAD_INPUT: u8 = 2;

/// Runs the command: 0 when it answered, 2 with a message when the input was at fault; other failures are errors.
///
/// # Errors
/// When the computation fails, for example when a method does not converge, or a file can't be written.
pub fn run(args: OptimizeArgs) -> anyhow::Result<ExitCode> {
    let inputs = match input::read(&args) {
        Ok(inputs) => inputs,
        Err(error) => return Ok(refuse(&error)),
    };
    let answers = match tasks::run(&args, inputs) {
        Ok(answers) => answers,
        Err(error) if is_bad_input(&error) => return Ok(refuse(&error)),
        Err(error) => return Err(error),
    };
    files::write(&args, &answers)?;
    if let Some(note) = answers.sensitivity.as_ref().and_then(sensitivity::Sensitivity::note) {
        crate::terminal::say(&format!("note: {note}"));
    }
    let text = match args.output {
        OutputArg::Table => table::render(&args, &answers),
        OutputArg::Json => machine::json(&answers)?,
        OutputArg::Csv => machine::csv(&answers)?,
    };
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn is_bad_input(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<tokenrouter_dtmc::Error>().is_some_and(tokenrouter_dtmc::Error::is_bad_input)
            || cause.is::<tasks::BadRequest>()
    })
}

fn refuse(error: &anyhow::Error) -> ExitCode {
    // Nothing sensible is left to do when standard error is closed.
    let _closed = writeln!(io::stderr(), "error: {error:#}");
    ExitCode::from(BAD_INPUT)
}
