//! `trbench plan`: how long requests take at a rate of arrivals, what an objective needs, and whether routing pays.

mod answer;
mod args;
mod draw;
mod evaluate;
mod input;
mod map;
mod objective;
mod print;

pub use args::{BalancerArg, PlanArgs, SemanticsArg};

use crate::error::usage;
use crate::terminal::say;
use anyhow::Context;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// Runs the command: 0 with a plan, also for a load that is not stable, which is said; 1 with a plan whose objectives are not
/// met; 2 when the input is at fault.
///
/// # Errors
/// When the computation fails, or a file can't be written.
pub fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    if args.map {
        let points = map::points(args).map_err(bad_input)?;
        if let Some(path) = &args.plot {
            std::fs::write(path, draw::map(&points)?).with_context(|| format!("writing `{}`", path.display()))?;
        }
        print(&map::render(&points, args.output)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let plan = answer::plan(args).map_err(bad_input)?;
    if let Some(path) = &args.plot {
        std::fs::write(path, draw::curve(&plan)?).with_context(|| format!("writing `{}`", path.display()))?;
    }
    print(&print::render(args, &plan)?)?;
    if !plan.answer.stable {
        say(&format!(
            "warning: not stable: {:.6} requests per second arrive, {} replica(s) hold up to {:.6}; the queue grows without bound",
            plan.answer.rate_per_s, plan.replicas, plan.answer.max_rate_per_s
        ));
    }
    match &plan.slo {
        Some(slo) if !slo.met => {
            say(&format!(
                "error: the objectives are not met: {}",
                slo.advice.as_deref().unwrap_or("no load meets them")
            ));
            Ok(ExitCode::FAILURE)
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// What the model finds wrong with its input is the user's to mend.
fn bad_input(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<tokenrouter_dtmc::Error>() {
        Some(why) if why.is_bad_input() => usage(why.to_string()),
        _ => error,
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
