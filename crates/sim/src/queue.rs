//! The one queue of a run: everything that will happen, in the order of time, and in the order of
//! scheduling where times are equal. It never reads a clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What waits, by when it is due.
///
/// Invariant: `slots[slot]` is full for every `slot` in `due`, and empty for every one in `free`.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    due: BinaryHeap<Reverse<(u64, u64, u32)>>,
    slots: Vec<Option<T>>,
    free: Vec<u32>,
    sequence: u64,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self { due: BinaryHeap::new(), slots: vec![], free: vec![], sequence: 0 }
    }

    pub(crate) fn push(&mut self, at_ns: u64, what: T) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 events wait")
        });
        self.slots[slot as usize] = Some(what);
        self.sequence += 1;
        self.due.push(Reverse((at_ns, self.sequence, slot)));
    }

    /// When the next event is due.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((at_ns, ..))| *at_ns)
    }

    pub(crate) fn pop(&mut self) -> Option<(u64, T)> {
        let Reverse((at_ns, _, slot)) = self.due.pop()?;
        self.free.push(slot);
        let what = self.slots[slot as usize].take().expect("a slot that is due is full");
        Some((at_ns, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_the_order_of_time_and_then_of_scheduling() {
        let mut queue = Queue::new();
        for (at_ns, what) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b')] {
            queue.push(at_ns, what);
        }
        let mut all = String::new();
        while let Some((_, what)) = queue.pop() {
            all.push(what);
        }
        assert_eq!(all, "abcd");
    }
}
