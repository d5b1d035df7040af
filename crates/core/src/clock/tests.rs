//! Tests of trusted time.

use super::*;

const S: u64 = 1_000_000_000;
const HOUR: u64 = 3_600 * S;
const BOUND: u64 = S / 2;
/// Wall time at monotonic time 0.
const START: u64 = 1_700_000_000 * S;

fn at(monotonic_ns: u64, wall_ns: u64) -> ClockReading {
    ClockReading { monotonic_ns, wall_ns }
}

fn healthy(monotonic_ns: u64) -> ClockReading {
    at(monotonic_ns, START + monotonic_ns)
}

fn sample(clock: &mut TrustedClock, peer: u64, now: u64, wall: u64) {
    assert!(clock.handle_sample(NodeId(peer), wall, now, now));
}

/// A clock of three voters that has run correctly for a second.
fn trio() -> TrustedClock {
    let mut clock = TrustedClock::new(BOUND, healthy(0));
    sample(&mut clock, 2, S, START + S);
    sample(&mut clock, 3, S, START + S);
    assert_eq!(clock.observe(healthy(S), 3, START), ClockStatus::Followed);
    clock
}

#[test]
fn a_clock_set_an_hour_ahead_or_back_is_outvoted_and_followed_again_when_it_is_right() {
    for wrong in [START + 2 * S + HOUR, START + 2 * S - HOUR] {
        let mut clock = trio();
        assert_eq!(clock.observe(at(2 * S, wrong), 3, START), ClockStatus::Outvoted);
        assert_eq!(clock.trusted_ns(2 * S), START + 2 * S);
        assert_eq!(clock.observe(healthy(3 * S), 3, START), ClockStatus::Followed);
        assert_eq!(clock.trusted_ns(3 * S), START + 3 * S);
    }
}

#[test]
fn one_lying_peer_changes_nothing() {
    let mut clock = trio();
    sample(&mut clock, 3, 2 * S, START + HOUR);
    assert_eq!(clock.observe(healthy(2 * S), 3, START), ClockStatus::Followed);
    assert_eq!(clock.trusted_ns(2 * S), START + 2 * S);
    assert!(clock.is_peer_trusted(NodeId(2)));
    assert!(!clock.is_peer_trusted(NodeId(3)));
}

#[test]
fn with_fewer_clocks_a_jump_is_not_followed_until_a_majority_agrees() {
    let mut clock = trio();
    let late = S + TrustedClock::SAMPLE_AGE_MAX_NS + 1;
    let jumped = |t| at(t, START + t + HOUR);
    assert_eq!(clock.observe(jumped(late), 3, START), ClockStatus::Jumped);
    assert_eq!(clock.trusted_ns(late), START + late);
    sample(&mut clock, 2, late, START + late);
    assert_eq!(clock.observe(jumped(late), 3, START), ClockStatus::Jumped);
    sample(&mut clock, 2, late, START + late + HOUR);
    assert_eq!(clock.observe(jumped(late), 3, START), ClockStatus::Followed);
    assert_eq!(clock.trusted_ns(late), START + late + HOUR);
}

/// The clock of a leader of three drifts away. One peer is known, the other is down. When the two
/// known clocks differ by more than the bound, neither can be proved right, and trusted time
/// continues by the monotonic clock. The drifting clock then cannot move trusted time. It may drift
/// in small or large steps, ahead or back, or stand still.
#[test]
fn a_clock_that_creeps_off_from_the_only_other_one_is_not_followed_beyond_the_bound() {
    // Milliseconds that the wall clock gains per second. At -1,000 it stands still.
    for creep_ms in [50_i64, 400, 1_000, -400, -1_000] {
        let mut clock = trio();
        let crept = |t: u64| (START + t).saturating_add_signed((t - S) as i64 / 1_000 * creep_ms);
        let mut status = ClockStatus::Followed;
        for tick in 1..=3_000 {
            let now = S + tick * S / 100;
            sample(&mut clock, 2, now, START + now);
            status = clock.observe(at(now, crept(now)), 3, START);
            let off = clock.trusted_ns(now).abs_diff(START + now);
            assert!(off <= BOUND, "{creep_ms} ms a second: {off} ns off at {now}");
        }
        assert_eq!(status, ClockStatus::Jumped);
        // Node 3 comes back, so that a majority is known again.
        let now = 32 * S;
        sample(&mut clock, 2, now, START + now);
        sample(&mut clock, 3, now, START + now);
        assert_eq!(clock.observe(at(now, crept(now)), 3, START), ClockStatus::Outvoted);
        assert_eq!(clock.trusted_ns(now), START + now);
    }
}

