//! A disk that is really full: a small file system under a data directory, filled to the last
//! byte, so that the kernel says so in the middle of a write. Needs the right to mount.

use std::time::{Duration, Instant};

use crate::support::small_disk::SmallDisk;
use crate::support::{Cluster, PATIENCE, Silence, Watch, say};

/// Room for what a node stores, with some to spare.
const DISK_KIB: u64 = 16 << 10;
/// Less than an empty database takes.
const TOO_SMALL_KIB: u64 = 24;
/// Longest silence when the leader's disk is full, ms: that of a killed process.
const SILENCE_MS: u64 = 1400;
/// A leader writes a few times in a second, and now and then needs a page more.
const EXIT_MAX: Duration = Duration::from_mins(1);
/// Twice as many writes as with the defaults.
const SETTINGS: [(&str, &str); 2] = [("ELECTION_TIMEOUT_MS", "100"), ("RESERVATION_MS", "400")];

/// What the log of a node must say when its disk is full.
#[track_caller]
fn assert_says_why(log: &str) {
    let log = log.to_lowercase();
    let says = |word| log.contains(word);
    assert!(says("no space left") || says("storage full"), "it does not say why: {log}");
}

#[test]
fn a_leader_whose_disk_is_full_exits_with_an_error_and_comes_back_when_there_is_room() {
    let mut cluster = Cluster::down(&SETTINGS);
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
    // Started while the disk is still full it may run or refuse, but never in between.
    cluster.nodes[leader].start();
    watch.wait_for_service_since(Instant::now());
    cluster.nodes[leader].kill();
    disks[leader].free();
    cluster.nodes[leader].start();
    cluster.assert_well();
    let seen = watch.finish();
    Silence::of("leader's disk is full", &seen, &[(from, to)]).assert_within(SILENCE_MS);
}

#[test]
fn a_node_whose_disk_is_too_small_to_begin_with_refuses_to_start_and_says_why() {
    let mut cluster = Cluster::down(&[]);
    let Some(_disk) = SmallDisk::under(&cluster.nodes[0], TOO_SMALL_KIB) else { return };
    cluster.nodes[0].start();
    let status = cluster.nodes[0].wait_for_exit(PATIENCE);
    assert_eq!(status.code(), Some(1), "{status}");
    assert_says_why(&cluster.nodes[0].log());
}
