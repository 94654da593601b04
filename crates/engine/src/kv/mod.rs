//! The block pool of one model's KV cache: which blocks are free, which are held. The blocks' contents belong to the
//! runner; this is the book-keeping, and part of the scheduler core (no I/O).

/// Index of a block of `block_size` token positions.
pub type BlockId = u32;

/// Free list over a fixed number of blocks. `free + held = capacity` always (invariant 4).
#[derive(Debug)]
pub struct BlockPool {
    block_size: usize,
    free: Vec<BlockId>,
    held: Vec<bool>,
}

impl BlockPool {
    /// `capacity` free blocks of `block_size` positions.
    pub fn new(capacity: usize, block_size: usize) -> Self {
        assert!(block_size > 0 && u32::try_from(capacity).is_ok());
        // Popped from the back: low ids first, so that a lightly used pool touches little memory.
        Self { block_size, free: (0..capacity as u32).rev().collect(), held: vec![false; capacity] }
    }

    /// Positions per block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// All blocks.
    pub fn capacity(&self) -> usize {
        self.held.len()
    }

    /// Blocks in nobody's table.
    pub fn free_blocks(&self) -> usize {
        self.free.len()
    }

    /// Blocks in somebody's table.
    pub fn held_blocks(&self) -> usize {
        self.capacity() - self.free.len()
    }

    /// Blocks that `tokens` positions take.
    pub fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_size)
    }

    /// Extends `table` to hold `tokens` positions. Takes nothing and returns false when too few blocks are free.
    pub fn grow(&mut self, table: &mut Vec<BlockId>, tokens: usize) -> bool {
        let missing = self.blocks_for(tokens).saturating_sub(table.len());
        if missing > self.free.len() {
            return false;
        }
        for block in self.free.drain(self.free.len() - missing..).rev() {
            assert!(!std::mem::replace(&mut self.held[block as usize], true), "block {block} handed out twice");
            table.push(block);
        }
        true
    }

    /// Returns a table's blocks, and empties it.
    pub fn release(&mut self, table: &mut Vec<BlockId>) {
        for block in table.drain(..).rev() {
            assert!(std::mem::replace(&mut self.held[block as usize], false), "block {block} freed twice");
            self.free.push(block);
        }
        assert!(self.free.len() <= self.held.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn conserves_blocks_and_never_shares_them(steps in prop::collection::vec((0usize..6, 0usize..80, any::<bool>()), 1..200)) {
            let mut pool = BlockPool::new(16, 8);
            let mut tables = vec![Vec::new(); 6];
            for (who, tokens, free) in steps {
                if free {
                    pool.release(&mut tables[who]);
                } else {
                    let before = tables[who].clone();
                    let need = pool.blocks_for(tokens).saturating_sub(before.len());
                    let fits = need <= pool.free_blocks();
                    prop_assert_eq!(pool.grow(&mut tables[who], tokens), fits);
                    prop_assert_eq!(tables[who].len(), before.len() + if fits { need } else { 0 });
                    prop_assert!(tables[who].starts_with(&before));
                }
                let mut all: Vec<_> = tables.iter().flatten().copied().collect();
                prop_assert_eq!(all.len(), pool.held_blocks());
                all.sort_unstable();
                all.dedup();
                prop_assert_eq!(all.len(), pool.held_blocks());
            }
        }
    }
}
