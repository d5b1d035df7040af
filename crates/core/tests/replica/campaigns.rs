//! Campaigns that do not wait for the library's timeout, checked to the nanosecond. A voter
//! campaigns in its turn when its leader is gone, and once more if that campaign fails.

use epicepoch_core::publication::Role;
use epicepoch_wire::NodeId;
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};

use crate::support::bench::{Bench, append, genesis, message};
use crate::support::disk::Disk;
use crate::support::{ELECTION_TICKS, TICK_NS};

/// Time between the turns of two voters: a quarter of an election timeout.
const TURN_NS: u64 = ELECTION_TICKS as u64 * TICK_NS / 4;
/// Longest random delay of a turn.
const JITTER_NS: u64 = TURN_NS / 8;
/// Number of seeds to draw from.
const SEEDS: u64 = 20;

/// Node `me` of `voters` voters, which follows `leader` in term 2.
fn led_by(leader: u64, me: u64, voters: u64, seed: u64) -> Bench {
    let ids: Vec<u64> = (1..=voters).collect();
    let mut bench = Bench::being(me, Disk::genesis(&genesis(&ids)), seed);
    tell(&mut bench, leader, message(MessageKind::Heartbeat, 2));
    bench.persist();
    bench.sent();
    bench
}

fn tell(bench: &mut Bench, from: u64, message: RaftMessage) {
    let to = bench.shared.published().identity.node;
    bench.take(from, &RaftMessage { to, ..message }).expect("it is taken");
}

/// Like [`led_by`], but the connection from the leader has just closed.
fn left_by(leader: u64, me: u64, voters: u64, seed: u64) -> Bench {
    let mut bench = led_by(leader, me, voters, seed);
    bench.replica.handle_closed(bench.now_ns, NodeId(leader));
    bench
}

/// Whether the node asks for pre-votes in a tick that comes `after_ns` later.
fn asks(bench: &mut Bench, after_ns: u64) -> bool {
    bench.now_ns += after_ns;
    bench.replica.handle_tick(bench.now_ns, bench.now_ns).expect("no reason to stop");
    bench.drain();
    bench.sent().iter().any(|out| out.message.kind == MessageKind::RequestPreVote)
}

/// Voters with lower ids have their turn first. The old leader has no turn.
#[test]
fn voters_campaign_one_after_the_other_when_their_leader_is_gone() {
    let ranks =
        [(2, 1, 3, 0), (1, 2, 3, 0), (2, 3, 3, 1), (1, 3, 3, 1), (2, 5, 5, 3), (5, 4, 5, 3)];
    for (leader, me, voters, rank) in ranks {
        let turn_ns = rank * TURN_NS;
        let asking = |after_ns: u64| {
            (0..SEEDS)
                .filter(|seed| asks(&mut left_by(leader, me, voters, *seed), after_ns))
                .count()
        };
        assert_eq!(asking(turn_ns), 0, "node {me} of {voters} asks before its turn");
        assert_eq!(asking(turn_ns + JITTER_NS), SEEDS as usize, "node {me} of {voters} waits");
        // Each seed draws another random delay. After half of the longest delay, the turn has come
        // for some seeds and not for others.
        let half = asking(turn_ns + JITTER_NS / 2);
        assert!((1..SEEDS as usize).contains(&half), "{half} of {SEEDS}");
    }
}

#[test]
fn only_the_leaders_end_starts_a_campaign() {
    let mut bench = led_by(2, 1, 3, 5);
    bench.replica.handle_closed(bench.now_ns, NodeId(3));
    assert_eq!(bench.status().leader, Some(NodeId(2)));
    assert!(!asks(&mut bench, JITTER_NS));
}

/// A node loses its turn if its disk has not finished: its vote for itself would come too late.
#[test]
fn a_node_with_a_write_outstanding_lets_its_turn_pass() {
    let mut bench = led_by(2, 1, 3, 5);
    tell(&mut bench, 2, append(2, (1, 1), 1, 1));
    bench.replica.handle_closed(bench.now_ns, NodeId(2));
    assert!(!asks(&mut bench, JITTER_NS));
    bench.persist();
    assert!(!asks(&mut bench, JITTER_NS));
}

