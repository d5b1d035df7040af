//! The data directory and the latency stay small while the nodes compact their logs.

use std::time::{Duration, Instant};

use epicepoch_bench::run::RunConfig;
use epicepoch_bench::run::load::Load;

use crate::support::process::disk_bytes;
use crate::support::{Cluster, WAIT_MAX, let_pass, millis, say, wait_until};

/// A data directory has at most this many bytes on disk, however long its node has run.
const DISK_MAX: u64 = 5 << 20;
/// The size of the data directories is watched during this many reservations.
const RESERVATIONS: u64 = 200;
/// Longest time for these reservations.
const RESERVATIONS_LIMIT: Duration = Duration::from_mins(2);
/// At least this many reservations must have been made. With fewer, the absent node would need no
/// snapshot when it comes back.
const RESERVATIONS_MIN: u64 = 180;

/// Starts a cluster that reserves as often as settings allow: a dozen times a second.
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
    // One follower is down until the leader has compacted entries that this follower lacks. A debug
    // build keeps at most 128 entries. A faster test in crates/server makes ten thousand
    // reservations: `the_data_directory_stays_small_through_ten_thousand_reservations`.
    let absent = cluster.others(leader)[0];
    cluster.nodes[absent].kill();
    let load = Load::start(RunConfig { connections: 4, ..RunConfig::new(cluster.targets()) });
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
    wait_until("the absent node installs a snapshot", WAIT_MAX, || {
        cluster.nodes[absent].log().contains("snapshot installed")
    });
    for node in &cluster.nodes {
        let bytes = disk_bytes(&node.data_dir());
        assert!(bytes <= DISK_MAX, "node {} has {bytes} bytes", node.id);
    }
}
