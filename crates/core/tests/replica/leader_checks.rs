//! The leader's checks, counted in ticks: how long it waits before it gives leadership away, what
//! its status says, and what its reports contain.

use epicepoch_core::publication::Role;
use epicepoch_core::replica::{HandOver, Report};
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::{Epoch, LogIndex, NodeId, StoreId};

use crate::support::bench::{Bench, append, genesis, message};
use crate::support::disk::Disk;
use crate::support::{ELECTION_TICKS, RESERVATION_NS, START_NS, TICK_NS, member};

/// A tick of a leader whose followers answer. Its rounds complete only if `rounds`.
fn beat(bench: &mut Bench, others: &[u64], rounds: bool) {
    bench.now_ns += TICK_NS;
    if rounds {
        bench.replica.handle_rounds(bench.now_ns);
    }
    bench.replica.handle_tick(bench.now_ns, START_NS + bench.now_ns).expect("no reason to stop");
    bench.drain();
    bench.persist();
    let answer = message(MessageKind::HeartbeatResponse, bench.status().term.0);
    for other in others {
        bench.take(*other, &answer).expect("an answer is taken");
        if bench.is_leader() {
            bench.ack(*other, bench.status().last);
        }
    }
    bench.persist();
}

/// The offers of leadership for the reason `why` within `beats` beats. Each is the number of the
/// beat, and the voter.
fn offers(bench: &mut Bench, why: HandOver, beats: usize, rounds: bool) -> Vec<(usize, u64)> {
    let mut offers = vec![];
    for at in 1..=beats {
        bench.reports.clear();
        beat(bench, &[2, 3], rounds);
        offers.extend(bench.reports.iter().filter_map(|report| match report {
            Report::HandingOver { to, why: reason } if *reason == why => Some((at, to.0)),
            _ => None,
        }));
    }
    offers
}

/// A pause is three election timeouts: the library ends a handover after one, and a reservation
/// needs the other two.
#[test]
fn a_leader_whose_clock_is_off_offers_leadership_to_each_in_turn_with_pauses() {
    let mut bench = Bench::led(&[1, 2, 3]);
    offers(&mut bench, HandOver::ClockOff, 2 * ELECTION_TICKS, true);
    bench.replica.handle_clock(Some(vec![NodeId(2), NodeId(3)]));
    let pause = 3 * ELECTION_TICKS;
    let expected: Vec<_> = (0..4).map(|time| (1 + time * pause, 2 + time as u64 % 2)).collect();
    assert_eq!(offers(&mut bench, HandOver::ClockOff, 1 + 3 * pause, true), expected);
}

#[test]
fn a_leader_whose_clock_is_off_offers_leadership_only_to_nodes_with_a_right_clock() {
    for (successors, to) in [(&[][..], None), (&[3][..], Some(3))] {
        let mut bench = Bench::led(&[1, 2, 3]);
        bench.replica.handle_clock(Some(successors.iter().copied().map(NodeId).collect()));
        let offers = offers(&mut bench, HandOver::ClockOff, 8 * ELECTION_TICKS, true);
        assert_eq!(offers.is_empty(), to.is_none());
        assert!(offers.iter().all(|(_, it)| Some(*it) == to), "{offers:?}");
    }
}

/// For one election timeout after its election, the leader offers leadership to no voter. Its
/// voters must first hear clocks of other nodes, because their own clocks may be no better.
#[test]
fn a_new_leader_whose_clock_is_off_leads_for_an_election_timeout() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.replica.handle_clock(Some(vec![NodeId(2)]));
    bench.elect(&[2, 3]);
    bench.ack_all(2);
    let offers = offers(&mut bench, HandOver::ClockOff, ELECTION_TICKS + 1, true);
    assert_eq!(offers, [(ELECTION_TICKS, 2)]);
}

