//! A cluster that is lost is restored from a backup: every timestamp of the new history is above every
//! one of the old, and what cannot be proved to be so is refused. Needs a test build.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use epicepoch_bench::{Operation, Outcome};
use epicepoch_client::{Client, Options, TimestampsError};
use epicepoch_link::Fault;
use epicepoch_wire::{Epoch, EpochIndex, Timestamp};

use crate::members::EXIT_DIRECTORY;
use crate::support::cluster::peers;
use crate::support::{
    Cluster, Faults, LinkedCluster, Node, PATIENCE, Watch, holds_for, let_pass, wait_until,
};
use crate::tls::secure_peers;

/// How long the old cluster goes on after its backup.
const AFTER: Duration = Duration::from_secs(2);

/// Takes a backup, and looks at it.
fn back_up(cluster: &Cluster, name: &str) -> PathBuf {
    let path = cluster.dir.path().join(name);
    let out = path.to_str().expect("plain path");
    let said = cluster.order(&["backup", "--out", out]);
    assert!(said.contains("written, from 127.0.0.1"), "{said}");
    let checked = cluster.run(&["backup", "--check", out]);
    assert!(checked.status.success(), "{checked:?}");
    path
}

/// Ends every process, and every disk with it.
fn destroy(cluster: &mut Cluster) {
    cluster.kill_all();
    cluster.nodes.iter().for_each(Node::wipe);
}

fn restore_from(cluster: &mut Cluster, backup: &Path) {
    for node in &mut cluster.nodes {
        node.set("RESTORE", backup.display());
    }
}

fn greatest(operations: &[Operation]) -> Timestamp {
    let last = operations.iter().filter_map(|operation| match &operation.outcome {
        Outcome::Answered(range) => Some(range.last()),
        _ => None,
    });
    last.max().expect("somebody was answered")
}

fn least(operations: &[Operation]) -> Timestamp {
    let first = operations.iter().filter_map(|operation| match &operation.outcome {
        Outcome::Answered(range) => Some(range.first()),
        _ => None,
    });
    first.min().expect("somebody was answered")
}

/// Cluster and history, as every answer carries them.
fn history(cluster: &Cluster) -> (String, String) {
    let answer = cluster.nodes[0].ask("/up").expect("an answer");
    let header = answer.header("epicepoch-cluster").expect("the header").to_owned();
    let (cluster, history) = header.split_once('.').expect("both");
    (cluster.to_owned(), history.to_owned())
}

/// The founder ends with 1 in words that hold all of these.
#[track_caller]
fn assert_not_founded(cluster: &mut Cluster, words: &[&str]) {
    let status = cluster.nodes[0].wait_for_exit(PATIENCE);
    let log = cluster.nodes[0].log();
    assert_eq!(status.code(), Some(1), "{log}");
    for word in words {
        assert!(log.contains(word), "{word:?} in {log}");
    }
    assert!(!cluster.nodes.iter().any(Node::serves), "nobody may give timestamps");
}

#[test]
fn a_history_restored_from_an_old_backup_begins_above_everything_that_was_given_since() {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let backup = back_up(&cluster, "old.backup");
    let out = backup.to_str().expect("plain path").to_owned();
    cluster.assert_refused(&["backup", "--out", &out], &["is there already", "--force"]);
    let addrs: Vec<_> = cluster.nodes.iter().map(|node| node.http().to_string()).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = Client::new(addrs, Options::default()).unwrap();
    let ask = |client: &Client| {
        let deadline = Instant::now() + PATIENCE;
        runtime.block_on(client.timestamps_before(1, deadline))
    };
    ask(&client).expect("the old history");
    // The old history goes on long after its backup, also under another leader.
    let leader = cluster.wait_for_leader();
    cluster.nodes[leader].kill();
    let_pass(AFTER);
    watch.wait_for_service_since(Instant::now());
    let given = greatest(&watch.finish().report.operations);
    let before = history_of_any(&cluster);
    // All is lost but one node's disk, which somebody finds later.
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
        other => panic!("the old client has to notice: {other:?}"),
    }
    // The disk that is found again is of a history that has ended.
    let mut old = Node::new(3, cluster.dir.path(), "node-found");
    fs::rename(&found, old.data_dir()).expect("moved back");
    let [first, second] = [0, 1].map(|index: usize| cluster.nodes[index].raft_addr());
    old.set("PEERS", format!("1={first},2={second},3={}", old.raft_addr()));
    old.set("BOOTSTRAP", 1);
    old.start();
    let status = old.wait_for_exit(PATIENCE);
    assert_eq!(status.code(), Some(EXIT_DIRECTORY), "{}", old.log());
    assert!(old.log().contains("has ended"), "{}", old.log());
    // What is set for the first start does nothing at a later one.
    cluster.kill_all();
    cluster.start_all();
    cluster.wait_until_ready();
    assert_eq!(history(&cluster), after);
    cluster.assert_well();
}

