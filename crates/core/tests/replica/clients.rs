//! A leader that cannot accept clients hands over to a node that can. Leadership does not move in
//! circles.

use epicepoch_core::replica::{HandOver, Report};
use epicepoch_wire::NodeId;
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::voter_status::{VoterStatus, Zone, preference_of};

use crate::support::bench::{Bench, message};
use crate::support::{ELECTION_TICKS, START_NS, TICK_NS};

/// How long accepts must fail before the leader offers leadership, ticks.
const CUT_OFF_TICKS: usize = 2 * ELECTION_TICKS;
/// Time between the first offer and the second, ticks.
const PAUSE_TICKS: usize = 25 * ELECTION_TICKS;
/// How long no accept may fail before earlier offers are forgotten, ticks.
const FORGOTTEN_TICKS: usize = 3_200 * ELECTION_TICKS;

fn led() -> Bench {
    let mut bench = Bench::led(&[1, 2, 3]);
    bench.replica.handle_sound_clocks(vec![NodeId(2), NodeId(3)]);
    bench
}

/// A tick in which the other voters answer and rounds complete.
fn beat(bench: &mut Bench, is_cut_off: bool) {
    bench.now_ns += TICK_NS;
    bench.replica.handle_rounds(bench.now_ns);
    bench.replica.handle_clients(is_cut_off);
    bench.replica.handle_tick(bench.now_ns, START_NS + bench.now_ns).expect("no reason to stop");
    bench.drain();
    bench.persist();
    for other in [2, 3] {
        bench.hear(other);
        bench.ack(other, bench.status().last);
    }
    bench.persist();
}

/// The offers of leadership within `beats` beats. Each is the number of the beat, and the voter.
fn offers(bench: &mut Bench, beats: usize, is_cut_off: bool) -> Vec<(usize, u64)> {
    let mut offers = vec![];
    for at in 1..=beats {
        bench.reports.clear();
        beat(bench, is_cut_off);
        offers.extend(bench.reports.iter().filter_map(|report| match report {
            Report::HandingOver { to, why: HandOver::ClientsCut } => Some((at, to.0)),
            Report::HandingOver { .. } | Report::SteppedDown { .. } => panic!("{report:?}"),
            _ => None,
        }));
    }
    offers
}

#[test]
fn a_leader_that_cannot_accept_clients_hands_over_after_two_election_timeouts_without_a_break() {
    let mut bench = led();
    assert_eq!(offers(&mut bench, CUT_OFF_TICKS - 1, true), []);
    // One beat without a failed accept restarts the wait.
    assert_eq!(offers(&mut bench, 1, false), []);
    assert_eq!(offers(&mut bench, CUT_OFF_TICKS - 1, true), []);
    assert_eq!(offers(&mut bench, 1, true), [(1, 2)]);
    assert!(bench.is_leader(), "until the other one takes it");
}

#[test]
fn a_declined_offer_goes_to_the_next_voter_after_twice_as_long() {
    let mut bench = led();
    let at = |pauses: usize| CUT_OFF_TICKS + pauses * PAUSE_TICKS;
    let expected = [(at(0), 2), (at(1), 3), (at(3), 2), (at(7), 3), (at(15), 2), (at(31), 3)];
    assert_eq!(offers(&mut bench, at(32), true), expected);
    // From now on the time between two offers stays the same.
    let longest = 16 * PAUSE_TICKS;
    assert_eq!(offers(&mut bench, longest - PAUSE_TICKS, true), [(longest - PAUSE_TICKS, 2)]);
}

#[test]
fn a_voter_that_could_not_lead_is_offered_no_leadership() {
    let mut bench = led();
    bench.replica.handle_sound_clocks(vec![NodeId(3)]);
    assert_eq!(offers(&mut bench, CUT_OFF_TICKS, true), [(CUT_OFF_TICKS, 3)]);
    let mut bench = led();
    bench.replica.handle_sound_clocks(vec![]);
    assert_eq!(offers(&mut bench, 4 * CUT_OFF_TICKS, true), []);
    // The leader offers leadership as soon as a voter could lead.
    bench.replica.handle_sound_clocks(vec![NodeId(2)]);
    assert_eq!(offers(&mut bench, 1, true), [(1, 2)]);
    // A single voter keeps leading.
    let mut bench = Bench::led(&[1]);
    for _ in 0..4 * CUT_OFF_TICKS {
        bench.replica.handle_clients(true);
        bench.tick();
        bench.persist();
    }
    assert!(bench.is_leader());
}

