//! The token stream of one request, as a Python class.

use std::sync::{Arc, Weak};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use serde_json::json;
use tokenrouter_core::{FinishReason, RequestId, RequestStats, StreamEvent};
use tokenrouter_engine::tokenizer::StreamDecoder;
use tokenrouter_engine::{Engine, TokenStream};
use tokio::runtime::Runtime;

use crate::errors::{Kind, raise};

/// How often a waiting call checks for Ctrl-C.
const SIGNALS: Duration = Duration::from_millis(100);

/// Text, token ids and their models; in the last chunk, how the request ended (JSON).
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    text: String,
    ids: Vec<u32>,
    origins: Vec<usize>,
    end: Option<String>,
}

impl Chunk {
    fn into_tuple(self, py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
        (self.text, self.ids, self.origins, self.end).into_pyobject(py)
    }

    fn append(&mut self, later: Self) {
        self.text.push_str(&later.text);
        self.ids.extend(later.ids);
        self.origins.extend(later.origins);
        self.end = later.end;
    }
}

/// A token stream with the decoder of its text.
pub(crate) struct Reader {
    stream: TokenStream,
    decoder: Option<StreamDecoder>,
    prompt_tokens: usize,
}

impl Reader {
    pub(crate) fn new(stream: TokenStream, decoder: Option<StreamDecoder>, prompt_tokens: usize) -> Self {
        Self { stream, decoder, prompt_tokens }
    }

    /// The next token or the end; `None` after it.
    async fn next(&mut self) -> Option<Chunk> {
        loop {
            match self.stream.next().await? {
                StreamEvent::Step(_) | StreamEvent::Logprobs(_) => {}
                StreamEvent::Token(token) => {
                    let text = match self.decoder.as_mut().map(|decoder| decoder.push(token.id)).transpose() {
                        Ok(text) => text.unwrap_or_default(),
                        Err(error) => return Some(self.failed(&error.to_string())),
                    };
                    return Some(Chunk { text, ids: vec![token.id], origins: vec![token.origin], end: None });
                }
                StreamEvent::Finished(reason, stats) => {
                    let text = self.decoder.as_mut().map(StreamDecoder::finish).transpose();
                    let text = text.ok().flatten().unwrap_or_default();
                    return Some(Chunk { text, end: Some(self.end(&reason, &stats)), ..Chunk::default() });
                }
            }
        }
    }

    fn failed(&self, message: &str) -> Chunk {
        let end = self.end(&FinishReason::Error(message.to_owned()), &RequestStats::default());
        Chunk { end: Some(end), ..Chunk::default() }
    }

    fn end(&self, reason: &FinishReason, stats: &RequestStats) -> String {
        json!({
            "finish_reason": reason.as_str(),
            "error": reason.error(),
            "prompt_tokens": self.prompt_tokens,
            "tokens_by_model": stats.tokens_by_model,
            "handoffs": stats.handoffs,
            "queue_wait_s": stats.queue_wait.as_secs_f64(),
            "buffer_wait_s": stats.buffer_wait.as_secs_f64(),
        })
        .to_string()
    }

    /// Calls `callback` with every chunk, then with `None`.
    pub(crate) async fn forward(mut self, callback: Py<PyAny>) {
        loop {
            let chunk = self.next().await;
            let ended = chunk.as_ref().is_none_or(|chunk| chunk.end.is_some());
            let told = Python::try_attach(|py| -> PyResult<()> {
                let chunk = chunk.map(|chunk| chunk.into_tuple(py)).transpose()?;
                callback.call1(py, (chunk,))?;
                Ok(())
            });
            // The event loop may be closed. Then nothing reads the chunks, and dropping the stream cancels the request.
            if ended || !matches!(told, Some(Ok(()))) {
                break;
            }
        }
        let _finalizing = Python::try_attach(|_| drop(callback));
    }
}

/// A request in progress. Dropping it cancels the request.
#[pyclass(module = "tokenrouter._native")]
pub(crate) struct NativeStream {
    id: RequestId,
    reader: Option<Reader>,
    engine: Weak<Engine>,
    runtime: Arc<Runtime>,
}

impl NativeStream {
    pub(crate) fn new(id: RequestId, reader: Reader, engine: Weak<Engine>, runtime: Arc<Runtime>) -> Self {
        Self { id, reader: Some(reader), engine, runtime }
    }

    pub(crate) fn take(&mut self) -> Option<Reader> {
        self.reader.take()
    }

    /// Waits for a chunk without the interpreter's lock, and checks for Ctrl-C.
    fn wait(&mut self, py: Python<'_>) -> PyResult<Option<Chunk>> {
        let runtime = Arc::clone(&self.runtime);
        loop {
            let Some(reader) = &mut self.reader else { return Ok(None) };
            let next =
                py.detach(|| runtime.block_on(async { tokio::time::timeout(SIGNALS, reader.next()).await.ok() }));
            py.check_signals()?;
            if let Some(chunk) = next {
                if chunk.as_ref().is_none_or(|chunk| chunk.end.is_some()) {
                    self.drop_reader(py);
                }
                return Ok(chunk);
            }
        }
    }

    fn drop_reader(&mut self, py: Python<'_>) {
        let reader = self.reader.take();
        // Cancelling may wait for a subserver, which may wait for the interpreter's lock.
        py.detach(|| drop(reader));
    }
}

#[pymethods]
impl NativeStream {
    /// The next chunk, or `None` after the end.
    fn next<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.wait(py)?.map(|chunk| chunk.into_tuple(py)).transpose()
    }

    /// All chunks, joined into one.
    fn collect<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let mut whole = Chunk::default();
        while whole.end.is_none() {
            let stopped = || raise(py, Kind::Closed, "the engine has stopped");
            whole.append(self.wait(py)?.ok_or_else(stopped)?);
        }
        whole.into_tuple(py)
    }

    /// Ends the request.
    fn cancel(&mut self, py: Python<'_>) {
        if self.reader.is_some() {
            return self.drop_reader(py);
        }
        // The stream was forwarded, so the pump has the reader and gets the end.
        let engine = self.engine.upgrade();
        py.detach(|| {
            if let Some(engine) = engine {
                engine.abort(self.id);
            }
        });
    }
}

impl Drop for NativeStream {
    fn drop(&mut self) {
        if self.reader.is_some() {
            let _finalizing = Python::try_attach(|py| self.drop_reader(py));
        }
    }
}