#[test]
fn a_leader_hands_over_after_two_election_timeouts_without_a_round_and_says_that_it_is_impaired() {
    let mut bench = Bench::led(&[1, 2, 3]);
    offers(&mut bench, HandOver::RoundsStuck, 2 * ELECTION_TICKS, true);
    assert!(!bench.replica.is_impaired());
    let completed_ns = bench.now_ns;
    // The tick that reported the last round counts as the first one without a round.
    let delay = 2 * ELECTION_TICKS - 1;
    assert_eq!(offers(&mut bench, HandOver::RoundsStuck, delay - 1, false), []);
    assert!(!bench.replica.is_impaired());
    assert_eq!(offers(&mut bench, HandOver::RoundsStuck, 1, false), [(1, 2)]);
    assert!(bench.replica.is_impaired());
    // Reporting the same completed round again does not count.
    bench.replica.handle_rounds(completed_ns);
    assert!(bench.replica.is_impaired());
    bench.replica.handle_rounds(bench.now_ns);
    assert!(!bench.replica.is_impaired());
}

#[test]
fn a_node_whose_write_has_waited_for_an_election_timeout_is_impaired_and_no_follower_for_rounds() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.ticks(3 * ELECTION_TICKS);
    assert!(!bench.replica.is_impaired(), "nobody leads, and nothing waits");
    bench.take(2, &append(2, (1, 1), 1, 1)).expect("an entry is taken");
    bench.ticks(ELECTION_TICKS - 1);
    assert!(!bench.replica.is_impaired());
    bench.tick();
    assert!(bench.replica.is_impaired());
    bench.persist();
    assert!(!bench.replica.is_impaired());
}

/// A single voter is its own quorum. No other node could take over, so stepping down would not
/// help.
#[test]
fn a_single_voter_still_leads_whatever_is_stuck() {
    let mut bench = Bench::led(&[1]);
    for _ in 0..200 {
        bench.now_ns += TICK_NS;
        bench.replica.handle_tick(bench.now_ns, START_NS + bench.now_ns).expect("no reason");
        bench.drain();
    }
    assert!(bench.replica.is_impaired() && bench.is_leader());
    let gave_up =
        |report: &Report| matches!(report, Report::SteppedDown { .. } | Report::HandingOver { .. });
    assert!(!bench.reports.iter().any(gave_up), "{:?}", bench.reports);
}

/// The leader hears no quorum for an election timeout, waits a quarter of another one, and steps
/// down.
#[test]
fn a_leader_that_is_not_answered_gives_up_after_an_election_timeout_and_a_quarter() {
    for (election_ticks, quarter) in [(ELECTION_TICKS, 1), (8, 2), (10, 2), (12, 3)] {
        let disk = Disk::genesis(&genesis(&[1, 2, 3]));
        let mut bench = Bench::made(disk, |config| config.election_ticks = election_ticks);
        bench.elect(&[2, 3]);
        bench.persist();
        bench.ack_all(2);
        bench.ack_all(3);
        let mut ticks = 0;
        while bench.is_leader() && ticks < 100 {
            bench.tick();
            ticks += 1;
        }
        assert_eq!(ticks, election_ticks + quarter + 1, "of {election_ticks}");
    }
}

/// The leader hears no other clock. After five election timeouts it serves anyway. It reports that
/// its clock is unproved: S11 rests only on the clocks that it knows.
#[test]
fn a_leader_without_the_clocks_of_a_majority_waits_then_serves_and_reports_it() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.replica.handle_compared(false);
    bench.elect(&[2, 3]);
    bench.ack_all(2);
    for _ in 0..5 * ELECTION_TICKS {
        beat(&mut bench, &[2, 3], true);
        assert!(bench.shared.published().grant.is_none() && !bench.replica.is_clock_unproved());
    }
    beat(&mut bench, &[2, 3], true);
    assert!(bench.shared.published().grant.is_some() && bench.replica.is_clock_unproved());
    bench.replica.handle_compared(true);
    assert!(!bench.replica.is_clock_unproved());
    // A follower never reports its clock as unproved, even if it waited for clocks before.
    bench.replica.handle_compared(false);
    let term = bench.status().term.0 + 1;
    bench.take(2, &message(MessageKind::Heartbeat, term)).expect("a heartbeat is taken");
    assert!(!bench.replica.is_clock_unproved());
}

