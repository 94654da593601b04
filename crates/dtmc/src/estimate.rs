//! Size of a chain before it is built.
//!
//! The number of states has no closed form: it depends on which sums of step times can meet. But it grows smoothly as the
//! quantum shrinks (like a power of `1 / quantum`, at most `M - 1`), so chains on coarse quanta, which take milliseconds,
//! predict the fine one. Exploration is bounded as well, so a wrong estimate costs time, never the machine.

use crate::chain::{Chain, Limits, Stop, Workspace, estimate_bytes};
use crate::{Error, Model, SolveOptions, Thresholds};
use serde::Serialize;
use std::fmt;

/// States that a coarse chain may have while estimating.
const PROBE_STATES: usize = 60_000;
/// Bytes that it may take.
const PROBE_BYTES: usize = 128 << 20;

/// Estimated size of a chain.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SizeEstimate {
    /// States.
    pub states: f64,
    /// Transitions.
    pub nonzeros: f64,
    /// Bytes at the peak of building.
    pub bytes: f64,
    /// Exponent of the growth with `1 / quantum` behind the estimate; 0 when the chain was counted exactly.
    pub exponent: f64,
}

impl fmt::Display for SizeEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = if self.exponent == 0.0 { "" } else { "about " };
        write!(
            f,
            "{about}{} states and {} transitions, {}",
            significant(self.states),
            significant(self.nonzeros),
            human_bytes(self.bytes)
        )
    }
}

/// Two significant digits, with a unit of thousands where that is shorter.
fn significant(value: f64) -> String {
    match value {
        v if v < 10_000.0 => format!("{v:.0}"),
        v if v < 1e6 => format!("{:.0} thousand", v / 1e3),
        v if v < 1e9 => format!("{:.1} million", v / 1e6),
        v => format!("{v:.1e}"),
    }
}

/// Bytes as MB or GB.
pub(crate) fn human_bytes(bytes: f64) -> String {
    match bytes {
        b if b < 1e9 => format!("{:.0} MB", (b / 1e6).max(1.0)),
        b if b < 1e15 => format!("{:.1} GB", b / 1e9),
        b => format!("{b:.1e} bytes"),
    }
}

impl SizeEstimate {
    fn of(states: f64, nonzeros: f64, key_bytes: usize, exponent: f64) -> Self {
        let bytes = if states < 1e12 && nonzeros < 1e15 {
            estimate_bytes(states as usize, nonzeros as usize, key_bytes) as f64
        } else {
            states * 100.0 + nonzeros * 8.0
        };
        Self { states, nonzeros, bytes, exponent }
    }

    /// True when the chain should fit.
    #[must_use]
    pub fn fits(&self, options: &SolveOptions) -> bool {
        self.states <= options.max_states as f64 && self.bytes <= options.memory_bytes() as f64
    }

    /// The refusal of a chain of this size, with what would fit.
    pub(crate) fn refuse(self, model: &Model, thresholds: &Thresholds, options: &SolveOptions) -> Error {
        let limit = format!(
            "limits are {} states and {}",
            significant(options.max_states as f64),
            human_bytes(options.memory_bytes() as f64)
        );
        let shrink = (options.max_states as f64 / self.states).min(options.memory_bytes() as f64 / self.bytes);
        let fitting = if self.exponent > 0.05 && shrink > 0.0 {
            let quantum = model.quantum_ms() * shrink.powf(-1.0 / self.exponent);
            let shortest = (0..model.models()).map(|index| shortest_ms(model, index)).fold(f64::INFINITY, f64::min);
            (quantum <= shortest).then(|| format!("a quantum of about {} ms would fit", two_digits_up(quantum)))
        } else {
            None
        };
        let fitting = fitting.unwrap_or_else(|| "no quantum up to the shortest latency would fit".to_owned());
        Error::TooLarge {
            thresholds: thresholds.to_string(),
            estimate: self,
            advice: format!("{limit}; {fitting}; fewer requests or the simulator are the other ways"),
        }
    }
}

fn shortest_ms(model: &Model, index: usize) -> f64 {
    (1..=model.largest_batch(index)).map(|batch| f64::from(model.quanta(index, batch))).fold(f64::INFINITY, f64::min)
        * model.quantum_ms()
}

