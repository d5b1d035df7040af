//! The event queue of a run. It orders events by time, and events of equal time by when they were
//! scheduled. It reads no clock, and time never goes back.
//!
//! Nearly all events are due soon. These wait on a wheel of short slices of time (Varghese and
//! Lauck, 1987, scheme 4); each slice is a sorted list. Later events wait in a heap. So does an
//! event whose place in its list is far from both ends of the list. With one heap for all events,
//! comparisons took half of a run's time, and the processor mispredicted every other one. With
//! lists alone, walks through long lists took two thirds of the time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Waiting events, ordered by when they are due.
///
/// Invariant: every event on the wheel is in a slice of `now..now + SLICES`, where `now` is the
/// slice of the last event taken. Each list has a bit in `occupied`, which is set if the list is
/// not empty.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    /// The first slot of every list, by slice modulo [`SLICES`]; [`NONE`] if the list is empty.
    wheel: Box<[u32; SLICES]>,
    /// The last slot of every list that is not empty.
    ends: Box<[u32; SLICES]>,
    occupied: [u64; SLICES / 64],
    later: BinaryHeap<Reverse<(Key, u32)>>,
    slots: Vec<Slot>,
    /// The event in each slot; `None` if the slot is empty.
    events: Vec<Option<T>>,
    /// The first of the empty slots.
    free: u32,
    sequence: u64,
    taken_ns: u64,
}

/// When an event is due, and its number in the order of scheduling.
type Key = (u64, u64);

#[derive(Debug)]
struct Slot {
    key: Key,
    /// The next slot in the list that holds this slot: a list of waiting events, or the list of
    /// empty slots.
    next: u32,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self {
            wheel: Box::new([NONE; SLICES]),
            ends: Box::new([NONE; SLICES]),
            occupied: [0; SLICES / 64],
            later: BinaryHeap::new(),
            slots: vec![],
            events: vec![],
            free: NONE,
            sequence: 0,
            taken_ns: 0,
        }
    }

    /// The most events that have waited at once.
    pub(crate) const fn most_waiting(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn push(&mut self, at_ns: u64, what: T) {
        assert!(at_ns >= self.taken_ns, "nothing is due before what has happened");
        self.sequence += 1;
        let key = (at_ns, self.sequence);
        let slot = self.fill(key, what);
        if (at_ns >> SLICE_BITS) - (self.taken_ns >> SLICE_BITS) < SLICES as u64 {
            self.link(slot, key);
        } else {
            self.later.push(Reverse((key, slot)));
        }
    }

    /// Takes the next event if it is due by `end_ns`. Returns when it is due, and the event.
    pub(crate) fn pop_until(&mut self, end_ns: u64) -> Option<(u64, T)> {
        let soon = self.soonest();
        let later = self.later.peek().map(|Reverse(later)| *later);
        let is_soon = match (soon, later) {
            (Some((_, slot)), Some((key, _))) => self.slots[slot as usize].key < key,
            (soon, _) => soon.is_some(),
        };
        let slot = if is_soon { soon?.1 } else { later?.1 };
        let own = &mut self.slots[slot as usize];
        let at_ns = own.key.0;
        if at_ns > end_ns {
            return None;
        }
        let next = std::mem::replace(&mut own.next, self.free);
        self.free = slot;
        let what = self.events[slot as usize].take().expect("what is due is there");
        self.taken_ns = at_ns;
        if let Some((at, _)) = soon.filter(|_| is_soon) {
            self.wheel[at] = next;
            self.occupied[at / 64] &= !(u64::from(next == NONE) << (at % 64));
        } else {
            self.later.pop();
        }
        Some((at_ns, what))
    }

    fn fill(&mut self, key: Key, what: T) -> u32 {
        if let Some(slot) = self.slots.get_mut(self.free as usize) {
            let free = std::mem::replace(&mut self.free, slot.next);
            slot.key = key;
            self.events[free as usize] = Some(what);
            return free;
        }
        self.slots.push(Slot { key, next: NONE });
        self.events.push(Some(what));
        u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 events wait")
    }

    /// Links a slot into the sorted list of its slice.
    fn link(&mut self, slot: u32, key: Key) {
        let at = (key.0 >> SLICE_BITS) as usize % SLICES;
        self.occupied[at / 64] |= 1 << (at % 64);
        let mut next = self.wheel[at];
        let end = self.ends[at] as usize;
        if next != NONE && self.slots[end].key < key {
            self.slots[end].next = slot;
            self.slots[slot as usize].next = NONE;
            self.ends[at] = slot;
            return;
        }
        let mut last = NONE;
        let mut steps = 0;
        while let Some(other) = self.slots.get(next as usize).filter(|other| other.key < key) {
            steps += 1;
            if steps > STEPS_MAX {
                // The event's place is too far from both ends of its list. Such long lists come
                // after a pause or a cut, when thousands of events are due in one slice.
                return self.later.push(Reverse((key, slot)));
            }
            last = next;
            next = other.next;
        }
        self.slots[slot as usize].next = next;
        match self.slots.get_mut(last as usize) {
            Some(last) => last.next = slot,
            None => self.wheel[at] = slot,
        }
        if next == NONE {
            self.ends[at] = slot;
        }
    }

    /// The position on the wheel of the first list that is not empty, and the list's first slot.
    fn soonest(&self) -> Option<(usize, u32)> {
        let now = (self.taken_ns >> SLICE_BITS) as usize % SLICES;
        let words = self.occupied.len();
        // The word that holds `now` is searched twice: first its bits from `now` on, and after all
        // other words its bits before `now`.
        let ahead = u64::MAX << (now % 64);
        for turn in 0..=words {
            let at = (now / 64 + turn) % words;
            let mask = match turn {
                0 => ahead,
                last if last == words => !ahead,
                _ => u64::MAX,
            };
            let bits = self.occupied[at] & mask;
            if bits != 0 {
                let at = at * 64 + bits.trailing_zeros() as usize;
                return Some((at, self.wheel[at]));
            }
        }
        None
    }
}

