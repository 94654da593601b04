//! The plain one-request loop that every schedule must reproduce: no batching, no threads, no scheduler.

use std::sync::Arc;

use crate::kv::BlockPool;
use crate::request::{CommittedToken, FinishReason, ModelIndex, Request, RequestId};
use crate::routing::{Candidate, Decision, RoutingPolicy, RowView};
use crate::runner::{ModelRunner, RowOutput, RunnerError};
use crate::scheduler::Batch;

/// One model of the reference loop.
pub struct ReferenceModel<'a> {
    /// Computes its steps; its KV blocks must be free.
    pub runner: &'a mut dyn ModelRunner,
    /// KV blocks of the runner.
    pub blocks: usize,
    /// Positions per block.
    pub block_size: usize,
}

/// Decodes one request, starting at model `entry`. Returns the committed tokens and why they end.
pub fn generate(
    models: &mut [ReferenceModel<'_>],
    policy: &dyn RoutingPolicy,
    entry: ModelIndex,
    eos: &[u32],
    request: &Arc<Request>,
) -> Result<(Vec<CommittedToken>, FinishReason), RunnerError> {
    let id = RequestId(u64::MAX);
    let mut log = request.prompt.clone();
    let mut committed = Vec::new();
    let mut tables: Vec<_> = models.iter().map(|_| Vec::new()).collect();
    let mut pools: Vec<_> = models.iter().map(|model| BlockPool::new(model.blocks, model.block_size)).collect();
    let mut computed = vec![0; models.len()];
    let mut at = entry;
    let (mut batch, mut outputs, mut decisions) = (Batch::default(), Vec::<RowOutput>::new(), Vec::new());
    loop {
        assert!(pools[at].grow(&mut tables[at], log.len()), "the reference loop needs KV for one whole request");
        batch.clear();
        batch.push(id, request, (computed[at], &log[computed[at]..]), &tables[at], true);
        models[at].runner.forward(&batch, &mut outputs)?;
        computed[at] = log.len();
        let output = &outputs[0];
        let view = RowView {
            request: id,
            seed: request.sampling.seed,
            key: request.key,
            model: at,
            position: committed.len(),
            candidate: output.token,
            signals: &output.signals,
        };
        decisions.clear();
        policy.route(&[view], &mut decisions);
        let to = match decisions[0] {
            Decision::Switch(to) if to != at => Some(to),
            _ => None,
        };
        if to.is_none_or(|to| policy.send(&view, to) == Candidate::Commit) {
            log.push(output.token);
            committed.push(CommittedToken { id: output.token, origin: at });
            let sampling = &request.sampling;
            if sampling.stop_token_ids.contains(&output.token) || (!sampling.ignore_eos && eos.contains(&output.token))
            {
                return Ok((committed, FinishReason::Stop));
            }
            if committed.len() >= sampling.max_tokens {
                return Ok((committed, FinishReason::Length));
            }
        }
        at = to.unwrap_or(at);
    }
}