/// Rounds up to two significant digits.
fn two_digits_up(value: f64) -> f64 {
    let scale = 10_f64.powf(value.log10().floor() - 1.0);
    (value / scale).ceil() * scale
}

/// Estimate for checked thresholds; at least `found` states.
pub(crate) fn estimate_from(model: &Model, thresholds: &Thresholds, found: usize) -> SizeEstimate {
    let key_bytes = if crate::chain::Layout::new(model).map_or(128, |layout| layout.bits) <= 64 { 8 } else { 16 };
    let longest = (0..model.models()).map(|index| model.largest_quanta(index)).max().unwrap_or(1);
    let mut points: Vec<(f64, f64, f64)> = Vec::new();
    // Coarse quanta from very coarse to the model's own, each finer by a factor that keeps step counts in proportion.
    let mut divisor = f64::from(longest) / 5.0;
    while divisor > 1.0 {
        match probe(model, thresholds, divisor) {
            Probe::Size(states, nonzeros) => points.push((1.0 / divisor, states, nonzeros)),
            Probe::TooLarge(states, nonzeros) => {
                points.push((1.0 / divisor, states, nonzeros));
                break;
            }
            Probe::Impossible => (),
        }
        divisor /= 1.6;
    }
    if divisor <= 1.0
        && let Probe::Size(states, nonzeros) = probe(model, thresholds, 1.0)
        && states >= found as f64
    {
        return SizeEstimate::of(states, nonzeros, key_bytes, 0.0);
    }
    let (states, nonzeros, exponent) = extrapolate(&points, model.models());
    SizeEstimate::of(states.max(found as f64), nonzeros.max(found as f64), key_bytes, exponent)
}

enum Probe {
    Size(f64, f64),
    /// Stopped at a limit: a lower bound.
    TooLarge(f64, f64),
    Impossible,
}

fn probe(model: &Model, thresholds: &Thresholds, divisor: f64) -> Probe {
    let shortest = (0..model.models()).map(|index| shortest_ms(model, index)).fold(f64::INFINITY, f64::min);
    let quantum = model.quantum_ms() * divisor;
    if divisor > 1.0 && quantum > shortest {
        return Probe::Impossible;
    }
    let coarse = if divisor > 1.0 { model.with_quantum_ms(quantum) } else { Ok(model.clone()) };
    let limits = Limits { states: PROBE_STATES, bytes: PROBE_BYTES };
    let explored = coarse.and_then(|coarse| Ok((Workspace::new(&coarse)?, coarse)));
    match explored.map(|(mut workspace, coarse)| workspace.explore(&coarse, thresholds, 0, limits)) {
        Ok(Ok(chain)) => Probe::Size(chain.len() as f64, nonzeros(&chain)),
        Ok(Err(Stop::Limit { found, expanded, nonzeros })) => {
            let per_state = nonzeros as f64 / expanded.max(1) as f64;
            Probe::TooLarge(found as f64, found as f64 * per_state.max(1.0))
        }
        _ => Probe::Impossible,
    }
}

fn nonzeros(chain: &Chain) -> f64 {
    chain.matrix().nonzeros() as f64
}

/// Power law through the last points, exponent between 0 and `M - 1`.
fn extrapolate(points: &[(f64, f64, f64)], models: usize) -> (f64, f64, f64) {
    let Some(&(at, states, nonzeros)) = points.last() else {
        return (0.0, 0.0, models as f64 - 1.0);
    };
    let ceiling = models as f64 - 1.0;
    // The slope over the last factor of about four: one step alone is too noisy.
    let exponent = points.iter().rev().nth(3).or_else(|| points.first()).map_or(ceiling, |&(before, fewer, _)| {
        if before < at { ((states / fewer).ln() / (at / before).ln()).clamp(0.2, ceiling.max(0.2)) } else { ceiling }
    });
    let growth = (1.0 / at).powf(exponent);
    (states * growth, nonzeros * growth, exponent)
}

/// Half of what the operating system says is available, or 2 GiB when it doesn't say.
pub(crate) fn default_memory_limit() -> usize {
    let available = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
        line.split_whitespace().nth(1)?.parse::<usize>().ok()
    });
    available.map_or(2 << 30, |kib| kib * 512)
}
