//! A routing method written in Python.

use std::sync::{Arc, Mutex, PoisonError};

use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};
use tokenrouter_core::request::ModelIndex;
use tokenrouter_core::routing::registry::{BuiltPolicy, SystemView};
use tokenrouter_core::routing::{BatchView, Candidate, Decision, RoutingPolicy, Row, SignalNeeds};

use crate::buffers::{Buffers, FINISH, RETRY, STAY, Widths};

/// The state that a method stores for one request.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct PythonState {
    pub(crate) values: Vec<f64>,
    /// Whether the candidate is dropped at the switch that was just decided.
    pub(crate) drop: bool,
}

/// One model's view of its batches.
struct Seat {
    needs: SignalNeeds,
    widths: Widths,
    buffers: Mutex<Option<Buffers>>,
}

/// An object of a subclass of `tokenrouter.RoutingPolicy`.
pub(crate) struct PythonPolicy {
    object: Arc<Py<PyAny>>,
    models: usize,
    seats: Vec<Seat>,
    takes_threshold: bool,
    /// Whether the class overrides `send` or `receive`. The defaults need no call to Python.
    sends: bool,
    receives: bool,
}

impl std::fmt::Debug for PythonPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PythonPolicy").field("models", &self.models).finish_non_exhaustive()
    }
}

/// The last line of an exception, with its type.
fn words(py: Python<'_>, error: &PyErr) -> String {
    let traceback = error.traceback(py).and_then(|traceback| traceback.format().ok()).unwrap_or_default();
    let last = traceback.lines().rev().find(|line| line.trim_start().starts_with("File ")).unwrap_or_default();
    format!("the routing policy raised {error} ({})", last.trim())
}

impl PythonPolicy {
    /// Calls `setup` and `needs` of the object for a system.
    pub(crate) fn build(object: &Py<PyAny>, system: &SystemView) -> BuiltPolicy {
        Python::attach(|py| {
            let policy = Self::of(py, object, system).map_err(|error| words(py, &error))?;
            Ok(Box::new(policy) as Box<dyn RoutingPolicy>)
        })
    }

    fn of(py: Python<'_>, object: &Py<PyAny>, system: &SystemView) -> PyResult<Self> {
        let bound = object.bind(py);
        bound.call_method1("setup", (system.models.clone(), system.entry, system.vocab))?;
        let base = py.import("tokenrouter.routing")?.getattr("RoutingPolicy")?;
        let overrides =
            |name: &str| -> PyResult<bool> { Ok(!bound.get_type().getattr(name)?.is(&base.getattr(name)?)) };
        let state: usize = bound.getattr("state_size")?.extract()?;
        let seats = (0..system.models.len()).map(|model| {
            let needs = needs(&bound.call_method1("needs", (model,))?)?;
            let widths = Widths::new(model, &needs, system.hidden[model], state);
            Ok(Seat { needs, widths, buffers: Mutex::new(None) })
        });
        Ok(Self {
            object: Arc::new(object.clone_ref(py)),
            models: system.models.len(),
            seats: seats.collect::<PyResult<_>>()?,
            takes_threshold: bound.getattr("takes_threshold")?.extract()?,
            sends: overrides("send")?,
            receives: overrides("receive")?,
        })
    }

    fn route_in(&self, py: Python<'_>, batch: &mut BatchView<'_>) -> PyResult<()> {
        let Some(first) = batch.rows().first() else { return Ok(()) };
        let (seat, rows) = (&self.seats[first.model], batch.rows().len());
        let mut buffers = seat.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if !buffers.as_ref().is_some_and(|buffers| buffers.fits(rows)) {
            *buffers = Some(Buffers::new(py, seat.widths, rows)?);
        }
        let Some(buffers) = buffers.as_ref() else { return Ok(()) };
        buffers.fill(py, batch)?;
        self.object.call_method1(py, "route", (&buffers.view,))?;
        buffers.read(py, batch.rows_mut(), |row, decision| row.decision = self.decision(decision))
    }

    fn decision(&self, value: i64) -> Decision {
        match value {
            STAY => Decision::Stay,
            RETRY => Decision::Retry,
            FINISH => Decision::Finish,
            model if (0..self.models as i64).contains(&model) => Decision::Switch(model as ModelIndex),
            other => Decision::Fail(format!(
                "the routing policy decided {other}; allowed are model indices 0 to {}, STAY (-1), RETRY (-2) and FINISH (-3)",
                self.models - 1
            )),
        }
    }

    fn send_in(&self, py: Python<'_>, row: &mut Row, to: ModelIndex) -> PyResult<Candidate> {
        let class = py.import("tokenrouter.routing")?.getattr("SentRow")?;
        let sent = class.call1((row.request.0, row.model, row.position, row.candidate, row.score))?;
        let commit = self.object.call_method1(py, "send", (sent, to))?.is_truthy(py)?;
        Ok(if commit { Candidate::Commit } else { Candidate::Drop })
    }

    fn receive_in(&self, py: Python<'_>, log: &[u32], delta: &[u32]) -> PyResult<Vec<u32>> {
        let arrays = (PyArray1::from_slice(py, log), PyArray1::from_slice(py, delta));
        let taken = self.object.call_method1(py, "receive", arrays)?;
        match taken.bind(py).extract::<PyReadonlyArray1<'_, u32>>() {
            Ok(array) => Ok(array.as_slice()?.to_vec()),
            Err(_) => taken.extract(py),
        }
    }
}

fn needs(object: &Bound<'_, PyAny>) -> PyResult<SignalNeeds> {
    Ok(SignalNeeds {
        softmax: object.getattr("softmax")?.extract()?,
        top_logits: object.getattr("top_logits")?.extract()?,
        hidden: object.getattr("hidden")?.extract()?,
        embedding: object.getattr("embedding")?.extract()?,
        extra_row: object.getattr("extra_row")?.extract()?,
    })
}

const FINALIZING: &str = "the Python interpreter shuts down";

impl RoutingPolicy for PythonPolicy {
    fn needs(&self, model: ModelIndex) -> SignalNeeds {
        self.seats[model].needs
    }

    fn takes_threshold(&self) -> bool {
        self.takes_threshold
    }

    fn route(&self, batch: &mut BatchView<'_>) {
        let routed = Python::try_attach(|py| self.route_in(py, batch).map_err(|error| words(py, &error)));
        if let Err(message) = routed.unwrap_or_else(|| Err(FINALIZING.into())) {
            batch.rows_mut().iter_mut().for_each(|row| row.decision = Decision::Fail(message.clone()));
        }
    }

    fn send(&self, row: &mut Row, to: ModelIndex) -> Candidate {
        let default = if row.state.get::<PythonState>().drop { Candidate::Drop } else { Candidate::Commit };
        if !self.sends {
            return default;
        }
        // This function cannot fail. If the call fails, the candidate is committed, and Python prints the traceback.
        let asked = Python::try_attach(|py| {
            self.send_in(py, row, to).map_err(|error| error.write_unraisable(py, Some(self.object.bind(py)))).ok()
        });
        asked.flatten().unwrap_or(default)
    }

    fn receive(&self, log: &mut Vec<u32>, delta: &[u32]) {
        let taken = self.receives.then(|| {
            Python::try_attach(|py| {
                let taken = self.receive_in(py, log, delta);
                taken.map_err(|error| error.write_unraisable(py, Some(self.object.bind(py)))).ok()
            })
        });
        match taken.flatten().flatten() {
            Some(tokens) => log.extend(tokens),
            None => log.extend_from_slice(delta),
        }
    }
}