/// Without known clocks there is no new proof. So the clock is followed only within the bound of
/// the last proof.
#[test]
fn a_clock_that_creeps_off_alone_is_not_followed_beyond_the_bound_of_the_last_proof() {
    for creep_ms in [50_i64, -1_000] {
        let mut clock = trio();
        for tick in 1..=6_000 {
            let now = S + tick * S / 100;
            let crept = (START + now).saturating_add_signed((now - S) as i64 / 1_000 * creep_ms);
            clock.observe(at(now, crept), 3, START);
            // At first, trusted time rests on fresh samples of the peers, whose clocks are right.
            // Later, it stays within the bound of the last proof.
            assert!(clock.trusted_ns(now).abs_diff(START + now) <= BOUND);
        }
        assert_eq!(clock.status(), ClockStatus::Jumped);
    }
}

/// Of five clocks, two broken ones drift away together, and two right ones are not heard.
#[test]
fn a_median_that_creeps_is_no_better_than_a_clock_that_does() {
    let mut clock = TrustedClock::new(BOUND, healthy(0));
    for peer in 2..=5 {
        sample(&mut clock, peer, S, START + S);
    }
    assert_eq!(clock.observe(healthy(S), 5, START), ClockStatus::Followed);
    // This node's own clock is broken, too, so the median is the drifting one.
    for tick in 1..=3_000 {
        let now = S + tick * S / 100;
        sample(&mut clock, 2, now, START + now);
        sample(&mut clock, 3, now, START + now + (now - S) / 20);
        clock.observe(at(now, START + now + HOUR), 5, START);
    }
    let now = 31 * S;
    assert!(clock.trusted_ns(now).abs_diff(START + now) <= BOUND);
}

/// A clock that the node believed at its start limits trusted time like a proved clock.
#[test]
fn a_clock_that_was_believed_at_the_start_is_not_followed_as_it_creeps_off() {
    let mut clock = TrustedClock::new(BOUND, healthy(0));
    sample(&mut clock, 2, S, START + S + HOUR);
    assert_eq!(clock.observe(healthy(S), 3, START), ClockStatus::Followed);
    assert!(clock.is_compared(3) && !clock.is_proved());
    for tick in 1..=1_000 {
        let now = S + tick * S / 100;
        sample(&mut clock, 2, now, START + now + HOUR);
        clock.observe(at(now, START + now + (now - S) / 2), 3, START);
    }
    assert_eq!(clock.status(), ClockStatus::Jumped);
    assert!(clock.trusted_ns(11 * S) <= START + 11 * S + BOUND);
}

#[test]
fn one_of_five_agreeing_is_no_majority() {
    let mut clock = trio();
    let late = S + TrustedClock::SAMPLE_AGE_MAX_NS + 1;
    sample(&mut clock, 2, late, START + late + HOUR);
    let jumped = at(late, START + late + HOUR);
    assert_eq!(clock.observe(jumped, 5, START), ClockStatus::Jumped);
}