fn history_of_any(cluster: &Cluster) -> (String, String) {
    let answer = cluster.nodes.iter().find_map(|node| node.ask("/up")).expect("an answer");
    let header = answer.header("epicepoch-cluster").expect("the header").to_owned();
    let (cluster, history) = header.split_once('.').expect("both");
    (cluster.to_owned(), history.to_owned())
}

#[test]
fn a_backup_has_the_longest_settings_of_all_nodes_also_of_those_that_are_not_asked() {
    // As long as there are no settings in the replicated state.
    let mut cluster = Cluster::down(&[("FORMAT_MAX", "2")]);
    cluster.nodes[0].set("RESERVATION_MS", 7_000);
    cluster.nodes[1].set("CLOCK_OFFSET_MAX_MS", 900);
    cluster.start_all();
    cluster.wait_until_ready();
    let asked = cluster.nodes[2].http().to_string();
    let out = ["backup", "--out", "-", "--addr", &asked];
    wait_until("the peers have introduced themselves", PATIENCE, || {
        let backup = String::from_utf8_lossy(&cluster.run(&out).stdout).into_owned();
        backup.contains("reservation_ms 7000\nclock_offset_max_ms 900\n")
    });
}

#[test]
fn a_restore_goes_by_the_longest_window_that_there_was_and_not_by_the_one_of_the_backup() {
    const LONG_MS: u64 = 30_000;
    let mut cluster = Cluster::start();
    wait_until("there are settings", PATIENCE, || {
        let output = cluster.operate(&["settings", "list"]);
        String::from_utf8_lossy(&output.stdout).contains("RESERVATION_MS=1000\n")
    });
    let long = format!("RESERVATION_MS={LONG_MS}");
    cluster.order(&["settings", "set", &long]);
    // Somebody has led by it, and the ceiling is that far ahead.
    let is_far_ahead = |cluster: &Cluster| {
        let output = cluster.operate(&["clock", "--json"]);
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let nodes = shown["nodes"].as_array().expect("nodes");
        nodes.iter().any(|node| node["leadMs"].as_f64() > Some(LONG_MS as f64 / 2.0))
    };
    wait_until("the ceiling follows", PATIENCE, || is_far_ahead(&cluster));
    cluster.order(&["settings", "set", "RESERVATION_MS=1000"]);
    let backup = back_up(&cluster, "short.backup");
    let text = fs::read_to_string(&backup).expect("a backup");
    assert!(text.contains(&format!("reservation_ms {LONG_MS}\n")), "{text}");
    let watch = Watch::start(&cluster);
    let_pass(Duration::from_millis(500));
    let given = greatest(&watch.finish().report.operations);
    let destroyed = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is past 1970");
    destroy(&mut cluster);
    restore_from(&mut cluster, &backup);
    cluster.start_all();
    cluster.wait_until_ready();
    let watch = Watch::start(&cluster);
    let_pass(Duration::from_millis(200));
    let first = least(&watch.finish().report.operations);
    assert!(first > given, "above all that was given");
    // Whatever a leader may have given by the long window, until the moment of the loss.
    let floor_ns = destroyed.as_nanos() as u64 + LONG_MS * 1_000_000;
    assert!(first.epoch.0 > floor_ns, "{first} is not above {floor_ns}");
    cluster.assert_well();
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
    // The directory does not know the settings: unsaid, they may have been the longest.
    let other = cluster.dir.path().join("unsaid.backup");
    let other = other.to_str().expect("plain path").to_owned();
    let unsaid = cluster.run(&["backup", "--data-dir", &data, "--out", &other]);
    let text = String::from_utf8_lossy(&unsaid.stdout).into_owned();
    assert!(text.contains("60000 ms, clocks within 60000 ms"), "{text}");
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
    // All of them an hour back: before the backup.
    for node in &cluster.nodes {
        node.break_with(Faults::wall_offset_hours(-1));
    }
    cluster.start_all();
    assert_not_founded(&mut cluster, &["before the backup was taken", "set the clocks right"]);
    // One of them an hour ahead: which is wrong is not known.
    destroy(&mut cluster);
    for node in &cluster.nodes {
        node.break_with(Faults::NONE);
    }
    cluster.nodes[2].break_with(Faults::wall_offset_hours(1));
    cluster.start_all();
    assert_not_founded(&mut cluster, &["ms apart", "nodes 1 and 3"]);
    // Right again, and so is the order.
    cluster.nodes[2].break_with(Faults::NONE);
    cluster.nodes[0].start();
    cluster.wait_until_ready();
    cluster.assert_well();
}

