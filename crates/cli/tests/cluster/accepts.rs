//! A leader that cannot accept clients hands over, and where nobody can, leadership stays. Needs a test
//! build.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::{
    Campaigns, Cluster, Disturbed, Faults, Node, PATIENCE, Watch, has_held_for, let_pass,
    undisturbed, wait_until,
};

const DEAF: Faults = Faults { accept_fail: true, ..Faults::NONE };
/// Longer than the first pause between two offers, and shorter than the second.
const STAYS: Duration = Duration::from_secs(9);
/// Accepts that have failed for two election timeouts, and a machine under load.
const OFFERED_MAX: Duration = Duration::from_secs(5);

/// No client is accepted from now on. The one that the node waits for meanwhile is closed.
fn deafen(node: &Node) {
    node.break_with(DEAF);
    let failures = || node.log().matches("cannot accept clients").count();
    let before = failures();
    wait_until("it cannot accept clients", PATIENCE, || {
        drop(TcpStream::connect(node.http()));
        failures() > before
    });
}

fn offers(node: &Node) -> usize {
    node.log().lines().filter(|line| line.contains("ClientsCut")).count()
}

/// How often any node has come to lead.
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
    deafen(&cluster.nodes[leader]);
    let others = cluster.others(leader);
    wait_until("another one leads", OFFERED_MAX, || {
        others.iter().any(|other| cluster.nodes[*other].is_leader())
    });
    watch.wait_for_service_since(Instant::now());
    let stayed = has_held_for(Duration::from_secs(3), || {
        others.iter().any(|other| cluster.nodes[*other].is_leader())
    });
    let asked = cluster.nodes.iter().map(offers).sum();
    let (offers, moves) = (offers(&cluster.nodes[leader]), leaderships(&cluster) - before);
    let what = format!("one offer, one handover, it stays: {offers}, {moves}, {stayed}");
    let told = campaigns.judge(&cluster, asked, (offers, moves, stayed) == (1, 1, true), &what);
    cluster.nodes[leader].break_with(Faults::NONE);
    cluster.wait_until_ready();
    cluster.assert_well();
    watch.finish();
    told
}

#[test]
fn leadership_stays_where_it_is_when_no_node_can_accept_clients() {
    undisturbed(stay_when_all_are_deaf);
}

fn stay_when_all_are_deaf() -> Result<(), Disturbed> {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let campaigns = Campaigns::so_far(&cluster);
    let leader = cluster.wait_for_leader();
    let before = leaderships(&cluster);
    for other in cluster.others(leader) {
        deafen(&cluster.nodes[other]);
    }
    deafen(&cluster.nodes[leader]);
    let_pass(STAYS);
    // Whoever was connected is served.
    watch.wait_for_service_since(Instant::now());
    let (offers, moves) = (offers(&cluster.nodes[leader]), leaderships(&cluster) - before);
    let what = format!("no move, an offer and one more after a pause: {moves}, {offers}");
    let stayed = campaigns.judge(&cluster, 0, (moves, offers) == (0, 2), &what);
    for node in &cluster.nodes {
        node.break_with(Faults::NONE);
    }
    cluster.wait_until_ready();
    let leads_on = cluster.nodes[leader].is_leader();
    let told = stayed.and(campaigns.judge(&cluster, 0, leads_on, "it leads on"));
    cluster.assert_well();
    watch.finish();
    told
}
