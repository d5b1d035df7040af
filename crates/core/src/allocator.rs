//! The allocator: the only place of a node that hands out timestamps, one batch at a time. It
//! stamps only in the range of a grant whose term the round has confirmed. It never goes back. With
//! the same proof it also says which timestamp is the latest, and then it takes none. Each batch
//! holds the allocator's lock for some tens of nanoseconds, so the allocator makes no system call
//! and logs nothing.

mod compact;

use std::sync::Arc;

use epicepoch_wire::{Epoch, EpochIndex, Term, Timestamp, TimestampFormat, TimestampRange};
use thiserror::Error;

pub use compact::COMPACT_LEAD_NS;

use crate::confirm::Confirmed;
use crate::publication::{Grant, Shared};
use crate::sync::{Mutex, PoisonError};

/// The two times that an allocation needs, read once per batch by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Monotonic time of this process, nanoseconds.
    pub monotonic_ns: u64,
    /// Trusted time (see [`crate::clock`]), Unix nanoseconds.
    pub trusted_ns: u64,
}

/// Why no timestamp was allocated. The batch is refused or divided, and the range is unchanged.
#[derive(Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AllocateError {
    /// The node has lost its grant: ask the next leader.
    #[error("this node holds no grant")]
    NoGrant,
    /// The grant is of another term than the round: ask again, in a new round.
    #[error("the round confirmed another term than the grant's")]
    OtherTerm,
    /// The grant's range is not above the timestamps stamped before, so this node must not use it.
    #[error("the grant does not lie above the last timestamp")]
    BehindLast,
    /// The range has no later epoch, and its last epoch has too few indexes left.
    #[error("the range is used up")]
    Exhausted,
    /// Compact timestamps: the batch does not fit into one millisecond. Allocate for each request
    /// alone, with parts of this key.
    #[error("the batch does not fit into one millisecond")]
    Divide(Confirmed),
    /// Compact timestamps: one request asks for more than a millisecond has, and can never get them.
    #[error("one request asks for more timestamps than a millisecond has")]
    TooMany,
    /// Compact timestamps: the next millisecond is too far ahead of the clock, or beyond the range.
    /// Ask again in a moment.
    #[error(
        "the milliseconds up to the clock, and those that may be taken ahead of it, are used up"
    )]
    Ahead,
}

/// Hands out consecutive timestamps, each greater than all before.
#[derive(Debug)]
pub struct Allocator {
    shared: Arc<Shared>,
    epoch_interval_ns: u64,
    position: Mutex<Position>,
}

/// The position of the allocator.
///
/// Invariant: every timestamp stamped so far is below `(epoch, next_index)`.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    epoch: Epoch,
    next_index: u64,
    term: Term,
    moved_at_ns: u64,
    /// The highest timestamp that was shown as the latest; `None` before the first.
    shown: Option<Timestamp>,
    /// Compact timestamps: an epoch that the clock had reached, or that a grant began with, and when
    /// that was, monotonic nanoseconds.
    pace: (Epoch, u64),
}

impl Allocator {
    /// A new allocator, which has stamped nothing. A node has one in each boot. `epoch_interval_ns`
    /// is this node's own setting; it applies while the cluster has no settings.
    #[must_use]
    pub fn new(shared: Arc<Shared>, epoch_interval_ns: u64) -> Self {
        Self { shared, epoch_interval_ns, position: Mutex::new(Position::default()) }
    }