#[test]
fn a_backup_that_is_not_the_same_everywhere_or_not_this_clusters_is_refused() {
    let mut cluster = Cluster::start();
    let backup = back_up(&cluster, "a.backup");
    let other = back_up(&cluster, "b.backup");
    destroy(&mut cluster);
    restore_from(&mut cluster, &backup);
    cluster.nodes[1].set("RESTORE", other.display());
    cluster.nodes[2].unset("RESTORE");
    cluster.start_all();
    wait_until("the founder says why it waits", PATIENCE, || {
        let log = cluster.nodes[0].log();
        log.contains("2 has the file of another backup") && log.contains("3 has no RESTORE")
    });
    holds_for("nobody serves", Duration::from_secs(1), || !cluster.nodes.iter().any(Node::serves));
    destroy(&mut cluster);
    // A bit that has rotted, and a file of another cluster.
    let text = fs::read_to_string(&backup).expect("read");
    let rotten = cluster.dir.path().join("rotten.backup");
    fs::write(&rotten, text.replace("index ", "index 1")).expect("written");
    let checked = cluster.run(&["backup", "--check", &rotten.display().to_string()]);
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert_eq!(checked.status.code(), Some(1), "{said}");
    assert!(said.contains("damaged one; get another copy") && !said.contains("RESTORE"), "{said}");
    // With quotes as JSON has them: why a node ends is a line of its log.
    for (path, name, words) in [
        (&rotten, "epicepoch", ["RESTORE: ", "damaged one; get another copy"]),
        (&backup, "another", ["named \\\"epicepoch\\\"", "correct one of the two"]),
    ] {
        fs::remove_dir_all(cluster.nodes[0].data_dir()).ok();
        cluster.nodes[0].set("RESTORE", path.display());
        cluster.nodes[0].set("CLUSTER", name);
        cluster.nodes[0].start();
        let status = cluster.nodes[0].wait_for_exit(PATIENCE);
        let log = cluster.nodes[0].log();
        assert_eq!(status.code(), Some(1), "{log}");
        for word in words {
            assert!(log.contains(word), "{word:?} in {log}");
        }
    }
}

