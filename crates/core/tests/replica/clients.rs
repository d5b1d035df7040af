//! Leadership goes away from a node that cannot take clients in, to one that may, and never round and
//! round.

use epicepoch_core::replica::{HandOver, Report};
use epicepoch_wire::NodeId;
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::standing::{Standing, Zone, preference_of};

use crate::support::bench::{Bench, message};
use crate::support::world::START_NS;
use crate::support::{ELECTION_TICKS, TICK_NS};

/// For how long accepts have to fail before leadership is offered, ticks.
const CUT_OFF_TICKS: usize = 2 * ELECTION_TICKS;
/// Between the first offer and the second.
const PAUSE_TICKS: usize = 25 * ELECTION_TICKS;
/// In which no accept must fail before earlier offers are forgotten.
const FORGOTTEN_TICKS: usize = 3_200 * ELECTION_TICKS;

fn led() -> Bench {
    let mut bench = Bench::led(&[1, 2, 3]);
    bench.replica.handle_sound_clocks(vec![NodeId(2), NodeId(3)]);
    bench
}

/// A tick in which the others answer, and rounds complete.
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

/// To whom leadership was offered, in which of so many beats.
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
    // One that is accepted is a break.
    assert_eq!(offers(&mut bench, 1, false), []);
    assert_eq!(offers(&mut bench, CUT_OFF_TICKS - 1, true), []);
    assert_eq!(offers(&mut bench, 1, true), [(1, 2)]);
    assert!(bench.is_leader(), "until the other one takes it");
}

#[test]
fn what_was_not_taken_is_offered_to_each_in_turn_after_twice_as_long() {
    let mut bench = led();
    let at = |pauses: usize| CUT_OFF_TICKS + pauses * PAUSE_TICKS;
    let expected = [(at(0), 2), (at(1), 3), (at(3), 2), (at(7), 3), (at(15), 2), (at(31), 3)];
    assert_eq!(offers(&mut bench, at(32), true), expected);
    // No longer than that.
    let longest = 16 * PAUSE_TICKS;
    assert_eq!(offers(&mut bench, longest - PAUSE_TICKS, true), [(longest - PAUSE_TICKS, 2)]);
}

#[test]
fn nobody_is_offered_leadership_who_could_not_lead() {
    let mut bench = led();
    bench.replica.handle_sound_clocks(vec![NodeId(3)]);
    assert_eq!(offers(&mut bench, CUT_OFF_TICKS, true), [(CUT_OFF_TICKS, 3)]);
    let mut bench = led();
    bench.replica.handle_sound_clocks(vec![]);
    assert_eq!(offers(&mut bench, 4 * CUT_OFF_TICKS, true), []);
    // As soon as somebody could.
    bench.replica.handle_sound_clocks(vec![NodeId(2)]);
    assert_eq!(offers(&mut bench, 1, true), [(1, 2)]);
    // A single voter leads on.
    let mut bench = Bench::led(&[1]);
    for _ in 0..4 * CUT_OFF_TICKS {
        bench.replica.handle_clients(true);
        bench.tick();
        bench.persist();
    }
    assert!(bench.is_leader());
}

/// A voter says whether it could lead.
fn say(bench: &mut Bench, node: u64, is_fit: bool) {
    let zone = Zone::new("a").expect("a name");
    let context = Standing { is_fit, preference: preference_of(&[]), zone }.encode();
    let answer = message(MessageKind::HeartbeatResponse, bench.status().term.0);
    bench.take(node, &RaftMessage { context, ..answer }).expect("an answer is taken");
}

/// It counts for an election timeout: one that is heard and says nothing more may have become fit.
#[test]
fn who_says_that_it_could_not_lead_is_offered_nothing_as_long_as_it_says_so() {
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

/// A leader that waits for other clocks has nothing for a client to miss.
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

/// Who offers it may do so because of its own clients.
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

/// The node that took over fails, too, and hands it on, and so does the next, and this one has been well
/// meanwhile: it comes to an end.
#[test]
fn a_node_that_has_given_leadership_away_often_keeps_it_until_it_has_been_well_for_long() {
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

/// Another node leads for a term, and then this one again.
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
