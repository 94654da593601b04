//! Who asks for what: arrivals, prompts, outputs.

use super::Lengths;
use crate::Error;
use serde::Serialize;

/// Largest rate of arrivals, requests per second.
const MOST_PER_S: f64 = 1e6;
/// Most users.
const MOST_USERS: u32 = 100_000;
/// Tokens of a step, at most, unless something else is asked for: the engine's own bound.
pub const DEFAULT_STEP_TOKENS: u32 = 256;

/// Where requests come from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// Independent requests, `rate_per_s` of them per second on average.
    Poisson {
        /// Requests per second.
        rate_per_s: f64,
    },
    /// Gamma gaps with this coefficient of variation: 1 is Poisson, 0 a clock, above 1 bursts.
    Gamma {
        /// Requests per second.
        rate_per_s: f64,
        /// Standard deviation of a gap over its mean.
        cv: f64,
    },
    /// So many users, each of whom thinks for an exponential time after every answer.
    Users {
        /// How many.
        users: u32,
        /// Mean time from an answer to the next request, in milliseconds.
        think_ms: f64,
    },
}

impl Arrivals {
    /// Requests per second of an open source; `None` for users, whose rate is an outcome.
    #[must_use]
    pub const fn rate_per_s(&self) -> Option<f64> {
        match self {
            Self::Poisson { rate_per_s } | Self::Gamma { rate_per_s, .. } => Some(*rate_per_s),
            Self::Users { .. } => None,
        }
    }

    /// Coefficient of variation of the gaps; 1 for users.
    #[must_use]
    pub const fn cv(&self) -> f64 {
        match self {
            Self::Gamma { cv, .. } => *cv,
            Self::Poisson { .. } | Self::Users { .. } => 1.0,
        }
    }

    /// A part of the traffic: the rate, or the users, times `share`.
    #[must_use]
    pub fn part(&self, share: f64) -> Self {
        match *self {
            Self::Poisson { rate_per_s } => Self::Poisson { rate_per_s: rate_per_s * share },
            Self::Gamma { rate_per_s, cv } => Self::Gamma { rate_per_s: rate_per_s * share, cv },
            Self::Users { users, think_ms } => {
                Self::Users { users: (f64::from(users) * share).round().max(1.0) as u32, think_ms }
            }
        }
    }

    fn check(&self) -> Result<(), Error> {
        let rate = |rate: f64| {
            if rate > 0.0 && rate <= MOST_PER_S {
                return Ok(());
            }
            Err(Error::option("rate", format!("{rate} requests per second"), format!("above 0, at most {MOST_PER_S}")))
        };
        match *self {
            Self::Poisson { rate_per_s } => rate(rate_per_s),
            Self::Gamma { rate_per_s, cv } => {
                rate(rate_per_s)?;
                if (0.0..=20.0).contains(&cv) {
                    return Ok(());
                }
                Err(Error::option("arrivals", format!("a coefficient of variation of {cv}"), "0 to 20; 1 is Poisson"))
            }
            Self::Users { users, think_ms } => {
                if users == 0 || users > MOST_USERS {
                    return Err(Error::option("users", users.to_string(), format!("1 to {MOST_USERS}")));
                }
                if think_ms.is_finite() && think_ms >= 0.0 {
                    return Ok(());
                }
                Err(Error::option("think time", format!("{think_ms} ms"), "0 ms or above"))
            }
        }
    }
}

/// What a server is asked to do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Workload {
    /// When requests come.
    pub arrivals: Arrivals,
    /// Tokens of a prompt, 0 or more. A request's first visit to a model brings its prompt.
    pub prompt: Lengths,
    /// Tokens of an answer, 1 or more.
    pub output: Lengths,
    /// Most tokens that a step of any model takes; longer prompts come in chunks, one step each.
    pub step_tokens: u32,
}

impl Workload {
    /// Requests without prompts in independent arrivals, with geometric answers.
    #[must_use]
    pub const fn new(rate_per_s: f64, output_tokens: f64) -> Self {
        Self {
            arrivals: Arrivals::Poisson { rate_per_s },
            prompt: Lengths::Fixed(0.0),
            output: Lengths::Geometric(output_tokens),
            step_tokens: DEFAULT_STEP_TOKENS,
        }
    }

    /// Checks every number.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] with the value and what is allowed.
    pub fn check(&self) -> Result<(), Error> {
        self.arrivals.check()?;
        self.prompt.check("prompt tokens", 0.0)?;
        self.output.check("output tokens", 1.0)?;
        if self.step_tokens == 0 {
            return Err(Error::option("step tokens", "0", "1 or more"));
        }
        Ok(())
    }

    /// Steps that a prompt of the mean length takes at a model, the one that writes the first token included. Another
    /// request's token is taken to be in every step: rows with one token come first.
    pub(super) fn prompt_steps(&self, prompt_tokens: f64) -> f64 {
        (prompt_tokens / f64::from((self.step_tokens - 1).max(1))).ceil().max(1.0)
    }
}
