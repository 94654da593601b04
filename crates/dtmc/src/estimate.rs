//! Size of a chain before it is built.
//!
//! The number of states has no closed form: it depends on which sums of step times can meet. But it follows the number of
//! relative phases of the models' clocks: with steps of `l_1 .. l_M` quanta and their greatest common divisor taken out,
//! that is the sum of the products of all but one (`l_1 + l_2` for two models). Chains on coarse quanta, which take
//! milliseconds, give the factor and the power with which states follow it. Exploration is bounded as well, so a wrong
//! estimate costs time, never the machine.

use crate::chain::{ChainLimits, Stop, Workspace, compositions, estimate_bytes};
use crate::{ClosedSystem, Error, SolveOptions, Thresholds};
use serde::Serialize;
use std::fmt;

/// States that a coarse chain may have while estimating.
const PROBE_STATES: usize = 60_000;
/// Bytes that it may take.
const PROBE_BYTES: usize = 64 << 20;

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
    pub(crate) fn refuse(self, system: &ClosedSystem, thresholds: &Thresholds, options: &SolveOptions) -> Error {
        let limit = format!(
            "limits are {} states and {}",
            significant(options.max_states as f64),
            human_bytes(options.memory_bytes() as f64)
        );
        let shrink = (options.max_states as f64 / self.states).min(options.memory_bytes() as f64 / self.bytes);
        let fitting = if self.exponent > 0.05 && shrink > 0.0 {
            let quantum = system.quantum_ms() * shrink.powf(-1.0 / self.exponent);
            let shortest = (0..system.models()).map(|index| shortest_ms(system, index)).fold(f64::INFINITY, f64::min);
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

fn shortest_ms(system: &ClosedSystem, index: usize) -> f64 {
    (1..=system.largest_batch(index)).map(|batch| f64::from(system.quanta(index, batch))).fold(f64::INFINITY, f64::min)
        * system.quantum_ms()
}

/// Rounds up to two significant digits.
fn two_digits_up(value: f64) -> String {
    let exponent = value.log10().floor() as i32 - 1;
    let scale = 10_f64.powi(exponent);
    format!("{:.*}", usize::try_from(-exponent).unwrap_or(0), (value / scale).ceil() * scale)
}

/// Estimate for checked thresholds; at least `found` states.
pub(crate) fn estimate_from(system: &ClosedSystem, thresholds: &Thresholds, found: usize) -> SizeEstimate {
    let key_bytes = if crate::chain::Layout::new(system).map_or(128, |layout| layout.bits) <= 64 { 8 } else { 16 };
    let size = by_quantum(system, thresholds).or_else(|| by_requests(system, thresholds));
    let Some(Size { states, nonzeros, exponent }) = size else {
        return SizeEstimate::of(found as f64, found as f64, key_bytes, system.models() as f64 - 1.0);
    };
    // The first event alone spreads `N` requests over all targets of the first routing state.
    let targets = system.routing()[0].iter().filter(|&&p| p > 0.0).count();
    let floor = compositions(system.concurrency(), targets).max(found as f64);
    let exponent = if states < floor && exponent == 0.0 { system.models() as f64 - 1.0 } else { exponent };
    SizeEstimate::of(states.max(floor), nonzeros.max(floor), key_bytes, exponent)
}

/// The size of a chain, counted or extrapolated.
struct Size {
    states: f64,
    nonzeros: f64,
    /// Of the growth with `1 / quantum`; 0 when counted at the system's own quantum.
    exponent: f64,
}

/// The size from chains with coarse quanta; `None` when even the coarsest is too large to count.
fn by_quantum(system: &ClosedSystem, thresholds: &Thresholds) -> Option<Size> {
    let longest = (0..system.models()).map(|index| system.largest_quanta(index)).max().unwrap_or(1);
    let mut points: Vec<Point> = Vec::new();
    // From quanta of a fifth of the slowest step to the system's own.
    let mut divisor = (f64::from(longest) / 5.0).max(1.0);
    loop {
        match probe(system, thresholds, divisor) {
            Probe::Size(point) if divisor == 1.0 => {
                return Some(Size { states: point.states, nonzeros: point.nonzeros, exponent: 0.0 });
            }
            Probe::Size(point) => points.push(point),
            Probe::TooLarge => break,
            Probe::Impossible => (),
        }
        if divisor == 1.0 {
            break;
        }
        divisor = (divisor / 1.6).max(1.0);
    }
    extrapolate(&points, system)
}

/// The same from fewer requests (and thresholds in proportion), extrapolated by the growth over the last halving.
fn by_requests(system: &ClosedSystem, thresholds: &Thresholds) -> Option<Size> {
    let smaller = |shift: u32| {
        let requests = system.concurrency() >> shift;
        let scaled: Vec<u32> = thresholds.as_slice().iter().map(|&b| 1 + ((b - 1) >> shift)).collect();
        let smaller = system.with_concurrency(requests.max(1)).ok()?;
        by_quantum(&smaller, &Thresholds::new(scaled))
    };
    let depth = system.concurrency().ilog2();
    let (shift, more) = (1..depth).find_map(|shift| Some((shift, smaller(shift)?)))?;
    let fewer = smaller(shift + 1)?;
    let power = f64::from(shift);
    let grown = |more: f64, fewer: f64| more * (more / fewer).max(1.0).powf(power);
    Some(Size {
        states: grown(more.states, fewer.states),
        nonzeros: grown(more.nonzeros, fewer.nonzeros),
        exponent: if more.exponent > 0.0 { more.exponent } else { fewer.exponent },
    })
}

/// A counted chain, and the number of relative phases of its clocks.
struct Point {
    phases: f64,
    states: f64,
    nonzeros: f64,
}

/// Relative phases of the clocks: the elementary symmetric sum of degree `M - 1` of the steps over their common divisor.
fn phases(system: &ClosedSystem) -> f64 {
    let steps: Vec<u32> = (0..system.models()).map(|index| system.largest_quanta(index)).collect();
    let divisor = steps.iter().fold(0, |a, &b| gcd(a, b));
    let steps: Vec<f64> = steps.iter().map(|&step| f64::from(step / divisor)).collect();
    let product: f64 = steps.iter().product();
    steps.iter().map(|step| product / step).sum()
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

enum Probe {
    Size(Point),
    TooLarge,
    Impossible,
}

fn probe(system: &ClosedSystem, thresholds: &Thresholds, divisor: f64) -> Probe {
    let shortest = (0..system.models()).map(|index| shortest_ms(system, index)).fold(f64::INFINITY, f64::min);
    let quantum = system.quantum_ms() * divisor;
    if divisor > 1.0 && quantum > shortest {
        return Probe::Impossible;
    }
    let coarse = if divisor > 1.0 { system.with_quantum_ms(quantum) } else { Ok(system.clone()) };
    let limits = ChainLimits { states: PROBE_STATES, bytes: PROBE_BYTES };
    let Ok((coarse, mut workspace)) = coarse.and_then(|coarse| Workspace::new(&coarse).map(|made| (coarse, made)))
    else {
        return Probe::Impossible;
    };
    let phases = phases(&coarse);
    match workspace.explore(&coarse, thresholds, 0, limits) {
        Ok(chain) => {
            let nonzeros = chain.matrix().nonzeros() as f64;
            Probe::Size(Point { phases, states: chain.len() as f64, nonzeros })
        }
        Err(Stop::Limit { .. }) => Probe::TooLarge,
        Err(Stop::Bad(_)) => Probe::Impossible,
    }
}

/// States and transitions at the system's own quantum, by a power of the phases (at most one) fitted to the last points;
/// and the exponent of the growth with `1 / quantum`.
fn extrapolate(points: &[Point], system: &ClosedSystem) -> Option<Size> {
    let degree = system.models() as f64 - 1.0;
    let last = points.last()?;
    let recent = &points[points.len().saturating_sub(4)..];
    let count = recent.len() as f64;
    let (mean_x, mean_y) =
        recent.iter().fold((0.0, 0.0), |(x, y), point| (x + point.phases.ln() / count, y + point.states.ln() / count));
    let (covariance, variance) = recent.iter().fold((0.0, 0.0), |(cov, var), point| {
        let x = point.phases.ln() - mean_x;
        (cov + x * (point.states.ln() - mean_y), var + x * x)
    });
    let power = if variance > 1e-6 { (covariance / variance).clamp(0.05, 1.0) } else { 1.0 };
    let growth = (phases(system) / last.phases).max(1.0).powf(power);
    Some(Size { states: last.states * growth, nonzeros: last.nonzeros * growth, exponent: power * degree })
}

/// Half of what the operating system says is available, or 2 GiB when it doesn't say.
pub(crate) fn default_memory_limit() -> usize {
    let available = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
        line.split_whitespace().nth(1)?.parse::<usize>().ok()
    });
    available.map_or(2 << 30, |kib| kib * 512)
}
