//! The plain one-request loop that every schedule must reproduce: no batching, no threads, no scheduler.

use std::sync::Arc;

use crate::kv::{BlockPool, Table};
use crate::request::{CommittedToken, FinishReason, ModelIndex, Request, RequestId};
use crate::routing::{BatchView, Candidate, Decision, RequestState, RoutingPolicy, Row};
use crate::step::Batch;
use crate::step::{ModelRunner, RunnerError, StepOutput};
use crate::token_texts::TokenTexts;

/// One model of the reference loop.
pub struct ReferenceModel<'a> {
    /// Computes its steps; its KV blocks must be free.
    pub runner: &'a mut dyn ModelRunner,
    /// KV blocks of the runner.
    pub blocks: usize,
    /// Positions per block.
    pub block_size: usize,
}

/// Decodes one request, starting at model `entry`. Returns the committed tokens and why they end. `texts` are the tokens'
/// texts, for stop texts.
pub fn generate(
    models: &mut [ReferenceModel<'_>],
    policy: &dyn RoutingPolicy,
    entry: ModelIndex,
    (eos, texts): (&[u32], Option<&TokenTexts>),
    request: &Arc<Request>,
) -> Result<(Vec<CommittedToken>, FinishReason), RunnerError> {
    let id = RequestId(u64::MAX);
    let mut log = request.prompt.clone();
    let mut committed = Vec::new();
    let mut tables: Vec<_> = models.iter().map(|_| Table::default()).collect();
    let mut pools: Vec<_> = models.iter().map(|model| BlockPool::new(model.blocks, model.block_size, false)).collect();
    let mut computed = vec![0; models.len()];
    let mut at = entry;
    let (mut batch, mut output) = (Batch::default(), StepOutput::default());
    let (mut state, mut visit_steps, mut visit_tokens) = (RequestState::default(), 0, 0);
    loop {
        assert!(pools[at].grow(&mut tables[at], log.len()), "the reference loop needs KV for one whole request");
        // Fed once more for its logits, when every model has dropped a candidate at this position.
        computed[at] = computed[at].min(log.len() - 1);
        batch.clear();
        batch.push(id, request, (&log, computed[at]..log.len()), tables[at].blocks());
        models[at].runner.forward(&batch, &mut output)?;
        computed[at] = log.len();
        let mut row = Row {
            visit_steps,
            visit_tokens,
            state: std::mem::take(&mut state),
            ..Row::new(id, request, at, committed.len(), output.tokens[0])
        };
        policy.route(&mut BatchView::new(std::slice::from_mut(&mut row), &output));
        visit_steps += 1;
        let (to, commit) = match row.decision.clone() {
            Decision::Stay => (at, true),
            Decision::Switch(to) if to == at => (at, true),
            Decision::Switch(to) => (to, policy.send(&mut row, to) == Candidate::Commit),
            Decision::Retry => (at, false),
            Decision::Finish => (at, true),
            Decision::Fail(message) => return Ok((committed, FinishReason::Error(message))),
        };
        if commit {
            log.push(row.candidate);
            visit_tokens += 1;
            committed.push(CommittedToken { id: row.candidate, origin: at });
            if let Some(reason) = request.sampling.finish_after(&log[request.prompt_tokens()..], eos, texts) {
                return Ok((committed, reason));
            }
            if row.decision == Decision::Finish {
                return Ok((committed, FinishReason::Length));
            }
        }
        if to != at {
            (at, visit_steps, visit_tokens) = (to, 0, 0);
        } else if !commit {
            computed[at] -= 1;
        }
        state = row.state;
    }
}
