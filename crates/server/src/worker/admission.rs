//! How many requests may wait in a node, on all workers together. This module only counts them;
//! each worker's [`Sequencer`](super::sequencer::Sequencer) holds the requests.

use crate::sync::{AtomicUsize, Ordering};

/// The node's admission limit.
///
/// Invariant: `taken <= max`, at every moment. A request is refused only while `taken == max`.
#[derive(Debug)]
pub(crate) struct AdmissionLimit {
    taken: AtomicUsize,
    max: usize,
}

impl AdmissionLimit {
    /// A limit of `max` requests; none waits yet.
    pub(crate) fn new(max: usize) -> Self {
        Self { taken: AtomicUsize::new(0), max }
    }

    /// Admits up to `wanted` requests and returns how many. It never counts more than it admits,
    /// not even for a moment: otherwise another worker could refuse a request although the limit is
    /// not reached.
    pub(crate) fn take(&self, wanted: u32) -> u32 {
        let granted = |taken: usize| (self.max - taken).min(wanted as usize);
        let more = |taken| Some(granted(taken)).filter(|&more| more > 0).map(|more| taken + more);
        let before = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        before.map_or(0, |before| granted(before) as u32)
    }

    /// Records that `admission` requests wait no longer.
    pub(crate) fn give_back(&self, admission: u32) {
        self.taken.fetch_sub(admission as usize, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn a_burst_gets_no_more_slots_than_are_free() {
        let admission = AdmissionLimit::new(3);
        assert_eq!([admission.take(2), admission.take(2), admission.take(2)], [2, 1, 0]);
        admission.give_back(2);
        assert_eq!([admission.take(1), admission.take(1024), admission.take(1)], [1, 1, 0]);
    }
}

#[cfg(all(test, feature = "loom"))]
mod interleavings {
    use std::sync::Arc;

    use loom::thread;

    use super::*;

    /// A mistake: counts all wanted requests, then takes back those that exceed the limit.
    fn take_without_atomicity(admission: &AdmissionLimit, wanted: u32) -> u32 {
        let before = admission.taken.fetch_add(wanted as usize, Ordering::Relaxed);
        let granted = admission.max.saturating_sub(before).min(wanted as usize) as u32;
        admission.give_back(wanted - granted);
        granted
    }

    /// The limit is two requests, and this worker has one. The worker gives its request back and
    /// takes it again, while a burst of eight requests arrives on another worker.
    fn burst_beside_a_request(take: fn(&AdmissionLimit, u32) -> u32) {
        let admission = Arc::new(AdmissionLimit::new(2));
        assert_eq!(admission.take(1), 1);
        let others = admission.clone();
        let burst = thread::spawn(move || take(&others, 8));
        admission.give_back(1);
        let own = take(&admission, 1);
        let granted = burst.join().unwrap();
        assert!(own == 1 || granted == 2, "refused while a slot was free");
        assert!(own + granted <= 2, "more requests than the limit");
    }

    #[test]
    fn a_request_is_refused_only_while_all_slots_are_taken() {
        loom::model(|| burst_beside_a_request(AdmissionLimit::take));
    }

    #[test]
    #[should_panic(expected = "refused while a slot was free")]
    fn mistaken_slots_that_are_taken_and_given_back() {
        loom::model(|| burst_beside_a_request(take_without_atomicity));
    }
}