/// When a node becomes leader again, every count of the leader checks begins at zero.
#[test]
fn a_node_that_leads_again_waits_for_other_clocks_again() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.replica.handle_compared(false);
    for _ in 0..2 {
        bench.elect(&[2, 3]);
        bench.ack_all(2);
        for _ in 0..5 * ELECTION_TICKS {
            beat(&mut bench, &[2, 3], true);
            assert!(bench.shared.published().grant.is_none());
        }
        beat(&mut bench, &[2, 3], true);
        assert!(bench.is_leader() && bench.shared.published().grant.is_some());
        depose(&mut bench);
    }
}

/// Deposes the leader by a message of a higher term. The sender does not lead that term.
fn depose(bench: &mut Bench) {
    let term = bench.status().term.0 + 1;
    bench.take(2, &message(MessageKind::AppendResponse, term)).expect("an answer is taken");
    bench.persist();
    assert!(!bench.is_leader());
    bench.reports.clear();
}

/// A new leadership does not wait for a reservation of an earlier one.
#[test]
fn a_node_that_leads_again_reserves_although_its_last_reservation_was_not_committed() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.elect(&[2, 3]);
    depose(&mut bench);
    bench.elect(&[2, 3]);
    bench.ack_all(2);
    assert!(bench.shared.published().grant.is_some());
}

/// Runs ticks without acknowledgements until a reservation is late. Returns how many reservations
/// in a row were late.
fn late(bench: &mut Bench) -> u32 {
    bench.reports.clear();
    for _ in 0..200 {
        bench.beats(1, &[2, 3]);
        bench.persist();
        let missed = bench.reports.iter().find_map(|report| match report {
            Report::ReservationLate { missed } => Some(*missed),
            _ => None,
        });
        if let Some(missed) = missed {
            return missed;
        }
    }
    panic!("no reservation is late: {:?}", bench.status());
}

#[test]
fn late_reservations_are_counted_until_one_is_in_time_or_leadership_ends() {
    let mut bench = Bench::led(&[1, 2, 3]);
    assert_eq!((late(&mut bench), late(&mut bench)), (1, 2));
    // The reservation is committed, but too late.
    bench.ack_all(2);
    assert_eq!(late(&mut bench), 3);
    bench.ack_all(2);
    // These reservations are in time.
    (0..100).for_each(|_| beat(&mut bench, &[2, 3], true));
    assert_eq!(late(&mut bench), 1);
    depose(&mut bench);
    bench.elect(&[2, 3]);
    assert_eq!(late(&mut bench), 1, "of another leadership");
}

/// A follower is connected to a quorum while it hears its leader. A leader is connected while it
/// hears a quorum.
#[test]
fn a_node_takes_part_while_it_hears_its_leader_or_as_leader_a_quorum() {
    let mut bench = Bench::new(&[1, 2, 3]);
    assert!(!bench.replica.is_quorum_reached(), "nobody leads");
    bench.take(2, &message(MessageKind::Heartbeat, 2)).expect("a heartbeat is taken");
    assert!(bench.replica.is_quorum_reached());
    bench.take(2, &append(2, (1, 1), 1, 1)).expect("an entry is taken");
    bench.ticks(ELECTION_TICKS + 1);
    assert_eq!((bench.status().role, bench.status().leader), (Role::Follower, Some(NodeId(2))));
    assert!(!bench.replica.is_quorum_reached(), "its leader is silent");

    let mut bench = Bench::led(&[1, 2, 3]);
    assert!(bench.replica.is_quorum_reached());
    bench.ticks(ELECTION_TICKS + 1);
    assert!(bench.is_leader() && !bench.replica.is_quorum_reached());
}

