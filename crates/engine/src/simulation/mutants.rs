//! Mistakes on purpose outside of the scheduler core.

use std::sync::Arc;

use crate::request::ModelIndex;
use crate::routing::{BatchView, Candidate, RoutingPolicy, Row, SignalNeeds};

/// A policy whose draws depend on the row of the batch instead of the request.
#[derive(Debug)]
pub(super) struct RouteByRow(pub(super) Arc<dyn RoutingPolicy>);

impl RoutingPolicy for RouteByRow {
    fn needs(&self, model: ModelIndex) -> SignalNeeds {
        self.0.needs(model)
    }

    fn route(&self, batch: &mut BatchView<'_>) {
        let keys: Vec<u64> = batch.rows_mut().iter().map(|row| row.key).collect();
        batch.rows_mut().iter_mut().zip(0..).for_each(|(row, index)| row.key = index);
        self.0.route(batch);
        batch.rows_mut().iter_mut().zip(keys).for_each(|(row, key)| row.key = key);
    }

    fn send(&self, row: &mut Row, to: ModelIndex) -> Candidate {
        self.0.send(row, to)
    }

    fn receive(&self, log: &mut Vec<u32>, delta: &[u32]) {
        self.0.receive(log, delta);
    }
}
