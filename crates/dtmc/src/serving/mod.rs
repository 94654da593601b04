//! A server under load: requests arrive, read their prompts, write, and end.
//!
//! The chain says `X(n)`, tokens per second with `n` requests always there. [`Rates`] holds it with the best thresholds for
//! every `n`; [`OpenLoop`] makes of it how long requests take at a rate of arrivals, by formula; [`simulate_serving`] runs the
//! same system event by event, for percentiles and for what the formula leaves out. `docs/concepts/serving-model.md` states
//! assumptions and errors.

mod balance;
mod journey;
mod lengths;
mod linear;
mod machine;
mod open;
mod queue;
mod rates;
mod records;
mod simulation;
mod workload;

pub use balance::{Balancer, balanced};
pub use lengths::Lengths;
pub use open::OpenLoop;
pub use queue::{BirthDeath, Births};
pub use rates::{Rate, RateOptions, Rates};
pub use records::Percentiles;
pub use simulation::{Server, ServingOptions, ServingSimulation, simulate_serving};
pub use workload::{Arrivals, DEFAULT_STEP_TOKENS, Workload};
