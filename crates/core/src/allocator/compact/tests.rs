use std::sync::Arc;

use epicepoch_wire::{BootId, NodeId, StoreId, Term, TimestampFormat, TimestampRange};
use proptest::prelude::*;

use super::*;
use crate::allocator::Allocator;
use crate::confirm::Confirmed;
use crate::publication::{EpochRange, Identity, Published, Shared};

const ME: Identity = Identity { node: NodeId(1), store: StoreId(1), boot: BootId(7) };
const MS: u64 = COMPACT_EPOCH_NS;
const INTERVAL: u64 = 100 * MS;
const ALL: u64 = COMPACT_INDEXES;

struct Node {
    allocator: Allocator,
    shared: Arc<Shared>,
}

impl Node {
    fn new() -> Self {
        let shared = Arc::new(Shared::new(Term(0), Published::nothing(ME)));
        Self { allocator: Allocator::new(shared.clone(), INTERVAL), shared }
    }

    fn grant(&self, timestamp_format: TimestampFormat, term: u64, low: u64, high: u64) {
        let range = EpochRange { low: Epoch(low), high: Epoch(high) };
        let grant = Grant { term: Term(term), boot: ME.boot, range };
        let nothing = Published::nothing(ME);
        let next = Published { grant: Some(grant), timestamp_format, ..nothing };
        self.shared.publish(Arc::new(next));
    }

    fn compact(low: u64, high: u64) -> Self {
        let node = Self::new();
        node.grant(TimestampFormat::Compact, 1, low, high);
        node
    }

    /// Allocates for one request.
    fn take(&self, term: u64, count: u64, at: Now) -> Result<TimestampRange, AllocateError> {
        let mut key = Confirmed::for_test(Term(term), ME.boot, count);
        self.allocator.allocate(key.take_part(count), at)
    }

    /// The millisecond and the index of the first timestamp of one request in term 1.
    fn first(&self, count: u64, at: Now) -> Result<(u64, u64), AllocateError> {
        let first = self.take(1, count, at)?.first();
        assert_eq!(first.epoch.0 % MS, 0);
        Ok((first.epoch.0 / MS, first.index.0))
    }

    fn latest(&self, term: u64) -> Result<Timestamp, AllocateError> {
        self.allocator.latest(Confirmed::for_test(Term(term), ME.boot, 0))
    }
}

fn now(monotonic_ns: u64, trusted_ns: u64) -> Now {
    Now { monotonic_ns, trusted_ns }
}

#[test]
fn epochs_are_whole_milliseconds_and_follow_the_clock_once_per_interval() {
    let node = Node::compact(0, 10_000 * MS);
    assert_eq!(node.first(2, now(0, 500 * MS + 999_999)), Ok((500, 0)));
    assert_eq!(node.first(2, now(INTERVAL - 1, 599 * MS)), Ok((500, 2)), "not due");
    assert_eq!(node.first(1, now(INTERVAL, 600 * MS + 1)), Ok((600, 0)));
    assert_eq!(node.first(1, now(2 * INTERVAL, 300 * MS)), Ok((600, 1)), "the clock went back");
}

#[test]
fn when_a_millisecond_is_used_up_the_next_one_is_taken_up_to_the_lead() {
    let node = Node::compact(0, 10_000 * MS);
    let lead = COMPACT_LEAD_NS / MS;
    for step in 0..=lead {
        assert_eq!(node.first(ALL, now(0, 500 * MS)), Ok((500 + step, 0)));
    }
    assert_eq!(node.first(1, now(0, 500 * MS)), Err(AllocateError::Ahead));
    // Time passes, by the monotonic clock. The epoch is not due yet.
    assert_eq!(node.first(1, now(MS - 1, 501 * MS - 1)), Err(AllocateError::Ahead));
    assert_eq!(node.first(ALL, now(MS, 501 * MS)), Ok((501 + lead, 0)));
    // A clock that has caught up is followed, and the lead begins anew.
    let at = now(200 * MS, 700 * MS);
    assert_eq!(node.first(ALL, at), Ok((700, 0)));
    assert_eq!(node.first(1, at), Ok((701, 0)));
}

#[test]
fn a_range_that_begins_ahead_of_the_clock_is_used_no_faster_than_time_passes() {
    let hour = 3_600_000;
    let node = Node::compact(hour * MS, (hour + 10_000) * MS);
    let lead = COMPACT_LEAD_NS / MS;
    for step in 0..=lead {
        assert_eq!(node.first(ALL, now(0, 5)), Ok((hour + 2 + step, 0)));
    }
    assert_eq!(node.first(1, now(0, 5)), Err(AllocateError::Ahead));
    for ms in 1..100 {
        assert_eq!(node.first(ALL, now(ms * MS, ms * MS)), Ok((hour + 2 + lead + ms, 0)));
    }
}

#[test]
fn at_the_end_of_the_range_the_rest_of_its_last_millisecond_is_used_and_then_nothing() {
    let node = Node::compact(0, 9 * MS + 999_999);
    for step in 0..4 {
        let at = now(step * INTERVAL, 500 * MS);
        assert_eq!(node.first(ALL / 4, at), Ok((9, step * ALL / 4)));
    }
    assert_eq!(node.first(1, now(9 * INTERVAL, 500 * MS)), Err(AllocateError::Ahead));
    // The range grows.
    node.grant(TimestampFormat::Compact, 1, 0, 600 * MS);
    assert_eq!(node.first(1, now(9 * INTERVAL, 500 * MS)), Ok((500, 0)));
}

