//! Requests that are open: their bounds, their names, and how all of them end at a shutdown.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::ApiError;
use super::metrics::Number;
use crate::config::ServerConfig;
use tokenrouter_core::request::RequestId;

/// The open requests of a server.
#[derive(Debug)]
pub(super) struct OpenRequests {
    by_serial: Mutex<HashMap<u64, OpenRequest>>,
    next: AtomicU64,
    /// Makes ids that cannot be guessed: whoever knows one can cancel it.
    random: RandomState,
    most_open: usize,
    most_waiting: usize,
    /// For those who only count.
    pub(super) open: Number,
    pub(super) waiting: Number,
    ended: Notify,
    draining: watch::Sender<bool>,
    aborting: watch::Sender<bool>,
}

#[derive(Debug)]
struct OpenRequest {
    name: String,
    /// Name of the answer, derived from `name`.
    answer: String,
    ids: Vec<RequestId>,
    waiting: bool,
}

impl OpenRequests {
    pub(super) fn new(config: &ServerConfig) -> Self {
        Self {
            by_serial: Mutex::default(),
            next: AtomicU64::new(0),
            random: RandomState::new(),
            most_open: config.max_concurrent_requests,
            most_waiting: config.max_queued_requests,
            open: Number::default(),
            waiting: Number::default(),
            ended: Notify::new(),
            draining: watch::Sender::new(false),
            aborting: watch::Sender::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, OpenRequest>> {
        self.by_serial.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new request id.
    pub(super) fn new_name(&self) -> String {
        let serial = self.next.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}{:016x}", self.random.hash_one((serial, 1)), self.random.hash_one((serial, 2)))
    }

    /// Takes a request in, as waiting for admission.
    pub(super) fn enter(self: &Arc<Self>, name: &str, answer: &str) -> Result<Permit, ApiError> {
        if self.is_draining() {
            return Err(ApiError::draining());
        }
        let mut requests = self.lock();
        if requests.len() >= self.most_open {
            let message = format!("{} requests are open (`server.max_concurrent_requests`)", requests.len());
            return Err(ApiError::overloaded(message));
        }
        let waiting = requests.values().filter(|open| open.waiting).count();
        if waiting >= self.most_waiting {
            let message = format!("{waiting} requests wait for admission (`server.max_queued_requests`)");
            return Err(ApiError::overloaded(message));
        }
        let serial = self.next.fetch_add(1, Ordering::Relaxed);
        let open = OpenRequest { name: name.to_owned(), answer: answer.to_owned(), ids: Vec::new(), waiting: true };
        requests.insert(serial, open);
        self.count(&requests);
        Ok(Permit { serial, requests: Arc::clone(self) })
    }

    fn count(&self, requests: &HashMap<u64, OpenRequest>) {
        self.open.set(requests.len() as u64);
        self.waiting.set(requests.values().filter(|open| open.waiting).count() as u64);
    }

    /// The engine's ids of the requests with this name, or with this name of their answer.
    pub(super) fn find(&self, name: &str) -> Vec<RequestId> {
        let requests = self.lock();
        let named = requests.values().filter(|open| open.name == name || open.answer == name);
        named.flat_map(|open| open.ids.iter().copied()).collect()
    }

    pub(super) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Lets nothing in any more and waits for what is open; what is still open at the end of `timeout` is told to end.
    pub(super) async fn drain(&self, timeout: Duration) -> bool {
        self.draining.send_replace(true);
        let all_ended = tokio::time::timeout(timeout, self.wait_empty()).await.is_ok();
        self.aborting.send_replace(true);
        all_ended
    }

    /// Waits until nothing is open.
    pub(super) async fn wait_empty(&self) {
        loop {
            let ended = self.ended.notified();
            if self.lock().is_empty() {
                return;
            }
            ended.await;
        }
    }

    /// Told when open requests have to end.
    pub(super) fn aborting(&self) -> watch::Receiver<bool> {
        self.aborting.subscribe()
    }
}

/// The place of one open request; dropping it gives the place back.
#[derive(Debug)]
pub(super) struct Permit {
    serial: u64,
    requests: Arc<OpenRequests>,
}

impl Permit {
    /// Names the engine's requests.
    pub(super) fn runs(&self, id: RequestId) {
        if let Some(open) = self.requests.lock().get_mut(&self.serial) {
            open.ids.push(id);
        }
    }

    /// The request waits no more.
    pub(super) fn admitted(&self) {
        let mut requests = self.requests.lock();
        if let Some(open) = requests.get_mut(&self.serial) {
            open.waiting = false;
        }
        self.requests.count(&requests);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut requests = self.requests.lock();
        requests.remove(&self.serial);
        self.requests.count(&requests);
        drop(requests);
        self.requests.ended.notify_waiters();
    }
}
