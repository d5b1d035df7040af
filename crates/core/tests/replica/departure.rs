//! A node that is told to stop gives leadership away until somebody takes it, takes none, and votes on.

use epicepoch_core::publication::Role;
use epicepoch_core::replica::{HandOver, Report};
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::standing::{Standing, Zone, preference_of};
use epicepoch_wire::{LogIndex, NodeId, Term};

use crate::support::ELECTION_TICKS;
use crate::support::bench::{Bench, genesis, message};
use crate::support::disk::Disk;

/// Between two offers: the library's patience, and time for a reservation.
const PAUSE_TICKS: usize = ELECTION_TICKS + ELECTION_TICKS.div_ceil(4);
/// Seeds of a draw.
const SEEDS: u64 = 40;

fn depart(bench: &mut Bench) {
    bench.replica.handle_departure(bench.now_ns);
    bench.drain();
}

/// To whom leadership was offered since this was last asked.
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

/// The offers of so many ticks in which `others` answer, and when they were made.
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

/// A voter says that it could not lead.
fn decline(bench: &mut Bench, node: u64) {
    let zone = Zone::new("a").expect("a name");
    let context = Standing { is_fit: false, preference: preference_of(&[]), zone }.encode();
    let answer = message(MessageKind::HeartbeatResponse, bench.status().term.0);
    bench.take(node, &RaftMessage { context, ..answer }).expect("an answer is taken");
}

/// A follower of node 2 in term 1, which draws from a seed.
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
    // Said once more, it is no news.
    depart(&mut bench);
    assert_eq!(offered(&mut bench), []);
    assert!(bench.shared.published().grant.is_some(), "it serves until then");
    bench.take(3, &message(MessageKind::Heartbeat, 3)).expect("a heartbeat is taken");
    assert_eq!(offers(&mut bench, 4 * PAUSE_TICKS, &[]), []);
    assert_eq!(bench.status().role, Role::Follower);
}

/// What was on its way while the process stood still comes a moment later.
#[test]
fn a_leader_that_hears_nobody_when_it_is_told_to_stop_offers_leadership_to_the_first_that_it_hears()
{
    let mut bench = Bench::led(&[1, 2, 3]);
    bench.ticks(ELECTION_TICKS + 1);
    offered(&mut bench);
    depart(&mut bench);
    assert_eq!(offered(&mut bench), []);
    bench.hear(3);
    assert_eq!(offers(&mut bench, 1, &[]), [(1, 3)]);
}

#[test]
fn who_says_that_it_could_not_lead_is_offered_leadership_last() {
    let mut bench = Bench::led(&[1, 2, 3]);
    decline(&mut bench, 2);
    offered(&mut bench);
    depart(&mut bench);
    assert_eq!(offered(&mut bench), [3]);
    // It says nothing more, and may be able to by now.
    assert_eq!(offers(&mut bench, PAUSE_TICKS, &[2, 3]), [(PAUSE_TICKS, 2)]);
}

/// 2 does not take over, and 3 says that it could not; or both do.
#[test]
fn who_goes_on_saying_that_it_could_not_lead_is_asked_in_its_turn() {
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
fn a_single_voter_that_is_told_to_stop_leads_on() {
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

/// Neither when it hears nobody nor when its leader's connection closes; and whoever does campaign gets
/// its vote, whatever it has drawn for itself.
#[test]
fn a_node_that_is_told_to_stop_does_not_campaign_and_votes() {
    for (seed, is_closed) in (0..SEEDS).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut bench = follower(seed);
        if is_closed {
            bench.replica.handle_closed(bench.now_ns, NodeId(2));
        }
        depart(&mut bench);
        if !is_closed {
            // Its leader may live.
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
fn a_campaign_that_binds_nobody_ends_when_its_node_is_told_to_stop() {
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

/// Others have given their votes away, and cannot give them to somebody else in this term.
#[test]
fn a_campaign_that_others_have_voted_in_is_won_and_what_it_brings_is_given_away() {
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
