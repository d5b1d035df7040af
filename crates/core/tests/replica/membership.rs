//! Members come and go: what is acknowledged, what is refused, and who decides meanwhile.

use epicepoch_core::publication::Role;
use epicepoch_core::replica::{ChangeError, HandOver, Replica, Report};
use epicepoch_core::state::{Command, MembershipChange, MembershipStep, Outcome};
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::raft_message::{EntryKind, MessageKind};
use epicepoch_wire::{LogIndex, NodeId, StoreId};

use crate::support::bench::{Bench, append, message, store};
use crate::support::{ELECTION_TICKS, MS, Plane, World, member};

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

/// Proposes at the leader, whoever it is, until it is taken, and waits until it is applied there.
fn make(world: &mut World, change: &MembershipChange) -> NodeId {
    for _ in 0..100 {
        let leader = world.elect();
        match world.with(leader, |replica, now| replica.propose_change(now, change)) {
            Ok(()) => {
                let nonce = change.nonce;
                world.run_until(60, "the change is acknowledged", |world| {
                    world.has_reported(leader, acknowledged(nonce))
                });
                return leader;
            }
            Err(ChangeError::Busy | ChangeError::NotLeader) => world.run(10 * MS),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("{change:?} is never taken");
}

fn voters(world: &World, id: NodeId) -> Vec<u64> {
    world.published(id).voters.iter().map(|(node, _)| node.0).collect()
}

fn settled(world: &mut World, ids: &[u64]) {
    world.run_until(100, "the configuration is left", |world| {
        ids.iter().all(|id| {
            let published = world.published(NodeId(*id));
            !published.voters.is_joint() && voters(world, NodeId(*id)) == ids
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
    let mut world = World::started(1, 3);
    world.elect();
    world.add_joining(NodeId(4));
    let leader = make(&mut world, &change(1, &[learner(4)]));
    assert_eq!(voters(&world, leader), vec![1, 2, 3], "a learner does not vote");
    make(&mut world, &change(2, &[promote(4)]));
    settled(&mut world, &[1, 2, 3, 4]);
    let leader = world.elect();
    world.load(leader, 50);
    assert!(world.history.answered >= 50);
}

#[test]
fn two_nodes_are_replaced_in_one_joint_change() {
    let mut world = World::started(2, 3);
    world.elect();
    world.add_joining(NodeId(4));
    world.add_joining(NodeId(5));
    make(&mut world, &change(1, &[learner(4)]));
    make(&mut world, &change(2, &[learner(5)]));
    let leader = world.elect();
    let gone: Vec<u64> = (1..=3).filter(|id| *id != leader.0).collect();
    let steps = [promote(4), promote(5), remove(gone[0]), remove(gone[1])];
    make(&mut world, &change(3, &steps));
    settled(&mut world, &[leader.0, 4, 5]);
    world.crash(NodeId(gone[0]));
    world.crash(NodeId(gone[1]));
    world.load(leader, 50);
    let refused = world
        .with(leader, |replica, now| replica.propose_change(now, &change(4, &[learner(gone[0])])));
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
    // Nothing is polled, nothing else is called.
    bench.replica.handle_message(bench.now_ns, NodeId(2), store(2), &ack).unwrap();
    assert_eq!(bench.status().applied, at);
    assert_eq!(bench.shared.published().voters.len(), 2);
}

/// Trap: while a change is pending the library answers Ok and appends an empty entry.
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
    let mut world = World::started(3, 3);
    let leader = world.elect();
    world.run(50 * MS);
    world.isolate(leader, Plane::Raft);
    let lost = change(77, &[learner(4)]);
    world.with(leader, |replica, now| replica.propose_change(now, &lost)).unwrap();
    world.run_until(60, "another leader", |world| world.leader().is_some_and(|id| id != leader));
    world.heal();
    world.run(500 * MS);
    for id in world.ids() {
        assert!(!world.has_reported(id, acknowledged(77)), "it was overwritten");
        assert!(!world.published(id).members.contains_key(&NodeId(4)));
    }
}

/// Trap: a removed leader that goes on as leader makes the library panic, at its next own entry
/// that is persisted or at a follower's next ack.
#[test]
fn a_leader_that_removes_itself_steps_down_in_the_step_that_applies_it() {
    for is_acked_late in [false, true] {
        let mut bench = Bench::led(&[1, 2]);
        propose(&mut bench, &change(1, &[remove(1)])).unwrap();
        let at = bench.status().last;
        // One more entry of its own behind it.
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
        let mut world = World::started(seed, 3);
        let leader = world.elect();
        world.run(50 * MS);
        make(&mut world, &change(1, &[remove(leader.0)]));
        assert_eq!(world.published(leader).role, Role::Follower);
        world.run_until(60, "another leader", |world| world.leader().is_some());
        let next = world.leader().unwrap();
        assert_ne!(next, leader);
        let answered = world.history.answered;
        world.load(next, 30);
        assert_eq!(world.history.answered, answered + 30, "the removed node does not disturb");
    }
}

/// Trap: the library leaves a joint configuration by an entry that it appends inside
/// `advance_apply`, and forgets to when the leader has changed.
#[test]
fn a_joint_configuration_is_left_by_a_later_tick_and_by_whoever_leads_then() {
    let mut bench = Bench::led(&[1]);
    propose(&mut bench, &change(1, &[learner(4), learner(5)])).unwrap();
    bench.persist();
    let at = bench.status().last;
    assert!(bench.shared.published().voters.is_joint());
    assert_eq!(bench.status().applied, at, "nothing was appended behind it");
    // Crashed in the middle: the next leadership leaves.
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
        let mut world = World::started(seed, 3);
        let leader = world.elect();
        world.add_joining(NodeId(4));
        make(&mut world, &change(1, &[learner(4)]));
        let gone = (1..=3).find(|id| *id != leader.0).unwrap();
        world.run(50 * MS);
        let both = change(2, &[promote(4), remove(gone)]);
        world.with(leader, |replica, now| replica.propose_change(now, &both)).unwrap();
        world.run_until(60, "joint", |world| world.published(leader).voters.is_joint());
        world.crash(leader);
        world.run_until(200, "left", |world| {
            let next = world.leader();
            next.is_some_and(|next| {
                let published = world.published(next);
                !published.voters.is_joint()
            })
        });
        let next = world.leader().unwrap();
        let expected: Vec<u64> = (1..=4).filter(|id| *id != gone).collect();
        assert_eq!(voters(&world, next), expected, "seed {seed}");
        world.start(leader);
        settled(&mut world, &expected);
    }
}

#[test]
fn what_a_configuration_does_not_allow_is_refused_when_it_is_applied() {
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

/// While a joint configuration is not left, and while leadership is handed over.
#[test]
fn a_change_waits_for_what_is_under_way() {
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
fn a_removed_node_that_does_not_know_it_disturbs_nobody() {
    let mut world = World::started(4, 3);
    let leader = world.elect();
    world.run(50 * MS);
    let gone = world.ids().into_iter().find(|id| *id != leader).unwrap();
    world.isolate(gone, Plane::Raft);
    make(&mut world, &change(1, &[remove(gone.0)]));
    world.run(200 * MS);
    world.heal();
    let answered = world.history.answered;
    world.load(leader, 100);
    assert_eq!(world.history.answered, answered + 100);
    assert_eq!((world.leader(), world.history.leaderships()), (Some(leader), 1));
}

#[test]
fn a_member_that_moved_is_recorded_under_its_new_address_and_an_impostor_is_not() {
    let mut world = World::started(5, 3);
    let leader = world.elect();
    world.run(50 * MS);
    let moved = NodeId(3);
    let known = member(moved, StoreId(103));
    let impostor = Member { store: StoreId(9), client_addr: "x:1".into(), ..known.clone() };
    let honest = Member { client_addr: "new:1".into(), ..known };
    for id in world.ids() {
        for member in [honest.clone(), impostor.clone()] {
            if id != moved && member.store == StoreId(103) || id == leader {
                world.with(id, |replica, _| replica.handle_introduction(member));
            }
        }
    }
    // An impostor's words do not make the honest ones forgotten either.
    for id in world.ids() {
        world.with(id, |replica, _| replica.handle_introduction(honest.clone()));
    }
    world.run(200 * MS);
    for id in world.ids() {
        assert_eq!(world.published(id).members[&moved], honest, "node {id}");
    }
    // Once is enough.
    let last = world.nodes[&leader].running().replica.status().last;
    world.run(200 * MS);
    assert!(world.nodes[&leader].running().replica.status().last.0 <= last.0 + 1);
}

/// Has a follower apply a change: the entry behind the last one, of a leader in term 2.
fn follow(bench: &mut Bench, change: &MembershipChange) {
    let last = bench.status().last.0;
    let mut appended = append(2, (last, if last == 1 { 1 } else { 2 }), 1, last + 1);
    let entry = &mut appended.entries[0];
    (entry.kind, entry.context) = (EntryKind::Membership, change.encode());
    bench.take(2, &appended).unwrap();
    bench.persist();
    assert_eq!(bench.status().applied, LogIndex(last + 1));
}

/// Every step counts as one more: which nodes are in both halves is not looked at.
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
fn an_address_that_was_heard_stays_while_others_come_and_goes_with_its_member() {
    let mut bench = Bench::new(&[1, 2, 3]);
    let moved = Member { client_addr: "new:1".into(), ..member(NodeId(3), store(3)) };
    bench.replica.handle_introduction(moved.clone());
    follow(&mut bench, &change(1, &[learner(4)]));
    assert!(bench.shared.published().members.contains_key(&NodeId(4)));
    assert_eq!(bench.shared.published().members[&NodeId(3)], moved);
    follow(&mut bench, &change(2, &[remove(3)]));
    assert!(!bench.shared.published().members.contains_key(&NodeId(3)));
}

#[test]
fn an_address_that_was_heard_since_is_newer_than_the_one_that_comes_to_be_recorded() {
    let mut bench = Bench::new(&[1, 2, 3]);
    let at = |addr: &str| Member { client_addr: addr.into(), ..member(NodeId(3), store(3)) };
    bench.replica.handle_introduction(at("new:1"));
    let mut recorded = append(2, (1, 1), 1, 2);
    recorded.entries[0].data = Command::Readdress(at("old:1")).encode();
    bench.take(2, &recorded).unwrap();
    bench.persist();
    assert_eq!(bench.replica.state().members[&NodeId(3)], at("old:1"));
    assert_eq!(bench.shared.published().members[&NodeId(3)], at("new:1"));
}

#[test]
fn a_new_address_is_recorded_although_a_handover_is_under_way() {
    let mut bench = Bench::led(&[1, 2, 3]);
    bench.take(2, &message(MessageKind::HeartbeatResponse, bench.status().term.0)).unwrap();
    let moved = Member { client_addr: "new:1".into(), ..member(NodeId(3), StoreId(103)) };
    let last = bench.status().last;
    bench.replica.handle_introduction(moved);
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

/// Found by the simulator: the first voter beside a single one is told to take over before it
/// knows that it votes. Nobody has done what a correct peer would not do.
#[test]
fn a_handover_to_a_voter_that_does_not_know_it_is_one_yet_is_no_offence() {
    let mut bench = Bench::new(&[2]);
    bench.take(2, &message(MessageKind::Heartbeat, 2)).unwrap();
    assert_eq!(bench.take(2, &message(MessageKind::TimeoutNow, 2)), Ok(()));
    assert_eq!(bench.status().role, Role::Follower, "it waits until it knows");
}