    /// Takes the timestamps of a confirmed batch: consecutive ones of one epoch, as many as the
    /// batch asked for. If timestamps are compact, the batch may have to be divided.
    ///
    /// # Errors
    /// When there is no grant of the round's term, or its range has no room; see [`AllocateError`].
    ///
    /// # Panics
    /// When an invariant is broken (S1, S3, S19, S21).
    pub fn allocate(
        &self,
        confirmed: Confirmed,
        now: Now,
    ) -> Result<TimestampRange, AllocateError> {
        let mut position = self.position.lock().unwrap_or_else(PoisonError::into_inner);
        // The grant is read under the lock. So it is never older than the grant of an earlier
        // allocation.
        let published = self.shared.published();
        let grant = published.grant.as_ref().ok_or(AllocateError::NoGrant)?;
        if grant.term != confirmed.term() || grant.boot != confirmed.boot() {
            return Err(AllocateError::OtherTerm);
        }
        let count = confirmed.count();
        let interval_ns = published.epoch_interval_ns.unwrap_or(self.epoch_interval_ns);
        let next = match published.timestamp_format {
            TimestampFormat::Wide => position.advanced(grant, interval_ns, count, now)?,
            TimestampFormat::Compact => {
                let may_divide = !confirmed.is_part();
                let next = position.advanced_compact(grant, interval_ns, count, may_divide, now)?;
                let Some(next) = next else { return Err(AllocateError::Divide(confirmed)) };
                next
            }
        };
        let _spent = confirmed.spend();
        let first = Timestamp::new(next.epoch, EpochIndex(next.next_index));
        let range = TimestampRange::new(first, count).ok_or(AllocateError::Exhausted)?;
        // S1: no timestamp is given twice, and none is below an earlier one.
        let before = (position.epoch, position.next_index);
        assert!((next.epoch, next.next_index) >= before, "S1: the allocator went back");
        // S3: timestamps lie inside the range that apply assigned to this term and boot.
        assert!(grant.range.contains(next.epoch), "S3: stamped outside the granted range");
        // S21: if timestamps are compact, each has a compact spelling.
        let is_right = !published.is_compact() || range.compact_first().is_some();
        assert!(is_right, "S21: a timestamp without a compact spelling");
        // S19: what is given after a timestamp was shown as the latest is above that one.
        assert!(Some(first) > position.shown, "S19: given at or below the latest timestamp");
        *position = Position { next_index: next.next_index + count, ..next };
        self.shared.record_stamped(next.epoch);
        Ok(range)
    }

    /// The latest timestamp (S19): every timestamp that was answered before a request of this
    /// batch began is at or below it, and every timestamp that is asked for later is above it. It
    /// takes nothing, so two batches may get the same one. It need not have been given: before the
    /// first timestamp of a grant, it is the highest one of the grant's low end.
    ///
    /// # Errors
    /// When there is no grant of the round's term, or the grant is not above the last timestamp;
    /// see [`AllocateError`].
    ///
    /// # Panics
    /// When an invariant is broken (S19, S21).
    pub fn latest(&self, confirmed: Confirmed) -> Result<Timestamp, AllocateError> {
        let (term, boot, _) = confirmed.spend();
        let mut position = self.position.lock().unwrap_or_else(PoisonError::into_inner);
        // The grant is read under the lock, as for an allocation.
        let published = self.shared.published();
        let grant = published.grant.as_ref().ok_or(AllocateError::NoGrant)?;
        if grant.term != term || grant.boot != boot {
            return Err(AllocateError::OtherTerm);
        }
        let latest = match published.timestamp_format {
            TimestampFormat::Wide => position.latest(grant)?,
            TimestampFormat::Compact => position.latest_compact(grant)?,
        };
        let is_right = !published.is_compact() || latest.to_compact().is_some();
        assert!(is_right, "S21: a latest timestamp without a compact spelling");
        assert!(Some(latest) >= position.shown, "S19: the latest timestamp went back");
        position.shown = Some(latest);
        Ok(latest)
    }

    /// The answer to a confirmed batch: its timestamps ([`Allocator::allocate`]). If its requests
    /// ask only for the latest timestamp, the answer is the range of that one
    /// ([`Allocator::latest`]).
    ///
    /// # Errors
    /// Those of the two methods.
    ///
    /// # Panics
    /// When an invariant is broken (S1, S3, S19, S21).
    pub fn answer(&self, confirmed: Confirmed, now: Now) -> Result<TimestampRange, AllocateError> {
        if confirmed.count() == 0 {
            let latest = self.latest(confirmed)?;
            return TimestampRange::new(latest, 1).ok_or(AllocateError::Exhausted);
        }
        self.allocate(confirmed, now)
    }

    /// Stops the allocator, after a publication has withdrawn its grant, and returns the epoch of
    /// the last timestamp that was given or shown as the latest (0 before the first). Until the
    /// next grant is published, no allocation gives anything, because each reads the publication
    /// under the lock (S18). Never waits.
    ///
    /// `None` if a batch takes its timestamps at this moment, or if there is a grant: ask again.
    #[must_use]
    pub fn stop(&self) -> Option<Epoch> {
        let position = self.position.try_lock().ok()?;
        let is_withdrawn = self.shared.published().grant.is_none();
        let shown = position.shown.map_or(Epoch(0), |shown| shown.epoch);
        is_withdrawn.then_some(position.epoch.max(shown))
    }

    /// The epoch of the last timestamp; 0 before the first. It takes no lock, so that the consensus
    /// thread may call it. [`Allocator::allocate`] and [`Allocator::latest`] wait for the lock; they
    /// need a confirmed round, which only workers have. [`Allocator::stop`] does not wait.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.shared.stamped()
    }
}

