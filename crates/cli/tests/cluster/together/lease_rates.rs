//! Tests of leases on clocks that run too fast or too slow (S20). Leases allow for an error of a
//! ninth. Within that, no order is lost, whatever happens to leaders. Far beyond it, order is lost,
//! and the checker of these tests sees it.

use std::time::Instant;

use epicepoch_bench::history::read_timestamps;
use epicepoch_bench::{History, Operation, Outcome, Violation};
use epicepoch_link::{Cut, Fault};

use super::leases::{PATH, WAITS, wait_for_lease};
use crate::support::late::Late;
use crate::support::wire::Wire;
use crate::support::{Cluster, Faults, LinkedCluster, Node, WAIT_MAX, Watch, say, wait_until};

/// Leases that every request accepts.
const LEASES: [(&str, &str); 3] =
    [("LEASE_CLOCK", "trusted"), ("LEASE_MS", "200"), ("GUARANTEE_DEFAULT", "lease")];
/// The rate of a leader's clock, and of the clocks of the others. With these, a lease ends half a
/// millisecond before the next leader has waited for it.
const SLOW_PPM: i64 = -110_000;
const FAST_PPM: i64 = 110_000;
/// Each kind of loss happens so often.
const ROUNDS: usize = 2;
/// The rate of a clock that nearly stands still: a lease of 200 ms lasts for 20 s.
const FROZEN_PPM: i64 = -990_000;
/// On a busy machine the old leader may give up before the next one answers. Then another leader
/// gets the wrong clock.
const ATTEMPTS_MAX: usize = 5;

/// How a leader is lost.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Killed,
    Paused,
    /// Its connections to its peers are reset. So they elect another leader long before its lease is
    /// over. Clients still reach it.
    Refused,
    /// Its peers do not hear it any more. Clients still reach it.
    Silent,
}

const LOSSES: [Loss; 4] = [Loss::Killed, Loss::Paused, Loss::Refused, Loss::Silent];

/// How many batches a node has answered by its lease since its start.
fn batches_by_lease(node: &Node) -> f64 {
    node.wait_for_metric("epicepoch_proofs_total{by=\"lease\"}")
}

/// Makes the clock of a leader with a lease slow, and the clocks of the others fast. Returns the
/// index of the leader, which still has a lease.
#[track_caller]
fn wait_for_slow_leader(cluster: &Cluster) -> usize {
    let mut leader = 0;
    wait_until("the leader with a lease stays", WAIT_MAX, || {
        leader = wait_for_lease(cluster);
        for (index, node) in cluster.nodes.iter().enumerate() {
            let rate_ppm = if index == leader { SLOW_PPM } else { FAST_PPM };
            node.break_with(Faults::lease_rate_ppm(rate_ppm));
        }
        wait_for_lease(cluster) == leader
    });
    leader
}

/// Cuts all links of a leader to its peers until another node leads. Returns how many batches the
/// old leader has answered by its lease meanwhile.
#[track_caller]
fn cut_off(cluster: &LinkedCluster, leader: usize, fault: Fault, watch: &Watch) -> f64 {
    cluster.set_outgoing(leader, fault);
    cluster.set_incoming(leader, fault);
    let before = batches_by_lease(&cluster.nodes[leader]);
    cluster.wait_for_leader_other_than(Some(leader), WAIT_MAX);
    watch.wait_for_service_since(Instant::now());
    let after = batches_by_lease(&cluster.nodes[leader]);
    cluster.links.heal();
    (after - before).max(0.0)
}

/// Pauses a leader until another node has waited for its lease and has answered. At that moment
/// requests arrive at the paused leader, and it goes on. Their answers come into `late_answers`.
#[track_caller]
fn pause(cluster: &mut Cluster, leader: usize, watch: &Watch, late_answers: &mut Vec<Operation>) {
    let (id, addr) = (cluster.nodes[leader].id, cluster.nodes[leader].http());
    let open = || Wire::open(addr, WAIT_MAX).expect("the leader runs");
    let mut known: Vec<Wire> = (0..8).map(|_| open()).collect();
    for wire in &mut known {
        wire.get("/up").expect("the leader runs");
    }
    cluster.nodes[leader].pause();
    cluster.wait_for_leader_other_than(Some(leader), WAIT_MAX);
    watch.wait_for_service_since(Instant::now());
    let late: Vec<Late> = known.into_iter().map(|wire| Late::send(wire, 2)).collect();
    cluster.nodes[leader].resume();
    for it in late {
        it.collect(id, late_answers);
    }
}

