//! The arrays of a batch view. NumPy allocates them once, and the engine fills them for every step. Python gets views
//! of them, and the engine reads its decisions from them. No step converts single elements or allocates memory.

use numpy::{Element, PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use tokenrouter_core::request::ModelIndex;
use tokenrouter_core::routing::{BatchView, Row, SignalNeeds};

use crate::policy::PythonState;

/// Initial number of rows of the arrays. It doubles when a batch has more.
const ROWS: usize = 16;

/// Values in the array `decision`: a model's index, or one of these.
pub(crate) const STAY: i64 = -1;
pub(crate) const RETRY: i64 = -2;
pub(crate) const FINISH: i64 = -3;

type One<T> = Py<PyArray1<T>>;
type Two<T> = Py<PyArray2<T>>;

/// The arrays of one model's view.
pub(crate) struct Buffers {
    pub(crate) view: Py<PyAny>,
    rows: usize,
    widths: Widths,
    request: One<u64>,
    position: One<i64>,
    prompt_tokens: One<i64>,
    candidate: One<u32>,
    visit_steps: One<u32>,
    visit_tokens: One<u32>,
    draw: One<f64>,
    threshold: One<f64>,
    entropy: One<f32>,
    log_sum_exp: One<f32>,
    extra: One<f32>,
    top_logits: Two<f32>,
    top_ids: Two<u32>,
    hidden: Two<f32>,
    embedding: Two<f32>,
    state: Two<f64>,
    decision: One<i64>,
    drop: One<bool>,
    score: One<f32>,
}

/// Numbers of columns of the two-dimensional arrays.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Widths {
    pub(crate) model: ModelIndex,
    top: usize,
    hidden: usize,
    embedding: usize,
    state: usize,
}

impl Widths {
    pub(crate) fn new(model: ModelIndex, needs: &SignalNeeds, hidden: usize, state: usize) -> Self {
        let width = |wanted: bool| if wanted { hidden } else { 0 };
        Self { model, top: needs.top_logits, hidden: width(needs.hidden), embedding: width(needs.embedding), state }
    }
}

impl Buffers {
    /// Allocates arrays for at least `rows` rows.
    pub(crate) fn new(py: Python<'_>, widths: Widths, rows: usize) -> PyResult<Self> {
        let rows = rows.next_power_of_two().max(ROWS);
        let Widths { model, top, hidden, embedding, state } = widths;
        let class = py.import("tokenrouter.routing")?.getattr("BatchView")?;
        let view = class.call1((model, rows, top, hidden, embedding, state))?;
        Ok(Self {
            rows,
            widths,
            request: array(&view, "_request")?,
            position: array(&view, "_position")?,
            prompt_tokens: array(&view, "_prompt_tokens")?,
            candidate: array(&view, "_candidate")?,
            visit_steps: array(&view, "_visit_steps")?,
            visit_tokens: array(&view, "_visit_tokens")?,
            draw: array(&view, "_draw")?,
            threshold: array(&view, "_threshold")?,
            entropy: array(&view, "_entropy")?,
            log_sum_exp: array(&view, "_log_sum_exp")?,
            extra: array(&view, "_extra")?,
            top_logits: table(&view, "_top_logits")?,
            top_ids: table(&view, "_top_ids")?,
            hidden: table(&view, "_hidden")?,
            embedding: table(&view, "_embedding")?,
            state: table(&view, "_state")?,
            decision: array(&view, "_decision")?,
            drop: array(&view, "_drop")?,
            score: array(&view, "_score")?,
            view: view.unbind(),
        })
    }

    /// Whether a batch of `rows` rows fits.
    pub(crate) fn fits(&self, rows: usize) -> bool {
        rows <= self.rows
    }

