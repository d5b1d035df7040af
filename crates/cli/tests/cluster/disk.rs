//! Disks that hang or fail under a leader. Needs a test build.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::{Cluster, Faults, PATIENCE, Silence, Watch, let_pass, say, wait_until};

/// Longest silence when the leader's disk hangs, ms: it is noticed at the next reservation, at
/// most half a window away, and after one election timeout.
const HANG_SILENCE_MS: u64 = 2500;
/// Longest silence when the leader's disk fails, ms: that of a killed process.
const FAIL_SILENCE_MS: u64 = 1400;

#[test]
fn a_leader_whose_disk_hangs_gives_up_leadership_and_comes_back() {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let leader = cluster.wait_for_leader();
    let from = Instant::now();
    cluster.nodes[leader].break_with(Faults { fsync_hang: true, ..Faults::NONE });
    cluster.wait_for_leader_other_than(Some(leader), Duration::from_secs(5));
    say(&format!("disk hangs: another leads after {:.0} ms", from.elapsed().as_secs_f64() * 1e3));
    watch.wait_for_service_since(Instant::now());
    wait_until("the node whose disk hangs is not ready", Duration::from_secs(5), || {
        !cluster.nodes[leader].is_ready()
    });
    let_pass(Duration::from_secs(1));
    let to = Instant::now();
    assert!(cluster.nodes[leader].is_running(), "a disk that hangs is no reason to exit");
    cluster.nodes[leader].break_with(Faults::NONE);
    cluster.assert_well();
    let seen = watch.finish();
    Silence::of("leader's disk hangs", &seen, &[(from, to)])
        .assert_within(HANG_SILENCE_MS, HANG_SILENCE_MS);
}

#[test]
fn a_node_whose_disk_fails_exits_with_an_error_and_the_others_serve_on() {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let leader = cluster.wait_for_leader();
    let from = Instant::now();
    cluster.nodes[leader].break_with(Faults { fsync_fail: true, ..Faults::NONE });
    let status = cluster.nodes[leader].wait_for_exit(PATIENCE);
    assert!(!status.success(), "an fsync error ends the process with an error: {status}");
    let log = cluster.nodes[leader].log().to_lowercase();
    assert!(log.contains("fsync") || log.contains("disk") || log.contains("storage"), "{log}");
    watch.wait_for_service_since(Instant::now());
    let to = Instant::now();
    cluster.nodes[leader].break_with(Faults::NONE);
    cluster.nodes[leader].start();
    cluster.assert_well();
    let seen = watch.finish();
    Silence::of("leader's disk fails", &seen, &[(from, to)])
        .assert_within(FAIL_SILENCE_MS, FAIL_SILENCE_MS);
}

/// The files of a data directory, and nothing else, in the place of what is there.
fn replace(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for name in ["IDENTITY", "log.redb"] {
        fs::copy(from.join(name), to.join(name)).expect("a file of the data directory");
    }
}

#[test]
fn a_node_whose_data_directory_was_set_back_is_refused_and_says_what_to_do() {
    let mut cluster = Cluster::start();
    let node = cluster.others(cluster.wait_for_leader())[0];
    let data = cluster.nodes[node].data_dir();
    let (older, newest) = (cluster.dir.path().join("older"), cluster.dir.path().join("newest"));
    cluster.nodes[node].kill();
    replace(&data, &older);
    cluster.nodes[node].start();
    cluster.assert_well();
    // A few reservations, and what others hear of them.
    let_pass(Duration::from_secs(3));
    cluster.nodes[node].kill();
    replace(&data, &newest);
    replace(&older, &data);
    // Nobody remembers it but on disk.
    for other in cluster.others(node) {
        cluster.nodes[other].kill();
        cluster.nodes[other].start();
    }
    cluster.wait_for_leader();
    cluster.nodes[node].start();
    let status = cluster.nodes[node].wait_for_exit(PATIENCE);
    assert!(!status.success(), "a disk that was set back ends the process: {status}");
    let log = cluster.nodes[node].log();
    for words in ["was set back to an older state", "put the newest directory back"] {
        assert!(log.contains(words), "{words}: {log}");
    }
    wait_until("the others serve", PATIENCE, || {
        cluster.others(node).into_iter().any(|other| cluster.nodes[other].serves())
    });
    replace(&newest, &data);
    cluster.nodes[node].start();
    cluster.assert_well();
}