#[test]
fn a_single_voter_does_not_follow_a_jump_but_follows_discipline() {
    let mut clock = TrustedClock::new(BOUND, healthy(0));
    assert_eq!(clock.observe(healthy(S), 1, START), ClockStatus::Followed);
    let slewed = at(2 * S, START + 2 * S + BOUND / 2);
    assert_eq!(clock.observe(slewed, 1, START), ClockStatus::Followed);
    assert_eq!(clock.trusted_ns(2 * S), START + 2 * S + BOUND / 2);
    let back = at(3 * S, START - HOUR);
    assert_eq!(clock.observe(back, 1, START), ClockStatus::Jumped);
    assert_eq!(clock.trusted_ns(3 * S), START + 3 * S + BOUND / 2);
}

/// Each step is within the bound of the last believed time, and all steps together are far beyond
/// it. A single voter cannot detect that. It must accept such steps: a clock that was wrong at the
/// start has to become right.
#[test]
fn a_single_voter_follows_its_clock_as_far_as_it_is_disciplined() {
    let mut clock = TrustedClock::new(BOUND, healthy(0));
    for step in 1..=10 {
        let (now, wall) = (step * S, START + step * (S + BOUND / 2));
        assert_eq!(clock.observe(at(now, wall), 1, START), ClockStatus::Followed, "{step}");
        assert_eq!(clock.trusted_ns(now), wall);
    }
}

/// Two clocks of three agree, and this node's own is one of them.
#[test]
fn a_clock_proved_by_a_majority_stays_proved_in_silence() {
    let mut clock = TrustedClock::new(BOUND, healthy(0));
    clock.observe(healthy(S / 2), 3, START);
    assert!(!clock.is_proved());
    sample(&mut clock, 2, S, START + S);
    clock.observe(healthy(S), 3, START);
    assert!(clock.is_proved());
    let late = 2 * S + TrustedClock::SAMPLE_AGE_MAX_NS;
    clock.observe(healthy(late), 3, START);
    assert!(clock.is_proved());
}

#[test]
fn at_a_restart_the_earlier_of_two_clocks_is_believed_until_a_third_is_known() {
    let mut clock = TrustedClock::new(BOUND, at(0, START + HOUR));
    sample(&mut clock, 2, S, START + S);
    let ahead = at(S, START + S + HOUR);
    assert_eq!(clock.observe(ahead, 3, START), ClockStatus::Jumped);
    assert_eq!(clock.trusted_ns(S), START + S);
    sample(&mut clock, 3, S, START + S + HOUR);
    assert_eq!(clock.observe(ahead, 3, START), ClockStatus::Followed);
    assert_eq!(clock.trusted_ns(S), START + S + HOUR);
}

#[test]
fn at_a_restart_the_ceiling_says_which_of_two_clocks_is_behind() {
    let ceiling = START + S;
    let mut clock = TrustedClock::new(BOUND, at(0, START - HOUR));
    sample(&mut clock, 2, S, START + S);
    let behind = at(S, START + S - HOUR);
    assert_eq!(clock.observe(behind, 3, ceiling), ClockStatus::Outvoted);
    assert_eq!(clock.trusted_ns(S), START + S);
    let mut clock = TrustedClock::new(BOUND, healthy(0));
    sample(&mut clock, 2, S, START + S - HOUR);
    assert_eq!(clock.observe(healthy(S), 3, ceiling), ClockStatus::Followed);
}

/// The last leader knew no other clock. Its own ran ahead, and the ceiling with it.
/// So a right clock seems to be behind. The third clock decides.
#[test]
fn a_clock_that_is_ignored_as_behind_may_be_the_right_one_so_all_clocks_are_waited_for() {
    let ceiling = |t| START + t + 3 * S;
    let mut clock = TrustedClock::new(BOUND, healthy(0));
    sample(&mut clock, 2, S, ceiling(S));
    assert_eq!(clock.observe(healthy(S), 3, ceiling(S)), ClockStatus::Outvoted);
    assert!(!clock.is_compared(3), "one of the two is wrong, and may be the one that is ahead");
    sample(&mut clock, 3, 2 * S, START + 2 * S);
    assert_eq!(clock.observe(healthy(2 * S), 3, ceiling(S)), ClockStatus::Followed);
    assert!(clock.is_compared(3) && clock.is_proved());
    assert_eq!(clock.trusted_ns(2 * S), START + 2 * S);
    // If no two of the three agree, waiting longer would not help.
    let mut clock = TrustedClock::new(BOUND, healthy(0));
    sample(&mut clock, 2, S, ceiling(S));
    sample(&mut clock, 3, S, ceiling(S) + HOUR);
    assert_eq!(clock.observe(healthy(S), 3, ceiling(S)), ClockStatus::Outvoted);
    assert!(clock.is_compared(3) && !clock.is_proved());
}

