//! The thread that follows an engine's load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Adapter, Change};
use crate::driver::{Inbound, Shared};
use tokenrouter_core::scheduler::{Event, ThresholdTable};

/// A running adaptation; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Worker {
    /// Closed at the end, which the thread waits for.
    stop: Option<Sender<()>>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Looks at the counters in `shared` every `period` and sends new tables to all `inboxes`.
    pub(crate) fn start(
        adapter: Adapter,
        shared: Vec<Arc<Shared>>,
        inboxes: Vec<SyncSender<Inbound>>,
        period: Duration,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let stopping = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stopping);
        // The solver computes on the threads of a pool: this one has a single thread, which gives way to the models'.
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(1)
            .thread_name(|_| "thresholds".into())
            .start_handler(|_| yield_priority())
            .build()
            .map_err(std::io::Error::other)?;
        let mut follower = Follower { adapter, shared, inboxes, stopping: flag, pool };
        let body = move || follower.run(period, &stopped);
        let thread = std::thread::Builder::new().name("adaptation".into()).spawn(body)?;
        Ok(Self { stop: Some(stop), stopping, thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _reported_already = thread.join();
        }
    }
}

/// The lowest priority that the system has for this thread alone.
fn yield_priority() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, 19) {
        tracing::debug!(target: "tokenrouter", "adaptation runs at normal priority: {error}");
    }
}

/// What the thread works with.
struct Follower {
    adapter: Adapter,
    /// The models' counters.
    shared: Vec<Arc<Shared>>,
    /// Where new tables go, for every model.
    inboxes: Vec<SyncSender<Inbound>>,
    stopping: Arc<AtomicBool>,
    pool: rayon::ThreadPool,
}

impl Follower {
    /// Looks at the counters every `period` until `stopped` is closed or a subserver is gone.
    fn run(&mut self, period: Duration, stopped: &Receiver<()>) {
        while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
            let stats: Vec<_> = self.shared.iter().map(|shared| shared.snapshot().stats).collect();
            let Self { adapter, stopping, .. } = self;
            adapter.observe(&stats);
            match self.pool.install(|| adapter.reconsider(&|| stopping.load(Ordering::Acquire))) {
                Ok(None) => {}
                Ok(Some(change)) => {
                    log(&change);
                    if self.inboxes.iter().any(|inbox| !tell(inbox, &change.table)) {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(target: "tokenrouter", "thresholds stay as they are, the throughput model says: {error}");
                }
            }
        }
    }
}

/// False when the subserver is gone. Its inbox has room for every open request, so that this never waits for long.
fn tell(inbox: &SyncSender<Inbound>, table: &Arc<ThresholdTable>) -> bool {
    loop {
        match inbox.try_send(Inbound::Event(Event::Thresholds(Arc::clone(table)))) {
            Ok(()) => return true,
            Err(TrySendError::Full(_)) => std::thread::yield_now(),
            Err(TrySendError::Disconnected(_)) => return false,
        }
    }
}

fn log(change: &Change) {
    let Some(last) = change.rows.last() else { return };
    let routing = serde_json::to_string(&change.estimates.routing).unwrap_or_default();
    tracing::info!(
        target: "tokenrouter",
        rows = change.rows.len(),
        active = last.active,
        routing,
        "thresholds change from {:?} to {:?} at {} active requests: predicted gain {:.1} %",
        last.from,
        last.to,
        last.active,
        last.gain * 100.0
    );
    for row in &change.rows {
        let (from, to) = (&row.from, &row.to);
        tracing::debug!(target: "tokenrouter", active = row.active, gain = row.gain, "thresholds {from:?} -> {to:?}");
    }
}
