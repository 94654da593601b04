//! What a policy keeps of a request must outlive the request at one model when every visit is a new request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokenrouter_core::request::{ModelIndex, RequestId};
use tokenrouter_core::routing::{BatchView, Candidate, Head, Matrix, RequestState, RoutingPolicy, Row, SignalNeeds};

/// A policy that keeps the state of a request from one visit to the next.
#[derive(Debug)]
pub(crate) struct DetachedStates {
    inner: Arc<dyn RoutingPolicy>,
    /// States of requests that are between two models.
    states: Mutex<HashMap<RequestId, RequestState>>,
}

impl DetachedStates {
    pub(crate) fn new(inner: Arc<dyn RoutingPolicy>) -> Self {
        Self { inner, states: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, RequestState>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The request does not go on.
    pub(crate) fn forget(&self, id: RequestId) {
        self.lock().remove(&id);
    }
}

impl RoutingPolicy for DetachedStates {
    fn needs(&self, model: ModelIndex) -> SignalNeeds {
        self.inner.needs(model)
    }

    fn head(&self, model: ModelIndex) -> Option<Arc<dyn Head>> {
        self.inner.head(model)
    }

    fn transition_model(&self) -> Option<(Matrix, Matrix)> {
        self.inner.transition_model()
    }

    fn takes_threshold(&self) -> bool {
        self.inner.takes_threshold()
    }

    fn route(&self, batch: &mut BatchView<'_>) {
        for row in batch.rows_mut().iter_mut().filter(|row| row.visit_steps == 0) {
            if let Some(state) = self.lock().remove(&row.request) {
                row.state = state;
            }
        }
        self.inner.route(batch);
    }

    fn send(&self, row: &mut Row, to: ModelIndex) -> Candidate {
        let candidate = self.inner.send(row, to);
        self.lock().insert(row.request, std::mem::take(&mut row.state));
        candidate
    }
}
