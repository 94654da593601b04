//! The ranks of a tensor-parallel model: one thread each, in one process.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tokenrouter_kernels::cuda::{Collective, CudaDecoder, CudaOutput, Device, Group};
use tokenrouter_kernels::{Error, RowInput};

use crate::model::ModelError;

/// A step that takes longer than this on another rank has failed.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A rank, and how many there are.
pub(super) type Rank = (usize, usize);

/// All ranks of a model. The first runs on the caller's thread, and its results are the model's.
#[derive(Debug)]
pub(super) struct Ranks {
    first: CudaDecoder,
    others: Vec<Other>,
}

/// A rank with a thread of its own.
#[derive(Debug)]
struct Other {
    /// `None` when it is to end.
    jobs: Option<SyncSender<Arc<Job>>>,
    results: Receiver<Result<(), Error>>,
    thread: Option<JoinHandle<()>>,
}

/// A batch that outlives the call that brought it.
#[derive(Debug)]
struct Job {
    rows: Vec<OwnedRow>,
    copies: Vec<(u32, u32)>,
}

#[derive(Debug)]
struct OwnedRow {
    tokens: Vec<u32>,
    blocks: Vec<u32>,
    start: usize,
    sample: bool,
}

impl Job {
    fn new(rows: &[RowInput<'_>], copies: &[(u32, u32)]) -> Self {
        let own = |row: &RowInput<'_>| OwnedRow {
            tokens: row.tokens.to_vec(),
            blocks: row.blocks.to_vec(),
            start: row.start,
            sample: row.sample,
        };
        Self { rows: rows.iter().map(own).collect(), copies: copies.to_vec() }
    }

    fn run(&self, decoder: &mut CudaDecoder, out: &mut CudaOutput) -> Result<(), Error> {
        let rows: Vec<RowInput<'_>> = self
            .rows
            .iter()
            .map(|row| RowInput { tokens: &row.tokens, start: row.start, blocks: &row.blocks, sample: row.sample })
            .collect();
        decoder.forward(&rows, &self.copies, out)
    }
}

impl Ranks {
    /// Loads one rank on each device, all at the same time, and connects them.
    pub(super) fn load(
        devices: &[Device],
        load: impl Fn(&Device, Rank, Box<dyn Collective>) -> Result<CudaDecoder, ModelError> + Sync,
    ) -> Result<Self, ModelError> {
        let ranks = devices.len();
        let not_found = |error: Error| ModelError::NotFound(error.to_string());
        let group = Group::new(devices).map_err(not_found)?;
        let decoders: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = devices
                .iter()
                .enumerate()
                .map(|(rank, device)| {
                    let (group, load) = (&group, &load);
                    scope.spawn(move || {
                        let collective = group.join(device, rank).map_err(not_found)?;
                        load(device, (rank, ranks), collective)
                    })
                })
                .collect();
            let panicked = |_| Err(ModelError::NotFound("loading a rank panicked".into()));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
        });
        let mut decoders = decoders.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter();
        let none = || ModelError::NotFound("a model needs at least one device".into());
        let first = decoders.next().ok_or_else(none)?;
        let others = decoders.map(Other::start).collect::<Result<_, _>>()?;
        Ok(Self { first, others })
    }

    /// The rank whose results are the model's.
    pub(super) fn first(&self) -> &CudaDecoder {
        &self.first
    }

    /// One step on all ranks.
    pub(super) fn forward(
        &mut self,
        rows: &[RowInput<'_>],
        copies: &[(u32, u32)],
        out: &mut CudaOutput,
    ) -> Result<(), Error> {
        if self.others.is_empty() {
            return self.first.forward(rows, copies, out);
        }
        let job = Arc::new(Job::new(rows, copies));
        let gone = || Error::Device { what: "tensor parallelism", reason: "another rank is gone".into() };
        for other in &self.others {
            let sent = other.jobs.as_ref().map(|jobs| jobs.send(Arc::clone(&job)).is_ok());
            sent.filter(|sent| *sent).ok_or_else(gone)?;
        }
        let mut result = self.first.forward(rows, copies, out);
        if result.is_err() {
            self.first.abandon_group();
        }
        for other in &self.others {
            // The first error is the cause; those of the others that waited for it follow from it.
            result = result.and(other.results.recv_timeout(TIMEOUT).unwrap_or_else(|_| Err(gone())));
        }
        result
    }
}

impl Other {
    fn start(mut decoder: CudaDecoder) -> Result<Self, ModelError> {
        let (jobs, inbox) = sync_channel::<Arc<Job>>(1);
        let (outbox, results) = sync_channel(1);
        let body = move || {
            let mut out = CudaOutput::default();
            for job in inbox {
                let result = job.run(&mut decoder, &mut out);
                if result.is_err() {
                    decoder.abandon_group();
                }
                if outbox.send(result).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("tensor-rank".into()).spawn(body);
        let thread = thread.map_err(|error| ModelError::NotFound(format!("cannot start a thread: {error}")))?;
        Ok(Self { jobs: Some(jobs), results, thread: Some(thread) })
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A rank that panicked has already failed its step.
            let _ended = thread.join();
        }
    }
}
