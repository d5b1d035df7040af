//! Operators' commands to a leader, and why it refuses some of them: a majority of running voters
//! must remain.

use epicepoch_core::replica::{
    ChangeError, HandOver, LAG_MAX, NotCaughtUp, Replica, Report, TransferError,
};
use epicepoch_core::state::{MembershipChange, MembershipStep, Outcome};
use epicepoch_wire::raft_message::MessageKind;
use epicepoch_wire::{NodeId, StoreId};

use crate::support::bench::{Bench, message};
use crate::support::{ELECTION_TICKS, member};

fn learner(node: u64) -> MembershipStep {
    MembershipStep::AddLearner(member(NodeId(node), StoreId(u128::from(node) + 100)))
}

fn ask(bench: &mut Bench, steps: &[MembershipStep]) -> Result<(), ChangeError> {
    let change = MembershipChange { nonce: 1, steps: steps.to_vec() };
    let result = Replica::propose_prudent_change(&mut bench.replica, bench.now_ns, &change);
    bench.drain();
    result
}

/// A voter may decline leadership, for example because it has no free descriptors. The next
/// handover must go to another node first.
#[test]
fn a_voter_that_did_not_take_over_is_asked_again_after_all_others() {
    for asked_by_operator in [false, true] {
        let mut bench = Bench::led(&[1, 2, 3]);
        let mut asked = vec![];
        for _ in 0..3 {
            let to = if asked_by_operator {
                hand_over(&mut bench, None).ok()
            } else {
                let now_ns = bench.now_ns;
                bench.replica.hand_over(now_ns, None, HandOver::Asked)
            };
            asked.push(to.map(|node| node.0));
            bench.beats(2 * ELECTION_TICKS, &[2, 3]);
        }
        assert_eq!(asked, [Some(2), Some(3), Some(2)], "{asked_by_operator}");
    }
}

fn hand_over(bench: &mut Bench, to: Option<u64>) -> Result<NodeId, TransferError> {
    let result = bench.replica.hand_over_asked(bench.now_ns, to.map(NodeId));
    bench.drain();
    result
}

/// A cluster of one. Node 4 was added as a learner long ago, and has no entries.
fn bench_with_learner() -> Bench {
    let mut bench = Bench::led(&[1]);
    assert_eq!(ask(&mut bench, &[learner(4)]), Ok(()));
    bench.persist();
    for _ in 0..10_000 {
        if bench.status().committed.0 > 3 * LAG_MAX {
            return bench;
        }
        bench.tick();
        bench.persist();
    }
    panic!("nothing is written: {:?}", bench.status());
}

#[test]
fn a_learner_is_promoted_once_it_is_heard_and_lacks_little() {
    let mut bench = bench_with_learner();
    let promote = [MembershipStep::Promote(NodeId(4))];
    let silent = ChangeError::NotCaughtUp(NotCaughtUp::Silent(NodeId(4)));
    assert_eq!(ask(&mut bench, &promote), Err(silent));
    bench.hear(4);
    let entries = bench.status().committed.0;
    let behind = ChangeError::NotCaughtUp(NotCaughtUp::Behind { node: NodeId(4), entries });
    assert_eq!(ask(&mut bench, &promote), Err(behind));
    // The refusal names the number of entries.
    assert!(behind.to_string().contains(&format!("lacks {entries} committed entries")));
    let nearly = epicepoch_wire::LogIndex(bench.status().committed.0 - LAG_MAX);
    bench.ack(4, nearly);
    assert_eq!(ask(&mut bench, &promote), Ok(()));
    bench.persist();
    bench.ack_all(4);
    let changed = Report::Changed { nonce: 1, outcome: Outcome::Changed };
    assert_eq!(bench.reports.iter().filter(|report| **report == changed).count(), 2);
    assert_eq!(bench.shared.published().voters.len(), 2);
    let again = ask(&mut bench, &promote);
    assert_eq!(again, Err(ChangeError::Refused("the node is a voter already")));
}

/// Until a member has told it, a new leader cannot say how far the member is behind.
#[test]
fn a_new_leader_does_not_know_what_the_others_hold() {
    let mut bench = Bench::led(&[1, 2, 3]);
    bench.ack_all(2);
    bench.ack_all(3);
    let known = |bench: &Bench| [2, 3].map(|node| bench.replica.knows_progress(NodeId(node)));
    assert_eq!(known(&bench), [true, true]);
    let term = bench.status().term.0 + 1;
    bench.take(2, &message(MessageKind::Heartbeat, term)).expect("a heartbeat is taken");
    bench.persist();
    bench.elect(&[2, 3]);
    bench.persist();
    assert!(bench.is_leader());
    assert_eq!(known(&bench), [false, false]);
    bench.ack_all(3);
    assert_eq!((known(&bench), bench.replica.entries_behind(NodeId(3))), ([false, true], 0));
}

#[test]
fn a_voter_that_a_majority_needs_is_not_removed() {
    let mut bench = Bench::led(&[1, 2, 3]);
    bench.beats(2 * ELECTION_TICKS, &[2]);
    let remove = |node| [MembershipStep::Remove(NodeId(node))];
    let stranded = ChangeError::Stranded { there: 1, voters: 2 };
    assert_eq!(ask(&mut bench, &remove(2)), Err(stranded), "3 is gone, 2 is needed");
    assert_eq!(ask(&mut bench, &remove(1)), Err(ChangeError::Leads(NodeId(1))));
    assert_eq!(ask(&mut bench, &remove(9)), Err(ChangeError::Refused("no such member")));
    assert_eq!(ask(&mut bench, &remove(3)), Ok(()));
}

