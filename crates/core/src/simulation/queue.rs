//! What is still to happen, in the order in which it will.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

/// Events by (time, order of being pushed): a run that pushes the same events takes them out in the same order.
#[derive(Debug)]
pub struct EventQueue<E> {
    heap: BinaryHeap<Reverse<Due<E>>>,
    pushed: u64,
}

/// An event that waits for its time.
#[derive(Debug)]
struct Due<E> {
    time: Duration,
    sequence: u64,
    event: E,
}

impl<E> Due<E> {
    fn key(&self) -> (Duration, u64) {
        (self.time, self.sequence)
    }
}

impl<E> PartialEq for Due<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Due<E> {}

impl<E> PartialOrd for Due<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Due<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), pushed: 0 }
    }
}

impl<E> EventQueue<E> {
    /// Lets `event` happen at `time`.
    pub fn push(&mut self, time: Duration, event: E) {
        self.heap.push(Reverse(Due { time, sequence: self.pushed, event }));
        self.pushed += 1;
    }

    /// The next event and its time.
    pub fn pop(&mut self) -> Option<(Duration, E)> {
        self.heap.pop().map(|Reverse(due)| (due.time, due.event))
    }

    /// The time of the next event.
    pub fn next_time(&self) -> Option<Duration> {
        self.heap.peek().map(|Reverse(due)| due.time)
    }

    /// Events that were ever pushed.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simultaneous_events_stay_in_order() {
        let mut queue = EventQueue::default();
        for (time, event) in [(2, 'a'), (1, 'b'), (2, 'c'), (1, 'd')] {
            queue.push(Duration::from_millis(time), event);
        }
        let order: String = std::iter::from_fn(|| queue.pop()).map(|(_, event)| event).collect();
        assert_eq!((order.as_str(), queue.pushed(), queue.next_time()), ("bdac", 4, None));
    }
}
