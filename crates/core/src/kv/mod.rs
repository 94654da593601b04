//! The block pool of one model's KV cache: which blocks are free, which requests hold which, and which are kept for the
//! prefixes that they contain. The blocks' contents belong to the runner; this is the book-keeping, and part of the
//! scheduler core (no I/O).

pub mod plan;
mod prefix;

use prefix::{NodeId, PrefixTree};

/// Index of a block of `block_size` token positions.
pub type BlockId = u32;

/// One request's blocks at one model, in the order of positions.
#[derive(Debug, Default)]
pub struct Table {
    blocks: Vec<BlockId>,
    /// The first blocks belong to these nodes of the prefix tree and are never written.
    shared: Vec<NodeId>,
    /// The block after those is to be a copy of the beginning of this node's.
    copy: Option<NodeId>,
}

impl Table {
    /// An empty table with room for `blocks` blocks.
    pub fn with_capacity(blocks: usize) -> Self {
        Self { blocks: Vec::with_capacity(blocks), ..Self::default() }
    }

    /// The blocks.
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }
}

/// Blocks of a cache. Each is free, held by the table of one request, or a node of the prefix tree; nodes that no request
/// uses are given up, the least recently used first, when blocks are needed. `free + cached + held = capacity` always
/// (invariant 4).
#[derive(Debug)]
pub struct BlockPool {
    block_size: usize,
    free: Vec<BlockId>,
    is_free: Vec<bool>,
    tree: Option<PrefixTree>,
}

impl BlockPool {
    /// `capacity` free blocks of `block_size` positions; `keep_prefixes`: whether ended requests leave theirs behind.
    pub fn new(capacity: usize, block_size: usize, keep_prefixes: bool) -> Self {
        assert!(block_size > 0 && u32::try_from(capacity).is_ok());
        Self {
            block_size,
            // Popped from the back: low ids first, so that a lightly used pool touches little memory.
            free: (0..capacity as u32).rev().collect(),
            is_free: vec![true; capacity],
            tree: keep_prefixes.then(|| PrefixTree::new(block_size)),
        }
    }

    /// Positions per block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// All blocks.
    pub fn capacity(&self) -> usize {
        self.is_free.len()
    }

    /// Blocks without content.
    pub fn free_blocks(&self) -> usize {
        self.free.len()
    }

    /// Blocks kept for their prefixes that no request uses.
    pub fn cached_blocks(&self) -> usize {
        self.tree.as_ref().map_or(0, PrefixTree::idle)
    }

    /// Blocks in somebody's table.
    pub fn held_blocks(&self) -> usize {
        self.capacity() - self.free.len() - self.cached_blocks()
    }