    /// Writes a batch into the arrays.
    pub(crate) fn fill(&self, py: Python<'_>, batch: &mut BatchView<'_>) -> PyResult<()> {
        let rows = batch.rows().len();
        self.fill_state(py, batch.rows_mut())?;
        let each = batch.rows();
        fill(py, &self.request, each.iter().map(|row| row.request.0))?;
        fill(py, &self.position, each.iter().map(|row| row.position as i64))?;
        fill(py, &self.prompt_tokens, each.iter().map(|row| row.prompt_tokens as i64))?;
        fill(py, &self.candidate, each.iter().map(|row| row.candidate))?;
        fill(py, &self.visit_steps, each.iter().map(|row| row.visit_steps))?;
        fill(py, &self.visit_tokens, each.iter().map(|row| row.visit_tokens))?;
        fill(py, &self.draw, each.iter().map(Row::draw))?;
        fill(py, &self.threshold, each.iter().map(|row| row.threshold.unwrap_or(f64::NAN)))?;
        fill(py, &self.decision, (0..rows).map(|_| STAY))?;
        fill(py, &self.drop, (0..rows).map(|_| false))?;
        fill(py, &self.score, (0..rows).map(|_| f32::NAN))?;
        let output = batch.output();
        fill(py, &self.entropy, output.softmax.iter().map(|softmax| softmax.entropy))?;
        fill(py, &self.log_sum_exp, output.softmax.iter().map(|softmax| softmax.log_sum_exp))?;
        fill(py, &self.extra, output.extra.iter().copied())?;
        // The runner may return more than was requested.
        if self.widths.top > 0 {
            let top = (0..rows).flat_map(|row| batch.signals(row).top.iter().take(self.widths.top));
            fill_table(py, &self.top_logits, top.clone().map(|(logit, _)| *logit))?;
            fill_table(py, &self.top_ids, top.map(|(_, id)| *id))?;
        }
        if self.widths.hidden > 0 {
            fill_table(py, &self.hidden, output.hidden.iter().copied())?;
        }
        if self.widths.embedding > 0 {
            fill_table(py, &self.embedding, output.embedding.iter().copied())?;
        }
        self.view.bind(py).setattr("size", rows)
    }

    fn fill_state(&self, py: Python<'_>, rows: &mut [Row]) -> PyResult<()> {
        if self.widths.state == 0 {
            return Ok(());
        }
        let mut array = self.state.bind(py).try_readwrite()?;
        for (row, values) in rows.iter_mut().zip(array.as_slice_mut()?.chunks_exact_mut(self.widths.state)) {
            let state = row.state.get::<PythonState>();
            state.values.resize(self.widths.state, 0.0);
            values.copy_from_slice(&state.values);
        }
        Ok(())
    }

    /// Calls `each` for every row with its decision and whether its candidate is dropped at a switch. Stores scores and
    /// states.
    pub(crate) fn read(&self, py: Python<'_>, rows: &mut [Row], each: impl Fn(&mut Row, i64)) -> PyResult<()> {
        let (decision, drop, score) = (
            self.decision.bind(py).try_readonly()?,
            self.drop.bind(py).try_readonly()?,
            self.score.bind(py).try_readonly()?,
        );
        let columns = decision.as_slice()?.iter().zip(drop.as_slice()?).zip(score.as_slice()?);
        for (row, ((decision, drop), score)) in rows.iter_mut().zip(columns) {
            row.score = *score;
            row.state.get::<PythonState>().drop = *drop;
            each(row, *decision);
        }
        if self.widths.state > 0 {
            let array = self.state.bind(py).try_readonly()?;
            for (row, values) in rows.iter_mut().zip(array.as_slice()?.chunks_exact(self.widths.state)) {
                row.state.get::<PythonState>().values.copy_from_slice(values);
            }
        }
        Ok(())
    }
}

fn array<T: Element>(view: &Bound<'_, PyAny>, name: &str) -> PyResult<One<T>> {
    Ok(view.getattr(name)?.cast_into::<PyArray1<T>>()?.unbind())
}

fn table<T: Element>(view: &Bound<'_, PyAny>, name: &str) -> PyResult<Two<T>> {
    Ok(view.getattr(name)?.cast_into::<PyArray2<T>>()?.unbind())
}

fn fill<T: Element>(py: Python<'_>, array: &One<T>, values: impl Iterator<Item = T>) -> PyResult<()> {
    let mut array = array.bind(py).try_readwrite()?;
    array.as_slice_mut()?.iter_mut().zip(values).for_each(|(into, value)| *into = value);
    Ok(())
}

fn fill_table<T: Element>(py: Python<'_>, array: &Two<T>, values: impl Iterator<Item = T>) -> PyResult<()> {
    let mut array = array.bind(py).try_readwrite()?;
    array.as_slice_mut()?.iter_mut().zip(values).for_each(|(into, value)| *into = value);
    Ok(())
}
