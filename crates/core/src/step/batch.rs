//! The batch of one step: a ragged list of rows over flat arrays, reused from step to step.

use std::ops::Range;
use std::sync::Arc;

use crate::kv::BlockId;
use crate::request::{Request, RequestId};

/// One request's part of a step.
#[derive(Debug, Clone)]
pub struct BatchRow {
    /// The request.
    pub id: RequestId,
    /// Its parameters.
    pub request: Arc<Request>,
    /// Position of the first new token.
    pub start: usize,
    /// Whether the row reaches the end of the log, so that a next token is wanted. False for all but the last chunk of
    /// a prefill.
    pub sample: bool,
    tokens: Range<usize>,
    blocks: Range<usize>,
    history: Range<usize>,
}

impl BatchRow {
    /// Index in the committed stream of the token that the row's logits predict.
    pub fn position(&self) -> usize {
        self.start + self.tokens.len() - self.request.prompt_tokens()
    }
}

/// Rows of one step. New tokens of row `r` sit at positions `start..start + tokens(r).len()`; `blocks(r)` is its block
/// table and covers them.
#[derive(Debug, Default)]
pub struct Batch {
    rows: Vec<BatchRow>,
    tokens: Vec<u32>,
    blocks: Vec<BlockId>,
    history: Vec<u32>,
    copies: Vec<(BlockId, BlockId)>,
}

impl Batch {
    /// The rows.
    pub fn rows(&self) -> &[BatchRow] {
        &self.rows
    }

    /// New tokens of a row, at least one.
    pub fn tokens(&self, row: &BatchRow) -> &[u32] {
        &self.tokens[row.tokens.clone()]
    }

    /// Block table of a row.
    pub fn blocks(&self, row: &BatchRow) -> &[BlockId] {
        &self.blocks[row.blocks.clone()]
    }

    /// Prompt and committed tokens of a row whose next token depends on them ([`SamplingParams::has_penalties`]),
    /// otherwise empty.
    ///
    /// [`SamplingParams::has_penalties`]: crate::SamplingParams::has_penalties
    pub fn history(&self, row: &BatchRow) -> &[u32] {
        &self.history[row.history.clone()]
    }

    /// Blocks `(from, to)` to copy, in order, before anything is computed.
    pub fn copies(&self) -> &[(BlockId, BlockId)] {
        &self.copies
    }

    /// Adds a copy of a block.
    pub fn push_copy(&mut self, from: BlockId, to: BlockId) {
        self.copies.push((from, to));
    }

    /// New tokens of all rows together.
    pub fn total_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Adds a row for the positions `new` of `log`, which is the row's prompt and committed tokens. It asks for a next
    /// token when it reaches the end of the log.
    pub fn push(
        &mut self,
        id: RequestId,
        request: &Arc<Request>,
        (log, new): (&[u32], Range<usize>),
        blocks: &[BlockId],
    ) {
        debug_assert!(!new.is_empty());
        let (start, sample) = (new.start, new.end == log.len());
        let (token, block, history) = (self.tokens.len(), self.blocks.len(), self.history.len());
        self.tokens.extend_from_slice(&log[new]);
        self.blocks.extend_from_slice(blocks);
        if sample && request.sampling.has_penalties() {
            self.history.extend_from_slice(log);
        }
        self.rows.push(BatchRow {
            id,
            request: Arc::clone(request),
            start,
            sample,
            tokens: token..self.tokens.len(),
            blocks: block..self.blocks.len(),
            history: history..self.history.len(),
        });
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.tokens.clear();
        self.blocks.clear();
        self.history.clear();
        self.copies.clear();
    }
}