    /// Blocks that `tokens` positions take.
    pub fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_size)
    }

    /// Fills an empty table with the longest known prefix of `tokens`, up to the last token but one: the last is computed
    /// in any case, for its logits. Returns the number of positions that need no computing.
    pub fn reuse(&mut self, table: &mut Table, tokens: &[u32]) -> usize {
        assert!(table.blocks.is_empty() && table.copy.is_none(), "only a new table can begin with a known prefix");
        let Some(tree) = &mut self.tree else { return 0 };
        let known = &tokens[..tokens.len().saturating_sub(1)];
        let whole = tree.walk(known, |node, block| {
            table.shared.push(node);
            table.blocks.push(block);
        });
        let parent = table.shared.last().copied();
        let Some((node, part)) = tree.longest_part(parent, &known[whole..]) else { return whole };
        tree.enter(node);
        if let Some(block) = self.take() {
            table.blocks.push(block);
            table.copy = Some(node);
            return whole + part;
        }
        self.tree_mut().leave(node);
        whole
    }

    /// The copy `(from, to)` that must be made before the table's blocks are read, once.
    pub fn pending_copy(&mut self, table: &mut Table) -> Option<(BlockId, BlockId)> {
        let node = table.copy.take()?;
        let to = table.blocks[table.shared.len()];
        let tree = self.tree_mut();
        let from = tree.block(node);
        tree.leave(node);
        Some((from, to))
    }

    /// Gives up a copy that was not made yet: positions from the returned one on must be computed after all. `None` when
    /// there is no such copy.
    pub fn abandon_copy(&mut self, table: &mut Table) -> Option<usize> {
        let node = table.copy.take()?;
        self.tree_mut().leave(node);
        Some(table.shared.len() * self.block_size)
    }

    /// Extends `table` to hold `tokens` positions. Takes nothing and returns false when too few blocks can be had.
    pub fn grow(&mut self, table: &mut Table, tokens: usize) -> bool {
        let missing = self.blocks_for(tokens).saturating_sub(table.blocks.len());
        if missing > self.free.len() + self.cached_blocks() {
            return false;
        }
        for _ in 0..missing {
            let block = self.take().expect("counted above");
            table.blocks.push(block);
        }
        true
    }

    /// Lets other requests use the whole blocks of a table that `tokens` fill.
    pub fn share(&mut self, table: &mut Table, tokens: &[u32]) {
        let Some(tree) = &mut self.tree else { return };
        for index in table.shared.len()..tokens.len() / self.block_size {
            let part = &tokens[index * self.block_size..(index + 1) * self.block_size];
            let parent = table.shared.last().copied();
            // Another request was faster: what is computed stays this one's own.
            let Some(node) = tree.insert(parent, part, table.blocks[index]) else { return };
            tree.enter(node);
            table.shared.push(node);
        }
    }

    /// Takes a table's blocks back. `tokens` are those with keys and values: their prefix may be kept.
    pub fn release(&mut self, table: Table, tokens: &[u32]) {
        let Table { blocks, shared, copy } = table;
        let Some(tree) = &mut self.tree else {
            blocks.into_iter().rev().for_each(|block| self.give(block));
            return;
        };
        // A copy that was never made left its block without content.
        let whole = (shared.len() * self.block_size).min(tokens.len());
        let tokens = if copy.is_some() { &tokens[..whole] } else { tokens };
        if let Some(node) = copy {
            tree.leave(node);
        }
        let mut unused = Vec::new();
        let mut parent = shared.last().copied();
        for (index, block) in blocks.into_iter().enumerate().skip(shared.len()) {
            let start = (index * self.block_size).min(tokens.len());
            let part = &tokens[start..(start + self.block_size).min(tokens.len())];
            match tree.insert(parent, part, block) {
                Some(node) => parent = Some(node),
                None => {
                    unused.push(block);
                    parent = tree.child(parent, part).or(parent);
                }
            }
        }
        shared.into_iter().rev().for_each(|node| tree.leave(node));
        unused.into_iter().rev().for_each(|block| self.give(block));
    }

    fn tree_mut(&mut self) -> &mut PrefixTree {
        self.tree.as_mut().expect("tables with nodes come from a tree")
    }

    /// A free block, or one whose prefix is given up.
    fn take(&mut self) -> Option<BlockId> {
        if let Some(block) = self.free.pop() {
            assert!(std::mem::replace(&mut self.is_free[block as usize], false), "block {block} handed out twice");
            return Some(block);
        }
        self.tree.as_mut()?.evict()
    }

    fn give(&mut self, block: BlockId) {
        assert!(!std::mem::replace(&mut self.is_free[block as usize], true), "block {block} freed twice");
        self.free.push(block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: usize = 4;

    /// A request as the scheduler would drive it, and what its blocks hold.
    #[derive(Default)]
    struct Holder {
        table: Table,
        tokens: Vec<u32>,
    }

    /// What a runner would have written: the token at every position of every block.
    type Contents = Vec<[u32; SIZE]>;

    fn write(contents: &mut Contents, holder: &Holder, from: usize) {
        for position in from..holder.tokens.len() {
            let block = holder.table.blocks()[position / SIZE] as usize;
            contents[block][position % SIZE] = holder.tokens[position];
        }
    }

    fn check(pool: &BlockPool, holders: &[Holder], contents: &Contents) -> Result<(), TestCaseError> {
        prop_assert_eq!(pool.free_blocks() + pool.cached_blocks() + pool.held_blocks(), pool.capacity());
        let mut held: Vec<_> = holders.iter().flat_map(|holder| holder.table.blocks()).copied().collect();
        held.sort_unstable();
        held.dedup();
        prop_assert_eq!(held.len(), pool.held_blocks());
        for holder in holders {
            for (position, token) in holder.tokens.iter().enumerate() {
                let block = holder.table.blocks()[position / SIZE] as usize;
                prop_assert_eq!(contents[block][position % SIZE], *token, "position {}", position);
            }
        }
        Ok(())
    }

    proptest! {
        /// Under any order of arrivals, growth, sharing and ends: blocks are conserved, and every request finds its own
        /// tokens in its blocks, whoever wrote them.
        #[test]
        fn requests_find_their_tokens_whoever_wrote_them(
            keep in any::<bool>(),
            steps in prop::collection::vec((0usize..5, prop::collection::vec(0u32..2, 1..20), 0usize..3), 1..120)
        ) {
            let mut pool = BlockPool::new(14, SIZE, keep);
            let mut contents: Contents = vec![[u32::MAX; SIZE]; 14];
            let mut holders: Vec<Holder> = (0..5).map(|_| Holder::default()).collect();
            for (who, tokens, what) in steps {
                let holder = &mut holders[who];
                if holder.tokens.is_empty() {
                    let known = pool.reuse(&mut holder.table, &tokens);
                    prop_assert!(known < tokens.len() && (keep || known == 0));
                    // Others may take blocks between a reuse and its copy; here they do not, the schedules do that.
                    if !pool.grow(&mut holder.table, tokens.len()) {
                        pool.release(std::mem::take(&mut holder.table), &[]);
                        continue;
                    }
                    if let Some((from, to)) = pool.pending_copy(&mut holder.table) {
                        contents[to as usize] = contents[from as usize];
                    }
                    holder.tokens = tokens;
                    write(&mut contents, holder, known);
                    if what == 0 {
                        let tokens = holder.tokens.clone();
                        pool.share(&mut holder.table, &tokens);
                    }
                } else if what == 1 {
                    let before = holder.tokens.len();
                    if pool.grow(&mut holder.table, before + tokens.len()) {
                        holder.tokens.extend(tokens);
                        write(&mut contents, holder, before);
                    }
                } else {
                    let Holder { table, tokens } = std::mem::take(holder);
                    pool.release(table, &tokens);
                }
                check(&pool, &holders, &contents)?;
            }
            for Holder { table, tokens } in holders {
                pool.release(table, &tokens);
            }
            prop_assert_eq!(pool.held_blocks(), 0);
        }
    }

    #[test]
    fn the_next_turn_of_a_session_finds_its_history() {
        let mut pool = BlockPool::new(10, SIZE, true);
        let turn: Vec<u32> = (0..10).collect();
        let mut table = Table::default();
        assert_eq!(pool.reuse(&mut table, &turn), 0);
        assert!(pool.grow(&mut table, 10));
        pool.release(table, &turn);
        assert_eq!((pool.cached_blocks(), pool.held_blocks()), (3, 0));
        // Two whole blocks, and two positions by a copy.
        let next: Vec<u32> = (0..20).collect();
        let mut table = Table::default();
        assert_eq!(pool.reuse(&mut table, &next), 10);
        let (from, to) = pool.pending_copy(&mut table).expect("a copy");
        assert!(from != to && table.blocks()[2] == to);
        assert_eq!(pool.pending_copy(&mut table), None);
        // The same text once more: its last token is computed again.
        let mut again = Table::default();
        assert_eq!(pool.reuse(&mut again, &turn), 9);
        pool.release(again, &[]);
        pool.release(table, &next[..10]);
        assert_eq!(pool.held_blocks(), 0);
    }

    #[test]
    fn the_least_recently_used_prefix_is_given_up_first() {
        let mut pool = BlockPool::new(3, SIZE, true);
        let texts: Vec<Vec<u32>> = (0..3).map(|i| vec![i; SIZE]).collect();
        for text in &texts {
            let mut table = Table::default();
            assert!(pool.grow(&mut table, SIZE));
            pool.release(table, text);
        }
        // The first is used again, so the second goes.
        let mut long = texts[0].clone();
        long.push(9);
        let mut table = Table::default();
        assert_eq!(pool.reuse(&mut table, &long), SIZE);
        assert!(pool.grow(&mut table, long.len()));
        pool.release(table, &long[..SIZE]);
        let known = |pool: &mut BlockPool, text: &[u32]| {
            let mut table = Table::default();
            let longer: Vec<u32> = text.iter().copied().chain([9]).collect();
            let known = pool.reuse(&mut table, &longer);
            pool.release(table, &[]);
            known
        };
        assert_eq!([0, 1, 2].map(|i| known(&mut pool, &texts[i])), [SIZE, 0, SIZE]);
    }
}
