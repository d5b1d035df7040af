//! Changes of members: which are acknowledged, which are refused, and which voters decide
//! meanwhile.

use epicepoch_core::publication::Role;
use epicepoch_core::replica::{ChangeError, HandOver, Replica, Report};
use epicepoch_core::state::{Command, MembershipChange, MembershipStep, Outcome};
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::raft_message::{EntryKind, MessageKind};
use epicepoch_wire::{LogIndex, NodeId, StoreId};

use crate::support::bench::{Bench, append, message};
use crate::support::{Cluster, ELECTION_TICKS, member, store};

fn learner(node: u64) -> MembershipStep {
    MembershipStep::AddLearner(member(NodeId(node), StoreId(u128::from(node) + 100)))
}

const fn promote(node: u64) -> MembershipStep {
    MembershipStep::Promote(NodeId(node))
}

const fn remove(node: u64) -> MembershipStep {
    MembershipStep::Remove(NodeId(node))
}

fn change(nonce: u64, steps: &[MembershipStep]) -> MembershipChange {
    MembershipChange { nonce, steps: steps.to_vec() }
}

fn acknowledged(nonce: u64) -> impl Fn(&Report) -> bool {
    move |report| *report == Report::Changed { nonce, outcome: Outcome::Changed }
}

/// Proposes a change at the leader until it is accepted, and waits until the leader has applied it.
fn make(cluster: &mut Cluster, change: &MembershipChange) -> NodeId {
    for _ in 0..100 {
        let leader = cluster.elect();
        match cluster.with(leader, |replica, now| replica.propose_change(now, change)) {
            Ok(()) => {
                let done = acknowledged(change.nonce);
                cluster.until(60, "the change is acknowledged", |cluster| {
                    cluster.has_reported(leader, &done)
                });
                return leader;
            }
            Err(ChangeError::Busy | ChangeError::NotLeader) => cluster.tick(),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("{change:?} is never accepted");
}

fn voters(cluster: &Cluster, id: NodeId) -> Vec<u64> {
    cluster.published(id).voters.iter().map(|(node, _)| node.0).collect()
}

fn settled(cluster: &mut Cluster, ids: &[u64]) {
    cluster.until(100, "the joint configuration is left", |cluster| {
        ids.iter().all(|id| {
            let is_joint = cluster.published(NodeId(*id)).voters.is_joint();
            !is_joint && voters(cluster, NodeId(*id)) == ids
        })
    });
}

fn propose(bench: &mut Bench, change: &MembershipChange) -> Result<(), ChangeError> {
    let now_ns = bench.now_ns;
    let result = Replica::propose_change(&mut bench.replica, now_ns, change);
    bench.drain();
    result
}

#[test]
fn a_node_is_added_as_learner_and_promoted() {
    let mut cluster = Cluster::started(1, 3);
    cluster.elect();
    cluster.add_joining(4);
    let leader = make(&mut cluster, &change(1, &[learner(4)]));
    assert_eq!(voters(&cluster, leader), vec![1, 2, 3], "a learner does not vote");
    make(&mut cluster, &change(2, &[promote(4)]));
    settled(&mut cluster, &[1, 2, 3, 4]);
    let leader = cluster.elect();
    cluster.load(leader, 50);
}

#[test]
fn two_nodes_are_replaced_in_one_joint_change() {
    let mut cluster = Cluster::started(2, 3);
    let leader = cluster.elect();
    for (nonce, id) in [(1, 4), (2, 5)] {
        cluster.add_joining(id);
        make(&mut cluster, &change(nonce, &[learner(id)]));
    }
    let gone: Vec<u64> = (1..=3).filter(|id| *id != leader.0).collect();
    let steps = [promote(4), promote(5), remove(gone[0]), remove(gone[1])];
    assert_eq!(make(&mut cluster, &change(3, &steps)), leader);
    settled(&mut cluster, &[leader.0, 4, 5]);
    for &id in &gone {
        cluster.crash(NodeId(id), false);
    }
    cluster.load(leader, 50);
    let again = change(4, &[learner(gone[0])]);
    let refused = cluster.with(leader, |replica, now| replica.propose_change(now, &again));
    assert!(matches!(refused, Err(ChangeError::Refused(_))), "ids are never used again");
}

#[test]
fn voters_are_published_in_the_step_that_applies_them() {
    let mut bench = Bench::led(&[1, 2, 3]);
    propose(&mut bench, &change(1, &[remove(3)])).unwrap();
    bench.persist();
    let at = bench.status().last;
    assert_eq!(bench.shared.published().voters.len(), 3);
    let term = bench.status().term.0;
    let mut ack = message(MessageKind::AppendResponse, term);
    ack.index = at;
    // This acknowledgement commits the change. The test calls nothing else before it reads the
    // publication.
    bench.replica.handle_message(bench.now_ns, NodeId(2), store(2), &ack).unwrap();
    assert_eq!(bench.status().applied, at);
    assert_eq!(bench.shared.published().voters.len(), 2);
}

/// While a change is pending, the library answers Ok to another one, but appends an empty entry. So
/// the replica must refuse the second change itself.
#[test]
fn a_second_change_while_one_is_pending_is_busy() {
    let mut bench = Bench::led(&[1, 2, 3]);
    propose(&mut bench, &change(1, &[learner(4)])).unwrap();
    let last = bench.status().last;
    let second = propose(&mut bench, &change(2, &[learner(5)]));
    assert_eq!((second, bench.status().last), (Err(ChangeError::Busy), last));
    bench.ack_all(2);
    let done = |report: &Report| acknowledged(1)(report);
    assert_eq!(bench_reports(&mut bench).iter().filter(|report| done(report)).count(), 1);
    assert_eq!(propose(&mut bench, &change(2, &[learner(5)])), Ok(()));
}

fn bench_reports(bench: &mut Bench) -> Vec<Report> {
    bench.tick();
    std::mem::take(&mut bench.reports)
}

#[test]
fn a_change_is_acknowledged_only_when_it_is_applied() {
    let mut cluster = Cluster::started(3, 3);
    let leader = cluster.elect();
    cluster.ticks(5);
    cluster.isolate(leader);
    let lost = change(77, &[learner(4)]);
    cluster.with(leader, |replica, now| replica.propose_change(now, &lost)).unwrap();
    cluster.elect_another(leader);
    cluster.heal();
    cluster.ticks(50);
    for id in cluster.ids() {
        assert!(!cluster.has_reported(id, acknowledged(77)), "it was overwritten");
        assert!(!cluster.published(id).members.contains_key(&NodeId(4)));
    }
}

/// If a removed leader stayed leader, the library would panic when its next own entry is durable,
/// or when a follower acknowledges again.
#[test]
fn a_leader_that_removes_itself_steps_down_in_the_step_that_applies_it() {
    for is_acked_late in [false, true] {
        let mut bench = Bench::led(&[1, 2]);
        propose(&mut bench, &change(1, &[remove(1)])).unwrap();
        let at = bench.status().last;
        // One more entry of the leader follows the change.
        bench.persist();
        bench.beats(41, &[2]);
        assert!(bench.status().last > at && bench.status().writes_outstanding > 0);
        if is_acked_late {
            bench.ack(2, at);
            assert_eq!(bench.status().role, Role::Follower);
            let last = bench.status().last;
            bench.ack(2, last);
        } else {
            let last = bench.status().last;
            bench.ack(2, last);
        }
        bench.persist();
        bench.ticks(4 * ELECTION_TICKS);
        assert_eq!(bench.status().role, Role::Follower);
        assert!(bench.shared.published().grant.is_none());
        assert!(bench.reports.contains(&Report::Removed));
    }
}

#[test]
fn a_cluster_goes_on_after_its_leader_was_removed() {
    for seed in 0..10 {
        let mut cluster = Cluster::started(seed, 3);
        let leader = cluster.elect();
        cluster.ticks(5);
        make(&mut cluster, &change(1, &[remove(leader.0)]));
        assert_eq!(cluster.published(leader).role, Role::Follower);
        let next = cluster.elect_another(leader);
        // The removed node keeps running, and does not disturb the others.
        cluster.load(next, 30);
    }
}

/// The library leaves a joint configuration by an entry that it appends inside `advance_apply`. If
/// the leader has changed, it never appends that entry.
#[test]
fn a_joint_configuration_is_left_by_a_later_tick_of_any_leader() {
    let mut bench = Bench::led(&[1]);
    propose(&mut bench, &change(1, &[learner(4), learner(5)])).unwrap();
    bench.persist();
    let at = bench.status().last;
    assert!(bench.shared.published().voters.is_joint());
    assert_eq!(bench.status().applied, at, "nothing was appended behind it");
    // The leader crashes while the configuration is joint. The next leader leaves the joint
    // configuration.
    let mut bench = bench.restarted();
    assert!(bench.shared.published().voters.is_joint());
    bench.elect(&[]);
    for _ in 0..5 {
        bench.tick();
        bench.persist();
    }
    assert!(!bench.shared.published().voters.is_joint());
}

#[test]
fn a_leader_lost_in_the_middle_of_a_joint_change_leaves_nothing_half_done() {
    for seed in 0..20 {
        let mut cluster = Cluster::started(seed, 3);
        cluster.elect();
        cluster.add_joining(4);
        let leader = make(&mut cluster, &change(1, &[learner(4)]));
        let gone = (1..=3).find(|id| *id != leader.0).unwrap();
        cluster.ticks(5);
        let both = change(2, &[promote(4), remove(gone)]);
        cluster.with(leader, |replica, now| replica.propose_change(now, &both)).unwrap();
        cluster.until(60, "joint", |it| it.published(leader).voters.is_joint());
        cluster.crash(leader, false);
        cluster.until(200, "left", |it| {
            it.leader().is_some_and(|next| !it.published(next).voters.is_joint())
        });
        let next = cluster.leader().unwrap();
        let expected: Vec<u64> = (1..=4).filter(|id| *id != gone).collect();
        assert_eq!(voters(&cluster, next), expected, "seed {seed}");
        cluster.restart(leader);
        settled(&mut cluster, &expected);
    }
}

#[test]
fn an_impossible_change_is_refused_when_it_is_applied() {
    let mut bench = Bench::led(&[1]);
    propose(&mut bench, &change(5, &[remove(1)])).unwrap();
    bench.persist();
    let refused = |report: &Report| {
        matches!(report, Report::Changed { nonce: 5, outcome: Outcome::Refused(_) })
    };
    let reports = bench_reports(&mut bench);
    assert!(reports.iter().any(refused), "{reports:?}");
    assert!(bench.is_leader());
    assert_eq!(
        propose(&mut bench, &change(6, &[])),
        Err(ChangeError::Refused("a change of nothing"))
    );
    assert_eq!(propose(&mut bench, &change(7, &[learner(4)])), Ok(()));
}

/// A change must wait while leadership is handed over, and while a joint configuration lasts.
#[test]
fn a_change_waits_for_the_pending_one() {
    let mut bench = Bench::led(&[1, 2, 3]);
    bench.replica.hand_over(bench.now_ns, Some(NodeId(2)), HandOver::Asked);
    assert_eq!(propose(&mut bench, &change(1, &[learner(4)])), Err(ChangeError::Busy));
    let mut bench = Bench::led(&[1]);
    propose(&mut bench, &change(1, &[learner(4), learner(5)])).unwrap();
    bench.persist();
    assert!(bench.shared.published().voters.is_joint());
    assert_eq!(propose(&mut bench, &change(2, &[learner(6)])), Err(ChangeError::Busy));
}

#[test]
fn a_follower_proposes_no_change() {
    let mut bench = Bench::new(&[1, 2, 3]);
    assert_eq!(propose(&mut bench, &change(1, &[learner(4)])), Err(ChangeError::NotLeader));
    assert_eq!(bench.status().last, LogIndex(1));
}

#[test]
fn a_removed_node_that_does_not_know_of_its_removal_disturbs_no_leader() {
    let mut cluster = Cluster::started(4, 3);
    let leader = cluster.elect();
    cluster.ticks(5);
    let gone = cluster.ids().into_iter().find(|id| *id != leader).unwrap();
    cluster.isolate(gone);
    make(&mut cluster, &change(1, &[remove(gone.0)]));
    let term = cluster.published(leader).term;
    cluster.ticks(20);
    cluster.heal();
    cluster.load(leader, 100);
    assert_eq!(cluster.published(leader).term, term);
}

#[test]
fn a_member_that_moved_is_recorded_under_its_new_address_and_an_impostor_is_not() {
    let mut cluster = Cluster::started(5, 3);
    let leader = cluster.elect();
    cluster.ticks(5);
    let moved = NodeId(3);
    let known = member(moved, store(3));
    let impostor = Member { store: StoreId(9), client_addr: "x:1".into(), ..known.clone() };
    let honest = Member { client_addr: "new:1".into(), ..known };
    // The impostor has another store id. Its address must not replace that of the honest member.
    for member in [&honest, &impostor] {
        for id in cluster.ids() {
            cluster.with(id, |replica, _| replica.handle_peer_addresses(member.clone()));
        }
    }
    cluster.ticks(20);
    for id in cluster.ids() {
        assert_eq!(cluster.published(id).members[&moved], honest, "node {id}");
    }
    // The leader proposes the new address once and not again.
    let last = cluster.bench(leader).status().last;
    cluster.ticks(20);
    assert!(cluster.bench(leader).status().last.0 <= last.0 + 1);
}

/// Makes a follower apply a change. The change is the next entry of the log, from a leader in term
/// 2.
fn follow(bench: &mut Bench, change: &MembershipChange) {
    let last = bench.status().last.0;
    let mut appended = append(2, (last, if last == 1 { 1 } else { 2 }), 1, last + 1);
    let entry = &mut appended.entries[0];
    (entry.kind, entry.context) = (EntryKind::Membership, change.encode());
    bench.take(2, &appended).unwrap();
    bench.persist();
    assert_eq!(bench.status().applied, LogIndex(last + 1));
}

/// The check of the limit (64 voters) counts every step of a change as one more voter. It ignores
/// that a node may be in both halves of the joint configuration.
#[test]
fn a_change_that_may_exceed_the_limit_of_voters_is_refused_where_it_is_applied() {
    let limit = "the limit of voters is reached";
    for (voters, outcome) in [(62, Outcome::Changed), (63, Outcome::Refused(limit))] {
        let mut bench = Bench::new(&(1..=voters).collect::<Vec<_>>());
        follow(&mut bench, &change(1, &[remove(voters), remove(voters - 1)]));
        let is_changed = outcome == Outcome::Changed;
        assert_eq!(bench.shared.published().voters.is_joint(), is_changed, "{voters} voters");
        assert!(bench.reports.contains(&Report::Changed { nonce: 1, outcome }), "{voters} voters");
    }
}

#[test]
fn a_heard_address_is_kept_until_its_member_is_removed() {
    let mut bench = Bench::new(&[1, 2, 3]);
    let moved = Member { client_addr: "new:1".into(), ..member(NodeId(3), store(3)) };
    bench.replica.handle_peer_addresses(moved.clone());
    follow(&mut bench, &change(1, &[learner(4)]));
    assert!(bench.shared.published().members.contains_key(&NodeId(4)));
    assert_eq!(bench.shared.published().members[&NodeId(3)], moved);
    follow(&mut bench, &change(2, &[remove(3)]));
    assert!(!bench.shared.published().members.contains_key(&NodeId(3)));
}

/// The member itself has told the node its address. An entry that is applied later may have an
/// older address.
#[test]
fn a_heard_address_is_newer_than_one_that_is_recorded_later() {
    let mut bench = Bench::new(&[1, 2, 3]);
    let at = |addr: &str| Member { client_addr: addr.into(), ..member(NodeId(3), store(3)) };
    bench.replica.handle_peer_addresses(at("new:1"));
    let mut recorded = append(2, (1, 1), 1, 2);
    recorded.entries[0].data = Command::Readdress(at("old:1")).encode();
    bench.take(2, &recorded).unwrap();
    bench.persist();
    assert_eq!(bench.replica.state().members[&NodeId(3)], at("old:1"));
    assert_eq!(bench.shared.published().members[&NodeId(3)], at("new:1"));
}

#[test]
fn a_new_address_is_recorded_during_a_handover() {
    let mut bench = Bench::led(&[1, 2, 3]);
    bench.take(2, &message(MessageKind::HeartbeatResponse, bench.status().term.0)).unwrap();
    let moved = Member { client_addr: "new:1".into(), ..member(NodeId(3), StoreId(103)) };
    let last = bench.status().last;
    bench.replica.handle_peer_addresses(moved);
    bench.replica.hand_over(bench.now_ns, Some(NodeId(2)), HandOver::Asked);
    for _ in 0..3 * ELECTION_TICKS {
        bench.tick();
        bench.persist();
        for peer in [2, 3] {
            let term = bench.status().term.0;
            bench.take(peer, &message(MessageKind::HeartbeatResponse, term)).unwrap();
        }
    }
    assert!(bench.status().last > last, "the handover failed, the address is proposed");
}

/// Found by the simulator. A single voter promotes a second one, and asks it to take over before
/// the second one knows that it is a voter. Both nodes behave correctly.
#[test]
fn a_handover_to_a_voter_that_does_not_know_it_is_one_yet_is_no_offence() {
    let mut bench = Bench::new(&[2]);
    bench.take(2, &message(MessageKind::Heartbeat, 2)).unwrap();
    assert_eq!(bench.take(2, &message(MessageKind::TimeoutNow, 2)), Ok(()));
    assert_eq!(bench.status().role, Role::Follower, "it waits until it knows");
}
