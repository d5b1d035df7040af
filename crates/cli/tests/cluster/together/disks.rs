//! Tests of disks that are too small, and of data directories that were rolled back to an older
//! state.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::support::operator::EXIT_DIRECTORY;
use crate::support::small_disk::{SmallDisk, assert_says_why};
use crate::support::{Cluster, WAIT_MAX, let_pass, wait_until};

/// Size of a disk that is too small even for an empty database, KiB.
const TOO_SMALL_KIB: u64 = 24;

/// Copies the files of the data directory `from` over those of `to`.
fn replace(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for name in ["IDENTITY", "log.redb"] {
        fs::copy(from.join(name), to.join(name)).expect("a file of the data directory");
    }
}

#[test]
fn a_node_whose_data_directory_was_rolled_back_is_refused_and_says_what_to_do() {
    let mut cluster = Cluster::start();
    let node = cluster.others(cluster.wait_for_leader())[0];
    let data = cluster.nodes[node].data_dir();
    let (older, newest) = (cluster.dir.path().join("older"), cluster.dir.path().join("newest"));
    cluster.nodes[node].kill();
    replace(&data, &older);
    cluster.nodes[node].start();
    cluster.assert_well();
    // In this time the leader makes a few reservations. So the node's directory changes, and the
    // other nodes learn its new position.
    let_pass(Duration::from_secs(3));
    cluster.nodes[node].kill();
    replace(&data, &newest);
    replace(&older, &data);
    // The other nodes restart, so they know the position of the killed node only from their own
    // disks.
    for other in cluster.others(node) {
        cluster.nodes[other].kill();
        cluster.nodes[other].start();
    }
    cluster.wait_for_leader();
    cluster.nodes[node].start();
    let status = cluster.nodes[node].wait_for_exit(WAIT_MAX);
    assert_eq!(status.code(), Some(EXIT_DIRECTORY), "it must not be started again: {status}");
    let log = cluster.nodes[node].log();
    for words in ["was rolled back to an older state", "put the newest directory back"] {
        assert!(log.contains(words), "{words}: {log}");
    }
    wait_until("the others serve", WAIT_MAX, || {
        cluster.others(node).into_iter().any(|other| cluster.nodes[other].serves())
    });
    replace(&newest, &data);
    cluster.nodes[node].start();
    cluster.assert_well();
}

#[test]
fn a_node_whose_disk_is_too_small_to_begin_with_refuses_to_start_and_says_why() {
    let mut cluster = Cluster::down(&[]);
    let Some(_disk) = SmallDisk::under(&cluster.nodes[0], TOO_SMALL_KIB) else { return };
    cluster.nodes[0].start();
    let status = cluster.nodes[0].wait_for_exit(WAIT_MAX);
    assert_eq!(status.code(), Some(1), "{status}");
    assert_says_why(&cluster.nodes[0].log());
}
