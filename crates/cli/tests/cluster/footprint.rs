//! What a node costs: idle processor time, memory, disk, and the time it takes to come back.
//! The claims are those of the contract with room for a test build; the figures are printed.

use std::time::{Duration, Instant};

use epicepoch_bench::load::{self, LoadConfig};

use crate::support::process::{disk_bytes, processor_time, resident_bytes};
use crate::support::{Cluster, Node, let_pass, millis, say, wait_until};

/// Share of one core that an idle node of a test build may take; the contract says 1 %.
const IDLE_SHARE_MAX: f64 = 0.03;
/// Memory of an idle node of a test build, bytes; the contract says 30 MB.
const RESIDENT_MAX: u64 = 60 << 20;
/// Bytes on disk, whatever the uptime.
const DISK_MAX: u64 = 5 << 20;
/// Restart to ready: a few elections.
const RESTART_MAX: Duration = Duration::from_secs(5);
/// Reservations that the disk is watched through, and how long that may take.
const RESERVATIONS: u64 = 400;
const RESERVATIONS_LIMIT: Duration = Duration::from_secs(20);
/// Fewer than this do not make the absent node need a snapshot.
const RESERVATIONS_MIN: u64 = 180;

#[test]
fn an_idle_node_takes_little_of_a_core_and_of_memory() {
    const OBSERVED: Duration = Duration::from_secs(5);
    let cluster = Cluster::start();
    let_pass(Duration::from_secs(1));
    let spent = |node: &Node| processor_time(node.pid());
    let before: Vec<Duration> = cluster.nodes.iter().map(spent).collect();
    let from = Instant::now();
    let_pass(OBSERVED);
    for (node, before) in cluster.nodes.iter().zip(before) {
        let busy = spent(node).saturating_sub(before);
        let share = busy.as_secs_f64() / from.elapsed().as_secs_f64();
        let resident = resident_bytes(node.pid());
        say(&format!(
            "idle node {}: {:.2} % of a core, {:.1} MB resident",
            node.id,
            share * 100.0,
            resident as f64 / 1e6
        ));
        assert!(share <= IDLE_SHARE_MAX, "node {} takes {share} of a core", node.id);
        assert!(resident <= RESIDENT_MAX, "node {} takes {resident} bytes", node.id);
    }
}

/// A cluster that reserves as often as its settings allow, a dozen times a second.
fn often_reserving() -> Cluster {
    Cluster::start_with(&[
        ("RESERVATION_MS", "200"),
        ("ELECTION_TIMEOUT_MS", "50"),
        ("HEARTBEAT_MS", "10"),
        ("EPOCH_INTERVAL_MS", "10"),
    ])
}

#[test]
fn the_data_directory_and_latency_stay_small_through_compaction_and_a_snapshot() {
    let mut cluster = often_reserving();
    let leader = cluster.wait_for_leader();
    // One follower misses so much that the leader has compacted it away: a test build keeps a log
    // of 128 entries at most. Ten thousand reservations are another test, without waiting:
    // `the_data_directory_stays_small_through_ten_thousand_reservations`.
    let absent = cluster.others(leader)[0];
    cluster.nodes[absent].kill();
    let load = load::start(LoadConfig { connections: 4, ..LoadConfig::new(cluster.targets()) });
    let from = Instant::now();
    let mut reservations = 0;
    let mut largest = 0;
    while reservations < RESERVATIONS && from.elapsed() < RESERVATIONS_LIMIT {
        let counts =
            cluster.nodes.iter().filter_map(|node| node.metric("epicepoch_reservations_total"));
        reservations = (counts.sum::<f64>() as u64).max(reservations);
        largest = cluster.nodes.iter().map(|it| disk_bytes(&it.data_dir())).max().unwrap_or(0);
        assert!(largest <= DISK_MAX, "a data directory has {largest} bytes");
        let_pass(Duration::from_millis(100));
    }
    cluster.nodes[absent].start();
    let returned = cluster.time_until_ready();
    let report = load.stop();
    say(&format!(
        "{reservations} reservations in {:.1} s: largest data directory {} kB; the absent node \
         was ready after {:.0} ms",
        from.elapsed().as_secs_f64(),
        largest / 1000,
        millis(returned),
    ));
    say(&format!("latency meanwhile: {report}"));
    assert!(reservations >= RESERVATIONS_MIN, "only {reservations} reservations");
    wait_until("the absent node installs a snapshot", Duration::from_secs(10), || {
        cluster.nodes[absent].log().contains("snapshot installed")
    });
    for node in &cluster.nodes {
        let bytes = disk_bytes(&node.data_dir());
        assert!(bytes <= DISK_MAX, "node {} has {bytes} bytes", node.id);
    }
}

#[test]
fn a_restarted_node_and_a_restarted_cluster_are_ready_soon() {
    let mut cluster = Cluster::start();
    let leader = cluster.wait_for_leader();
    let follower = cluster.others(leader)[0];
    let mut told = Vec::new();
    for (who, index) in [("a follower", follower), ("the leader", leader)] {
        cluster.nodes[index].kill();
        cluster.nodes[index].start();
        told.push((who, cluster.time_until_ready()));
    }
    cluster.kill_all();
    cluster.start_all();
    told.push(("the whole cluster", cluster.time_until_ready()));
    for (who, time) in told {
        say(&format!("restart to ready, {who}: {:.0} ms", millis(time)));
        assert!(time <= RESTART_MAX, "{who} took {time:?}");
    }
}
