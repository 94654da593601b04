//! The prefix tree: what texts the blocks of a cache begin with. A path from the root spells a text, one block a node.

use std::collections::{BTreeSet, HashMap};

use super::BlockId;

/// Index of a node.
pub(super) type NodeId = u32;

#[derive(Debug)]
struct Node {
    parent: Option<NodeId>,
    /// At most a block's tokens; nodes with fewer have no children.
    tokens: Vec<u32>,
    block: BlockId,
    children: usize,
    /// Requests that have the block in their table, or are to copy it.
    users: u32,
    /// When it was used last.
    used: u64,
}

/// Nodes over blocks. A node that is used has users on the whole path to the root.
#[derive(Debug)]
pub(super) struct PrefixTree {
    block_size: usize,
    nodes: Vec<Node>,
    /// Unused entries of `nodes`.
    vacant: Vec<NodeId>,
    /// Children by parent and first token.
    children: HashMap<(Option<NodeId>, u32), Vec<NodeId>>,
    /// Nodes without users and children, by the time of their last use.
    leaves: BTreeSet<(u64, NodeId)>,
    /// Nodes without users.
    idle: usize,
    clock: u64,
}

impl PrefixTree {
    pub(super) fn new(block_size: usize) -> Self {
        Self {
            block_size,
            nodes: Vec::new(),
            vacant: Vec::new(),
            children: HashMap::new(),
            leaves: BTreeSet::new(),
            idle: 0,
            clock: 0,
        }
    }

    /// Nodes that no request uses.
    pub(super) fn idle(&self) -> usize {
        self.idle
    }

    pub(super) fn block(&self, node: NodeId) -> BlockId {
        self.nodes[node as usize].block
    }

    fn siblings(&self, parent: Option<NodeId>, first: u32) -> &[NodeId] {
        self.children.get(&(parent, first)).map_or(&[], Vec::as_slice)
    }

    /// The child that has exactly these tokens.
    pub(super) fn child(&self, parent: Option<NodeId>, tokens: &[u32]) -> Option<NodeId> {
        let siblings = self.siblings(parent, *tokens.first()?);
        // From the newest: beginnings of a block that requests left on their way are older than the whole of it.
        siblings.iter().rev().copied().find(|node| self.nodes[*node as usize].tokens == tokens)
    }

    /// Enters the nodes whose blocks are a prefix of `tokens`, in order. Returns the tokens that they cover.
    pub(super) fn walk(&mut self, tokens: &[u32], mut found: impl FnMut(NodeId, BlockId)) -> usize {
        let (mut at, mut parent) = (0, None);
        while let Some(part) = tokens.get(at..at + self.block_size)
            && let Some(node) = self.child(parent, part)
        {
            self.enter(node);
            found(node, self.block(node));
            at += self.block_size;
            parent = Some(node);
        }
        at
    }

    /// The child that has the longest common beginning with `tokens`, and its length.
    pub(super) fn longest_part(&self, parent: Option<NodeId>, tokens: &[u32]) -> Option<(NodeId, usize)> {
        let common = |node: &NodeId| {
            let own = &self.nodes[*node as usize].tokens;
            (*node, own.iter().zip(tokens).take_while(|(a, b)| a == b).count())
        };
        self.siblings(parent, *tokens.first()?).iter().map(common).max_by_key(|(_, length)| *length)
    }

    /// Adds a node without users for `block`. `None`, and the block stays the caller's, when there are no tokens or the
    /// tree already knows them.
    pub(super) fn insert(&mut self, parent: Option<NodeId>, tokens: &[u32], block: BlockId) -> Option<NodeId> {
        let first = *tokens.first()?;
        let known = |node: &NodeId| self.nodes[*node as usize].tokens.starts_with(tokens);
        if self.siblings(parent, first).iter().rev().any(known) {
            return None;
        }
        // Behind a node that is not full nothing can follow.
        if parent.is_some_and(|parent| self.nodes[parent as usize].tokens.len() < self.block_size) {
            return None;
        }
        let node = Node { parent, tokens: tokens.to_vec(), block, children: 0, users: 0, used: self.clock };
        let id = match self.vacant.pop() {
            Some(id) => {
                self.nodes[id as usize] = node;
                id
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as NodeId
            }
        };
        if let Some(parent) = parent {
            let parent_node = &mut self.nodes[parent as usize];
            if parent_node.children == 0 {
                self.leaves.remove(&(parent_node.used, parent));
            }
            parent_node.children += 1;
        }
        self.children.entry((parent, first)).or_default().push(id);
        self.leaves.insert((self.clock, id));
        self.idle += 1;
        Some(id)
    }

    /// One more request uses the node.
    pub(super) fn enter(&mut self, id: NodeId) {
        let node = &mut self.nodes[id as usize];
        if node.users == 0 {
            self.idle -= 1;
            if node.children == 0 {
                self.leaves.remove(&(node.used, id));
            }
        }
        node.users += 1;
    }

    /// One request less uses the node.
    pub(super) fn leave(&mut self, id: NodeId) {
        self.clock += 1;
        let node = &mut self.nodes[id as usize];
        node.users -= 1;
        if node.users > 0 {
            return;
        }
        self.idle += 1;
        node.used = self.clock;
        if node.children == 0 {
            self.leaves.insert((node.used, id));
        }
    }

    /// Gives up the least recently used node that nothing hangs on; its block is the caller's.
    pub(super) fn evict(&mut self) -> Option<BlockId> {
        let (_, id) = self.leaves.pop_first()?;
        self.idle -= 1;
        let node = &mut self.nodes[id as usize];
        let (parent, block, tokens) = (node.parent, node.block, std::mem::take(&mut node.tokens));
        self.vacant.push(id);
        let key = (parent, tokens[0]);
        let siblings = self.children.get_mut(&key).expect("a node is among its parent's children");
        siblings.retain(|sibling| *sibling != id);
        if siblings.is_empty() {
            self.children.remove(&key);
        }
        if let Some(parent) = parent {
            let node = &mut self.nodes[parent as usize];
            node.children -= 1;
            if node.children == 0 && node.users == 0 {
                self.leaves.insert((node.used, parent));
            }
        }
        Some(block)
    }
}