/// Node 3 is dead. One change promotes learner 4 and removes node 3. So a majority of the new
/// voters is running.
#[test]
fn a_dead_voter_is_replaced_by_a_running_learner() {
    let mut bench = Bench::led(&[1, 2, 3]);
    assert_eq!(ask(&mut bench, &[learner(4)]), Ok(()));
    bench.ack_all(2);
    bench.beats(2 * ELECTION_TICKS, &[2]);
    let replace = [MembershipStep::Promote(NodeId(4)), MembershipStep::Remove(NodeId(3))];
    let silent = ChangeError::NotCaughtUp(NotCaughtUp::Silent(NodeId(4)));
    assert_eq!(ask(&mut bench, &replace), Err(silent));
    bench.ack_all(4);
    assert_eq!(ask(&mut bench, &replace), Ok(()));
    bench.ack_all(2);
    bench.ack_all(4);
    for _ in 0..5 {
        bench.beats(1, &[2, 4]);
        bench.ack_all(2);
        bench.ack_all(4);
    }
    let published = bench.shared.published();
    let voters: Vec<u64> = published.voters.iter().map(|(node, _)| node.0).collect();
    assert_eq!((voters, published.voters.is_joint()), (vec![1, 2, 4], false));
    assert!(bench.replica.state().removed.contains(&NodeId(3)));
}

#[test]
fn leadership_goes_only_to_a_voter_that_can_take_it() {
    let mut bench = Bench::led(&[1, 2, 3]);
    assert_eq!(ask(&mut bench, &[learner(4)]), Ok(()));
    bench.ack_all(2);
    bench.beats(2 * ELECTION_TICKS, &[2]);
    assert_eq!(hand_over(&mut bench, Some(1)), Err(TransferError::LeadsAlready(NodeId(1))));
    assert_eq!(hand_over(&mut bench, Some(4)), Err(TransferError::Learner(NodeId(4))));
    assert_eq!(hand_over(&mut bench, Some(9)), Err(TransferError::Unknown(NodeId(9))));
    let silent = TransferError::NotCaughtUp(NotCaughtUp::Silent(NodeId(3)));
    assert_eq!(hand_over(&mut bench, Some(3)), Err(silent));
    assert!(!bench.replica.is_handing_over());
    bench.ack_all(2);
    assert_eq!(hand_over(&mut bench, None), Ok(NodeId(2)));
    assert!(bench.replica.is_handing_over());
    assert_eq!(hand_over(&mut bench, Some(2)), Err(TransferError::Busy));
    // The voter does not take over. The leader keeps leading, and accepts another command.
    bench.beats(2 * ELECTION_TICKS, &[2]);
    assert!(bench.is_leader() && !bench.replica.is_handing_over());
    bench.ticks(2);
    let mut follower = Bench::new(&[1, 2, 3]);
    assert_eq!(hand_over(&mut follower, Some(2)), Err(TransferError::NotLeader));
}

#[test]
fn leadership_is_not_offered_without_a_live_voter() {
    let mut bench = Bench::led(&[1, 2, 3]);
    bench.ticks(ELECTION_TICKS + 1);
    assert!(bench.is_leader(), "it has not given up yet");
    assert_eq!(hand_over(&mut bench, None), Err(TransferError::NoCandidate));
    let mut bench = Bench::led(&[1]);
    assert_eq!(hand_over(&mut bench, None), Err(TransferError::NoCandidate));
}

/// A node with an empty directory begins with committed state. That state includes the
/// configuration.
#[test]
fn the_record_of_a_member_is_its_applied_state() {
    let bench = bench_with_learner();
    let record = bench.replica.record();
    assert_eq!(record.index, bench.status().applied);
    assert_eq!(record.configuration.voters, [NodeId(1)]);
    assert_eq!(record.configuration.learners, [NodeId(4)]);
    assert_eq!(record.data, bench.replica.state().encode());
}

/// The log of a new leader may have an uncommitted change on which the command depends. So the
/// command is refused for now, and may be repeated.
#[test]
fn no_command_is_refused_for_good_because_of_an_unknown_state() {
    let mut bench = Bench::led(&[1, 2, 3]);
    assert_eq!(ask(&mut bench, &[learner(4)]), Ok(()));
    let term = bench.status().term.0 + 1;
    bench.take(2, &message(MessageKind::Heartbeat, term)).expect("a heartbeat is taken");
    bench.persist();
    let promote = [MembershipStep::Promote(NodeId(4))];
    assert_eq!(ask(&mut bench, &promote), Err(ChangeError::NotLeader));
    bench.elect(&[2, 3]);
    assert!(!bench.replica.state().members.contains_key(&NodeId(4)), "it is not committed");
    assert_eq!(ask(&mut bench, &promote), Err(ChangeError::Busy));
    let changing = TransferError::Changing(NodeId(4));
    assert_eq!(hand_over(&mut bench, Some(4)), Err(changing));
    bench.ack_all(2);
    let silent = ChangeError::NotCaughtUp(NotCaughtUp::Silent(NodeId(4)));
    assert_eq!(ask(&mut bench, &promote), Err(silent));
    assert_eq!(hand_over(&mut bench, Some(4)), Err(TransferError::Learner(NodeId(4))));
    let remove = [MembershipStep::Remove(NodeId(9))];
    assert_eq!(ask(&mut bench, &remove), Err(ChangeError::Refused("no such member")));
}
