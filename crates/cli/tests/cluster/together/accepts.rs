//! A leader that cannot accept new clients hands leadership over. Needs a test build, because only
//! that can make a node fail to accept clients.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::{
    Campaigns, Cluster, Disturbed, Faults, Node, WAIT_MAX, Watch, has_held_for, undisturbed,
    wait_until,
};

/// Makes this node fail to accept clients, and waits until it has logged that.
fn stop_accepting(node: &Node) {
    node.break_with(Faults { accept_fail: true, ..Faults::NONE });
    let failures = || node.log().matches("cannot accept clients").count();
    let before = failures();
    wait_until("it cannot accept clients", WAIT_MAX, || {
        drop(TcpStream::connect(node.http()));
        failures() > before
    });
}

/// Returns how often this node has offered leadership to another node because it cannot accept
/// clients. It logs `ClientsCut` each time.
fn offers(node: &Node) -> usize {
    node.log().lines().filter(|line| line.contains("ClientsCut")).count()
}

/// Returns how often the nodes have begun to lead, all together.
fn leaderships(cluster: &Cluster) -> usize {
    cluster.nodes.iter().map(|node| node.log().matches("this node leads\"").count()).sum()
}

#[test]
fn a_leader_that_cannot_accept_clients_hands_over_once_and_serves_those_that_it_has() {
    undisturbed(hand_over_once);
}

fn hand_over_once() -> Result<(), Disturbed> {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let campaigns = Campaigns::so_far(&cluster);
    let leader = cluster.wait_for_leader();
    let before = leaderships(&cluster);
    stop_accepting(&cluster.nodes[leader]);
    let others = cluster.others(leader);
    let another_leads = || others.iter().any(|other| cluster.nodes[*other].is_leader());
    wait_until("another node leads", WAIT_MAX, another_leads);
    watch.wait_for_service_since(Instant::now());
    let stays = has_held_for(Duration::from_secs(3), another_leads);
    let asked = cluster.nodes.iter().map(offers).sum();
    let (offers, moves) = (offers(&cluster.nodes[leader]), leaderships(&cluster) - before);
    let what = format!("one offer, one handover, it stays: {offers}, {moves}, {stays}");
    let judged = campaigns.judge(&cluster, asked, (offers, moves, stays) == (1, 1, true), &what);
    cluster.nodes[leader].break_with(Faults::NONE);
    cluster.assert_well();
    watch.finish();
    judged
}
