//! The system to predict: latencies, routing, commits, caps.

mod closed;
mod latency;
mod reach;
mod tokens;

pub use closed::ClosedSystem;
pub use latency::Latency;
pub use tokens::TokenCost;

pub(crate) use tokens::row_tokens;

use crate::Error;
use serde::{Deserialize, Serialize};

/// Most models a chain may have.
pub const MAX_MODELS: usize = 8;
/// Most routing states a chain may have.
pub const MAX_ROUTING_STATES: usize = 16;
/// Most requests `N` in the system.
pub const MAX_CONCURRENCY: u32 = 4096;
/// Most quanta one step may take.
pub const MAX_QUANTA: u32 = 1 << 24;
/// Quantum used when none is given, in milliseconds.
pub const DEFAULT_QUANTUM_MS: f64 = 0.1;

/// A description of `M` models and how requests move between them: everything that a prediction depends on but the
/// number of requests and the launch thresholds.
///
/// This is the form in which other programs give a system, as JSON or any other format of serde; unknown keys are refused.
/// Nothing is checked here: [`System::closed`], [`predict`](crate::predict) and
/// [`ClosedSystem`] do that.
///
/// ```
/// use tokenrouter_dtmc::{Latency, System};
/// let system: System = serde_json::from_str(
///     r#"{"latencies_ms": [6.0, [27.9, 28.4]], "routing": [[0.35, 0.65], [1, 0]], "commits": [[1, 0], [1, 0]]}"#,
/// )?;
/// assert_eq!(system.latencies_ms[1], Latency::by_batch([27.9, 28.4]));
/// assert_eq!(system.closed(2)?.models(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct System {
    /// Latency of one step of every model, in milliseconds, constant or by batch size. Length `M`, 1 to [`MAX_MODELS`].
    pub latencies_ms: Vec<Latency>,
    /// Routing matrix `P`, `S x S`: probability that a request that finished a step in routing state `i` goes on to state
    /// `j`. Rows sum to 1 within 1e-9.
    pub routing: Vec<Vec<f64>>,
    /// Commit matrix `C`, `S x S`: tokens committed by such a step, 0 or more. Absent: every step commits one token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commits: Option<Vec<Vec<f64>>>,
    /// The model of every routing state, length `S`, 1 to [`MAX_ROUTING_STATES`]: for methods whose state is more than the
    /// model. Absent: one state for each model, in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_models: Option<Vec<usize>>,
    /// Length of a quantum of time, in milliseconds: latencies are rounded to multiples of it, and none may be shorter.
    /// Default: [`DEFAULT_QUANTUM_MS`].
    #[serde(default = "default_quantum_ms")]
    pub quantum_ms: f64,
    /// Largest batch of every model, 1 or more, length `M`; `None` in it: no cap. Absent: no caps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_batch: Option<Vec<Option<u32>>>,
    /// What the tokens of a step beyond one a row cost at every model, length `M`: a request that comes back brings the
    /// tokens that other models wrote. Absent: nothing, a step's time depends on its rows alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_costs: Option<Vec<TokenCost>>,
}

/// How far a measured row of `P` may be from a sum of 1.
const MEASURED_ROW_SUM: f64 = 1e-3;

const fn default_quantum_ms() -> f64 {
    DEFAULT_QUANTUM_MS
}

impl System {
    /// A system in which every step commits one token, with one routing state for each model, a quantum of
    /// [`DEFAULT_QUANTUM_MS`] and no caps; set other fields with struct update syntax.
    ///
    /// ```
    /// use tokenrouter_dtmc::System;
    /// let routing = vec![vec![0.35, 0.65], vec![1.0, 0.0]];
    /// let system = System { commits: Some(vec![vec![1.0, 0.0]; 2]), ..System::new([6.0, 27.9], routing) };
    /// assert_eq!(system.closed(8)?.concurrency(), 8);
    /// # Ok::<(), tokenrouter_dtmc::Error>(())
    /// ```
    #[must_use]
    pub fn new<L: Into<Latency>>(latencies_ms: impl IntoIterator<Item = L>, routing: Vec<Vec<f64>>) -> Self {
        Self {
            latencies_ms: latencies_ms.into_iter().map(Into::into).collect(),
            routing,
            commits: None,
            state_models: None,
            quantum_ms: DEFAULT_QUANTUM_MS,
            max_batch: None,
            token_costs: None,
        }
    }

    /// The same with rows of `P` scaled to a sum of 1, and a remark for each row that was: measured shares are rounded when
    /// they are written. Rows that are further from 1 than one in a thousand stay as they are, and [`System::closed`]
    /// refuses them.
    ///
    /// ```
    /// use tokenrouter_dtmc::System;
    /// let (system, notes) = System::new([6.0, 27.9], vec![vec![0.3501, 0.6503], vec![1.0, 0.0]]).normalised();
    /// assert!((system.routing[0].iter().sum::<f64>() - 1.0).abs() < 1e-15);
    /// assert_eq!(notes.len(), 1);
    /// ```
    #[must_use]
    pub fn normalised(mut self) -> (Self, Vec<String>) {
        let mut notes = Vec::new();
        for (index, row) in self.routing.iter_mut().enumerate() {
            let sum: f64 = row.iter().sum();
            let off = (sum - 1.0).abs();
            if off <= MEASURED_ROW_SUM && off > 1e-9 {
                row.iter_mut().for_each(|share| *share /= sum);
                notes.push(format!("P row {index}: the probabilities sum to {sum}, they were scaled to a sum of 1"));
            }
        }
        (self, notes)
    }

    /// The system with `concurrency` requests always in it: 1 to [`MAX_CONCURRENCY`].
    ///
    /// # Errors
    /// [`Error::InvalidSystem`] with the place, the value and what is allowed.
    pub fn closed(&self, concurrency: u32) -> Result<ClosedSystem, Error> {
        ClosedSystem::new(self, concurrency)
    }
}
