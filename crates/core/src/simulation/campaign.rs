//! Many scenarios, and the smallest part of a failing one that still fails.

use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use rayon::prelude::*;

#[cfg(any(test, feature = "mutations"))]
use super::Mutation;
use super::{Fault, Scenario};
use crate::request::FinishReason;

/// More events than any scenario needs.
const MAX_EVENTS: u64 = 2_000_000;
/// Lines of a trace that a failure shows.
const TRACE_LINES: usize = 80;
/// Failing seeds that are remembered.
const MAX_FAILURES: usize = 8;

/// Which scenarios.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// Only these requests of the scenario; all when absent.
    pub requests: Option<Vec<u64>>,
    /// A mistake on purpose.
    #[cfg(any(test, feature = "mutations"))]
    pub mutation: Option<Mutation>,
}

impl Options {
    /// Everything that can go wrong.
    pub fn all_faults() -> Self {
        Self { faults: Fault::ALL.iter().map(|(_, fault)| *fault).collect(), ..Self::default() }
    }
}

/// What happened in scenarios that kept all promises. Sums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Scenarios.
    pub seeds: u64,
    /// Events.
    pub events: u64,
    /// Requests that ended as the one-request loop does.
    pub completed: u64,
    /// Requests that were cancelled.
    pub cancelled: u64,
    /// Requests that a loss ended, with an error.
    pub failed: u64,
    /// Tokens that clients got.
    pub tokens: u64,
    /// Messages that links sent again.
    pub repeated: u64,
    /// Messages that links received again.
    pub duplicates: u64,
    /// Messages that overtook others.
    pub early: u64,
    /// Losses of peers that links noticed.
    pub losses: u64,
}

impl Summary {
    fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.events += other.events;
        self.completed += other.completed;
        self.cancelled += other.cancelled;
        self.failed += other.failed;
        self.tokens += other.tokens;
        self.repeated += other.repeated;
        self.duplicates += other.duplicates;
        self.early += other.early;
        self.losses += other.losses;
    }
}

/// A scenario that broke a promise, as small as it could be made.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// Its seed.
    pub seed: u64,
    /// What was broken.
    pub message: String,
    /// The kinds of faults that it takes.
    pub faults: Vec<Fault>,
    /// The requests that it takes.
    pub requests: Vec<u64>,
    /// The last events.
    pub trace: Vec<String>,
}

impl Failure {
    /// The command that shows it again.
    pub fn replay(&self) -> String {
        let faults: Vec<_> = self.faults.iter().map(|fault| fault.name()).collect();
        let faults = if faults.is_empty() { "none".into() } else { faults.join(",") };
        let requests: Vec<_> = self.requests.iter().map(u64::to_string).collect();
        format!("trbench simulate --seed {} --seeds 1 --faults {faults} --requests {}", self.seed, requests.join(","))
    }
}

/// Runs the scenario of one seed; the error says which promise was broken.
pub fn run_seed(seed: u64, options: &Options) -> Result<Summary, String> {
    run(seed, options, None)
}

/// Runs the scenarios of many seeds on all cores. `progress` hears of every one. Failing seeds come in order.
pub fn run_many(seeds: Range<u64>, options: &Options, progress: &(dyn Fn() + Sync)) -> (Summary, Vec<(u64, String)>) {
    let none = || (Summary::default(), Vec::new());
    let join = |(mut sum, mut failures): (Summary, Vec<_>), (more, others): (Summary, Vec<(u64, String)>)| {
        sum.add(&more);
        failures.extend(others);
        failures.sort_unstable();
        failures.truncate(MAX_FAILURES);
        (sum, failures)
    };
    seeds
        .into_par_iter()
        .map(|seed| {
            let result = run_seed(seed, options);
            progress();
            match result {
                Ok(summary) => (summary, Vec::new()),
                Err(message) => (Summary { seeds: 1, ..Summary::default() }, vec![(seed, message)]),
            }
        })
        .reduce(none, join)
}