impl Position {
    /// The latest timestamp of a leader with this grant. Later timestamps are above it: those in
    /// this epoch have the index `next_index` or a higher one, and those of the grant have a higher
    /// epoch than its low end. The low end of a grant never falls, and a later grant has no lower
    /// one (S5, S18).
    fn latest(self, grant: &Grant) -> Result<Timestamp, AllocateError> {
        if self.epoch <= grant.range.low {
            return Ok(Timestamp::highest_at(grant.range.low.0));
        }
        if self.term != grant.term || self.epoch > grant.range.high {
            return Err(AllocateError::BehindLast);
        }
        // A position above the low end is behind a timestamp, so its index is not 0.
        let index = self.next_index.checked_sub(1).ok_or(AllocateError::BehindLast)?;
        Ok(Timestamp::new(self.epoch, EpochIndex(index)))
    }

    /// The position where `count` timestamps start: in this epoch, or in a later one of the grant.
    fn advanced(
        self,
        grant: &Grant,
        interval_ns: u64,
        count: u64,
        now: Now,
    ) -> Result<Self, AllocateError> {
        let range = grant.range;
        let trusted = Epoch(now.trusted_ns);
        let (term, moved_at_ns) = (grant.term, now.monotonic_ns);
        let at = |epoch| Self { epoch, next_index: 0, term, moved_at_ns, ..self };
        if self.epoch <= range.low {
            let lowest = Epoch(range.low.0 + 1);
            return Ok(at(trusted.clamp(lowest, range.high)));
        }
        // Apply assigns only two kinds of range. A range of a newer term lies above the last
        // timestamp. A range of the same term ends at or above the last timestamp.
        if self.term != grant.term || self.epoch > range.high {
            return Err(AllocateError::BehindLast);
        }
        let is_due = now.monotonic_ns.saturating_sub(self.moved_at_ns) >= interval_ns;
        let is_full = self.next_index.checked_add(count).is_none();
        if !is_due && !is_full {
            return Ok(self);
        }
        let next = trusted.max(Epoch(self.epoch.0.saturating_add(1))).min(range.high);
        match (next > self.epoch, is_full) {
            (true, _) => Ok(at(next)),
            // The range is used up or the clock went back: the epoch stays, and the index rises.
            (false, false) => Ok(self),
            (false, true) => Err(AllocateError::Exhausted),
        }
    }
}

#[cfg(test)]
mod tests {
    use epicepoch_wire::{BootId, NodeId, StoreId};
    use proptest::prelude::*;

    use super::*;
    use crate::publication::{EpochRange, Identity, Published};

    const ME: Identity = Identity { node: NodeId(1), store: StoreId(1), boot: BootId(7) };
    const INTERVAL: u64 = 100;

    fn allocator() -> Allocator {
        let shared = Shared::new(Term(0), Published::nothing(ME));
        Allocator::new(Arc::new(shared), INTERVAL)
    }

    fn grant(allocator: &Allocator, term: u64, low: u64, high: u64) {
        let range = EpochRange { low: Epoch(low), high: Epoch(high) };
        let grant = Grant { term: Term(term), boot: ME.boot, range };
        let published = Published { grant: Some(grant), ..Published::nothing(ME) };
        allocator.shared.publish(Arc::new(published));
    }

    fn round(term: u64, count: u64) -> Confirmed {
        Confirmed::for_test(Term(term), ME.boot, count)
    }

    fn now(monotonic_ns: u64, trusted_ns: u64) -> Now {
        Now { monotonic_ns, trusted_ns }
    }

    #[test]
    fn nothing_is_stamped_without_a_grant_of_the_rounds_term() {
        let allocator = allocator();
        let at = now(0, 50);
        assert_eq!(allocator.allocate(round(1, 1), at), Err(AllocateError::NoGrant));
        grant(&allocator, 2, 0, 100);
        assert_eq!(allocator.allocate(round(1, 1), at), Err(AllocateError::OtherTerm));
        let other_boot = Confirmed::for_test(Term(2), BootId(8), 1);
        assert_eq!(allocator.allocate(other_boot, at), Err(AllocateError::OtherTerm));
        assert!(allocator.allocate(round(2, 1), at).is_ok());
    }