/// Its own clock is outvoted, and what it says of the time is what it goes by.
#[test]
fn a_backup_through_a_node_whose_clock_is_ahead_can_be_restored() {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let ahead = cluster.others(cluster.wait_for_leader())[0];
    cluster.nodes[ahead].break_with(Faults::wall_offset_hours(1));
    wait_until("its clock is outvoted", PATIENCE, || {
        cluster.nodes[ahead].log().contains("the wall clock is off")
    });
    let path = cluster.dir.path().join("ahead.backup");
    let out = path.to_str().expect("plain path");
    let addr = cluster.nodes[ahead].http().to_string();
    let taken = cluster.run(&["backup", "--out", out, "--addr", &addr]);
    assert!(taken.status.success(), "{taken:?}");
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

/// A connection of TLS takes more than one round trip before a question can be asked; the answer takes one.
#[test]
fn a_restore_begins_over_links_whose_round_trip_is_within_the_bound_however_long_a_connection_takes()
 {
    let home = tempfile::tempdir().expect("a directory");
    let mut cluster = Cluster::down_calm(&[("CLOCK_OFFSET_MAX_MS", "450")]);
    secure_peers(&mut cluster, home.path());
    let mut cluster = LinkedCluster::start_of(cluster, 7);
    let backup = back_up(&cluster, "far.backup");
    destroy(&mut cluster);
    restore_from(&mut cluster, &backup);
    // 300 ms there and back.
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
    // New machines, and the old cluster was forgotten to be stopped.
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
    // Paused, they may go on at any time.
    old.iter_mut().for_each(Node::pause);
    cluster.nodes[0].start();
    assert_not_founded(&mut cluster, &["takes connections and does not say what it is: no answer"]);
    old.iter_mut().for_each(Node::kill);
    cluster.nodes[0].start();
    cluster.wait_until_ready();
    let seen = Watch::start(&cluster).finish();
    assert!(least(&seen.report.operations) > given, "above all that was given");
}

/// How the timestamps of another oracle are followed.
#[test]
fn a_cluster_begins_above_a_floor_that_is_given_by_hand() {
    let hour_ahead = SystemTime::now() + Duration::from_hours(1);
    let since = hour_ahead.duration_since(UNIX_EPOCH).expect("after 1970");
    let greatest = Timestamp::highest_at(since.as_nanos() as u64);
    let mut cluster = Cluster::start_with(&[("RESTORE_FLOOR", &greatest.to_string())]);
    let seen = Watch::start(&cluster).finish();
    let first = least(&seen.report.operations);
    assert!(first > greatest, "{first} and {greatest}");
    let clocks = cluster.operate(&["clock"]);
    let text = String::from_utf8_lossy(&clocks.stdout).into_owned();
    assert!(text.contains("epochs are ahead of the clocks"), "{text}");
    cluster.assert_well();
    // A slip of a digit is refused.
    destroy(&mut cluster);
    for node in &mut cluster.nodes {
        node.set("RESTORE_FLOOR", "7258118400s");
    }
    cluster.start_all();
    assert_not_founded(&mut cluster, &["RESTORE_FLOOR", "more than 366 days"]);
}

/// The recipes of `docs/operations.md`, "Move here from another oracle", with the units that they use.
#[test]
fn a_cluster_begins_above_what_another_oracle_gave_in_milliseconds_or_nanoseconds() {
    let ahead = SystemTime::now() + Duration::from_mins(10);
    let since = ahead.duration_since(UNIX_EPOCH).expect("after 1970");
    // A timestamp of PD, the last that it can give in its millisecond; a counter that has passed 10^18.
    let tso = (since.as_millis() as u64) << 18 | 0x3_ffff;
    let counter = since.as_nanos() as u64;
    let moved = [
        (format!("{}ms", tso >> 18), (tso >> 18) * 1_000_000, tso & 0x3_ffff),
        (format!("{counter}ns"), counter, 0),
    ];
    let mut cluster = Cluster::down(&[]);
    for (floor, epoch, index) in moved {
        for node in &mut cluster.nodes {
            node.set("RESTORE_FLOOR", &floor);
        }
        cluster.start_all();
        cluster.wait_until_ready();
        let seen = Watch::start(&cluster).finish();
        let (first, last_there) = (least(&seen.report.operations), moved_here(epoch, index));
        assert!(first > last_there, "{floor}: {first} and {last_there}");
        assert!(first.to_bytes() > last_there.to_bytes(), "as keys, too");
        destroy(&mut cluster);
    }
}

/// An old value, as it is stored from now on.
fn moved_here(epoch: u64, index: u64) -> Timestamp {
    Timestamp { epoch: Epoch(epoch), index: EpochIndex(index) }
}
