//! Communicating classes (Tarjan) and the period of a chain.

use super::matrix::TransitionMatrix;

/// Recurrent classes of a chain.
#[derive(Debug, Clone)]
pub struct Classes {
    /// Number of communicating classes, transient ones included.
    pub communicating: usize,
    /// States of every recurrent class, ascending.
    pub recurrent: Vec<Vec<u32>>,
    /// Number of transient states.
    pub transient: usize,
}

/// Finds communicating classes with Tarjan's algorithm (iterative) and keeps those that nothing leaves.
#[must_use]
pub fn classes(matrix: &TransitionMatrix) -> Classes {
    let component = tarjan(matrix);
    let count = component.iter().max().map_or(0, |&last| last as usize + 1);
    let mut closed = vec![true; count];
    if count > 1 {
        for state in 0..matrix.len() {
            let own = component[state];
            if matrix.row(state).0.iter().any(|&next| component[next as usize] != own) {
                closed[own as usize] = false;
            }
        }
    }
    let mut slot = vec![usize::MAX; count];
    let mut recurrent = Vec::new();
    for (class, _) in closed.iter().enumerate().filter(|&(_, &is_closed)| is_closed) {
        slot[class] = recurrent.len();
        recurrent.push(Vec::new());
    }
    let mut transient = 0;
    for (state, &class) in component.iter().enumerate() {
        match slot[class as usize] {
            usize::MAX => transient += 1,
            index => recurrent[index].push(state as u32),
        }
    }
    Classes { communicating: count, recurrent, transient }
}

/// Component number of every state, by Pearce's variant of Tarjan's algorithm: one array serves as visit number, low link
/// and component number. Components are numbered downwards from `states - 1`, so that a finished state always compares
/// above every state still being visited; the numbers are turned round at the end.
fn tarjan(matrix: &TransitionMatrix) -> Vec<u32> {
    let states = matrix.len();
    let mut visit = Visit { rank: vec![0; states], clock: 1, component: states as u32, waiting: Vec::new() };
    let mut calls: Vec<Frame> = Vec::new();
    for root in 0..states as u32 {
        if visit.rank[root as usize] == 0 {
            calls.push(visit.enter(matrix, root));
        }
        while let Some(frame) = calls.last_mut() {
            let state = frame.state as usize;
            if frame.edge < matrix.row_start[state + 1] {
                let next = matrix.columns[frame.edge as usize];
                if visit.rank[next as usize] == 0 {
                    // The edge is looked at again once `next` has been visited.
                    calls.push(visit.enter(matrix, next));
                } else {
                    frame.edge += 1;
                    if visit.rank[next as usize] < visit.rank[state] {
                        visit.rank[state] = visit.rank[next as usize];
                        frame.is_root = false;
                    }
                }
                continue;
            }
            let (state, is_root) = (frame.state, frame.is_root);
            calls.pop();
            visit.leave(state, is_root);
        }
    }
    let last = states as u32;
    visit.rank.iter().map(|&rank| last - rank).collect()
}

struct Frame {
    state: u32,
    edge: u32,
    is_root: bool,
}

struct Visit {
    rank: Vec<u32>,
    clock: u32,
    component: u32,
    waiting: Vec<u32>,
}

impl Visit {
    fn enter(&mut self, matrix: &TransitionMatrix, state: u32) -> Frame {
        self.rank[state as usize] = self.clock;
        self.clock += 1;
        Frame { state, edge: matrix.row_start[state as usize], is_root: true }
    }

    fn leave(&mut self, state: u32, is_root: bool) {
        if !is_root {
            self.waiting.push(state);
            return;
        }
        let rank = self.rank[state as usize];
        while let Some(&top) = self.waiting.last()
            && self.rank[top as usize] >= rank
        {
            self.waiting.pop();
            self.rank[top as usize] = self.component;
            self.clock -= 1;
        }
        self.rank[state as usize] = self.component;
        self.clock -= 1;
        self.component -= 1;
    }
}

/// Period of an irreducible chain: the greatest common divisor of its cycle lengths.
#[must_use]
pub fn period(matrix: &TransitionMatrix) -> u64 {
    if matrix.is_empty() {
        return 0;
    }
    let mut level = vec![u32::MAX; matrix.len()];
    let mut queue = std::collections::VecDeque::from([0_u32]);
    level[0] = 0;
    let mut divisor = 0_u64;
    while let Some(state) = queue.pop_front() {
        let here = level[state as usize];
        for &next in matrix.row(state as usize).0 {
            let there = &mut level[next as usize];
            if *there == u32::MAX {
                *there = here + 1;
                queue.push_back(next);
            } else {
                divisor = gcd(divisor, (i64::from(here) + 1 - i64::from(*there)).unsigned_abs());
            }
        }
    }
    divisor
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