#[test]
fn a_range_without_a_whole_millisecond_gives_nothing_until_it_grows() {
    let node = Node::compact(5 * MS, 6 * MS);
    assert_eq!(node.first(1, now(0, 0)), Err(AllocateError::Ahead));
    node.grant(TimestampFormat::Compact, 1, 5 * MS, 7 * MS);
    assert_eq!(node.first(1, now(0, 0)), Ok((7, 0)));
}

#[test]
fn a_batch_that_does_not_fit_is_divided_and_a_request_never_leaves_its_millisecond() {
    let node = Node::compact(0, 10_000 * MS);
    let at = now(0, 500 * MS);
    let batch = |count| {
        let key = Confirmed::for_test(Term(1), ME.boot, count);
        node.allocator.allocate(key, at).map(|range| range.first().index.0)
    };
    assert_eq!(batch(ALL - 10), Ok(0));
    let Err(AllocateError::Divide(mut key)) = batch(20) else { panic!("10 are left") };
    assert_eq!(key.count(), 20);
    let part = |key| node.allocator.allocate(key, at).unwrap();
    let (one, two) = (part(key.take_part(8)), part(key.take_part(12)));
    assert_eq!((one.first().epoch, one.first().index.0), (Epoch(500 * MS), ALL - 10));
    assert_eq!((two.first().epoch, two.first().index.0), (Epoch(501 * MS), 0));
    assert_eq!(key.count(), 0, "nothing is left");
    // A batch may be larger than a millisecond; a request may not.
    assert!(matches!(batch(ALL + 1), Err(AllocateError::Divide(_))));
    assert_eq!(node.take(1, ALL + 1, at), Err(AllocateError::TooMany));
    // If the clock is past this millisecond, nothing has to be divided.
    let key = Confirmed::for_test(Term(1), ME.boot, ALL);
    let range = node.allocator.allocate(key, now(2 * MS, 502 * MS)).unwrap();
    assert_eq!(range.first().epoch, Epoch(502 * MS));
}

#[test]
#[should_panic(expected = "S2")]
fn parts_of_a_key_give_no_more_than_the_key() {
    let mut key = Confirmed::for_test(Term(1), ME.boot, 3);
    let _two = key.take_part(2);
    let _two = key.take_part(2);
}

#[test]
fn compact_timestamps_begin_above_all_wide_ones_and_so_does_the_latest_one() {
    for (wide_epoch, count) in [(500 * MS + 7, 3), (500 * MS, ALL + 1), (500 * MS, 3)] {
        let node = Node::new();
        node.grant(TimestampFormat::Wide, 1, 0, 10_000 * MS);
        let at = now(0, wide_epoch);
        let wide = node.take(1, count, at).unwrap();
        assert_eq!(wide.first().epoch, Epoch(wide_epoch));
        // The setting is applied, and the grant stays.
        node.grant(TimestampFormat::Compact, 1, 0, 10_000 * MS);
        let latest = node.latest(1).unwrap();
        assert!(latest >= wide.last() && latest.to_compact().is_some());
        let next = node.take(1, 1, at).unwrap();
        assert!(next.first() > latest && next.compact_first().is_some());
        assert_eq!(node.latest(1), Ok(next.last()));
    }
    // Another leader gave wide timestamps up to the low end of the range.
    let node = Node::compact(500 * MS, 10_000 * MS);
    let latest = node.latest(1).unwrap();
    assert!(latest > Timestamp::highest_at(500 * MS) && latest.to_compact().is_some());
    assert!(node.take(1, 1, now(0, 0)).unwrap().first() > latest);
}

#[test]
fn no_millisecond_is_left_at_the_end_of_all_epochs() {
    let node = Node::compact(u64::MAX - 1, u64::MAX);
    assert_eq!(node.first(1, now(0, 0)), Err(AllocateError::Exhausted));
    assert_eq!(node.latest(1), Err(AllocateError::Exhausted));
}

proptest! {
    /// For any clock, any rising ranges and any counts, compact timestamps rise in both spellings,
    /// stay inside the grant and near the clock, and the latest one is between them. A cluster that
    /// begins with wide timestamps stays compact once it is.
    #[test]
    fn both_spellings_only_rise(
        steps in prop::collection::vec(
            (0..300 * MS, 0..5_000 * MS, 1..=ALL, 0_u8..8), 1..80),
        wide_steps in 0_usize..10,
    ) {
        let node = Node::new();
        let (mut term, mut low, mut high, mut monotonic) = (1, 0, 200 * MS, 0);
        let (mut last, mut last_compact) = (None, None);
        for (step, (passed, trusted, count, event)) in steps.into_iter().enumerate() {
            monotonic += if event > 4 { 0 } else { passed };
            match event {
                0 => { term += 1; low = high + passed % 3; high = low + 1 + trusted; }
                1 => high += 1 + passed,
                _ => {}
            }
            let is_compact = step >= wide_steps;
            let format =
                if is_compact { TimestampFormat::Compact } else { TimestampFormat::Wide };
            node.grant(format, term, low, high);
            let latest = match node.latest(term) {
                Ok(latest) => Some(latest),
                Err(error) => {
                    // The range has no whole millisecond.
                    prop_assert_eq!(error, AllocateError::Ahead);
                    None
                }
            };
            prop_assert!(latest.is_none() || latest >= last);
            let count = if event % 2 == 0 { count } else { 1 + count % 1000 };
            match node.take(term, count, now(monotonic, trusted)) {
                Ok(range) => {
                    prop_assert!(Some(range.first()) > latest);
                    prop_assert!(low < range.first().epoch.0 && range.first().epoch.0 <= high);
                    last = Some(range.last());
                    if is_compact {
                        let compact = range.compact_first();
                        prop_assert!(compact.is_some() && compact > last_compact);
                        last_compact = range.last().to_compact();
                    }
                }
                Err(error) => prop_assert_eq!(error, AllocateError::Ahead),
            }
        }
    }
}
