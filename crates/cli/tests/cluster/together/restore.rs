//! A lost cluster is restored from a backup. Every timestamp of the new history is above every
//! timestamp of the old history. If this cannot be proved, the restore is refused. Needs a test
//! build, because only that can break its clock.

use super::tls::secure_peers;
use crate::support::cluster::peers;
use crate::support::operator::EXIT_DIRECTORY;
use crate::support::{
    Cluster, Faults, LinkedCluster, Node, WAIT_MAX, Watch, holds_for, let_pass, wait_until,
};
use epicepoch_bench::{Operation, Outcome};
use epicepoch_client::{Client, Options, TimestampsError};
use epicepoch_link::Fault;
use epicepoch_wire::{Epoch, EpochIndex, Timestamp};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The old cluster runs for this long after its backup.
const AFTER: Duration = Duration::from_secs(2);

/// Makes a backup and checks it.
fn back_up(cluster: &Cluster, name: &str) -> PathBuf {
    let path = cluster.dir.path().join(name);
    let out = path.to_str().expect("plain path");
    let said = cluster.order(&["backup", "--out", out]);
    assert!(said.contains("written, from 127.0.0.1"), "{said}");
    let checked = cluster.run(&["backup", "--check", out]);
    assert!(checked.status.success(), "{checked:?}");
    path
}

/// Kills all processes and deletes all data directories.
fn destroy(cluster: &mut Cluster) {
    cluster.kill_all();
    cluster.nodes.iter().for_each(Node::wipe);
}

fn restore_from(cluster: &mut Cluster, backup: &Path) {
    for node in &mut cluster.nodes {
        node.set("RESTORE", backup.display());
        node.set("RESTORE_LEASE_MS", 0);
    }
}

fn greatest(operations: &[Operation]) -> Timestamp {
    let last = operations.iter().filter_map(|operation| match &operation.outcome {
        Outcome::Answered(range) => Some(range.last()),
        _ => None,
    });
    last.max().expect("an answer")
}

fn least(operations: &[Operation]) -> Timestamp {
    let first = operations.iter().filter_map(|operation| match &operation.outcome {
        Outcome::Answered(range) => Some(range.first()),
        _ => None,
    });
    first.min().expect("an answer")
}

/// Returns the cluster id and the history id, which every answer has in a header.
fn history(cluster: &Cluster) -> (String, String) {
    let answer = cluster.nodes.iter().find_map(|node| node.ask("/up")).expect("an answer");
    let header = answer.header("epicepoch-cluster").expect("the header").to_owned();
    let (cluster, history) = header.split_once('.').expect("both");
    (cluster.to_owned(), history.to_owned())
}

/// Checks that the founder exits with code 1, that its log has all these words, and that no node
/// serves.
#[track_caller]
fn assert_not_founded(cluster: &mut Cluster, words: &[&str]) {
    let status = cluster.nodes[0].wait_for_exit(WAIT_MAX);
    let log = cluster.nodes[0].log();
    assert_eq!(status.code(), Some(1), "{log}");
    for word in words {
        assert!(log.contains(word), "{word:?} in {log}");
    }
    assert!(!cluster.nodes.iter().any(Node::serves), "no node gives timestamps");
}

