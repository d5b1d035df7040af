//! A node that is told to stop. As leader it offers leadership until another node takes it. It
//! takes no leadership itself, and still votes.

use epicepoch_core::publication::Role;
use epicepoch_core::replica::{HandOver, Report};
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::voter_status::{VoterStatus, Zone, preference_of};
use epicepoch_wire::{LogIndex, NodeId, Term};

use crate::support::ELECTION_TICKS;
use crate::support::bench::{Bench, genesis, message};
use crate::support::disk::Disk;

/// Ticks from one offer of leadership to the next. An offer fails after an election timeout. The
/// quarter more is time for the leader to reserve again.
const PAUSE_TICKS: usize = ELECTION_TICKS + ELECTION_TICKS.div_ceil(4);
/// Number of seeds to draw from.
const SEEDS: u64 = 40;

fn depart(bench: &mut Bench) {
    bench.replica.handle_shutdown_request(bench.now_ns);
    bench.drain();
}

/// The voters that were offered leadership since the last call.
fn offered(bench: &mut Bench) -> Vec<u64> {
    let offers = bench.reports.drain(..).filter_map(|report| match report {
        Report::HandingOver { to, why } => {
            assert_eq!(why, HandOver::Stopping);
            Some(to.0)
        }
        _ => None,
    });
    offers.collect()
}

/// The offers within `ticks` ticks, during which `others` answer. Each is the number of the tick,
/// and the voter.
fn offers(bench: &mut Bench, ticks: usize, others: &[u64]) -> Vec<(usize, u64)> {
    let mut offers = vec![];
    for at in 1..=ticks {
        bench.beats(1, others);
        bench.persist();
        for other in others {
            bench.ack(*other, bench.status().last);
        }
        offers.extend(offered(bench).into_iter().map(|to| (at, to)));
    }
    offers
}

/// A voter reports that it could not lead.
fn decline(bench: &mut Bench, node: u64) {
    let (zone, preference, slowest_write_ms) = (Zone::new("a"), preference_of(&[]), Some(0));
    let status = VoterStatus {
        is_fit: false,
        preference,
        zone,
        slowest_write_ms,
        waits_for_leases: false,
        closed: None,
    };
    let context = status.encode();
    let answer = message(MessageKind::HeartbeatResponse, bench.status().term.0);
    bench.take(node, &RaftMessage { context, ..answer }).expect("an answer is taken");
}

/// A follower of node 2 in term 1. `seed` decides its random draws.
fn follower(seed: u64) -> Bench {
    let mut bench = Bench::drawing(Disk::genesis(&genesis(&[1, 2, 3])), seed);
    bench.take(2, &message(MessageKind::Heartbeat, 1)).expect("a heartbeat is taken");
    bench.persist();
    bench.sent();
    bench
}

fn has_campaigned(bench: &mut Bench) -> bool {
    let is_question = |kind| matches!(kind, MessageKind::RequestPreVote | MessageKind::RequestVote);
    bench.sent().iter().any(|out| is_question(out.message.kind))
}

#[test]
fn a_leader_that_is_told_to_stop_offers_leadership_at_once_and_to_each_in_turn_until_it_is_taken() {
    let mut bench = Bench::led(&[1, 2, 3]);
    offered(&mut bench);
    depart(&mut bench);
    assert_eq!(offered(&mut bench), [2]);
    let expected = [(PAUSE_TICKS, 3), (2 * PAUSE_TICKS, 2)];
    assert_eq!(offers(&mut bench, 2 * PAUSE_TICKS, &[2, 3]), expected);
    // A second order to stop has no effect.
    depart(&mut bench);
    assert_eq!(offered(&mut bench), []);
    assert!(bench.shared.published().grant.is_some(), "it serves until then");
    bench.take(3, &message(MessageKind::Heartbeat, 3)).expect("a heartbeat is taken");
    assert_eq!(offers(&mut bench, 4 * PAUSE_TICKS, &[]), []);
    assert_eq!(bench.status().role, Role::Follower);
}

/// After a pause of its process, a leader is told to stop before it hears its peers again. Their
/// messages arrive a moment later.
#[test]
fn a_stopping_leader_without_peers_offers_leadership_to_the_first_that_it_hears() {
    let mut bench = Bench::led(&[1, 2, 3]);
    bench.ticks(ELECTION_TICKS + 1);
    offered(&mut bench);
    depart(&mut bench);
    assert_eq!(offered(&mut bench), []);
    bench.hear(3);
    assert_eq!(offers(&mut bench, 1, &[]), [(1, 3)]);
}

