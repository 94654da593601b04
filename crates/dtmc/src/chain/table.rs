//! An open-addressing map from packed states to consecutive numbers.

use super::key::Key;

const EMPTY: u32 = u32::MAX;

/// Insert-only map `key -> 0, 1, 2, ...` with linear probing over a power-of-two table.
pub(crate) struct StateTable<K> {
    slots: Vec<(K, u32)>,
    len: usize,
    shift: u32,
}

impl<K: Key> StateTable<K> {
    pub(crate) fn new() -> Self {
        let mut table = Self { slots: Vec::new(), len: 0, shift: 0 };
        table.reset(10);
        table
    }

    /// Forgets every entry, keeps a small table.
    pub(crate) fn clear(&mut self) {
        let log2 = (64 - self.shift).min(16);
        self.reset(log2);
    }

    fn reset(&mut self, log2: u32) {
        self.slots.clear();
        self.slots.resize(1 << log2, (K::default(), EMPTY));
        self.shift = 64 - log2;
        self.len = 0;
    }

    /// Number of `key`, and whether it is new.
    #[inline]
    pub(crate) fn insert(&mut self, key: K) -> (u32, bool) {
        let mask = self.slots.len() - 1;
        let mut at = (key.mix() >> self.shift) as usize;
        loop {
            let (stored, number) = self.slots[at & mask];
            if number == EMPTY {
                break;
            }
            if stored == key {
                return (number, false);
            }
            at += 1;
        }
        let number = self.len as u32;
        self.slots[at & mask] = (key, number);
        self.len += 1;
        if self.len * 5 > self.slots.len() * 3 {
            self.grow();
        }
        (number, true)
    }

    #[cold]
    fn grow(&mut self) {
        let log2 = 64 - self.shift + 1;
        let old = std::mem::take(&mut self.slots);
        let len = self.len;
        self.reset(log2);
        self.len = len;
        let mask = self.slots.len() - 1;
        for (key, number) in old.into_iter().filter(|&(_, number)| number != EMPTY) {
            let mut at = (key.mix() >> self.shift) as usize;
            while self.slots[at & mask].1 != EMPTY {
                at += 1;
            }
            self.slots[at & mask] = (key, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_consecutive_and_stable_over_growth() {
        let mut table = StateTable::<u64>::new();
        for value in 0..10_000_u64 {
            assert_eq!(table.insert(value * 7919), (value as u32, true));
        }
        for value in (0..10_000_u64).rev() {
            assert_eq!(table.insert(value * 7919), (value as u32, false));
        }
        table.clear();
        assert_eq!(table.insert(1), (0, true));
    }
}
