//! One model's state of one request.

use std::sync::Arc;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use super::stats::ModelStats;
use crate::kv::{BlockPool, Table};
use crate::request::{ModelIndex, Request, RequestStats};
use crate::routing::RequestState;

/// Where a request is, seen from one model (invariant 3: exactly one model has it in `Ready` or `Running`, or it is on
/// a link).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Here, waiting for a launch, since this time.
    Ready(Duration),
    /// Here, in the batch that runs.
    Running,
    /// Left for this model; its log stays for the return, and with handoff-resume its KV.
    Pending(ModelIndex),
}

/// One model's state of one request.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) request: Arc<Request>,
    /// Prompt and committed tokens that this model knows.
    pub(super) log: Vec<u32>,
    /// Tokens of `log` whose keys and values are computed.
    pub(super) computed: usize,
    pub(super) blocks: Table,
    pub(super) place: Place,
    pub(super) hop: u64,
    pub(super) known: SmallVec<[usize; 4]>,
    pub(super) stats: RequestStats,
    pub(super) cancelled: bool,
    pub(super) state: RequestState,
    /// Steps here since the request came, and tokens that they committed.
    pub(super) visit_steps: u32,
    pub(super) visit_tokens: u32,
    /// Whether the prompt's blocks were offered to others.
    pub(super) shared: bool,
    /// Steps since the last commit, anywhere.
    pub(super) steps_without_commit: u32,
    /// It has ended elsewhere while its step runs here: to be dropped when the step is done.
    pub(super) closed: bool,
}

impl Sequence {
    /// Begins with what the cache knows of the log.
    pub(super) fn reuse_prefix(&mut self, kv: &mut BlockPool, stats: &mut ModelStats) {
        self.computed = kv.reuse(&mut self.blocks, &self.log);
        stats.prefix_tokens += self.log.len() as u64;
        stats.prefix_hits += self.computed as u64;
    }

    /// Makes room for `take` more positions. A copy that stands in the way is given up.
    pub(super) fn grow(&mut self, kv: &mut BlockPool, take: usize) -> bool {
        let fits = kv.grow(&mut self.blocks, self.computed + take);
        if !fits && let Some(computed) = kv.abandon_copy(&mut self.blocks) {
            self.computed = computed;
            return kv.grow(&mut self.blocks, computed + take);
        }
        fits
    }

    /// Once the prompt is computed, others may use it. Its last token stays this request's own: a policy may have it fed
    /// again.
    pub(super) fn share_prompt(&mut self, kv: &mut BlockPool) {
        let prompt = self.request.prompt.len();
        if !self.shared && self.computed >= prompt {
            self.shared = true;
            kv.share(&mut self.blocks, &self.log[..prompt - 1]);
        }
    }

    /// A request that has just arrived, with nothing computed.
    pub(super) fn new(request: Arc<Request>, models: usize, kv: &BlockPool, now: Duration) -> Self {
        let most = request.most_tokens();
        Self {
            log: {
                // Room for the whole request: the log must not move while it decodes.
                let mut log = Vec::with_capacity(most);
                log.extend_from_slice(&request.prompt);
                log
            },
            request,
            computed: 0,
            blocks: Table::with_capacity(kv.blocks_for(most)),
            place: Place::Ready(now),
            hop: 0,
            known: smallvec![0; models],
            stats: RequestStats::for_models(models),
            cancelled: false,
            state: RequestState::default(),
            visit_steps: 0,
            visit_tokens: 0,
            shared: false,
            steps_without_commit: 0,
            closed: false,
        }
    }
}