/// The leader of the test above waits for the third clock in vain, and then serves. Its own clock is
/// the wrong one. It creeps further, and jumps.
#[test]
fn a_leader_that_ignores_a_clock_follows_its_own_no_further_than_the_bound() {
    let ahead = |t| START + t + 3 * S;
    for runs_away in [|since| since / 2, |since| if since > 0 { HOUR } else { 0 }] {
        let mut clock = TrustedClock::new(BOUND, at(0, ahead(0)));
        for tick in 0..=1_000 {
            let now = S + tick * S / 100;
            sample(&mut clock, 2, now, START + now);
            clock.observe(at(now, ahead(now) + runs_away(now - S)), 3, START + now + 2 * S);
            assert!(clock.trusted_ns(now) <= ahead(now) + BOUND, "after {tick} ticks");
        }
        assert_eq!(clock.status(), ClockStatus::Jumped);
        assert!(!clock.is_compared(3));
    }
}

/// A leader restarts with its clock ahead, and reserves by another, right clock. The ceiling is
/// then ahead of the right clock by the reservation. That must not count against the right clock.
#[test]
fn a_right_clock_is_not_behind_because_of_a_reservation() {
    const RESERVATION: u64 = S;
    let ahead = |t| at(t, START + t + 10 * S);
    let mut clock = TrustedClock::new(BOUND, ahead(0));
    sample(&mut clock, 2, S, START + S);
    assert_eq!(clock.observe(ahead(S), 3, START), ClockStatus::Jumped);
    let ceiling = clock.trusted_ns(S) + RESERVATION;
    assert_eq!(clock.observe(ahead(S), 3, ceiling - RESERVATION), ClockStatus::Jumped);
    assert_eq!(clock.trusted_ns(S), START + S, "the earlier one, still");
}

/// Two broken clocks of five are a minority, even if they are two of the three that are heard.
#[test]
fn two_wrong_clocks_of_five_move_nothing_while_two_right_ones_are_unheard() {
    let wrong = |t| START + t + 10 * S;
    // A node with a history has compared its clock before. A node without one has just started.
    for has_history in [true, false] {
        let mut clock = TrustedClock::new(BOUND, healthy(0));
        if has_history {
            sample(&mut clock, 4, S, START + S);
            sample(&mut clock, 5, S, START + S);
            assert_eq!(clock.observe(healthy(S), 5, START), ClockStatus::Followed);
        }
        let late = 2 * S + TrustedClock::SAMPLE_AGE_MAX_NS;
        sample(&mut clock, 2, late, wrong(late));
        assert_eq!(clock.is_compared(5), has_history);
        sample(&mut clock, 3, late, wrong(late));
        assert_eq!(clock.observe(healthy(late), 5, START), ClockStatus::Followed);
        assert_eq!(clock.trusted_ns(late), START + late);
        assert!(clock.is_compared(5));
    }
    // This node's clock and one other clock are wrong. One right clock is heard.
    let mut clock = TrustedClock::new(BOUND, at(0, wrong(0)));
    sample(&mut clock, 2, S, wrong(S));
    sample(&mut clock, 3, S, START + S);
    assert_eq!(clock.observe(at(S, wrong(S)), 5, START), ClockStatus::Jumped);
    assert_eq!(clock.trusted_ns(S), START + S);
}