    #[test]
    fn the_epoch_follows_trusted_time_once_per_interval() {
        let allocator = allocator();
        grant(&allocator, 1, 0, 1_000);
        let first = |at| allocator.allocate(round(1, 2), at).unwrap().first();
        assert_eq!(first(now(0, 50)), Timestamp::new(Epoch(50), EpochIndex(0)));
        assert_eq!(first(now(99, 149)), Timestamp::new(Epoch(50), EpochIndex(2)));
        assert_eq!(first(now(100, 150)), Timestamp::new(Epoch(150), EpochIndex(0)));
        assert_eq!(first(now(200, 20)), Timestamp::new(Epoch(151), EpochIndex(0)));
    }

    #[test]
    fn at_the_end_of_the_range_the_epoch_stands_still_and_the_index_goes_on() {
        let allocator = allocator();
        grant(&allocator, 1, 0, 60);
        for step in 0..5 {
            let range = allocator.allocate(round(1, 3), now(step * 1000, 70)).unwrap();
            assert_eq!(range.first(), Timestamp::new(Epoch(60), EpochIndex(step * 3)));
        }
    }

    #[test]
    fn the_latest_timestamp_is_the_last_one_or_that_of_the_low_end() {
        let allocator = allocator();
        let latest = |term| allocator.latest(round(term, 0));
        assert_eq!(latest(1), Err(AllocateError::NoGrant));
        grant(&allocator, 2, 40, 100);
        assert_eq!(latest(1), Err(AllocateError::OtherTerm));
        let other_boot = Confirmed::for_test(Term(2), BootId(8), 0);
        assert_eq!(allocator.latest(other_boot), Err(AllocateError::OtherTerm));
        assert_eq!(latest(2), Ok(Timestamp::highest_at(40)), "no timestamp yet");
        let first = allocator.allocate(round(2, 3), now(0, 50)).unwrap();
        assert_eq!([latest(2), latest(2)], [(); 2].map(|()| Ok(first.last())), "it takes nothing");
        let next = allocator.allocate(round(2, 1), now(0, 50)).unwrap();
        assert_eq!(next.first().index.0, first.last().index.0 + 1);
        // An advance, or a range behind a given-back one, moves the low end of the grant.
        grant(&allocator, 2, 60, 100);
        assert_eq!(latest(2), Ok(Timestamp::highest_at(60)));
        for (term, low, high) in [(2, 40, 45), (3, 40, 100)] {
            grant(&allocator, term, low, high);
            assert_eq!(latest(term), Err(AllocateError::BehindLast), "({low}, {high}]");
        }
    }

    #[test]
    fn the_answer_to_a_batch_that_asks_for_no_timestamps_is_the_latest_one() {
        let allocator = allocator();
        grant(&allocator, 1, 0, 100);
        let given = allocator.answer(round(1, 2), now(0, 50)).unwrap();
        let latest = allocator.answer(round(1, 0), now(INTERVAL, 70)).unwrap();
        assert_eq!((latest.first(), latest.count()), (given.last(), 1));
        assert_eq!(allocator.epoch(), Epoch(50), "nothing was taken, and no epoch has begun");
    }

    #[test]
    fn an_overflowing_index_takes_the_next_epoch() {
        let allocator = allocator();
        grant(&allocator, 1, 0, 52);
        let at = now(0, 51);
        allocator.allocate(round(1, u64::MAX - 1), at).unwrap();
        let next = allocator.allocate(round(1, 2), at).unwrap();
        assert_eq!(next.first(), Timestamp::new(Epoch(52), EpochIndex(0)));
        allocator.allocate(round(1, u64::MAX - 2), at).unwrap();
        assert_eq!(allocator.allocate(round(1, 1), at), Err(AllocateError::Exhausted));
    }

    #[test]
    fn a_grant_that_is_not_above_the_last_timestamp_is_refused() {
        let allocator = allocator();
        grant(&allocator, 1, 0, 100);
        allocator.allocate(round(1, 1), now(0, 80)).unwrap();
        for (term, low, high) in [(1, 0, 70), (2, 0, 100), (2, 70, 200)] {
            grant(&allocator, term, low, high);
            let refused = allocator.allocate(round(term, 1), now(0, 90));
            assert_eq!(refused, Err(AllocateError::BehindLast), "({low}, {high}]");
        }
        grant(&allocator, 2, 100, 200);
        let range = allocator.allocate(round(2, 1), now(0, 90)).unwrap();
        assert_eq!(range.first().epoch, Epoch(101));
    }

