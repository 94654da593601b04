//! Step latency of one model: a constant, or a table by batch size.

use crate::Error;
use serde::Serialize;

/// Latency of one step, in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Latency {
    /// The same for every batch size: the paper's assumption.
    Constant(f64),
    /// Measured points `(batch size, milliseconds)`, batch sizes strictly increasing.
    ///
    /// Between two points the latency is linear in the batch size; below the first it is the first. Above the last
    /// there is no value: a model whose batches can grow larger is refused, never extrapolated.
    Table(Vec<(u32, f64)>),
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
                Err(Error::model(at, format!("{ms} ms"), "a finite latency above 0 ms"))
            }
        };
        match self {
            Self::Constant(ms) => positive(*ms, place.to_owned()),
            Self::Table(points) => {
                if points.is_empty() {
                    return Err(Error::model(place, "an empty table", "at least one `(batch size, ms)` point"));
                }
                let mut previous = 0;
                for &(size, ms) in points {
                    if size <= previous {
                        let problem = format!("batch size {size} after {previous}");
                        return Err(Error::model(place, problem, "strictly increasing batch sizes from 1"));
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
                return Err(Error::model(place, problem, allowed));
            };
            // A hair of slack, so that a latency equal to the quantum up to rounding is accepted.
            if quantum_ms > ms * (1.0 + 1e-9) {
                let problem =
                    format!("quantum {quantum_ms} ms is larger than the latency {ms} ms of batch size {batch}");
                return Err(Error::model(place, problem, format!("a quantum of at most {ms} ms")));
            }
            let steps = (ms / quantum_ms).round().max(1.0);
            if steps > f64::from(super::MAX_QUANTA) {
                let problem = format!("{ms} ms is {steps} quanta of {quantum_ms} ms");
                return Err(Error::model(place, problem, format!("at most {} quanta per step", super::MAX_QUANTA)));
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