#[test]
fn a_history_restored_from_an_old_backup_begins_above_every_later_timestamp() {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let backup = back_up(&cluster, "old.backup");
    let out = backup.to_str().expect("plain path").to_owned();
    cluster.assert_refused(&["backup", "--out", &out], &["exists already", "--force"]);
    let addrs: Vec<_> = cluster.nodes.iter().map(|node| node.http().to_string()).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = Client::new(addrs, Options::default()).unwrap();
    let ask = |client: &Client| {
        let deadline = Instant::now() + WAIT_MAX;
        runtime.block_on(client.timestamps_before(1, deadline))
    };
    ask(&client).expect("the old history");
    // After the backup, the old history goes on for more than two seconds, and gets another leader.
    let leader = cluster.wait_for_leader();
    cluster.nodes[leader].kill();
    let_pass(AFTER);
    watch.wait_for_service_since(Instant::now());
    let given = greatest(&watch.finish().report.operations);
    let before = history(&cluster);
    // All data directories are lost, except the one of node 3, which is found later.
    cluster.nodes.iter_mut().for_each(Node::kill);
    let found = cluster.dir.path().join("found");
    fs::rename(cluster.nodes[2].data_dir(), &found).expect("moved");
    for node in &cluster.nodes[..2] {
        node.wipe();
    }
    restore_from(&mut cluster, &backup);
    cluster.start_all();
    cluster.wait_until_ready();
    let watch = Watch::start(&cluster);
    let seen = watch.finish();
    assert!(least(&seen.report.operations) > given, "above all that was given");
    let after = history(&cluster);
    assert_eq!(after.0, before.0, "the same cluster");
    assert!(after.1 > before.1, "a higher history: {after:?} after {before:?}");
    match ask(&client) {
        Err(TimestampsError::AnotherCluster(error)) => assert!(error.is_restored(), "{error}"),
        other => panic!("the old client must notice: {other:?}"),
    }
    // The data directory of node 3 is found. It belongs to a history that has ended, so its node
    // must not run.
    let mut old = Node::new(3, cluster.dir.path(), "node-found");
    fs::rename(&found, old.data_dir()).expect("moved back");
    let [first, second] = [0, 1].map(|index: usize| cluster.nodes[index].raft_addr());
    old.set("PEERS", format!("1={first},2={second},3={}", old.raft_addr()));
    old.set("BOOTSTRAP", 1);
    old.start();
    let status = old.wait_for_exit(WAIT_MAX);
    assert_eq!(status.code(), Some(EXIT_DIRECTORY), "{}", old.log());
    assert!(old.log().contains("has ended"), "{}", old.log());
    // All nodes start again with RESTORE still set. The setting has no effect, because there is
    // data.
    cluster.kill_all();
    cluster.start_all();
    cluster.wait_until_ready();
    assert_eq!(history(&cluster), after);
    cluster.assert_well();
}

/// With format 2, the replicated state has no settings. Then a backup has the longest settings that
/// any node has.
#[test]
fn a_backup_has_the_longest_settings_of_all_nodes_also_of_those_that_are_not_asked() {
    let mut cluster = Cluster::down(&[("FORMAT_MAX", "2")]);
    cluster.nodes[0].set("RESERVATION_MS", 7_000);
    cluster.nodes[1].set("CLOCK_OFFSET_MAX_MS", 900);
    cluster.start_all();
    cluster.wait_until_ready();
    let asked = cluster.nodes[2].http().to_string();
    let out = ["backup", "--out", "-", "--addr", &asked];
    wait_until("the peers have said hello", WAIT_MAX, || {
        let backup = String::from_utf8_lossy(&cluster.run(&out).stdout).into_owned();
        backup.contains("reservation_ms 7000\nclock_offset_max_ms 900\n")
    });
}

const SETTINGS: [&str; 4] =
    ["EPOCH_INTERVAL_MS=50", "LEADER_ZONES=near", "MAX_N=1000", "RESERVATION_MS=1500"];

