//! Tests in which the links between clients and nodes are cut or slow.

use std::time::{Duration, Instant};

use epicepoch_link::{Fault, Party};

use crate::support::{LinkedCluster, Watch, let_pass};

/// How long clients are cut off.
const PARTITION: Duration = Duration::from_secs(2);

/// Cuts clients off from the leader for 2 s. Returns whether the leader stayed the same. It may
/// change, because the disk of a busy machine may stall for longer than an election timeout.
fn cut_clients_off(cluster: &LinkedCluster, others: &Watch, cut_off: &Watch) -> bool {
    let leader = cluster.wait_for_leader();
    let party = cluster.party(leader);
    cluster.links.set_both(Party::Client, party, Fault::blackhole());
    let cut = Instant::now();
    while cut.elapsed() < PARTITION {
        if !cut_off.is_silent_since(cut) {
            // A client that is cut off from the leader has got an answer. So another node leads
            // now.
            cluster.wait_for_leader_other_than(Some(leader), Duration::from_secs(1));
            cluster.links.heal();
            return false;
        }
        let_pass(Duration::from_millis(1));
    }
    others.wait_for_service_since(Instant::now());
    let (there, back) = (Party::Client, party);
    let (there, back) = (cluster.links.passed(there, back), cluster.links.passed(back, there));
    assert!(there.bytes_lost + back.bytes_lost > 0, "nothing was cut: {there:?}, {back:?}");
    cluster.links.heal();
    true
}

#[test]
fn clients_cut_off_from_the_leader_delay_no_others_and_recover() {
    let mut cluster = LinkedCluster::start(3);
    let others = Watch::start(&cluster);
    let cut_off = Watch::start_at(cluster.targets_behind_links(), 1);
    let mut stayed = false;
    for _ in 0..5 {
        if stayed {
            break;
        }
        stayed = cut_clients_off(&cluster, &others, &cut_off);
        cut_off.wait_for_service_since(Instant::now());
        cluster.assert_well();
    }
    assert!(stayed, "leadership has moved each time");
    cut_off.finish();
    others.finish();
}

#[test]
fn answers_that_arrive_late_are_still_in_order() {
    let mut cluster = LinkedCluster::start(4);
    let mut targets = cluster.targets_behind_links();
    targets.extend(cluster.targets());
    for node in 0..cluster.nodes.len() {
        let late = Fault { jitter: Duration::from_millis(120), ..Fault::NONE };
        cluster.links.set_both(Party::Client, cluster.party(node), late);
    }
    let watch = Watch::start_at(targets, 4);
    let_pass(PARTITION);
    watch.wait_for_service_since(Instant::now());
    let leader = cluster.party(cluster.wait_for_leader());
    assert!(cluster.links.passed(leader, Party::Client).bytes > 0, "no answer was late");
    cluster.assert_well();
    watch.finish();
}