    proptest! {
        /// For any clock, any rising ranges and any counts, timestamps rise and stay inside the
        /// grant.
        #[test]
        fn timestamps_only_rise_and_stay_inside_the_grant(
            steps in prop::collection::vec((0_u64..300, 0_u64..5000, 1_u64..u64::MAX, 0_u8..5), 1..60),
        ) {
            let allocator = allocator();
            let (mut term, mut low, mut high, mut monotonic) = (1, 0, 100, 0);
            let mut last = None;
            grant(&allocator, term, low, high);
            for (passed, trusted, count, event) in steps {
                monotonic += passed;
                match event {
                    0 => { term += 1; low = high + passed; high = low + 1 + trusted; }
                    1 => high += 1 + passed,
                    _ => {}
                }
                grant(&allocator, term, low, high);
                // S19: the latest timestamp is not below the last one, and below the next one.
                let latest = allocator.latest(round(term, 0)).unwrap();
                prop_assert!(Some(latest) >= last);
                let count = if event == 2 { count } else { 1 + count % 1000 };
                match allocator.allocate(round(term, count), now(monotonic, trusted)) {
                    Ok(range) => {
                        prop_assert!(Some(range.first()) > last);
                        prop_assert!(range.first() > latest);
                        prop_assert!(low < range.first().epoch.0 && range.first().epoch.0 <= high);
                        last = Some(range.last());
                    }
                    Err(error) => prop_assert_eq!(error, AllocateError::Exhausted),
                }
            }
        }
    }

    #[test]
    fn the_epoch_is_that_of_the_last_stamp() {
        let allocator = allocator();
        assert_eq!(allocator.epoch(), Epoch(0));
        grant(&allocator, 1, 0, 100);
        allocator.allocate(round(1, 1), now(0, 42)).unwrap();
        assert_eq!(allocator.epoch(), Epoch(42));
        grant(&allocator, 1, 0, 60);
        let refused = allocator.allocate(round(2, 1), now(INTERVAL, 55));
        assert_eq!(refused, Err(AllocateError::OtherTerm));
        assert_eq!(allocator.epoch(), Epoch(42), "nothing was stamped");
    }

    #[test]
    fn an_allocator_stops_only_without_a_grant_and_while_no_batch_is_under_way() {
        let allocator = allocator();
        grant(&allocator, 1, 0, 100);
        allocator.allocate(round(1, 1), now(0, 42)).unwrap();
        assert_eq!(allocator.stop(), None, "its grant is not withdrawn");
        allocator.shared.publish(Arc::new(Published::nothing(ME)));
        let held = allocator.position.lock().unwrap();
        assert_eq!(allocator.stop(), None, "a batch takes its timestamps");
        drop(held);
        assert_eq!(allocator.stop(), Some(Epoch(42)));
        assert_eq!(allocator.allocate(round(1, 1), now(0, 50)), Err(AllocateError::NoGrant));
        // What was given back is assigned to it again.
        grant(&allocator, 1, 42, 60);
        let range = allocator.allocate(round(1, 1), now(0, 42)).unwrap();
        assert_eq!(range.first(), Timestamp::new(Epoch(43), EpochIndex(0)));
    }

    /// If `epoch` took the allocator's lock, this test would hang.
    #[test]
    fn the_epoch_is_read_while_a_batch_holds_the_lock() {
        let allocator = allocator();
        grant(&allocator, 1, 0, 100);
        allocator.allocate(round(1, 1), now(0, 42)).unwrap();
        let _held = allocator.position.lock().unwrap();
        assert_eq!(allocator.epoch(), Epoch(42));
    }

    proptest! {
        /// The requests of a batch share its range: in order, without gap or overlap, and below the
        /// next batch. This also holds at the end of an epoch's indexes.
        #[test]
        fn requests_share_a_batch_without_gap_and_overlap(
            batches in prop::collection::vec(prop::collection::vec(1_u64..5, 1..6), 1..8),
            used in prop::sample::select(vec![1, 1 << 40, u64::MAX - 40, u64::MAX - 3]),
        ) {
            let allocator = allocator();
            grant(&allocator, 1, 0, 1_000);
            let at = now(0, 500);
            let mut last = allocator.allocate(round(1, used), at).unwrap().last();
            for counts in batches {
                let total = counts.iter().sum();
                let range = allocator.allocate(round(1, total), at).unwrap();
                prop_assert_eq!(range.count(), total);
                let mut rest = Some(range);
                for count in counts {
                    let (head, tail) = rest.unwrap().split_first(count).unwrap();
                    prop_assert!(head.first() > last);
                    prop_assert_eq!(head.iter().count() as u64, count);
                    last = head.last();
                    rest = tail;
                }
                prop_assert_eq!((rest, last), (None, range.last()));
            }
        }
    }
}
