//! From flags to a system and a workload.

use super::args::PlanArgs;
use crate::error::usage;
use crate::optimize::input;
use tokenrouter_dtmc::serving::{Arrivals, Lengths, Workload};
use tokenrouter_dtmc::{System, TokenCost, Uncertainty};

/// Largest number of active requests that is planned with when nothing is said.
pub(super) const MOST: u32 = 16;

/// What was asked for, checked as far as it can be before anything is computed.
pub(super) struct Inputs {
    pub(super) system: System,
    pub(super) workload: Workload,
    pub(super) notes: Vec<String>,
}

pub(super) fn read(args: &PlanArgs) -> anyhow::Result<Inputs> {
    let (system, notes) = input::system(&args.model).map_err(|why| usage(format!("{why:#}")))?;
    let system = System { token_costs: token_costs(args, system.latencies_ms.len())?, ..system };
    // Names what is wrong with the system before anything else is said.
    system.closed(1).map_err(|why| usage(why.to_string()))?;
    let arrivals = match (args.rate, args.users, args.think) {
        (Some(rate_per_s), None, _) if args.arrival_cv == 1.0 => Arrivals::Poisson { rate_per_s },
        (Some(rate_per_s), None, _) => Arrivals::Gamma { rate_per_s, cv: args.arrival_cv },
        (None, Some(users), Some(think_ms)) => Arrivals::Users { users, think_ms },
        _ => {
            return Err(usage(
                "no load: give the requests that arrive, for example `--rate 4/s`, or `--users 200 --think 10s`",
            ));
        }
    };
    let output = match &args.output_histogram {
        Some(text) => histogram(text)?,
        None => Lengths::with_cv(args.output_tokens, args.output_cv),
    };
    // A law of prompts with a variation has at least one token in it.
    let prompt = match args.prompt_tokens {
        tokens if tokens < 1.0 => Lengths::Fixed(tokens),
        tokens => Lengths::with_cv(tokens, args.prompt_cv),
    };
    let workload = Workload { arrivals, prompt, output, step_tokens: args.step_tokens };
    workload.check().map_err(|why| usage(why.to_string()))?;
    if !(args.confidence > 0.0 && args.confidence < 1.0) {
        return Err(usage(format!("`--confidence` is {}; allowed: above 0 and below 1", args.confidence)));
    }
    Ok(Inputs { system, workload, notes })
}

fn histogram(text: &str) -> anyhow::Result<Lengths> {
    let text = input::text_of("--output-histogram", text).map_err(|why| usage(format!("{why:#}")))?;
    let rows: Vec<(u32, f64)> = serde_json::from_str(&text).map_err(|why| {
        usage(format!("`--output-histogram` is not a list of `[tokens, weight]` like `[[100, 3], [400, 1]]`: {why}"))
    })?;
    Ok(Lengths::Histogram(rows))
}

fn token_costs(args: &PlanArgs, models: usize) -> anyhow::Result<Option<Vec<TokenCost>>> {
    let one_each = |flag: &str, given: usize| {
        if given == 0 || given == models {
            return Ok(());
        }
        Err(usage(format!("`{flag}` has {given} values; allowed: one for each of the {models} models")))
    };
    one_each("--prefill-latencies", args.prefill_latencies.len())?;
    one_each("--free-tokens", args.free_tokens.len())?;
    if let Some(bad) = args.prefill_latencies.iter().find(|&&ms| !(0.0..=1e6).contains(&ms)) {
        return Err(usage(format!("`--prefill-latencies` has {bad}; allowed: 0 to 1000000 milliseconds a token")));
    }
    if args.prefill_latencies.iter().all(|&ms| ms == 0.0) {
        return Ok(None);
    }
    let free = |model: usize| args.free_tokens.get(model).copied().unwrap_or(0);
    let cost = |(model, &ms_per_token)| TokenCost { ms_per_token, free_tokens: free(model) };
    Ok(Some(args.prefill_latencies.iter().enumerate().map(cost).collect()))
}

/// What is known of the measurements, where something was said of it.
pub(super) fn uncertainty(args: &PlanArgs, system: &System) -> Option<Uncertainty> {
    let known = (args.latency_error.as_slice(), args.routing_samples.as_slice());
    let sizes = (system.latencies_ms.len(), system.routing.len());
    input::uncertainty(known, sizes, (args.draws, args.seed, args.confidence))
}