/// The library's election timeout runs only while the outstanding write is at most one election
/// timeout old. So a node that drew exactly that timeout campaigns, and a node with a longer one
/// does not.
#[test]
fn a_follower_stops_its_clock_when_a_write_is_older_than_an_election_timeout() {
    let mut campaigned = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let mut bench = Bench::drawing(Disk::genesis(&genesis(&[1, 2, 3])), seed);
        bench.take(2, &append(2, (1, 1), 1, 1)).expect("an entry is taken");
        campaigned.insert((1..=10 * ELECTION_TICKS).find(|_| {
            bench.tick();
            bench.status().role == Role::Candidate
        }));
    }
    assert_eq!(campaigned.into_iter().collect::<Vec<_>>(), [None, Some(ELECTION_TICKS)]);
}

/// A write counts as young for half an election timeout, rounded down: two of five ticks.
#[test]
fn leadership_is_taken_over_while_a_write_is_young() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.take(2, &append(2, (1, 1), 1, 1)).expect("an entry is taken");
    bench.ticks(ELECTION_TICKS / 2);
    bench.take(2, &message(MessageKind::TimeoutNow, 2)).expect("an offer is taken");
    assert_eq!(bench.status().role, Role::Candidate);
}

/// A leader of a long log that has just sent node 3 a snapshot.
fn bench_that_sent_a_snapshot() -> Bench {
    let mut disk = Disk::genesis(&genesis(&[1, 2, 3]));
    disk.fill(1_022);
    let mut bench = Bench::of(disk);
    bench.elect(&[2]);
    bench.ack_all(2);
    bench.sent();
    let nothing = RaftMessage {
        index: LogIndex(1_023),
        reject: true,
        ..message(MessageKind::AppendResponse, bench.status().term.0)
    };
    bench.take(3, &nothing).expect("a rejection is taken");
    assert_eq!(bench.kinds_to(3), [MessageKind::Snapshot]);
    bench
}

/// Returns how many beats pass until the leader sends node 3 another snapshot. Node 3 answers
/// heartbeats, but acknowledges nothing.
fn beats_to_the_next_snapshot(bench: &mut Bench) -> usize {
    for beats in 1..1_000 {
        beat(bench, &[2], true);
        let answer = message(MessageKind::HeartbeatResponse, bench.status().term.0);
        bench.take(3, &answer).expect("an answer is taken");
        if bench.kinds_to(3).contains(&MessageKind::Snapshot) {
            return beats;
        }
    }
    panic!("node 3 is paused for ever");
}

#[test]
fn a_snapshot_that_is_not_acknowledged_for_ten_election_timeouts_is_sent_again() {
    let mut bench = bench_that_sent_a_snapshot();
    assert_eq!(beats_to_the_next_snapshot(&mut bench), 10 * ELECTION_TICKS + 1);
    assert_eq!(beats_to_the_next_snapshot(&mut bench), 10 * ELECTION_TICKS + 1);
}

#[test]
fn a_snapshot_to_a_peer_whose_link_is_down_is_sent_again_at_once() {
    let mut bench = bench_that_sent_a_snapshot();
    bench.replica.handle_unreachable(bench.now_ns, NodeId(3));
    bench.drain();
    assert_eq!(beats_to_the_next_snapshot(&mut bench), 1);
}

/// Two members move to new addresses, one of them twice. Only one address is proposed at a time.
#[test]
fn every_new_address_is_recorded_one_after_the_other() {
    let mut bench = Bench::led(&[1, 2, 3]);
    let moved = |node: u64, client_addr: &str| Member {
        client_addr: client_addr.to_owned(),
        ..member(NodeId(node), StoreId(u128::from(node) + 100))
    };
    let last = bench.status().last.0;
    bench.replica.handle_peer_addresses(moved(2, "a:1"));
    bench.replica.handle_peer_addresses(moved(3, "b:1"));
    (0..2 * ELECTION_TICKS + 3).for_each(|_| beat(&mut bench, &[2, 3], true));
    bench.replica.handle_peer_addresses(moved(2, "c:1"));
    (0..2 * ELECTION_TICKS + 3).for_each(|_| beat(&mut bench, &[2, 3], true));
    let recorded = |node: u64| bench.replica.state().members[&NodeId(node)].client_addr.clone();
    assert_eq!((recorded(2).as_str(), recorded(3).as_str()), ("c:1", "b:1"));
    assert!(bench.status().last.0 <= last + 3, "once is enough");
}

