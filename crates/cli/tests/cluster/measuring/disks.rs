//! The leader's disk hangs, fails or is full. Measures how long clients get no answer, and the time
//! until another node leads. Needs a test build, because only that can break its disk.
//!
//! `EPICEPOCH_OUTAGES=100` measures that many events of each kind (`scripts/outages`).

use std::time::{Duration, Instant};

use crate::support::small_disk::{SmallDisk, assert_says_why};
use crate::support::{
    Cluster, Faults, Silence, WAIT_MAX, Watch, alone, let_pass, outages, say, wait_until,
};

/// Longest time until another node leads, and longest time without an answer, ms. The leader
/// notices a broken disk when it writes its next reservation, which is due within half a window
/// (500 ms). If the disk hangs, the leader notices that when the write has taken longer than an
/// election timeout (200 ms). `EPICEPOCH_OUTAGES_FACTOR` does not change this limit.
const ANOTHER_LEADS_MS: u64 = 1000;
/// How long a disk still hangs after another node has begun to lead.
const HANGS_ON: Duration = Duration::from_millis(500);

/// The times of one event: when the disk was broken, when another node led, and when it served.
struct Event {
    from: Instant,
    led: Instant,
    served: Instant,
}

/// Breaks the leader's disk and waits for the next leader.
fn break_leaders_disk(cluster: &Cluster, watch: &Watch, leader: usize, faults: Faults) -> Event {
    let from = Instant::now();
    cluster.nodes[leader].break_with(faults);
    cluster.wait_for_leader_other_than(Some(leader), WAIT_MAX);
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

/// After the fault, another node leads within a second. Clients are without an answer for at most a
/// second, too.
#[test]
fn a_leader_whose_disk_hangs_gives_up_leadership_and_comes_back() {
    let _alone = alone();
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

/// After the fault, another node leads within a second. Clients are without an answer for at most a
/// second, too.
#[test]
fn a_node_whose_disk_fails_exits_with_an_error_and_the_others_serve_on() {
    let _alone = alone();
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let mut events = Vec::new();
    for _ in 0..outages(4) {
        let leader = cluster.wait_for_leader();
        let fail = Faults { fsync_fail: true, ..Faults::NONE };
        events.push(break_leaders_disk(&cluster, &watch, leader, fail));
        let status = cluster.nodes[leader].wait_for_exit(WAIT_MAX);
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

/// Size of the file system for each node's data, KiB: enough, with some to spare.
const DISK_KIB: u64 = 16 << 10;
/// Longest time without an answer when the leader's disk is full, ms: as long as when the leader's
/// process is killed.
const FULL_SILENCE_MS: u64 = 1400;
/// Longest wait until the leader exits on a full disk. It writes a few times a second, but only
/// some of these writes need more space on the disk.
const EXIT_MAX: Duration = Duration::from_mins(1);
/// Settings with which a leader writes twice as often as with the defaults.
const OFTEN_WRITING: [(&str, &str); 2] =
    [("ELECTION_TIMEOUT_MS", "100"), ("RESERVATION_MS", "400")];

/// The leader's disk is a real file system without a free byte. So the kernel reports in the middle
/// of a write that the disk is full. Clients are without an answer for at most 1.4 s. The test
/// needs the right to mount.
#[test]
fn a_leader_whose_disk_is_full_exits_with_an_error_and_comes_back_when_there_is_room() {
    let _alone = alone();
    let mut cluster = Cluster::down(&OFTEN_WRITING);
    let disks: Vec<_> =
        cluster.nodes.iter().map_while(|node| SmallDisk::under(node, DISK_KIB)).collect();
    if disks.len() < cluster.nodes.len() {
        return;
    }
    cluster.start_all();
    cluster.wait_until_ready();
    let watch = Watch::start(&cluster);
    let leader = cluster.wait_for_leader();
    let from = Instant::now();
    disks[leader].fill();
    let status = cluster.nodes[leader].wait_for_exit(EXIT_MAX);
    say(&format!("disk full: exits after {:.1} s: {status}", from.elapsed().as_secs_f64()));
    assert_eq!(status.code(), Some(1), "a full disk ends the process with an error");
    assert_says_why(&cluster.nodes[leader].log());
    watch.wait_for_service_since(Instant::now());
    let to = Instant::now();
    // The node is started while its disk is still full. It may run or exit, but the others must
    // serve.
    cluster.nodes[leader].start();
    watch.wait_for_service_since(Instant::now());
    cluster.nodes[leader].kill();
    disks[leader].free();
    cluster.nodes[leader].start();
    cluster.assert_well();
    let seen = watch.finish();
    Silence::of("leader's disk is full", &seen, &[(from, to)]).assert_within(FULL_SILENCE_MS);
}