/// Slices of the wheel: about a quarter of a second.
const SLICES: usize = 2048;
/// Length of a slice as a power of two: 131 us, about the usual time between two events.
const SLICE_BITS: u32 = 17;
/// A search for a place passes at most this many entries of a list.
const STEPS_MAX: u32 = 8;
/// Stands for "no slot".
const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn events_come_in_the_order_of_time_and_then_of_scheduling() {
        let mut queue = Queue::new();
        for (at_ns, what) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b')] {
            queue.push(at_ns, what);
        }
        assert_eq!(queue.pop_until(2), None, "nothing is due yet");
        let mut all = String::new();
        while let Some((_, what)) = queue.pop_until(5) {
            all.push(what);
        }
        assert_eq!(all, "abcd");
    }

    #[test]
    fn a_lone_event_is_found_wherever_on_the_wheel_it_waits() {
        let mut queue = Queue::new();
        let mut now_ns = 0;
        for slices in [0, 1, 63, 64, 65, SLICES - 63, SLICES - 1, SLICES, 3 * SLICES + 1] {
            for _ in 0..130 {
                now_ns += (slices as u64) << SLICE_BITS;
                queue.push(now_ns, slices);
                assert_eq!(queue.pop_until(u64::MAX), Some((now_ns, slices)));
            }
        }
        assert_eq!(queue.pop_until(u64::MAX), None);
    }

    #[test]
    fn soon_or_late_nothing_is_lost_or_overtaken() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut queue = Queue::new();
        let mut waiting = BTreeSet::new();
        let (mut now_ns, mut taken) = (0, 0);
        for number in 0..200_000_u64 {
            // An event is due between now and four times around the wheel. The first part of the
            // test has only near events.
            let bits = random.u32(0..if number < 100_000 { 20 } else { 30 });
            let at_ns = now_ns + random.u64(0..1 << bits);
            queue.push(at_ns, number);
            waiting.insert((at_ns, number));
            // Takes all events up to a drawn time. Up to some of these times no event is due.
            let bits = random.u32(0..26);
            let end_ns = now_ns + random.u64(0..1 << bits);
            while let Some(got) = queue.pop_until(end_ns) {
                assert_eq!(Some(got), waiting.pop_first());
                taken += 1;
            }
            assert!(waiting.first().is_none_or(|(at_ns, _)| *at_ns > end_ns));
            now_ns = end_ns;
        }
        assert!(taken > 100_000, "{taken}");
        let most = queue.most_waiting();
        assert!(most < 5_000, "{most}: the slots of those that were taken are used again");
    }
}