#[test]
fn a_new_address_that_is_not_committed_yet_is_not_proposed_again() {
    let mut bench = Bench::led(&[1, 2, 3]);
    let last = bench.status().last.0;
    let known = member(NodeId(2), StoreId(102));
    bench.replica.handle_peer_addresses(Member { client_addr: "a:1".to_owned(), ..known });
    for _ in 0..=ELECTION_TICKS {
        bench.beats(1, &[2, 3]);
        bench.persist();
        assert_eq!(bench.status().last.0, last + 1);
    }
    // After an election timeout the proposal counts as lost, and is repeated.
    bench.beats(1, &[2, 3]);
    assert_eq!(bench.status().last.0, last + 2);
}

/// Workers never see an empty address.
#[test]
fn addresses_that_cannot_be_recorded_are_not_published_either() {
    let mut bench = Bench::led(&[1, 2, 3]);
    let before = bench.shared.published().members.clone();
    let known = member(NodeId(3), StoreId(103));
    for (raft_addr, client_addr) in [("", "new:1"), ("new:1", "")] {
        let (raft_addr, client_addr) = (raft_addr.to_owned(), client_addr.to_owned());
        bench.replica.handle_peer_addresses(Member { raft_addr, client_addr, ..known.clone() });
        assert_eq!(*bench.shared.published().members, *before);
    }
}

#[test]
fn a_grant_reports_its_duration_and_the_ceiling_shows_trusted_time() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.elect(&[2]);
    let took_ns = 3 * TICK_NS + 7;
    bench.now_ns += took_ns;
    bench.ack_all(2);
    let granted = bench.reports.iter().find_map(|report| match report {
        Report::Granted { took_ns, range, .. } => Some((*took_ns, range.high)),
        _ => None,
    });
    let (took, high) = granted.expect("a grant");
    assert_eq!(took, took_ns);
    // The reservation was proposed in the tick of the election, with the time trusted then.
    assert_eq!(high, Epoch(START_NS + bench.now_ns - took_ns + RESERVATION_NS));
    assert_eq!(bench.replica.trusted_before_ns(), START_NS + bench.now_ns - took_ns);
}

#[test]
fn a_publication_is_reported_once() {
    let mut bench = Bench::led(&[1, 2, 3]);
    assert!(bench.replica.take_published());
    assert!(!bench.replica.take_published());
    beat(&mut bench, &[2, 3], true);
    assert!(!bench.replica.take_published(), "nothing has changed");
    let term = bench.status().term.0 + 1;
    bench.take(2, &message(MessageKind::Heartbeat, term)).expect("a heartbeat is taken");
    assert!(bench.replica.take_published());
}

#[test]
fn leadership_is_handed_by_command_to_other_voters_only() {
    let mut bench = Bench::led(&[1, 2, 3]);
    let hand = |bench: &mut Bench, to: Option<u64>| {
        bench.replica.hand_over(bench.now_ns, to.map(NodeId), HandOver::Asked)
    };
    assert_eq!(hand(&mut bench, Some(1)), None, "it leads");
    assert_eq!(hand(&mut bench, Some(9)), None, "no such voter");
    assert!(!bench.replica.is_handing_over());
    assert_eq!(hand(&mut bench, Some(3)), Some(NodeId(3)));
    assert!(bench.replica.is_handing_over());
    let mut follower = Bench::new(&[1, 2, 3]);
    assert_eq!(hand(&mut follower, Some(2)), None);
}
