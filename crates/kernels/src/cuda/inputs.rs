//! What a step's kernels read about its batch, checked and copied to the device at once.

use super::memory::{Buffer, Device, Slice};
use crate::{Error, RowInput, check};

/// Sizes that hold for all batches of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most new tokens of a step.
    pub tokens: usize,
    /// Most rows of a step.
    pub rows: usize,
    /// Token ids are below this.
    pub vocab: usize,
    /// Positions are below this.
    pub positions: usize,
    /// KV blocks.
    pub blocks: usize,
    /// Positions of a block.
    pub block_size: usize,
}

/// The batch of a step on the device: always at the same addresses, so that graphs can read it.
#[derive(Debug)]
pub struct BatchInputs {
    limits: Limits,
    /// `tokens`, `positions`, `slots` and `rows` of every new token, then the last token of every row that samples.
    tokens: Buffer<i32>,
    /// `[row][table_width]`.
    tables: Buffer<i32>,
    /// As in `tokens`.
    staged: Vec<i32>,
    staged_tables: Vec<i32>,
    /// Slots that were seen, sorted, to find duplicates.
    sorted: Vec<i32>,
    shape: (usize, usize),
    samples: usize,
}

impl BatchInputs {
    /// Room for batches within `limits`.
    pub fn new(device: &Device, limits: Limits) -> Result<Self, Error> {
        for (what, size) in [("vocabulary", limits.vocab), ("positions", limits.positions)] {
            check(what, size, size > 0 && size <= 1 << 30, "from 1 to 2^30")?;
        }
        let slots = limits.blocks.saturating_mul(limits.block_size);
        check("positions of a KV cache", slots, slots > 0 && i32::try_from(slots).is_ok(), "from 1 to 2^31 - 1")?;
        let width = limits.positions.div_ceil(limits.block_size);
        Ok(Self {
            limits,
            tokens: device.buffer(4 * limits.tokens + limits.rows)?,
            tables: device.buffer(limits.rows * width)?,
            staged: vec![0; 4 * limits.tokens + limits.rows],
            staged_tables: Vec::new(),
            sorted: Vec::new(),
            shape: (0, 0),
            samples: 0,
        })
    }

    /// Takes a batch, padded to `shape`: tokens and rows that sample.
    pub fn set(&mut self, batch: &[RowInput<'_>], shape: (usize, usize)) -> Result<(), Error> {
        self.check(batch, shape)?;
        let Limits { tokens: most, block_size, .. } = self.limits;
        let width = self.table_width();
        // Padding: a token that nobody reads, at no position.
        self.staged[..4 * most].fill(0);
        self.staged[most..most + shape.0].fill(-1);
        self.staged[4 * most..].fill(0);
        self.staged_tables.clear();
        let (mut at, mut samples) = (0, 0);
        for (index, row) in batch.iter().enumerate() {
            for (offset, token) in row.tokens.iter().enumerate() {
                let position = row.start + offset;
                let slot = row.blocks[position / block_size] as usize * block_size + position % block_size;
                for (part, value) in [*token as usize, position, slot, index].into_iter().enumerate() {
                    self.staged[part * most + at] = value as i32;
                }
                at += 1;
            }
            if row.sample {
                self.staged[4 * most + samples] = at as i32 - 1;
                samples += 1;
            }
            let used = (row.start + row.tokens.len()).div_ceil(block_size);
            self.staged_tables.extend(row.blocks[..used].iter().map(|block| *block as i32));
            self.staged_tables.resize((index + 1) * width, 0);
        }
        (self.shape, self.samples) = (shape, samples);
        self.tokens.write(0, &self.staged)?;
        self.tables.write(0, &self.staged_tables)
    }

    fn check(&mut self, batch: &[RowInput<'_>], shape: (usize, usize)) -> Result<(), Error> {
        let Limits { tokens, rows, vocab, positions, blocks, block_size } = self.limits;
        let (new, samples) = Self::shape_of(batch);
        check("rows of a step", batch.len(), batch.len() <= rows, format_args!("at most {rows}"))?;
        check("new tokens of a step", shape.0, shape.0 >= new && shape.0 <= tokens, format_args!("{new} to {tokens}"))?;
        let fits = shape.1 >= samples && shape.1 <= rows;
        check("rows that sample", shape.1, fits, format_args!("{samples} to {rows}"))?;
        self.sorted.clear();
        for row in batch {
            let end = row.start + row.tokens.len();
            check("new tokens of a row", row.tokens.len(), !row.tokens.is_empty(), "at least 1")?;
            let covered = positions.min(row.blocks.len() * block_size);
            check("positions of a row", end, end <= covered, format_args!("at most {covered}"))?;
            let used = &row.blocks[..end.div_ceil(block_size)];
            if let Some(block) = used.iter().find(|block| **block as usize >= blocks) {
                check("KV block", *block as usize, false, format_args!("below {blocks}"))?;
            }
            if let Some(token) = row.tokens.iter().find(|token| **token as usize >= vocab) {
                check("token id", *token as usize, false, format_args!("below {vocab}"))?;
            }
            let slots = (row.start..end)
                .map(|at| row.blocks[at / block_size] as i32 * block_size as i32 + (at % block_size) as i32);
            self.sorted.extend(slots);
        }
        self.sorted.sort_unstable();
        match self.sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => check("KV slot that two new tokens share", pair[0] as usize, false, "none"),
            None => Ok(()),
        }
    }

    /// New tokens, and rows that sample.
    pub fn shape_of(batch: &[RowInput<'_>]) -> (usize, usize) {
        (batch.iter().map(|row| row.tokens.len()).sum(), batch.iter().filter(|row| row.sample).count())
    }

    /// New tokens, padding included.
    pub fn tokens(&self) -> usize {
        self.shape.0
    }

    /// Rows that sample, without padding.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Rows that sample, padding included.
    pub fn padded_samples(&self) -> usize {
        self.shape.1
    }

    fn part(&self, part: usize) -> Slice<'_, i32> {
        let start = part * self.limits.tokens;
        self.tokens.slice(start..start + self.shape.0)
    }

    pub(super) fn ids(&self) -> Slice<'_, i32> {
        self.part(0)
    }

    pub(super) fn positions(&self) -> Slice<'_, i32> {
        self.part(1)
    }

    pub(super) fn new_slots(&self) -> Slice<'_, i32> {
        self.part(2)
    }

    pub(super) fn rows(&self) -> Slice<'_, i32> {
        self.part(3)
    }

    pub(super) fn last_tokens(&self) -> Slice<'_, i32> {
        let start = 4 * self.limits.tokens;
        self.tokens.slice(start..start + self.shape.1)
    }

    pub(super) fn tables(&self) -> Slice<'_, i32> {
        self.tables.all()
    }

    /// Blocks of a row of a table.
    pub(super) fn table_width(&self) -> usize {
        self.limits.positions.div_ceil(self.limits.block_size)
    }

    pub(super) fn block_size(&self) -> usize {
        self.limits.block_size
    }

    /// Slots of a cache.
    pub(super) fn slots(&self) -> usize {
        self.limits.blocks * self.limits.block_size
    }

    pub(super) fn positions_limit(&self) -> usize {
        self.limits.positions
    }
}