#[test]
fn a_declining_voter_is_offered_leadership_last() {
    let mut bench = Bench::led(&[1, 2, 3]);
    decline(&mut bench, 2);
    offered(&mut bench);
    depart(&mut bench);
    assert_eq!(offered(&mut bench), [3]);
    // The last report of node 2 that it could not lead is too old to count. So node 2 may be able
    // to lead.
    assert_eq!(offers(&mut bench, PAUSE_TICKS, &[2, 3]), [(PAUSE_TICKS, 2)]);
}

/// First case: node 2 does not take over, and node 3 reports that it could not lead. Second case:
/// both report that they could not lead.
#[test]
fn a_voter_that_keeps_declining_is_asked_in_its_turn() {
    for declining in [&[3][..], &[2, 3]] {
        let mut bench = Bench::led(&[1, 2, 3]);
        for node in declining {
            decline(&mut bench, *node);
        }
        offered(&mut bench);
        depart(&mut bench);
        let mut asked = offered(&mut bench);
        for _ in 0..2 * PAUSE_TICKS {
            for node in declining {
                decline(&mut bench, *node);
            }
            asked.extend(offers(&mut bench, 1, &[2, 3]).into_iter().map(|(_, to)| to));
        }
        assert_eq!(asked, [2, 3, 2], "{declining:?}");
    }
}

#[test]
fn a_single_voter_that_is_told_to_stop_still_leads() {
    let mut bench = Bench::led(&[1]);
    depart(&mut bench);
    assert_eq!(offers(&mut bench, 4 * PAUSE_TICKS, &[]), []);
    assert!(bench.is_leader() && bench.shared.published().grant.is_some());
}

#[test]
fn a_node_that_is_told_to_stop_takes_no_leadership_that_is_offered() {
    for is_told in [true, false] {
        let mut bench = follower(5);
        if is_told {
            depart(&mut bench);
        }
        bench.take(2, &message(MessageKind::TimeoutNow, 1)).expect("an offer is taken in");
        assert_eq!(bench.status().term, Term(if is_told { 1 } else { 2 }));
    }
}

/// The node does not campaign when its leader is silent, or when the leader's connection closes. It
/// votes for a candidate at any time of its own election timeout.
#[test]
fn a_node_that_is_told_to_stop_does_not_campaign_and_votes() {
    for (seed, is_closed) in (0..SEEDS).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut bench = follower(seed);
        if is_closed {
            bench.replica.handle_closed(bench.now_ns, NodeId(2));
        }
        depart(&mut bench);
        if !is_closed {
            // The connection of another follower closes. The leader may still be alive.
            bench.ticks(ELECTION_TICKS / 2);
            bench.replica.handle_closed(bench.now_ns, NodeId(3));
        }
        bench.ticks(5 * ELECTION_TICKS);
        assert!(!has_campaigned(&mut bench), "{seed}");
        let (index, log_term) = (LogIndex(1), Term(1));
        for kind in [MessageKind::RequestPreVote, MessageKind::RequestVote] {
            let question = RaftMessage { index, log_term, ..message(kind, 2) };
            bench.take(3, &question).expect("a question is taken");
            bench.persist();
            let sent = bench.sent();
            let is_yes = |out: &RaftMessage| !out.reject && out.term == Term(2);
            assert!(sent.iter().any(|out| is_yes(&out.message)), "{seed}: {sent:?}");
        }
    }
}

#[test]
fn a_pre_vote_campaign_ends_when_its_node_is_told_to_stop() {
    let mut bench = follower(5);
    while !has_campaigned(&mut bench) {
        bench.tick();
    }
    depart(&mut bench);
    assert_eq!(bench.status().role, Role::Follower);
    for node in [2, 3] {
        let yes = message(MessageKind::RequestPreVoteResponse, 2);
        bench.take(node, &yes).expect("an answer is taken");
    }
    bench.persist();
    assert!(!has_campaigned(&mut bench));
    assert_eq!(bench.status().term, Term(1));
}

/// The other nodes have already voted for this node, and cannot vote again in this term. So the
/// campaign goes on.
#[test]
fn a_campaign_with_votes_is_won_and_its_leadership_given_away() {
    let mut bench = follower(5);
    while bench.status().term == Term(1) {
        bench.tick();
        for node in [2, 3] {
            let yes = message(MessageKind::RequestPreVoteResponse, 2);
            bench.take(node, &yes).expect("an answer is taken");
        }
    }
    bench.persist();
    depart(&mut bench);
    assert_eq!(bench.status().role, Role::Candidate);
    bench.take(3, &message(MessageKind::RequestVoteResponse, 2)).expect("a vote is taken");
    assert!(bench.is_leader());
    assert_eq!(offers(&mut bench, 1, &[3]), [(1, 2)]);
}
