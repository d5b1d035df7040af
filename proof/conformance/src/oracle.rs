//! A record of the timestamps that the scripted nodes gave, and the rules that hold in every
//! scenario. A client returns only timestamps that a node gave, and returns each to one caller
//! only. It returns no timestamp that was taken before its caller asked. The latest timestamp may go
//! to several callers, and lies between what was returned before and what is asked for later (S19).

use std::sync::Mutex;
use std::time::Instant;

use epicepoch_wire::{
    COMPACT_EPOCH_NS, COMPACT_INDEXES, Epoch, EpochIndex, Timestamp, TimestampFormat,
    TimestampRange,
};

use crate::driver::Call;
use crate::lock;

/// The timestamps of a scripted cluster, and a record of the ranges taken.
#[derive(Debug, Default)]
pub struct Oracle {
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    /// The millisecond of compact timestamps; `None` while timestamps are wide.
    millisecond: Option<u64>,
    next: u64,
    /// Ranges that were taken, and latest timestamps that were told, which take none.
    entries: Vec<Entry>,
}

/// A range taken for a request.
#[derive(Clone, Copy, Debug)]
struct Entry {
    range: TimestampRange,
    /// When the request arrived.
    asked_at: Instant,
    /// Whether the range is the latest timestamp, as it was told to a request for that.
    is_latest: bool,
}

impl Oracle {
    /// From now on, gives compact timestamps, which are above all wide ones, or wide ones. Compact
    /// ones do not fit into a 64-bit floating-point number, and begin near the end of a millisecond.
    pub fn gives(&self, format: TimestampFormat) {
        let mut taken = lock(&self.taken);
        (taken.millisecond, taken.next) = match format {
            TimestampFormat::Compact => (Some(MILLISECOND), COMPACT_INDEXES - BEFORE_THE_END),
            TimestampFormat::Wide => (None, 0),
        };
    }

    /// Whether the timestamps are compact.
    pub fn is_compact(&self) -> bool {
        lock(&self.taken).millisecond.is_some()
    }

    /// Takes the next `count` timestamps for a request that arrived at `asked_at`.
    ///
    /// # Panics
    /// If a scenario takes more timestamps than an epoch has.
    pub fn take(&self, count: u64, asked_at: Instant) -> TimestampRange {
        let mut taken = lock(&self.taken);
        if let Some(millisecond) = taken.millisecond
            && taken.next + count > COMPACT_INDEXES
        {
            (taken.millisecond, taken.next) = (Some(millisecond + 1), 0);
        }
        let first = Timestamp::new(taken.epoch(), EpochIndex(taken.next));
        let range = TimestampRange::new(first, count).expect("a scenario takes few timestamps");
        taken.next += count;
        taken.entries.push(Entry { range, asked_at, is_latest: false });
        range
    }

    /// Returns the latest timestamp, for a request that arrived at `asked_at`. It takes none.
    ///
    /// # Panics
    /// Never: one timestamp is a range.
    pub fn latest(&self, asked_at: Instant) -> TimestampRange {
        let mut taken = lock(&self.taken);
        let latest = match taken.next.checked_sub(1) {
            Some(index) => Timestamp::new(taken.epoch(), EpochIndex(index)),
            None => Timestamp::highest_at(EPOCH.0 - 1),
        };
        let range = TimestampRange::new(latest, 1).expect("one is a range");
        taken.entries.push(Entry { range, asked_at, is_latest: true });
        range
    }

    /// The next timestamp.
    pub fn next(&self) -> Timestamp {
        let taken = lock(&self.taken);
        Timestamp::new(taken.epoch(), EpochIndex(taken.next))
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
            // Timestamps are taken once. The latest one may be told often, and a client may return
            // the last of the timestamps that it takes at the same time.
            let contains = |it: &&Entry| {
                (call.is_latest || !it.is_latest)
                    && it.range.first() <= range.first()
                    && range.last() <= it.range.last()
            };
            let given = taken.entries.iter().filter(contains);
            let Some(entry) = given.max_by_key(|entry| entry.asked_at) else {
                return Err(format!("C8: {} was never given by the oracle", range.first()));
            };
            if let Some(early) = call.start.checked_duration_since(entry.asked_at)
                && !early.is_zero()
            {
                let first = range.first();
                return Err(format!("C1: {first} was taken {early:?} before the caller asked"));
            }
        }
        check_latest(&answers)?;
        answers.retain(|(call, _)| !call.is_latest);
        for pair in answers.windows(2) {
            let [(_, one), (_, two)] = pair else { continue };
            if two.first() <= one.last() {
                return Err(format!("C2: {} was returned twice", two.first()));
            }
        }
        Ok(())
    }
}

impl Taken {
    fn epoch(&self) -> Epoch {
        self.millisecond.map_or(EPOCH, |millisecond| Epoch(millisecond * COMPACT_EPOCH_NS))
    }
}

/// Checks each latest timestamp against the calls before and after its own (S19).
fn check_latest(answers: &[(&Call, TimestampRange)]) -> Result<(), String> {
    for (call, latest) in answers.iter().filter(|(call, _)| call.is_latest) {
        let latest = latest.first();
        for (other, range) in answers {
            if other.end < call.start && range.last() > latest {
                let before = range.last();
                return Err(format!(
                    "S19: {before} was returned before, but the latest is {latest}"
                ));
            }
            let is_low = !other.is_latest && range.first() <= latest;
            if call.end < other.start && is_low {
                let later = range.first();
                return Err(format!(
                    "S19: {later} was asked for later, but the latest is {latest}"
                ));
            }
        }
    }
    Ok(())
}

/// The epoch of all wide timestamps of scripted nodes.
pub const EPOCH: Epoch = Epoch(1_000);
/// The millisecond of the first compact timestamps of scripted nodes.
const MILLISECOND: u64 = 1_700_000_000_123;
/// So many compact timestamps are left of the first millisecond.
const BEFORE_THE_END: u64 = 7;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn call(start: Instant, range: TimestampRange) -> Call {
        let end = start + Duration::from_millis(1);
        let (count, outcome) = (range.count(), Ok(range));
        Call { start, end, took: end - start, count, is_latest: false, outcome }
    }

    #[test]
    fn a_latest_timestamp_may_go_to_several_callers_and_lies_between_others() {
        let (oracle, now) = (Oracle::default(), Instant::now());
        let at = |ms| now + Duration::from_millis(ms);
        let latest = |ms, range| Call { is_latest: true, ..call(at(ms), range) };
        assert_eq!(oracle.latest(at(0)).first(), Timestamp::highest_at(EPOCH.0 - 1));
        let early = oracle.take(2, at(10));
        let told = oracle.latest(at(20));
        assert_eq!(told.first(), early.last());
        let late = oracle.take(2, at(30));
        let calls = [call(at(10), early), latest(20, told), latest(19, told), call(at(30), late)];
        assert_eq!(oracle.check(&calls), Ok(()));
        let wrong = |calls: &[Call]| {
            let why = oracle.check(calls).unwrap_err();
            why.split_once(':').unwrap().0.to_owned()
        };
        // It was told before the call began.
        assert_eq!(wrong(&[latest(21, told)]), "C1");
        // It was told to a caller that wanted a timestamp of its own, after its own was taken.
        assert_eq!(wrong(&[call(at(20), told)]), "C1");
        let (low, _) = early.split_first(1).unwrap();
        assert_eq!(wrong(&[call(at(5), early), latest(9, low)]), "S19");
        let (_, last) = late.split_first(1).unwrap();
        assert_eq!(wrong(&[latest(20, last.unwrap()), call(at(22), late)]), "S19");
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
