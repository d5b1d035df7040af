//! Who owns which epochs, and what a leader gives back.

use super::*;

#[test]
fn ranges_are_owned_once_and_the_ceiling_rises_with_time() {
    let again = |who, low, high| {
        let mut history = owned(ME, 10, 20);
        history.check_ranges(LogIndex(2), &holding(1, who, low, high));
        broken(&history)
    };
    assert_eq!(again(ME, 10, 20), None, "another node has applied it");
    assert_eq!(again(OTHER, 20, 30), None);
    assert_eq!(again(OTHER, 10, 20), Some(Invariant::Ranges));
    assert_eq!(again(OTHER, 15, 30), Some(Invariant::Ranges));
    let ceilings = |first: u64, second: u64| {
        let mut history = History { trusted_max_ns: NOW_NS, ..History::default() };
        for ceiling in [first, second] {
            history.check_ceiling(ME, &State { ceiling: Epoch(ceiling), ..state() });
        }
        broken(&history)
    };
    assert_eq!(ceilings(NOW_NS, NOW_NS), None);
    assert_eq!(ceilings(NOW_NS, NOW_NS - 1), Some(Invariant::Ranges));
    assert_eq!(ceilings(NOW_NS, NOW_NS + LONG_NS), Some(Invariant::Bound));
}

#[test]
fn a_range_that_is_given_back_and_assigned_again_may_be_stamped() {
    const BACK: u32 = FORMAT_OF_GIVING_BACK;
    let mut history = History { trusted_max_ns: NOW_NS, ..History::default() };
    let applies = |history: &mut History, index, high| {
        history.check_ranges(LogIndex(index), &holding(BACK, ME, NOW_NS, NOW_NS + high));
    };
    applies(&mut history, 9, 20);
    applies(&mut history, 11, 20);
    stamp(&mut history, range(NOW_NS + 15, 0, 1), NOW_NS, 1);
    applies(&mut history, 10, 5);
    stamp(&mut history, range(NOW_NS + 16, 0, 1), NOW_NS, 1);
    assert_eq!(broken(&history), None);
    // At the newest index it is a mistake.
    applies(&mut history, 12, 5);
    assert_eq!(broken(&history), Some(Invariant::GivenBack));
}

#[test]
fn what_is_given_back_was_not_stamped_and_is_not_stamped_later() {
    const BACK: u32 = FORMAT_OF_GIVING_BACK;
    let handed = |stamped: u64, who: Identity, low: u64, high: u64| {
        let mut history = History { trusted_max_ns: NOW_NS, ..History::default() };
        history.check_ranges(LogIndex(1), &holding(BACK, ME, NOW_NS, NOW_NS + 20));
        stamp(&mut history, range(NOW_NS + stamped, 0, 1), NOW_NS, 1);
        history.check_ranges(LogIndex(2), &holding(BACK, who, NOW_NS + low, NOW_NS + high));
        history
    };
    let taken = |stamped, who, low, high| broken(&handed(stamped, who, low, high));
    assert_eq!(taken(5, ME, 0, 5), None, "all above the last stamp is given back");
    assert_eq!(taken(5, OTHER, 5, 30), None, "and the next leader's range begins there");
    assert_eq!(taken(5, ME, 0, 4), Some(Invariant::GivenBack), "it was stamped");
    assert_eq!(taken(5, OTHER, 4, 30), Some(Invariant::GivenBack), "it was stamped");
    let kept = |end: u64| {
        let mut history = handed(5, ME, 0, 6);
        history.gives_back(owner(ME), Epoch(NOW_NS + end));
        broken(&history)
    };
    assert_eq!((kept(5), kept(6)), (None, Some(Invariant::GivenBack)), "something is kept");
    // The next leader goes on above what was shown as the latest timestamp.
    let shown = |end: u64| {
        let mut history = History { trusted_max_ns: NOW_NS, ..History::default() };
        history.check_ranges(LogIndex(1), &holding(BACK, ME, NOW_NS, NOW_NS + 20));
        stamp(&mut history, range(NOW_NS + 5, 0, 1), NOW_NS, 1);
        history.shows(ME.boot, range(NOW_NS + 8, 9, 1).last());
        history.check_ranges(LogIndex(2), &holding(BACK, ME, NOW_NS, NOW_NS + end));
        history.gives_back(owner(ME), Epoch(NOW_NS + end));
        broken(&history)
    };
    let wrong = Some(Invariant::GivenBack);
    assert_eq!([7, 8, 9].map(shown), [wrong, None, wrong]);
    assert_eq!(taken(5, ME, 0, 30), None, "the same owner has more");
    let moved = |end: u64| {
        let mut history = handed(5, ME, 0, 20);
        history.advanced(Epoch(NOW_NS + 10));
        history.check_ranges(LogIndex(3), &holding(BACK, ME, NOW_NS, NOW_NS + end));
        broken(&history)
    };
    assert_eq!((moved(10), moved(9)), (None, Some(Invariant::Advanced)), "S14: it was promised");
    let late = |epoch| {
        let mut history = handed(5, ME, 0, 5);
        stamp(&mut history, range(NOW_NS + epoch, 0, 1), NOW_NS, 2);
        broken(&history)
    };
    assert_eq!(
        (late(6), late(5)),
        (Some(Invariant::InsideOwnedRange), Some(Invariant::AllocatorRises))
    );
}