/// A voter reports whether it could lead.
fn say(bench: &mut Bench, node: u64, is_fit: bool) {
    let (zone, preference, slowest_write_ms) = (Zone::new("a"), preference_of(&[]), Some(0));
    let context = VoterStatus {
        is_fit,
        preference,
        zone,
        slowest_write_ms,
        waits_for_leases: false,
        closed: None,
    }
    .encode();
    let answer = message(MessageKind::HeartbeatResponse, bench.status().term.0);
    bench.take(node, &RaftMessage { context, ..answer }).expect("an answer is taken");
}

/// A voter's report that it could not lead counts for one election timeout. After that time,
/// leadership is offered to the voter again, if the voter is heard and sends no new report.
#[test]
fn a_voter_is_offered_nothing_while_it_says_that_it_could_not_lead() {
    let mut bench = led();
    for _ in 0..2 * CUT_OFF_TICKS {
        say(&mut bench, 2, false);
        say(&mut bench, 3, false);
        assert_eq!(offers(&mut bench, 1, true), []);
    }
    say(&mut bench, 2, false);
    say(&mut bench, 3, true);
    assert_eq!(offers(&mut bench, 1, true), [(1, 3)]);
    let mut bench = led();
    say(&mut bench, 2, false);
    say(&mut bench, 3, false);
    assert_eq!(offers(&mut bench, CUT_OFF_TICKS, true), [(CUT_OFF_TICKS, 2)]);
}

/// A leader that still waits for other clocks does not serve any client. So failed accepts do not
/// count yet.
#[test]
fn the_time_in_which_clients_are_cut_off_begins_when_a_leader_serves() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.replica.handle_compared(false);
    bench.replica.handle_sound_clocks(vec![NodeId(2), NodeId(3)]);
    bench.elect(&[2, 3]);
    bench.ack_all(2);
    let waited = (0..10 * CUT_OFF_TICKS).position(|_| {
        assert_eq!(offers(&mut bench, 1, true), []);
        bench.shared.published().grant.is_some()
    });
    assert!(waited.is_some_and(|ticks| ticks >= CUT_OFF_TICKS), "{waited:?}");
    assert_eq!(offers(&mut bench, 2 * CUT_OFF_TICKS, true), [(CUT_OFF_TICKS, 2)]);
}

/// The leader may offer leadership because it cannot accept clients. A node with the same fault
/// would not serve better.
#[test]
fn a_node_that_cannot_accept_clients_takes_no_leadership_that_is_offered() {
    for is_cut_off in [true, false] {
        let mut bench = Bench::new(&[1, 2, 3]);
        bench.take(2, &message(MessageKind::Heartbeat, 1)).expect("a heartbeat is taken");
        bench.replica.handle_clients(is_cut_off);
        bench.take(2, &message(MessageKind::TimeoutNow, 1)).expect("an offer is taken in");
        bench.persist();
        assert_eq!(bench.status().term.0, if is_cut_off { 1 } else { 2 });
    }
}

/// No node can accept clients, so each hands leadership on. In between, this node can accept
/// clients for a short time. The handovers must still end.
#[test]
fn a_node_that_has_given_leadership_away_often_keeps_it_for_long() {
    let mut bench = led();
    let mut waits = vec![];
    for _ in 0..4 {
        let mut wait = 0;
        while offers(&mut bench, 1, true).is_empty() {
            wait += 1;
            assert!(wait < 40 * PAUSE_TICKS, "never again after {waits:?}");
        }
        waits.push(wait);
        lead_again(&mut bench);
    }
    assert!(waits.windows(2).all(|pair| pair[0] < pair[1]), "each time later: {waits:?}");
    assert_eq!(offers(&mut bench, 40 * PAUSE_TICKS, true), []);
    assert_eq!(offers(&mut bench, FORGOTTEN_TICKS - 1, false), []);
    assert_eq!(offers(&mut bench, 40 * PAUSE_TICKS, true), []);
    assert_eq!(offers(&mut bench, FORGOTTEN_TICKS, false), []);
    assert_eq!(offers(&mut bench, CUT_OFF_TICKS, true), [(CUT_OFF_TICKS, 2)]);
}

/// Another node leads for a term, then this node leads again.
fn lead_again(bench: &mut Bench) {
    let term = bench.status().term.0 + 1;
    bench.take(2, &message(MessageKind::Heartbeat, term)).expect("a heartbeat is taken");
    bench.persist();
    assert!(!bench.is_leader());
    bench.elect(&[2, 3]);
    bench.persist();
    bench.ack_all(2);
    bench.ack_all(3);
    assert!(bench.is_leader());
}