#[test]
fn one_other_clock_of_five_does_not_start_a_history() {
    let mut clock = TrustedClock::new(BOUND, at(0, START + HOUR));
    sample(&mut clock, 2, S, START + S + HOUR);
    assert_eq!(clock.observe(at(S, START + S + HOUR), 5, START), ClockStatus::Followed);
    assert!(!clock.is_compared(5), "two of five may both be wrong");
    sample(&mut clock, 3, S, START + S);
    assert_eq!(clock.observe(at(S, START + S + HOUR), 5, START), ClockStatus::Jumped);
    assert_eq!(clock.trusted_ns(S), START + S);
}

/// Three known clocks of five are too few for a majority. A median that goes on as before still
/// outvotes this node's clock.
#[test]
fn three_of_five_outvote_a_jump_where_the_other_two_go_on_as_before() {
    let mut clock = TrustedClock::new(BOUND, healthy(0));
    sample(&mut clock, 2, S, START + S);
    sample(&mut clock, 3, S, START + S);
    assert_eq!(clock.observe(healthy(S), 5, START), ClockStatus::Followed);
    let jumped = at(2 * S, START + 2 * S + HOUR);
    assert_eq!(clock.observe(jumped, 5, START), ClockStatus::Outvoted);
    assert_eq!(clock.trusted_ns(2 * S), START + 2 * S);
}

#[test]
fn a_clock_that_was_never_compared_says_so_and_has_nothing_to_defend() {
    let ahead = |t| at(t, START + t + HOUR);
    let mut clock = TrustedClock::new(BOUND, ahead(0));
    assert_eq!(clock.observe(ahead(S), 3, START), ClockStatus::Followed);
    assert!(!clock.is_compared(3));
    assert!(clock.is_compared(1));
    sample(&mut clock, 2, 2 * S, START + 2 * S);
    assert_eq!(clock.observe(ahead(2 * S), 3, START), ClockStatus::Jumped);
    assert_eq!(clock.trusted_ns(2 * S), START + 2 * S);
    assert!(clock.is_compared(3));
}

#[test]
fn at_a_restart_a_clock_below_the_ceiling_has_no_history_to_defend() {
    let mut clock = TrustedClock::new(BOUND, healthy(0));
    assert_eq!(clock.observe(healthy(S), 1, START + HOUR), ClockStatus::Followed);
    let right = at(2 * S, START + 2 * S + HOUR);
    assert_eq!(clock.observe(right, 1, START + HOUR), ClockStatus::Followed);
    assert_eq!(clock.observe(healthy(3 * S), 1, START + HOUR), ClockStatus::Jumped);
}

#[test]
fn a_slow_round_trip_or_one_backwards_says_nothing() {
    let mut clock = trio();
    assert!(!clock.handle_sample(NodeId(2), START, S, 2 * S));
    assert!(!clock.handle_sample(NodeId(2), START, 2 * S, S));
    assert!(clock.handle_sample(NodeId(2), START + S, S, S + 2000));
}

#[test]
fn a_median_of_an_even_number_is_the_earlier_one() {
    let mut clock = TrustedClock::new(BOUND, healthy(0));
    for (peer, ahead) in [(2, HOUR), (3, HOUR), (4, 0)] {
        sample(&mut clock, peer, S, START + S + ahead);
    }
    clock.observe(healthy(S), 4, START);
    assert_eq!(clock.trusted_ns(S), START + S);
}

#[test]
fn half_of_the_round_trip_is_added_to_a_peers_clock() {
    let mut clock = TrustedClock::new(BOUND, healthy(0));
    // The peer read its clock half way through the round trip, and is 700 ns ahead.
    assert!(clock.handle_sample(NodeId(2), START + 5_000 + 700, 4_000, 6_000));
    clock.observe(healthy(6_000), 3, START);
    assert_eq!(clock.peer_offsets(), [(NodeId(2), 700)]);
    // A round trip of exactly the bound counts, a longer one does not.
    assert!(clock.handle_sample(NodeId(3), START + S, S, S + BOUND));
    assert!(!clock.handle_sample(NodeId(4), START + S, S, S + BOUND + 1));
}

