//! A record of the timestamps that the scripted nodes gave, and the rules that hold in every
//! scenario. A client returns only timestamps that a node gave, and returns each to one caller
//! only. It returns no timestamp that was taken before its caller asked.

use std::sync::Mutex;
use std::time::Instant;

use epicepoch_wire::{Epoch, EpochIndex, Timestamp, TimestampRange};

use crate::driver::Call;
use crate::lock;

/// The timestamps of a scripted cluster, and a record of the ranges taken.
#[derive(Debug, Default)]
pub struct Oracle {
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    entries: Vec<Entry>,
}

/// A range taken for a request.
#[derive(Clone, Copy, Debug)]
struct Entry {
    range: TimestampRange,
    /// When the request arrived.
    asked_at: Instant,
}

impl Oracle {
    /// Takes the next `count` timestamps for a request that arrived at `asked_at`.
    ///
    /// # Panics
    /// If a scenario takes more timestamps than an epoch has.
    pub fn take(&self, count: u64, asked_at: Instant) -> TimestampRange {
        let mut taken = lock(&self.taken);
        let first = Timestamp::new(EPOCH, EpochIndex(taken.next));
        let range = TimestampRange::new(first, count).expect("a scenario takes few timestamps");
        taken.next += count;
        taken.entries.push(Entry { range, asked_at });
        range
    }

    /// Checks every answered call.
    ///
    /// # Errors
    /// The first violation, with its clause of the contract.
    pub fn check(&self, calls: &[Call]) -> Result<(), String> {
        let taken = lock(&self.taken);
        let mut answers: Vec<(&Call, TimestampRange)> =
            calls.iter().filter_map(|call| Some((call, *call.outcome.as_ref().ok()?))).collect();
        answers.sort_by_key(|(_, range)| range.first());
        for (call, range) in &answers {
            if range.count() != call.count {
                return Err(format!("C10: asked for {} and got {}", call.count, range.count()));
            }
            let contains =
                |it: &&Entry| it.range.first() <= range.first() && range.last() <= it.range.last();
            let Some(entry) = taken.entries.iter().find(contains) else {
                return Err(format!("C8: {} was never given by the oracle", range.first()));
            };
            if let Some(early) = call.start.checked_duration_since(entry.asked_at)
                && !early.is_zero()
            {
                let first = range.first();
                return Err(format!("C1: {first} was taken {early:?} before the caller asked"));
            }
        }
        for pair in answers.windows(2) {
            let [(_, one), (_, two)] = pair else { continue };
            if two.first() <= one.last() {
                return Err(format!("C2: {} was returned twice", two.first()));
            }
        }
        Ok(())
    }
}

/// The epoch of all timestamps of scripted nodes.
pub const EPOCH: Epoch = Epoch(1_000);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn call(start: Instant, range: TimestampRange) -> Call {
        let end = start + Duration::from_millis(1);
        Call { start, end, took: end - start, count: range.count(), outcome: Ok(range) }
    }

    #[test]
    fn a_range_given_once_and_after_the_call_is_right() {
        let (oracle, now) = (Oracle::default(), Instant::now());
        let range = oracle.take(3, now + Duration::from_nanos(1));
        let (one, rest) = range.split_first(1).unwrap();
        assert_eq!(oracle.check(&[call(now, rest.unwrap()), call(now, one)]), Ok(()));
    }

    #[test]
    fn early_repeated_invented_and_miscounted_answers_are_found() {
        let (oracle, now) = (Oracle::default(), Instant::now());
        let range = oracle.take(3, now);
        let late = now + Duration::from_nanos(1);
        let wrong = |calls: &[Call]| {
            let why = oracle.check(calls).unwrap_err();
            why.split_once(':').unwrap().0.to_owned()
        };
        assert_eq!(wrong(&[call(late, range)]), "C1");
        assert_eq!(wrong(&[call(now, range), call(now, range)]), "C2");
        let (one, _) = range.split_first(1).unwrap();
        assert_eq!(wrong(&[call(now, range), call(now, one)]), "C2");
        let other = TimestampRange::new(Timestamp::new(EPOCH, EpochIndex(2)), 2).unwrap();
        assert_eq!(wrong(&[call(now, other)]), "C8");
        assert_eq!(wrong(&[Call { count: 2, ..call(now, range) }]), "C10");
    }
}