/// The leader has told this node to take over and then closed its connection. The node already
/// campaigns, and does not begin again when its turn comes.
#[test]
fn a_candidate_does_not_campaign_again_in_its_turn() {
    let mut bench = left_by(2, 3, 3, 5);
    tell(&mut bench, 2, message(MessageKind::TimeoutNow, 2));
    bench.persist();
    bench.sent();
    assert_eq!(bench.status().role, Role::Candidate);
    assert!(!asks(&mut bench, TURN_NS + JITTER_NS));
}

/// The repeat comes half a turn after the node's own turn. The old leader counts in the order of
/// turns, because it may be back.
#[test]
fn a_campaign_without_a_result_is_repeated_half_a_turn_later() {
    for (me, voters, rank) in [(1, 3, 0), (3, 3, 2), (5, 5, 4)] {
        let after_ns = (1 + rank) * TURN_NS + TURN_NS / 2;
        let asking = |after_ns: u64| {
            let asked = |seed: &u64| {
                let mut bench = left_by(2, me, voters, *seed);
                assert!(asks(&mut bench, rank * TURN_NS + JITTER_NS));
                asks(&mut bench, after_ns)
            };
            (0..SEEDS).filter(asked).count()
        };
        assert_eq!(asking(after_ns), 0, "node {me} of {voters} repeats too early");
        assert_eq!(asking(after_ns + JITTER_NS), SEEDS as usize, "node {me} of {voters} does not");
    }
}

/// Node 1 of three: a candidate in term 3 whose write is not finished.
fn candidate() -> Bench {
    let mut bench = left_by(2, 1, 3, 5);
    assert!(asks(&mut bench, JITTER_NS));
    tell(&mut bench, 3, message(MessageKind::RequestPreVoteResponse, 3));
    assert_eq!((bench.status().role, bench.status().term.0), (Role::Candidate, 3));
    bench
}

fn refuse(bench: &mut Bench) {
    let no = RaftMessage { reject: true, ..message(MessageKind::RequestVoteResponse, 3) };
    tell(bench, 3, no);
    assert_eq!(bench.status().role, Role::Candidate, "one of three has refused");
}

/// The latest time at which a campaign is repeated.
const REPEAT_NS: u64 = TURN_NS + TURN_NS / 2 + JITTER_NS;

/// A new campaign has a new term, in which votes that are still on their way do not count. So a
/// candidate begins a new campaign only after a refusal.
#[test]
fn a_candidate_asks_again_only_when_a_vote_was_refused() {
    let mut bench = candidate();
    bench.persist();
    assert!(!asks(&mut bench, REPEAT_NS));
    let mut bench = candidate();
    bench.persist();
    refuse(&mut bench);
    assert!(asks(&mut bench, REPEAT_NS));
}

/// The requests for votes of this candidate have not been sent yet: they wait for its disk.
#[test]
fn a_candidate_whose_disk_has_not_finished_waits_for_another_turn() {
    let mut bench = candidate();
    assert!(!asks(&mut bench, REPEAT_NS));
    bench.persist();
    refuse(&mut bench);
    assert!(!asks(&mut bench, TURN_NS - 1));
    assert!(asks(&mut bench, 1));
}

/// A leader comes back and is gone again. The turns from before it came back no longer count.
#[test]
fn a_turn_to_campaign_is_forgotten_when_there_is_a_leader() {
    let mut bench = left_by(2, 3, 3, 5);
    tell(&mut bench, 2, message(MessageKind::Heartbeat, 2));
    bench.persist();
    assert!(!asks(&mut bench, TURN_NS + JITTER_NS));
    assert_eq!(bench.status().leader, Some(NodeId(2)));
    // The leader that came back may also lose leadership because of a higher term. The node has no
    // turn then, either.
    let mut voter = left_by(2, 3, 3, 5);
    tell(&mut voter, 2, message(MessageKind::Heartbeat, 2));
    tell(&mut voter, 1, message(MessageKind::AppendResponse, 3));
    voter.persist();
    assert_eq!((voter.status().term.0, voter.status().leader), (3, None));
    assert!(!asks(&mut voter, TURN_NS + JITTER_NS));
    // When the leader is gone once more, the node gets a new turn.
    bench.replica.handle_closed(bench.now_ns, NodeId(2));
    assert!(!asks(&mut bench, TURN_NS));
    assert!(asks(&mut bench, JITTER_NS));
}