#[test]
fn a_sample_that_took_longer_than_a_bound_that_shrinks_says_nothing_any_more() {
    let mut clock = TrustedClock::new(BOUND, healthy(0));
    assert!(clock.handle_sample(NodeId(2), START + S, S, S + BOUND / 2));
    assert!(clock.handle_sample(NodeId(3), START + S, S, S + BOUND));
    let known = |clock: &TrustedClock| {
        clock.peer_offsets().into_iter().map(|(node, _)| node.0).collect::<Vec<_>>()
    };
    clock.set_bound_ns(BOUND);
    assert_eq!(known(&clock), [2, 3]);
    clock.set_bound_ns(BOUND / 2);
    assert_eq!(known(&clock), [2]);
    clock.set_bound_ns(BOUND / 2 - 1);
    assert_eq!(known(&clock), [0; 0]);
}

#[test]
fn offsets_for_people_are_relative_to_the_wall_clock_and_never_wrap() {
    let mut clock = TrustedClock::new(BOUND, healthy(0));
    sample(&mut clock, 2, S, START + S + 40);
    sample(&mut clock, 3, S, START + S - 50);
    clock.observe(at(S, START + S + 10), 3, START);
    assert_eq!(clock.peer_offsets(), [(NodeId(2), 30), (NodeId(3), -60)]);
    let mut clock = TrustedClock::new(BOUND, at(u64::MAX, 0));
    sample(&mut clock, 2, 0, u64::MAX);
    assert_eq!(clock.peer_offsets(), [(NodeId(2), i64::MAX)]);
    assert_eq!(clock.offset_ns(), i64::MIN);
    let mut clock = TrustedClock::new(BOUND, at(0, u64::MAX));
    sample(&mut clock, 2, u64::MAX, 0);
    assert_eq!(clock.peer_offsets(), [(NodeId(2), i64::MIN)]);
    assert_eq!(clock.offset_ns(), i64::MAX);
    assert_eq!(TrustedClock::new(BOUND, at(9, 9)).offset_ns(), 0);
}

#[test]
fn the_clocks_of_nodes_that_are_no_voters_any_more_are_forgotten() {
    let mut clock = trio();
    clock.retain_peers(|node| node == NodeId(3));
    let left: Vec<_> = clock.peer_offsets().into_iter().map(|(node, _)| node).collect();
    assert_eq!(left, [NodeId(3)]);
}

#[test]
fn at_a_restart_a_peer_within_the_bound_confirms_the_own_clock() {
    let mut clock = TrustedClock::new(BOUND, healthy(0));
    sample(&mut clock, 2, S, START + S + BOUND);
    assert_eq!(clock.observe(healthy(S), 3, START), ClockStatus::Followed);
    assert_eq!(clock.trusted_ns(S), START + S);
    // From now on this node has a history, so a jump is not followed.
    let late = S + TrustedClock::SAMPLE_AGE_MAX_NS + 1;
    let jumped = at(late, START + late + HOUR);
    assert_eq!(clock.observe(jumped, 3, START), ClockStatus::Jumped);
}

#[test]
fn at_a_restart_a_clock_exactly_the_bound_below_the_ceiling_is_not_behind_it() {
    let mut clock = TrustedClock::new(BOUND, healthy(0));
    sample(&mut clock, 2, S, START + S - HOUR);
    let ceiling = START + S + BOUND;
    assert_eq!(clock.observe(healthy(S), 3, ceiling), ClockStatus::Followed);
    assert_eq!(clock.trusted_ns(S), START + S);
}

