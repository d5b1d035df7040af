//! An operator moves the epoch. The leader first reserves beyond it, then gives up the range below,
//! and only then reports the move as done (S14).

use epicepoch_core::replica::{ADVANCE_AHEAD_MAX_NS, ADVANCE_AHEAD_NS, AdvanceError, Report};
use epicepoch_wire::Epoch;
use epicepoch_wire::raft_message::MessageKind;

use crate::support::bench::{Bench, message};
use crate::support::{START_NS, TICK_NS};

const HOUR_NS: u64 = 3_600_000_000_000;

fn advance(bench: &mut Bench, to: Epoch, allowed_ns: u64) -> Result<(), AdvanceError> {
    let taken = bench.replica.advance(bench.now_ns, to, allowed_ns).map(|_| ());
    bench.drain();
    taken
}

fn range(bench: &Bench) -> (Epoch, Epoch) {
    let grant = bench.shared.published().grant.expect("it serves");
    (grant.range.low, grant.range.high)
}

fn is_told(bench: &Bench, to: Epoch) -> bool {
    bench.reports.contains(&Report::Advanced { to })
}

/// After the report that the advance is done, no worker can stamp in the old range.
#[test]
fn a_range_below_an_advance_is_given_up_in_the_step_that_reports_it() {
    let mut bench = Bench::led(&[1, 2, 3]);
    let (low, high) = range(&bench);
    let to = Epoch(low.0 + (high.0 - low.0) / 2);
    assert_eq!(advance(&mut bench, to, HOUR_NS), Ok(()));
    assert!(is_told(&bench, to));
    assert_eq!(range(&bench), (to, high), "nothing had to be reserved");
    // An advance to an epoch below the range is done already. It leaves the range as it is.
    bench.reports.clear();
    assert_eq!(advance(&mut bench, low, HOUR_NS), Ok(()));
    assert!(is_told(&bench, low));
    assert_eq!(range(&bench), (to, high));
}

#[test]
fn an_advance_beyond_the_ceiling_is_done_once_it_is_reserved_by_a_quorum() {
    let mut bench = Bench::led(&[1, 2, 3]);
    let (low, high) = range(&bench);
    let to = Epoch(high.0 + HOUR_NS / 2);
    assert_eq!(advance(&mut bench, to, HOUR_NS), Ok(()));
    assert!(!is_told(&bench, to), "nobody has acknowledged it");
    assert_eq!(range(&bench), (low, high));
    assert_eq!(advance(&mut bench, to, HOUR_NS), Err(AdvanceError::Busy));
    for _ in 0..3 {
        bench.ack_all(2);
        bench.beats(1, &[2]);
    }
    bench.ack_all(2);
    assert!(is_told(&bench, to));
    let (low, high) = range(&bench);
    assert_eq!(low, to);
    assert!(high > to && bench.replica.ceiling() == high);
}

#[test]
fn an_advance_too_far_ahead_is_refused_and_changes_nothing() {
    let mut bench = Bench::led(&[1, 2, 3]);
    let before = (range(&bench), bench.replica.ceiling(), bench.status().last);
    let far = |ns: u64| Epoch(range(&Bench::led(&[1, 2, 3])).1.0 + ns);
    let refused = advance(&mut bench, far(2 * HOUR_NS), HOUR_NS);
    assert!(matches!(refused, Err(AdvanceError::TooFarAhead { allowed_ns: HOUR_NS, .. })));
    let refused = advance(&mut bench, far(2 * ADVANCE_AHEAD_MAX_NS), u64::MAX);
    assert!(matches!(refused, Err(AdvanceError::TooFarAhead { .. })), "{refused:?}");
    // A plan changes nothing.
    let plan = bench.replica.plan_advance(far(HOUR_NS / 2), HOUR_NS).expect("it can be had");
    assert!(plan.ceiling_after > plan.to && plan.ceiling == before.1 && !plan.is_done);
    bench.drain();
    assert_eq!((range(&bench), bench.replica.ceiling(), bench.status().last), before);
    let mut follower = Bench::new(&[1, 2, 3]);
    assert_eq!(advance(&mut follower, Epoch(1), HOUR_NS), Err(AdvanceError::NotLeader));
}

/// Checks each field of a plan, at its smallest and its largest value.
#[test]
fn a_plan_shows_the_effect_of_an_advance() {
    let mut bench = Bench::led(&[1, 2, 3]);
    let (low, high) = range(&bench);
    let ceiling = bench.replica.ceiling();
    let plan =
        |bench: &Bench, to: u64, allowed: u64| bench.replica.plan_advance(Epoch(to), allowed);
    let after =
        |bench: &Bench, to: u64| plan(bench, to, HOUR_NS).expect("it can be had").ceiling_after;
    assert_eq!(after(&bench, high.0 - 1), ceiling, "it is owned");
    assert_eq!(after(&bench, high.0), Epoch(high.0 + 1_000), "it is not");
    let is_done = |bench: &Bench, to: u64| plan(bench, to, HOUR_NS).expect("it can be had").is_done;
    assert!(is_done(&bench, low.0) && !is_done(&bench, low.0 + 1));
    let trusted_ns = START_NS + bench.now_ns;
    assert_eq!(plan(&bench, trusted_ns + 5, 5).map(|it| it.ahead_ns), Ok(5));
    let too_far = AdvanceError::TooFarAhead { ahead_ns: 6, allowed_ns: 5 };
    assert_eq!(plan(&bench, trusted_ns + 6, 5), Err(too_far));
    // By default an advance may go an hour ahead; it may never go more than 366 days ahead.
    assert_eq!((ADVANCE_AHEAD_NS, ADVANCE_AHEAD_MAX_NS), (HOUR_NS, 8_784 * HOUR_NS));
    // Trusted time is now an hour below the highest epoch.
    bench.now_ns += TICK_NS;
    bench.replica.handle_tick(bench.now_ns, u64::MAX - HOUR_NS).expect("no reason to stop");
    assert!(plan(&bench, u64::MAX - 1_001, HOUR_NS).is_ok());
    for to in [u64::MAX - 1_000, u64::MAX - 999, u64::MAX] {
        assert_eq!(plan(&bench, to, HOUR_NS), Err(AdvanceError::Exhausted), "{to}");
    }
}

/// The advance waits for the pending reservation, because only one may be under way.
#[test]
fn an_advance_while_a_reservation_is_under_way_proposes_nothing_more() {
    let mut bench = Bench::led(&[1, 2, 3]);
    let last = bench.status().last;
    while bench.status().last == last {
        bench.beats(1, &[2, 3]);
        bench.persist();
    }
    let last = bench.status().last;
    let to = Epoch(range(&bench).1.0 + HOUR_NS / 2);
    assert_eq!(advance(&mut bench, to, HOUR_NS), Ok(()));
    assert_eq!(bench.status().last, last);
    for _ in 0..3 {
        bench.ack_all(2);
        bench.beats(1, &[2]);
    }
    bench.ack_all(2);
    assert!(is_told(&bench, to));
}

#[test]
fn an_advance_of_a_deposed_leader_is_never_reported_as_done() {
    let mut bench = Bench::led(&[1, 2, 3]);
    let to = Epoch(range(&bench).1.0 + HOUR_NS / 2);
    assert_eq!(advance(&mut bench, to, HOUR_NS), Ok(()));
    let term = bench.status().term.0;
    bench.take(2, &message(MessageKind::Heartbeat, term + 1)).expect("taken");
    bench.ticks(5);
    assert!(bench.shared.published().grant.is_none());
    assert!(!is_told(&bench, to));
}
