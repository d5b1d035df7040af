//! The places for requests that may wait in a node, on all workers together. It never says who
//! waits: that is the room's to know.

use crate::sync::{AtomicUsize, Ordering};

/// See the module.
///
/// Invariant: `taken <= max`, at every moment; a place is refused only while all are taken.
#[derive(Debug)]
pub(crate) struct Places {
    taken: AtomicUsize,
    max: usize,
}

impl Places {
    /// `max` places, all free.
    pub(crate) fn new(max: usize) -> Self {
        Self { taken: AtomicUsize::new(0), max }
    }

    /// Takes as many places as are wanted, or as there are. Never more for a moment, since another
    /// worker would refuse a request that there is room for.
    pub(crate) fn take(&self, wanted: u32) -> u32 {
        let granted = |taken: usize| (self.max - taken).min(wanted as usize);
        let more = |taken| Some(granted(taken)).filter(|&more| more > 0).map(|more| taken + more);
        let before = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        before.map_or(0, |before| granted(before) as u32)
    }

    /// Gives places back.
    pub(crate) fn give_back(&self, places: u32) {
        self.taken.fetch_sub(places as usize, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn a_run_gets_as_many_places_as_there_are() {
        let places = Places::new(3);
        assert_eq!([places.take(2), places.take(2), places.take(2)], [2, 1, 0]);
        places.give_back(2);
        assert_eq!([places.take(1), places.take(1024), places.take(1)], [1, 1, 0]);
    }
}

#[cfg(all(test, feature = "loom"))]
mod interleavings {
    use std::sync::Arc;

    use loom::thread;

    use super::*;

    /// Takes all that is wanted and gives back what is too much.
    fn take_in_two_steps(places: &Places, wanted: u32) -> u32 {
        let before = places.taken.fetch_add(wanted as usize, Ordering::Relaxed);
        let granted = places.max.saturating_sub(before).min(wanted as usize) as u32;
        places.give_back(wanted - granted);
        granted
    }

    /// A worker that holds one of two places gives it back and takes it again, while a run for
    /// more than there are comes in on another.
    fn run_beside_a_request(take: fn(&Places, u32) -> u32) {
        let places = Arc::new(Places::new(2));
        assert_eq!(places.take(1), 1);
        let others = places.clone();
        let run = thread::spawn(move || take(&others, 8));
        places.give_back(1);
        let own = take(&places, 1);
        let granted = run.join().unwrap();
        assert!(own == 1 || granted == 2, "refused while a place was free");
        assert!(own + granted <= 2, "more places than there are");
    }

    #[test]
    fn a_request_is_refused_only_while_all_places_are_taken() {
        loom::model(|| run_beside_a_request(Places::take));
    }

    #[test]
    #[should_panic(expected = "refused while a place was free")]
    fn planted_places_that_are_taken_and_given_back() {
        loom::model(|| run_beside_a_request(take_in_two_steps));
    }
}
