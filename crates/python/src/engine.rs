//! The engine, as a Python class.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pyo3::prelude::*;
use serde_json::{Map, Value};
use tokenrouter_core::Request;
use tokenrouter_engine::tokenizer::Conversation;
use tokenrouter_engine::{Config, Engine, SubmitError};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::errors::{self, Kind, raise};
use crate::policy::PythonPolicy;
use crate::sampling::Sampling;
use crate::stream::{NativeStream, Reader};

/// A stream and the callback that gets its pieces.
type Job = (Reader, Py<PyAny>);

/// A running engine. Several threads may use it at the same time.
#[pyclass(module = "tokenrouter._native", frozen)]
pub(crate) struct NativeEngine {
    parts: Mutex<Option<Arc<Parts>>>,
    next_key: AtomicU64,
}

struct Parts {
    engine: Arc<Engine>,
    runtime: Arc<Runtime>,
    jobs: UnboundedSender<Job>,
    pump: JoinHandle<()>,
}

impl Parts {
    /// Ends every stream with an error, then stops the threads.
    fn close(self) {
        drop(self.engine);
        drop(self.jobs);
        let _reported_already = self.pump.join();
    }
}

/// Forwards streams until no sender of new streams exists.
fn pump(runtime: &Runtime, mut jobs: UnboundedReceiver<Job>) {
    runtime.block_on(async {
        let mut running = JoinSet::new();
        while let Some((reader, callback)) = jobs.recv().await {
            running.spawn(reader.forward(callback));
            while running.try_join_next().is_some() {}
        }
        running.join_all().await;
    });
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_time().build()
}

/// A prompt, as text, token ids or a conversation.
#[derive(FromPyObject)]
enum Prompt {
    #[pyo3(transparent, annotation = "str")]
    Text(String),
    #[pyo3(transparent, annotation = "list[int]")]
    Ids(Vec<u32>),
}

impl NativeEngine {
    /// Works with the parts without the interpreter's lock, because a subserver may need the lock to finish its step.
    /// The parts are also dropped without it: this stops the engine if it was closed in the meantime.
    fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&Parts) -> T + Send) -> PyResult<T> {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let parts = parts.ok_or_else(|| raise(py, Kind::Closed, "the engine is closed"))?;
        Ok(py.detach(move || {
            let done = work(&parts);
            drop(parts);
            done
        }))
    }
}

/// The tokens of a prompt, or a message that says what is wrong with it.
fn tokens(engine: &Engine, prompt: Prompt, conversation: bool) -> Result<Vec<u32>, String> {
    let text = match prompt {
        Prompt::Text(text) => text,
        Prompt::Ids(ids) => return Ok(ids),
    };
    let codec = engine.text().ok_or("emulated models read no text: give the prompt as a list of token ids")?;
    if !conversation {
        return codec.encode(&text).map_err(|error| error.to_string());
    }
    let messages: Vec<Value> = serde_json::from_str(&text).map_err(|error| format!("messages: {error}"))?;
    let conversation = Conversation { messages, tools: None, variables: Map::new() };
    codec.encode_conversation(&conversation).map_err(|error| error.to_string())
}

#[pymethods]
impl NativeEngine {
    #[new]
    #[pyo3(signature = (config, is_path, policy=None))]
    fn new(py: Python<'_>, config: &str, is_path: bool, policy: Option<Py<PyAny>>) -> PyResult<Self> {
        let config = if is_path { Config::from_file(config) } else { Config::from_yaml(config, "config") };
        let config = config.map_err(|error| raise(py, Kind::Config, error.to_string()))?;
        let failed = |error: std::io::Error| raise(py, Kind::Closed, format!("cannot start a thread: {error}"));
        let engine = py.detach(|| match policy {
            None => Engine::launch(&config),
            Some(object) => Engine::launch_with(&config, &|system| PythonPolicy::build(&object, system)),
        });
        let engine = Arc::new(engine.map_err(|error| errors::launch(py, &error))?);
        let (jobs, receiver) = unbounded_channel();
        let pump_runtime = runtime().map_err(failed)?;
        let thread = std::thread::Builder::new().name("python-pump".into());
        let pump = thread.spawn(move || pump(&pump_runtime, receiver)).map_err(failed)?;
        let runtime = Arc::new(runtime().map_err(failed)?);
        let parts = Parts { engine, runtime, jobs, pump };
        Ok(Self { parts: Mutex::new(Some(Arc::new(parts))), next_key: AtomicU64::new(0) })
    }

    /// Submits a request. `prompt` is a text, token ids, or (with `conversation`) messages as JSON.
    #[pyo3(signature = (prompt, sampling_params, conversation=false))]
    fn submit(
        &self,
        py: Python<'_>,
        prompt: Prompt,
        sampling_params: &str,
        conversation: bool,
    ) -> PyResult<NativeStream> {
        let invalid = |message: String| raise(py, Kind::InvalidRequest, message);
        let (sampling, routing) = Sampling::parse(sampling_params).map_err(invalid)?;
        let prompt = self.with(py, |parts| tokens(&parts.engine, prompt, conversation))?.map_err(invalid)?;
        let key = self.next_key.fetch_add(1, Relaxed);
        let taken = self.with(py, |parts| -> Result<NativeStream, SubmitError> {
            let prompt_tokens = prompt.len();
            let decoder = parts.engine.text().map(|codec| codec.stream(&sampling.stop));
            let stream = parts.engine.generate(Request { routing, ..Request::new(prompt, sampling, key) })?;
            let (id, reader) = (stream.id(), Reader::new(stream, decoder, prompt_tokens));
            Ok(NativeStream::new(id, reader, Arc::downgrade(&parts.engine), Arc::clone(&parts.runtime)))
        })?;
        taken.map_err(|error| errors::submit(py, &error))
    }

    /// Calls `callback` from another thread with every piece of `stream`.
    fn forward(&self, py: Python<'_>, stream: &mut NativeStream, callback: Py<PyAny>) -> PyResult<()> {
        let reader = stream.take();
        self.with(py, |parts| {
            if let Some(reader) = reader {
                let _pump_runs = parts.jobs.send((reader, callback));
            }
        })
    }

    /// The key for the random draws of the next request.
    #[getter]
    fn next_key(&self) -> u64 {
        self.next_key.load(Relaxed)
    }

    /// Sets the key of the next request: equal keys and seeds give equal draws.
    #[setter]
    fn set_next_key(&self, key: u64) {
        self.next_key.store(key, Relaxed);
    }

    /// Decisions made at launch, as JSON.
    fn info(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |parts| serde_json::to_string(parts.engine.info()).unwrap_or_default())
    }

    /// Counters, as JSON.
    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |parts| serde_json::to_string(&parts.engine.stats()).unwrap_or_default())
    }

    /// Names of the models, in order.
    fn models(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.with(py, |parts| parts.engine.model_names().to_vec())
    }

    /// Refuses new requests, and returns whether the open ones ended within `seconds`.
    fn drain(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let timeout = Duration::try_from_secs_f64(seconds)
            .map_err(|error| raise(py, Kind::InvalidRequest, format!("timeout {seconds}: {error}")))?;
        self.with(py, |parts| parts.engine.drain(timeout))
    }

    /// Stops the engine; open requests end with an error.
    fn close(&self, py: Python<'_>) {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A call in another thread may still use the parts. The last user drops them.
        py.detach(|| parts.and_then(Arc::into_inner).map(Parts::close));
    }
}

impl Drop for NativeEngine {
    fn drop(&mut self) {
        let _finalizing = Python::try_attach(|py| self.close(py));
    }
}