/// Makes a failing scenario smaller while it fails: fewer kinds of faults, then fewer requests.
pub fn shrink(seed: u64, options: &Options) -> Option<Failure> {
    let mut message = run_seed(seed, options).err()?;
    let mut smallest = options.clone();
    let mut requests = smallest.requests.take().unwrap_or_else(|| Scenario::from_seed(seed, &[]).requests());
    smallest.requests = Some(requests.clone());
    for fault in options.faults.clone() {
        let mut less = smallest.clone();
        less.faults.retain(|other| *other != fault);
        if let Err(why) = run_seed(seed, &less) {
            (smallest, message) = (less, why);
        }
    }
    let mut size = requests.len().div_ceil(2);
    while size > 0 {
        let mut start = 0;
        while start < requests.len() {
            let end = (start + size).min(requests.len());
            let rest: Vec<u64> = requests[..start].iter().chain(&requests[end..]).copied().collect();
            let less = Options { requests: Some(rest.clone()), ..smallest.clone() };
            match run_seed(seed, &less) {
                Err(why) => (requests, smallest, message) = (rest, less, why),
                Ok(_) => start = end,
            }
        }
        size /= 2;
    }
    let mut trace = Vec::new();
    let _fails_again = run(seed, &smallest, Some(&mut trace));
    trace.drain(..trace.len().saturating_sub(TRACE_LINES));
    Some(Failure { seed, message, faults: smallest.faults, requests, trace })
}

fn run(seed: u64, options: &Options, trace: Option<&mut Vec<String>>) -> Result<Summary, String> {
    let mut scenario = Scenario::from_seed(seed, &options.faults);
    if let Some(requests) = &options.requests {
        scenario.keep(requests);
    }
    let mut simulator = scenario.simulator();
    #[cfg(any(test, feature = "mutations"))]
    if let Some(mutation) = options.mutation {
        simulator.mutate(mutation);
    }
    if trace.is_some() {
        simulator.keep_trace();
    }
    // Broken promises are panics, of the simulator or of the code that it drives.
    let result = quietly(|| catch_unwind(AssertUnwindSafe(|| simulator.run(MAX_EVENTS))));
    if let Some(trace) = trace {
        *trace = simulator.take_trace();
    }
    let events = result.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_else(|| "a panic".into())
    })?;
    let [repeated, duplicates, early, losses] = simulator.link_counters();
    let mut summary = Summary { seeds: 1, events, repeated, duplicates, early, losses, ..Summary::default() };
    for outcome in simulator.outcomes().values() {
        summary.tokens += outcome.tokens.len() as u64;
        match outcome.finish {
            Some((_, FinishReason::Cancelled, _)) => summary.cancelled += 1,
            Some((_, FinishReason::Lost(_) | FinishReason::Error(_), _)) => summary.failed += 1,
            _ => summary.completed += 1,
        }
    }
    Ok(summary)
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Keeps panics of this thread off the terminal: here they are results.
fn quietly<T>(body: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                previous(info);
            }
        }));
    });
    QUIET.set(true);
    let result = body();
    QUIET.set(false);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_systems_keep_their_promises_under_faults() {
        let (summary, failures) = run_many(0..300, &Options::all_faults(), &|| ());
        let shown = failures.first().and_then(|(seed, _)| shrink(*seed, &Options::all_faults()));
        let text =
            shown.map(|failure| format!("{}\n{}\n{}", failure.message, failure.trace.join("\n"), failure.replay()));
        assert!(failures.is_empty(), "{} seeds or more fail: {}", failures.len(), text.unwrap_or_default());
        // The faults did happen.
        let seen = [summary.completed, summary.cancelled, summary.failed, summary.repeated, summary.duplicates];
        assert!(seen.into_iter().chain([summary.early, summary.losses]).all(|count| count > 100), "{summary:?}");
    }

    #[test]
    fn a_run_is_a_function_of_its_seed() {
        for seed in 0..20 {
            let options = Options::all_faults();
            assert_eq!(run_seed(seed, &options), run_seed(seed, &options), "seed {seed}");
        }
    }

    #[test]
    fn without_faults_every_request_completes() {
        let (summary, failures) = run_many(0..100, &Options::default(), &|| ());
        assert_eq!((failures, summary.failed, summary.cancelled), (Vec::new(), 0, 0));
    }

    #[test]
    fn every_mutation_is_noticed() {
        for (name, mutation) in Mutation::ALL {
            let options = Options { mutation: Some(mutation), ..Options::all_faults() };
            let failing = (0..400).find(|seed| run_seed(*seed, &options).is_err());
            let seed = failing.unwrap_or_else(|| panic!("nobody notices `{name}`"));
            assert_eq!(run_seed(seed, &Options::all_faults()).err(), None, "seed {seed} fails without a mutation");
            let failure = shrink(seed, &options).expect("it fails");
            assert!(failure.requests.len() <= 8 && !failure.trace.is_empty(), "{name}: {failure:?}");
        }
    }
}