/// Two clocks of five are broken, and one of them is this node's. Two right clocks are not heard.
/// The median has a majority near it, so it is within the bound of the right clock. A clock that is
/// only near the median may be further off.
#[test]
fn a_clock_that_only_the_median_is_near_does_not_carry_time_to_twice_the_bound() {
    const MS: i64 = 1_000_000;
    // Offsets from true time, ms: this node's clock, the peers' clocks, and the trusted time that
    // follows.
    let cases: [(i64, &[i64], i64); 4] = [
        (990, &[0, 495], 495),
        (-820, &[-400, 0, 0], -400),
        (400, &[0, 0, 495], 400),
        (-400, &[0, 0, 0], -400),
    ];
    for (own, peers, trusted) in cases {
        let mut clock = TrustedClock::new(BOUND, healthy(0));
        for peer in 2..=5 {
            sample(&mut clock, peer, S, START + S);
        }
        assert_eq!(clock.observe(healthy(S), 5, START), ClockStatus::Followed);
        let now = 2 * S + TrustedClock::SAMPLE_AGE_MAX_NS;
        let off = |ms: i64| (START + now).saturating_add_signed(ms * MS);
        for (peer, ms) in (2..).zip(peers) {
            sample(&mut clock, peer, now, off(*ms));
        }
        assert_eq!(clock.observe(at(now, off(own)), 5, START), ClockStatus::Followed);
        assert_eq!(clock.trusted_ns(now), off(trusted), "{own} beside {peers:?}");
    }
}

/// This node's clock and that of node 2 are a majority within the bound. When the other clocks fall
/// silent, this node's clock is still followed.
#[test]
fn a_clock_at_the_edge_of_its_majority_is_followed_on_alone() {
    let mut clock = TrustedClock::new(BOUND, healthy(0));
    sample(&mut clock, 2, S, START + S + 400_000_000);
    sample(&mut clock, 3, S, START + S + 800_000_000);
    assert_eq!(clock.observe(healthy(S), 3, START), ClockStatus::Followed);
    assert_eq!(clock.trusted_ns(S), START + S);
    let late = 2 * S + TrustedClock::SAMPLE_AGE_MAX_NS;
    assert_eq!(clock.observe(healthy(late), 3, START), ClockStatus::Followed);
}

/// A learner beside a single voter is not a majority by itself. Its clock may be an hour ahead when
/// it is promoted. Trusted time does not follow that clock.
#[test]
fn a_clock_of_a_node_that_is_no_voter_proves_nothing() {
    let voters = || [NodeId(1)].into_iter();
    assert_eq!((clocks_of(voters(), NodeId(1)), clocks_of(voters(), NodeId(2))), (1, 2));
    assert_eq!(clocks_of(std::iter::empty(), NodeId(2)), 2);
    let ahead = |t: u64| at(t, START + t + HOUR);
    let mut clock = TrustedClock::new(BOUND, ahead(0));
    sample(&mut clock, 1, S, START + S);
    clock.observe(ahead(S), clocks_of(voters(), NodeId(2)), START);
    assert_eq!(clock.trusted_ns(S), START + S);
    sample(&mut clock, 1, 2 * S, START + 2 * S);
    assert_eq!(clock.observe(ahead(2 * S), 2, START), ClockStatus::Jumped);
    assert_eq!(clock.trusted_ns(2 * S), START + 2 * S);
}

/// The learner compares four clocks: its own and those of three voters. One voter's clock is
/// equally wrong. So only half of the clocks agree on the wrong time.
#[test]
fn a_node_that_is_no_voter_and_one_voter_of_three_are_no_majority() {
    let clocks = |me| clocks_of([1, 2, 3].map(NodeId).into_iter(), NodeId(me));
    assert_eq!((clocks(3), clocks(4)), (3, 4));
    let ahead = |t: u64| at(t, START + t + HOUR);
    let mut clock = TrustedClock::new(BOUND, ahead(0));
    sample(&mut clock, 2, S, START + S + HOUR);
    clock.observe(ahead(S), clocks(4), START);
    assert!(!clock.is_proved() && !clock.is_compared(clocks(4)));
}
