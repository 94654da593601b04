//! Step latency of one model: a constant, or a table by batch size.

use crate::Error;
use serde::{Deserialize, Serialize};

/// Latency of one step of a batch, in milliseconds.
///
/// Read from a number (every batch size), a list of numbers (entry `b - 1` is for batch size `b`) or a list of
/// `[batch size, milliseconds]` points; written as a number or a list of points.
///
/// Between two points of a table the latency is linear in the batch size, and below the first it is that of the first.
/// Above the last there is none: a system in which larger batches can occur is refused. Whoever knows how the latency goes
/// on writes the points down; nothing is extrapolated here. Refused as well are empty tables, batch sizes that do not rise
/// strictly from 1 or more, and latencies that are not finite and above 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, from = "Notation")]
pub enum Latency {
    /// The same for every batch size: the paper's assumption.
    Constant(f64),
    /// Points `(batch size, milliseconds)`, batch sizes strictly rising.
    Table(Vec<(u32, f64)>),
}

/// The ways to write a latency.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a latency is a number of milliseconds, a list of them by batch size from 1, or a list of `[batch size, \
                 milliseconds]`"
)]
enum Notation {
    Constant(f64),
    ByBatch(Vec<f64>),
    Points(Vec<(u32, f64)>),
}

impl From<Notation> for Latency {
    fn from(notation: Notation) -> Self {
        match notation {
            Notation::Constant(ms) => Self::Constant(ms),
            Notation::ByBatch(ms) => Self::by_batch(ms),
            Notation::Points(points) => Self::Table(points),
        }
    }
}

impl From<f64> for Latency {
    fn from(ms: f64) -> Self {
        Self::Constant(ms)
    }
}

impl From<Vec<(u32, f64)>> for Latency {
    fn from(points: Vec<(u32, f64)>) -> Self {
        Self::Table(points)
    }
}

impl Latency {
    /// A table without gaps: milliseconds for batch sizes 1, 2, and so on.
    #[must_use]
    pub fn by_batch(ms: impl IntoIterator<Item = f64>) -> Self {
        Self::Table((1..).zip(ms).collect())
    }

    /// Milliseconds of a step with `batch` requests; `None` above the last point of a table.
    #[must_use]
    pub fn at(&self, batch: u32) -> Option<f64> {
        let points = match self {
            Self::Constant(ms) => return Some(*ms),
            Self::Table(points) => points,
        };
        let above = points.partition_point(|&(size, _)| size < batch);
        let &(high, high_ms) = points.get(above)?;
        if high == batch || above == 0 {
            return Some(high_ms);
        }
        let (low, low_ms) = points[above - 1];
        let share = f64::from(batch - low) / f64::from(high - low);
        Some(low_ms + share * (high_ms - low_ms))
    }

    /// The same shape with every latency multiplied by `factor`.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        match self {
            Self::Constant(ms) => Self::Constant(ms * factor),
            Self::Table(points) => Self::Table(points.iter().map(|&(size, ms)| (size, ms * factor)).collect()),
        }
    }

    /// Checks numbers and order; `place` names the model in messages.
    pub(super) fn validate(&self, place: &str) -> Result<(), Error> {
        let positive = |ms: f64, at: String| {
            if ms.is_finite() && ms > 0.0 {
                Ok(())
            } else {
                Err(Error::system(at, format!("{ms} ms"), "a finite latency above 0 ms"))
            }
        };
        match self {
            Self::Constant(ms) => positive(*ms, place.to_owned()),
            Self::Table(points) => {
                if points.is_empty() {
                    return Err(Error::system(place, "an empty table", "at least one `(batch size, ms)` point"));
                }
                let mut previous = 0;
                for &(size, ms) in points {
                    if size <= previous {
                        let problem = format!("batch size {size} after {previous}");
                        return Err(Error::system(place, problem, "strictly increasing batch sizes from 1"));
                    }
                    positive(ms, format!("{place}, batch size {size}"))?;
                    previous = size;
                }
                Ok(())
            }
        }
    }

    /// Quanta for every batch size `1..=largest`, with the largest relative rounding error and where it is.
    pub(super) fn quantise(&self, place: &str, quantum_ms: f64, largest: u32) -> Result<Quantised, Error> {
        let mut quanta = Vec::with_capacity(largest as usize);
        let (mut worst, mut worst_at) = (0.0_f64, 1);
        for batch in 1..=largest {
            let Some(ms) = self.at(batch) else {
                let problem = format!("the table ends below batch size {batch}, which can occur");
                let allowed = format!("points up to batch size {largest}, or a `max_batch` within the table");
                return Err(Error::system(place, problem, allowed));
            };
            // A hair of slack, so that a latency equal to the quantum up to rounding is accepted.
            if quantum_ms > ms * (1.0 + 1e-9) {
                let problem =
                    format!("quantum {quantum_ms} ms is larger than the latency {ms} ms of batch size {batch}");
                return Err(Error::system(place, problem, format!("a quantum of at most {ms} ms")));
            }
            let steps = (ms / quantum_ms).round().max(1.0);
            if steps > f64::from(super::MAX_QUANTA) {
                let problem = format!("{ms} ms is {steps} quanta of {quantum_ms} ms");
                return Err(Error::system(place, problem, format!("at most {} quanta per step", super::MAX_QUANTA)));
            }
            let error = (steps * quantum_ms - ms) / ms;
            if error.abs() > worst.abs() {
                (worst, worst_at) = (error, batch);
            }
            quanta.push(steps as u32);
        }
        Ok(Quantised { quanta, worst, worst_at })
    }
}

/// Latencies in quanta, by batch size from 1, with the worst relative rounding error.
pub(super) struct Quantised {
    pub(super) quanta: Vec<u32>,
    pub(super) worst: f64,
    pub(super) worst_at: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_notation_is_read() {
        let read = |text: &str| serde_json::from_str::<Latency>(text);
        assert_eq!(read("6").expect("a number"), Latency::Constant(6.0));
        assert_eq!(read("[6, 7.5]").expect("a list"), Latency::Table(vec![(1, 6.0), (2, 7.5)]));
        let points = read("[[1, 6], [4, 9]]").expect("points");
        assert_eq!(points, Latency::Table(vec![(1, 6.0), (4, 9.0)]));
        let written = serde_json::to_string(&points).expect("writes");
        assert_eq!(read(&written).expect("reads back"), points);
        for bad in ["\"6\"", "[[1]]", "{}", "[[-1, 6.0]]"] {
            let error = read(bad).expect_err("refused").to_string();
            assert!(error.contains("a list of them by batch size"), "{bad}: {error}");
        }
    }

    #[test]
    fn a_table_is_linear_inside_flat_below_and_ends_at_its_last_point() {
        let table = Latency::Table(vec![(2, 10.0), (6, 18.0)]);
        let at: Vec<_> = [1, 2, 3, 6, 7].into_iter().map(|batch| table.at(batch)).collect();
        assert_eq!(at, [Some(10.0), Some(10.0), Some(12.0), Some(18.0), None]);
    }
}