/// Returns the settings of the cluster, one on each line; `None` while there are none.
fn listed(cluster: &Cluster) -> Option<String> {
    let output = cluster.operate(&["settings", "list"]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    output.status.success().then_some(text).filter(|text| text.contains("MAX_N="))
}

fn wait_for_settings(cluster: &Cluster) -> String {
    let mut settings = None;
    wait_until("the cluster has settings", WAIT_MAX, || {
        settings = listed(cluster);
        settings.is_some()
    });
    settings.expect("the wait is over")
}

/// Makes a cluster with settings of its own, backs it up, and destroys it.
fn lost_with_settings() -> (Cluster, PathBuf) {
    let mut cluster = Cluster::down(&[("ZONE", "near")]);
    cluster.start_all();
    cluster.wait_until_ready();
    wait_for_settings(&cluster);
    cluster.order(&[&["settings", "set"][..], &SETTINGS].concat());
    let backup = back_up(&cluster, "set.backup");
    destroy(&mut cluster);
    restore_from(&mut cluster, &backup);
    (cluster, backup)
}

/// Starts all nodes, and checks the settings of the cluster.
fn assert_settings_are_kept(cluster: &mut Cluster) {
    cluster.start_all();
    cluster.wait_until_ready();
    let settings = wait_for_settings(cluster);
    for setting in SETTINGS {
        assert!(settings.lines().any(|line| line == setting), "{setting} in {settings}");
    }
}

#[test]
fn a_restored_cluster_keeps_the_settings_of_the_old_one() {
    let (mut cluster, backup) = lost_with_settings();
    let path = backup.display().to_string();
    let checked = cluster.run(&["backup", "--check", &path]);
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(said.contains("MAX_N=1000"), "{said}");
    assert_settings_are_kept(&mut cluster);
}

/// The settings enter the replicated state a moment after the founding. A node that stops before
/// that must not replace them by its own afterwards.
#[test]
fn a_restore_that_is_interrupted_before_it_has_settings_keeps_the_old_ones() {
    let (mut cluster, _) = lost_with_settings();
    for node in &mut cluster.nodes {
        node.set("FORMAT_MAX", 2);
    }
    cluster.start_all();
    cluster.wait_until_ready();
    assert_eq!(listed(&cluster), None, "format 2 has no settings");
    cluster.kill_all();
    for node in &mut cluster.nodes {
        node.unset("FORMAT_MAX");
    }
    assert_settings_are_kept(&mut cluster);
}

#[test]
fn a_lost_majority_is_restored_from_the_directory_of_the_survivor() {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let_pass(Duration::from_millis(500));
    let given = greatest(&watch.finish().report.operations);
    for node in &mut cluster.nodes[..2] {
        node.kill();
        node.wipe();
    }
    let path = cluster.dir.path().join("survivor.backup");
    let out = path.to_str().expect("plain path").to_owned();
    let data = cluster.nodes[2].data_dir();
    let data = data.to_str().expect("plain path").to_owned();
    let settings = ["--reservation-ms", "1000", "--clock-offset-max-ms", "500"];
    let read = [&["backup", "--data-dir", &data, "--out", &out][..], &settings].concat();
    let refused = cluster.run(&read);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{text}");
    assert!(text.contains("in use by another process"), "{text}");
    cluster.nodes[2].kill();
    let written = cluster.run(&read);
    assert!(written.status.success(), "{written:?}");
    // A data directory does not contain these two settings. If the operator does not give them, the
    // command assumes the longest allowed ones.
    // S13: the node stopped long ago, and the others may have gone on since.
    let log = File::options().write(true).open(cluster.nodes[2].data_dir().join("log.redb"));
    let stopped_at = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    log.and_then(|log| log.set_modified(stopped_at)).expect("it is there");
    let other = cluster.dir.path().join("unsaid.backup");
    let other = other.to_str().expect("plain path").to_owned();
    let unsaid = cluster.run(&["backup", "--data-dir", &data, "--out", &other]);
    let text = String::from_utf8_lossy(&unsaid.stdout).into_owned();
    assert!(text.contains("60000 ms, clocks within 60000 ms"), "{text}");
    assert!(text.contains("taken    2023-11-14"), "{text}");
    cluster.nodes[2].wipe();
    restore_from(&mut cluster, &path);
    cluster.start_all();
    cluster.wait_until_ready();
    let seen = Watch::start(&cluster).finish();
    assert!(least(&seen.report.operations) > given, "above all that was given");
    cluster.assert_well();
}

#[test]
fn a_floor_that_wrong_clocks_cannot_prove_is_refused() {
    let mut cluster = Cluster::start();
    let backup = back_up(&cluster, "a.backup");
    destroy(&mut cluster);
    restore_from(&mut cluster, &backup);
    // All clocks are an hour behind. So they show a time before the backup was taken.
    for node in &cluster.nodes {
        node.break_with(Faults::wall_offset_hours(-1));
    }
    cluster.start_all();
    assert_not_founded(&mut cluster, &["before the backup was taken", "set the clocks right"]);
    // Only one clock is an hour ahead. The nodes cannot know which clock is wrong.
    destroy(&mut cluster);
    for node in &cluster.nodes {
        node.break_with(Faults::NONE);
    }
    cluster.nodes[2].break_with(Faults::wall_offset_hours(1));
    cluster.start_all();
    assert_not_founded(&mut cluster, &["ms apart", "nodes 1 and 3"]);
    // All clocks are right again.
    cluster.nodes[2].break_with(Faults::NONE);
    cluster.nodes[0].start();
    cluster.wait_until_ready();
    cluster.assert_well();
}

#[test]
fn a_backup_that_differs_between_nodes_is_damaged_or_of_another_cluster_is_refused() {
    let mut cluster = Cluster::start();
    let backup = back_up(&cluster, "a.backup");
    let other = back_up(&cluster, "b.backup");
    destroy(&mut cluster);
    restore_from(&mut cluster, &backup);
    cluster.nodes[1].set("RESTORE", other.display());
    cluster.nodes[2].unset("RESTORE");
    cluster.start_all();
    wait_until("the founder says why it waits", WAIT_MAX, || {
        let log = cluster.nodes[0].log();
        log.contains("RESTORE of node 2 is another backup") && log.contains("3 has no RESTORE")
    });
    holds_for("nobody serves", Duration::from_secs(1), || !cluster.nodes.iter().any(Node::serves));
    destroy(&mut cluster);
    // Two files are refused: one is damaged, the other belongs to a cluster with another name.
    let text = fs::read_to_string(&backup).expect("read");
    let rotten = cluster.dir.path().join("rotten.backup");
    fs::write(&rotten, text.replace("index ", "index 1")).expect("written");
    let checked = cluster.run(&["backup", "--check", &rotten.display().to_string()]);
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert_eq!(checked.status.code(), Some(1), "{said}");
    assert!(said.contains("damaged one; get another copy") && !said.contains("RESTORE"), "{said}");
    // The words contain escaped quotes, because a log line is JSON.
    for (path, name, words) in [
        (&rotten, "epicepoch", ["RESTORE: ", "damaged one; get another copy"]),
        (&backup, "another", ["named \\\"epicepoch\\\"", "correct one of the two"]),
    ] {
        fs::remove_dir_all(cluster.nodes[0].data_dir()).ok();
        cluster.nodes[0].set("RESTORE", path.display());
        cluster.nodes[0].set("CLUSTER", name);
        cluster.nodes[0].start();
        let status = cluster.nodes[0].wait_for_exit(WAIT_MAX);
        let log = cluster.nodes[0].log();
        assert_eq!(status.code(), Some(1), "{log}");
        for word in words {
            assert!(log.contains(word), "{word:?} in {log}");
        }
    }
}

/// The node's clock is outvoted by the others. The backup does not have the time of that clock, but
/// the time that the node trusts.
#[test]
fn a_backup_through_a_node_whose_clock_is_ahead_can_be_restored() {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let ahead = cluster.others(cluster.wait_for_leader())[0];
    cluster.nodes[ahead].break_with(Faults::wall_offset_hours(1));
    wait_until("its clock is outvoted", WAIT_MAX, || {
        cluster.nodes[ahead].log().contains("the wall clock is off")
    });
    let path = cluster.dir.path().join("ahead.backup");
    let out = path.to_str().expect("plain path");
    let addr = cluster.nodes[ahead].http().to_string();
    let taken = cluster.run(&["backup", "--out", out, "--addr", &addr]);
    // One of three nodes may not know the last changes.
    assert_eq!(taken.status.code(), Some(1), "{taken:?}");
    let said = String::from_utf8_lossy(&taken.stderr).into_owned();
    assert!(said.contains("may miss the last changes") && said.contains("1 of 3"), "{said}");
    let given = greatest(&watch.finish().report.operations);
    destroy(&mut cluster);
    cluster.nodes[ahead].break_with(Faults::NONE);
    restore_from(&mut cluster, &path);
    cluster.start_all();
    cluster.wait_until_ready();
    let watch = Watch::start(&cluster);
    watch.wait_for_service_since(Instant::now());
    assert!(least(&watch.finish().report.operations) > given);
}

/// The founder measures the other clocks over links with TLS. The handshake takes several round
/// trips, and the request after it only one. Only this one must be within the bound.
#[test]
fn a_restore_over_links_whose_round_trip_is_within_the_bound_does_not_count_the_handshake() {
    let home = tempfile::tempdir().expect("a directory");
    let mut cluster = Cluster::down_calm(&[("CLOCK_OFFSET_MAX_MS", "450")]);
    secure_peers(&mut cluster, home.path());
    let mut cluster = LinkedCluster::start_of(cluster, 7);
    let backup = back_up(&cluster, "far.backup");
    destroy(&mut cluster);
    restore_from(&mut cluster, &backup);
    // The round trip is 300 ms.
    cluster.set_all(Fault::delay(Duration::from_millis(150)));
    cluster.start_all();
    cluster.wait_until_ready();
    let begun = "a new history of the cluster begins";
    assert!(cluster.nodes[0].log().contains(begun), "by proof");
    cluster.links.heal();
}

#[test]
fn no_new_history_begins_while_a_node_of_the_old_one_runs() {
    let mut cluster = Cluster::start();
    let backup = back_up(&cluster, "a.backup");
    let watch = Watch::start(&cluster);
    // New machines are to restore the backup, but the old cluster still runs.
    let new: Vec<_> =
        (1..=3).map(|id| Node::new(id, cluster.dir.path(), &format!("new-{id}"))).collect();
    let peers = peers(&new);
    let mut old = std::mem::replace(&mut cluster.nodes, new);
    for node in &mut cluster.nodes {
        node.set("PEERS", &peers);
        node.set("BOOTSTRAP", 1);
    }
    restore_from(&mut cluster, &backup);
    cluster.start_all();
    assert_not_founded(&mut cluster, &["a node of the old history still runs at 127.0.0.1"]);
    watch.wait_for_service_since(Instant::now());
    let given = greatest(&watch.finish().report.operations);
    // The old nodes are paused. They may continue at any time, so the restore must still be
    // refused.
    old.iter_mut().for_each(Node::pause);
    cluster.nodes[0].start();
    assert_not_founded(
        &mut cluster,
        &["accepts connections and does not identify itself: no answer"],
    );
    old.iter_mut().for_each(Node::kill);
    cluster.nodes[0].start();
    cluster.wait_until_ready();
    let seen = Watch::start(&cluster).finish();
    assert!(least(&seen.report.operations) > given, "above all that was given");
}

/// Tests the recipes of "Move here from another oracle" in `docs/operations/backup-and-restore.md`.
/// The floor is given in three ways: as a timestamp of this service, as milliseconds from PD, and
/// as a counter in nanoseconds.
#[test]
fn a_cluster_begins_above_a_floor_given_as_a_timestamp_in_milliseconds_or_nanoseconds() {
    let since = |ahead: Duration| {
        (SystemTime::now() + ahead).duration_since(UNIX_EPOCH).expect("after 1970")
    };
    let hour_ahead = Timestamp::highest_at(since(Duration::from_hours(1)).as_nanos() as u64);
    let ahead = since(Duration::from_mins(10));
    // `tso` is the last timestamp that PD can give in its millisecond. `counter` is a counter that
    // has passed 10^18.
    let tso = (ahead.as_millis() as u64) << 18 | 0x3_ffff;
    let counter = ahead.as_nanos() as u64;
    let stored = |epoch, index| Timestamp { epoch: Epoch(epoch), index: EpochIndex(index) };
    let mut cluster = Cluster::down(&[]);
    for (floor, last_there) in [
        (hour_ahead.to_string(), hour_ahead),
        (format!("{}ms", tso >> 18), stored((tso >> 18) * 1_000_000, tso & 0x3_ffff)),
        (format!("{counter}ns"), stored(counter, 0)),
    ] {
        for node in &mut cluster.nodes {
            node.set("RESTORE_FLOOR", &floor);
            node.set("RESTORE_LEASE_MS", 0);
        }
        cluster.start_all();
        cluster.wait_until_ready();
        let first = least(&Watch::start(&cluster).finish().report.operations);
        assert!(first > last_there, "{floor}: {first} and {last_there}");
        assert!(first.to_bytes() > last_there.to_bytes(), "as keys, too");
        let clocks = cluster.operate(&["clock"]);
        let text = String::from_utf8_lossy(&clocks.stdout).into_owned();
        assert!(text.contains("epochs are ahead of the clocks"), "{text}");
        destroy(&mut cluster);
    }
    // A floor with a wrong digit lies far ahead of the clock. It is refused.
    for node in &mut cluster.nodes {
        node.set("RESTORE_FLOOR", "7258118400s");
    }
    cluster.start_all();
    assert_not_founded(&mut cluster, &["RESTORE_FLOOR", "more than 366 days"]);
}