/// The clock of each leader is slow by 11 %, and those of the others are fast by 11 %. All nodes are
/// asked all the time, and every request accepts a lease. Each answer is checked.
#[test]
fn clocks_that_are_wrong_by_eleven_percent_cost_no_order_while_leaders_are_lost() {
    let mut cluster = LinkedCluster::start_of(Cluster::down(&LEASES), 1);
    let watch = Watch::start_with(&cluster, 4);
    let (mut late_answers, mut by_lease, mut by_lease_cut_off) = (Vec::new(), 0.0, 0.0);
    for loss in LOSSES.into_iter().cycle().take(ROUNDS * LOSSES.len()) {
        let leader = wait_for_slow_leader(&cluster);
        by_lease += batches_by_lease(&cluster.nodes[leader]);
        match loss {
            Loss::Killed => {
                cluster.nodes[leader].kill();
                cluster.wait_for_leader_other_than(Some(leader), WAIT_MAX);
                watch.wait_for_service_since(Instant::now());
                cluster.nodes[leader].start();
            }
            Loss::Paused => pause(&mut cluster, leader, &watch, &mut late_answers),
            Loss::Refused => {
                let fault = Fault::cut(Cut::Reset);
                by_lease_cut_off += cut_off(&cluster, leader, fault, &watch);
            }
            Loss::Silent => {
                by_lease_cut_off += cut_off(&cluster, leader, Fault::blackhole(), &watch);
            }
        }
        cluster.wait_until_ready();
    }
    cluster.assert_well();
    let waits: usize = cluster.nodes.iter().map(|node| node.log().matches(WAITS).count()).sum();
    say(&format!(
        "batches by lease: {by_lease} before the losses, {by_lease_cut_off} by leaders that were \
         cut off; {waits} waits for a lease"
    ));
    assert!(by_lease > 0.0 && by_lease_cut_off > 0.0, "leases have proved answers");
    assert!(waits > 0, "a leader has waited for the lease of another");
    assert!(cluster.bytes_lost() > 0 && cluster.resets() > 0, "the cuts have cut nothing");
    let asked = late_answers.len();
    let wrong = late_answers.iter().filter(|it| matches!(it.outcome, Outcome::Broken(_)));
    assert_eq!((wrong.count(), asked > 0), (0, true));
    watch.finish_with(&late_answers);
}

/// Sends one request, which accepts a lease. Returns the operation, and whether a lease has proved
/// its answer.
fn ask(node: &Node) -> (Operation, bool) {
    let start = Instant::now();
    let answer = node.ask(PATH);
    let (end, node) = (Instant::now(), node.id);
    let proof = answer.as_ref().and_then(|it| it.header("epicepoch-proof"));
    let is_by_lease = proof == Some("lease");
    let outcome = match answer {
        Some(it) if it.status == 200 => {
            read_timestamps(&it.body, 1).map_or_else(Outcome::Broken, Outcome::Answered)
        }
        Some(it) => Outcome::Refused(it.status),
        None => Outcome::Unknown,
    };
    (Operation { start, end, node, outcome }, is_by_lease)
}

/// Nearly stops the clock of a leader with a lease, and cuts it off from its peers. When the next
/// leader has answered, asks the old one. Returns whether it has answered by its lease. Then the
/// checker has seen that this answer is in the wrong order, and nothing else.
#[track_caller]
fn is_order_lost(cluster: &mut LinkedCluster) -> bool {
    let leader = wait_for_lease(cluster);
    cluster.nodes[leader].break_with(Faults::lease_rate_ppm(FROZEN_PPM));
    cluster.set_outgoing(leader, Fault::cut(Cut::Reset));
    cluster.set_incoming(leader, Fault::cut(Cut::Reset));
    let next = cluster.wait_for_leader_other_than(Some(leader), WAIT_MAX);
    let mut history = History::new(Instant::now());
    let (earlier, _) = ask(&cluster.nodes[next]);
    let (later, is_by_lease) = ask(&cluster.nodes[leader]);
    history.record_all([&earlier, &later]);
    let verdict = history.settle(Instant::now());
    cluster.links.heal();
    cluster.nodes[leader].break_with(Faults::NONE);
    cluster.wait_until_ready();
    let is_answered = matches!(earlier.outcome, Outcome::Answered(_));
    if !(is_answered && is_by_lease) {
        verdict.assert_clean();
        return false;
    }
    say(&format!("checked {verdict}"));
    let found = &verdict.violations[..];
    assert!(matches!(found, [Violation::OutOfOrder { .. }]), "{verdict}");
    true
}

/// The clock of a leader runs at a hundredth of its rate, which leases assume never happens. Without
/// such a test, nothing would show that a checker sees order that leases have broken. No timestamp
/// is given twice all the same.
#[test]
fn a_lease_clock_that_nearly_stands_still_breaks_order_and_the_checker_sees_it() {
    let mut cluster = LinkedCluster::start_of(Cluster::down_calm(&LEASES), 1);
    let is_lost = (0..ATTEMPTS_MAX).any(|_| is_order_lost(&mut cluster));
    assert!(is_lost, "no old leader has answered by its lease after the next one");
    cluster.assert_well();
}
