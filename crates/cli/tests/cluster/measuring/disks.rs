//! The leader's disk hangs, fails or is full. Measures the silence, and the time until another node
//! leads. Needs a test build.
//!
//! `EPICEPOCH_OUTAGES=100` measures that many events of each kind (`scripts/outages`).

use std::time::{Duration, Instant};

use crate::support::small_disk::{SmallDisk, assert_says_why};
use crate::support::{
    Cluster, Faults, Silence, WAIT_MAX, Watch, alone, let_pass, outages, say, wait_until,
};

/// Longest time until another node leads, and longest silence, ms. The fault is noticed at the next
/// reservation, which is due within half a window (500 ms). A disk that hangs is noticed when that
/// write takes longer than an election timeout (200 ms). `EPICEPOCH_OUTAGES_FACTOR` does not change
/// this limit.
const ANOTHER_LEADS_MS: u64 = 1000;
/// How long a disk still hangs after another node leads.
const HANGS_ON: Duration = Duration::from_millis(500);

/// Times of one event: the disk was broken, another node led, another node served.
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

/// The silence is at most a second. The time until another node leads is at most a second, too.
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

/// The silence is at most a second. The time until another node leads is at most a second, too.
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

/// Size of the disk, KiB: enough for a node's data, with some to spare.
const DISK_KIB: u64 = 16 << 10;
/// Longest silence when the leader's disk is full, ms: as long as for a killed process.
const FULL_SILENCE_MS: u64 = 1400;
/// Longest wait until the leader exits. It writes a few times a second, but only some writes need
/// another page.
const EXIT_MAX: Duration = Duration::from_mins(1);
/// Settings with which a leader writes twice as often as with the defaults.
const OFTEN_WRITING: [(&str, &str); 2] =
    [("ELECTION_TIMEOUT_MS", "100"), ("RESERVATION_MS", "400")];

/// The silence is at most 1.4 s. The disk is a real file system without a free byte, so the kernel
/// reports that it is full in the middle of a write. The test needs the right to mount.
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
    // Started while its disk is still full, the node may run or exit.
    cluster.nodes[leader].start();
    watch.wait_for_service_since(Instant::now());
    cluster.nodes[leader].kill();
    disks[leader].free();
    cluster.nodes[leader].start();
    cluster.assert_well();
    let seen = watch.finish();
    Silence::of("leader's disk is full", &seen, &[(from, to)]).assert_within(FULL_SILENCE_MS);
}
