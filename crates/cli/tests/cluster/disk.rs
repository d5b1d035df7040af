//! Disks that hang or fail under a leader. Needs a test build.
//!
//! `EPICEPOCH_OUTAGES=100` makes the measured events that many (`scripts/outages`).

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::members::EXIT_DIRECTORY;
use crate::support::{Cluster, Faults, PATIENCE, Silence, Watch, let_pass, outages, wait_until};

/// How long it may take from the moment in which the leader's disk begins to hang or to fail until
/// another leads, and how long nobody may answer meanwhile, ms: it is noticed at the next reservation,
/// which half a window (500 ms) later has to be asked for at the latest; a hang when that has been
/// outstanding for an election timeout (200 ms). Whatever `EPICEPOCH_OUTAGES_FACTOR` is.
const ANOTHER_LEADS_MS: u64 = 1000;
/// How long a disk goes on to hang when another leads.
const HANGS_ON: Duration = Duration::from_millis(500);

/// When a disk was broken, when another led, and when it served.
struct Event {
    from: Instant,
    led: Instant,
    served: Instant,
}

/// Breaks the leader's disk and waits for the next one.
fn break_leaders_disk(cluster: &Cluster, watch: &Watch, leader: usize, faults: Faults) -> Event {
    let from = Instant::now();
    cluster.nodes[leader].break_with(faults);
    cluster.wait_for_leader_other_than(Some(leader), PATIENCE);
    let led = Instant::now();
    watch.wait_for_service_since(led);
    Event { from, led, served: Instant::now() }
}

#[track_caller]
fn assert_soon(led: &'static str, silent: &'static str, watch: Watch, events: &[Event]) {
    let seen = watch.finish();
    let until = |to: fn(&Event) -> Instant| -> Vec<_> {
        events.iter().map(|event| (event.from, to(event))).collect()
    };
    Silence::until_another_leads(led, &seen, &until(|event| event.led))
        .assert_within(ANOTHER_LEADS_MS);
    Silence::of(silent, &seen, &until(|event| event.served)).assert_within(ANOTHER_LEADS_MS);
}

#[test]
fn a_leader_whose_disk_hangs_gives_up_leadership_and_comes_back() {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let mut events = Vec::new();
    for _ in 0..outages(4) {
        let leader = cluster.wait_for_leader();
        let hang = Faults { fsync_hang: true, ..Faults::NONE };
        events.push(break_leaders_disk(&cluster, &watch, leader, hang));
        wait_until("the node whose disk hangs is not ready", Duration::from_secs(5), || {
            !cluster.nodes[leader].is_ready()
        });
        let_pass(HANGS_ON);
        assert!(cluster.nodes[leader].is_running(), "a disk that hangs is no reason to exit");
        cluster.nodes[leader].break_with(Faults::NONE);
        cluster.wait_until_ready();
    }
    cluster.assert_well();
    assert_soon("the leader's disk hangs", "leader's disk hangs", watch, &events);
}

#[test]
fn a_node_whose_disk_fails_exits_with_an_error_and_the_others_serve_on() {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let mut events = Vec::new();
    for _ in 0..outages(4) {
        let leader = cluster.wait_for_leader();
        let fail = Faults { fsync_fail: true, ..Faults::NONE };
        events.push(break_leaders_disk(&cluster, &watch, leader, fail));
        let status = cluster.nodes[leader].wait_for_exit(PATIENCE);
        assert_eq!(status.code(), Some(1), "an fsync error ends the process with an error");
        let log = cluster.nodes[leader].log().to_lowercase();
        assert!(log.contains("fsync") || log.contains("disk") || log.contains("storage"), "{log}");
        cluster.nodes[leader].break_with(Faults::NONE);
        cluster.nodes[leader].start();
        cluster.wait_until_ready();
    }
    cluster.assert_well();
    assert_soon("the leader's disk fails", "leader's disk fails", watch, &events);
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
    assert_eq!(status.code(), Some(EXIT_DIRECTORY), "what may not be started again ends: {status}");
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
