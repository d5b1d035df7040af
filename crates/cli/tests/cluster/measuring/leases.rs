//! The leader of a cluster with leases is lost or hands over, while every request accepts a lease.
//! Measures how long clients get no answer (the silence), and compares it with the bounds of
//! `docs/operations/outages.md`. Checks every answer of every node.

use std::time::{Duration, Instant};

use epicepoch_link::Fault;

use crate::support::operator::transferred;
use crate::support::{
    Cluster, LinkedCluster, Node, Silence, WAIT_MAX, Watch, alone, let_pass, outages, wait_until,
};

/// Leases as long as an election timeout, as the page on leases advises, for every request.
const LEASES: [(&str, &str); 3] =
    [("LEASE_CLOCK", "trusted"), ("LEASE_MS", "200"), ("GUARANTEE_DEFAULT", "lease")];
/// A leader that begins so soon after its start waits for 5/4 of the longest lease.
const LEASE_WAIT_MAX: Duration = Duration::from_millis(250);
/// Promised `(p50, p99)` of the time without an answer when a leader with a lease is killed, ms: the
/// next one waits until the lease is over.
const KILLED_MS: (u64, u64) = (250, 400);
/// Promised `(p50, p99)` when a leader with a lease is paused, or its links are cut silently, ms: as
/// without leases.
const SILENT_MS: (u64, u64) = (300, 700);
/// Promised `(p50, p99)` of a handover, ms: as without leases, because the leader releases its
/// lease first. No single handover may take longer than the p99 ([`assert_handed_over`]).
const HANDED_OVER_MS: (u64, u64) = (5, 20);
/// How long a leader is paused: longer than its lease, and than its reserved range of epochs lasts.
const PAUSE: Duration = Duration::from_secs(2);

/// Waits until a lease proves an answer, and no node that could lead next has just started. Returns
/// the index of the leader.
#[track_caller]
fn wait_for_lease(cluster: &Cluster) -> usize {
    let_pass(LEASE_WAIT_MAX);
    let mut leader = None;
    wait_until("a lease proves an answer", WAIT_MAX, || {
        let is_by_lease = |node: &Node| {
            let answer = node.ask("/timestamp?guarantee=lease");
            answer.is_some_and(|it| it.header("epicepoch-proof") == Some("lease"))
        };
        leader = cluster.nodes.iter().position(is_by_lease);
        leader.is_some()
    });
    leader.expect("the wait is over")
}

/// Loses the leader `usual` times with `lose`, which returns the moment just before. When another
/// node answers, calls `restore` with the moment just after. Returns the silences.
fn lose_leaders(
    event: &'static str,
    usual: usize,
    mut lose: impl FnMut(&mut Cluster, usize) -> Instant,
    mut restore: impl FnMut(&mut Cluster, usize, Instant),
) -> Silence {
    let mut cluster = Cluster::start_with(&LEASES);
    let watch = Watch::start(&cluster);
    let mut windows = Vec::new();
    for _ in 0..outages(usual) {
        let leader = wait_for_lease(&cluster);
        let from = lose(&mut cluster, leader);
        let after = Instant::now();
        watch.wait_for_service_since(after);
        windows.push((from, Instant::now()));
        restore(&mut cluster, leader, after);
        cluster.wait_until_ready();
    }
    cluster.assert_well();
    let seen = watch.finish();
    Silence::of(event, &seen, &windows)
}

/// On a shared machine, a handover may fail because a node gets no processor in time. Then the next
/// leader waits until the lease is over, as after a kill.
#[track_caller]
fn assert_handed_over(silence: &Silence) {
    if silence.is_strict() {
        silence.assert_promised(HANDED_OVER_MS);
        silence.assert_each_promised(HANDED_OVER_MS.1);
    } else {
        silence.assert_promised((HANDED_OVER_MS.0, KILLED_MS.1));
    }
}

#[test]
fn a_killed_leader_with_a_lease_is_replaced_in_the_promised_time() {
    let _alone = alone();
    lose_leaders(
        "leader with a lease killed",
        8,
        |cluster, leader| {
            let from = Instant::now();
            cluster.nodes[leader].kill();
            from
        },
        |cluster, leader, _| cluster.nodes[leader].start(),
    )
    .assert_promised(KILLED_MS);
}

#[test]
fn a_paused_leader_with_a_lease_is_replaced_in_the_promised_time() {
    let _alone = alone();
    lose_leaders(
        "leader with a lease paused",
        6,
        |cluster, leader| {
            let from = Instant::now();
            cluster.nodes[leader].pause();
            from
        },
        |cluster, leader, paused| {
            let_pass(PAUSE.saturating_sub(paused.elapsed()));
            cluster.nodes[leader].resume();
        },
    )
    .assert_promised(SILENT_MS);
}

#[test]
fn a_leader_with_a_lease_that_is_told_to_stop_hands_over_in_the_promised_time() {
    let _alone = alone();
    let silence = lose_leaders(
        "leader with a lease told to stop",
        8,
        |cluster, leader| {
            let from = Instant::now();
            let status = cluster.nodes[leader].terminate();
            assert_eq!(status.code(), Some(0), "SIGTERM ends with 0");
            from
        },
        |cluster, leader, _| cluster.nodes[leader].start(),
    );
    assert_handed_over(&silence);
}

#[test]
fn a_leader_with_a_lease_hands_over_by_command_in_the_promised_time() {
    let _alone = alone();
    let mut turn = 0;
    let silence = lose_leaders(
        "leadership with a lease handed over by command",
        8,
        |cluster, leader| {
            let to = cluster.others(leader)[turn % 2];
            turn += 1;
            let id = cluster.nodes[to].id.to_string();
            let (from, said) = transferred(cluster, &["leader", "transfer", "--to", &id]);
            assert!(said.starts_with(&format!("node {id} leads in term")), "{said}");
            from
        },
        |_, _, _| {},
    );
    assert_handed_over(&silence);
}

#[test]
fn a_leader_with_a_lease_that_is_cut_off_silently_is_replaced_in_the_promised_time() {
    let _alone = alone();
    let cluster = LinkedCluster::start_of(Cluster::down(&LEASES), 1);
    let watch = Watch::start(&cluster);
    let mut windows = Vec::new();
    for _ in 0..outages(6) {
        let leader = wait_for_lease(&cluster);
        let from = Instant::now();
        cluster.set_outgoing(leader, Fault::blackhole());
        cluster.set_incoming(leader, Fault::blackhole());
        cluster.wait_for_leader_other_than(Some(leader), WAIT_MAX);
        watch.wait_for_service_since(Instant::now());
        windows.push((from, Instant::now()));
        cluster.links.heal();
        wait_until("the old leader is back", WAIT_MAX, || cluster.nodes[leader].is_ready());
    }
    assert!(cluster.bytes_lost() > 0, "the cuts have cut nothing");
    let seen = watch.finish();
    Silence::of("leader with a lease cut off silently", &seen, &windows).assert_promised(SILENT_MS);
}
