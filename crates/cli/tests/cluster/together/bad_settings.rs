//! A node is started with wrong settings, or in a wrong way. The error names the setting and its
//! value. A running cluster is not harmed.

use crate::support::node::command;
use crate::support::operator::EXIT_DIRECTORY;
use crate::support::{Cluster, Node, Turn, WAIT_MAX, holds_for, let_pass, unused_port, wait_until};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The exit code of a wrong setting.
const EXIT_USAGE: i32 = 2;
/// A node that must not serve is watched for this long. Several elections fit into this time.
const NOT_SERVING: Duration = Duration::from_secs(3);

/// How a process ended.
struct Ended {
    code: Option<i32>,
    stderr: String,
    stdout: String,
}

impl Ended {
    fn output(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

/// Valid settings, in a new directory.
struct Bench {
    dir: TempDir,
    settings: BTreeMap<String, String>,
    _turn: Turn,
}

impl Bench {
    fn new() -> Self {
        let turn = Turn::side_by_side();
        let dir = TempDir::with_prefix("epicepoch-test-").expect("a temporary directory");
        let (raft, http) = (unused_port(), unused_port());
        let settings = [
            ("NODE_ID", "1".to_owned()),
            ("RAFT_ADDR", format!("127.0.0.1:{raft}")),
            ("HTTP_PORT", http.to_string()),
            ("PEERS", format!("1=127.0.0.1:{raft},2=127.0.0.1:2,3=127.0.0.1:3")),
            ("DATA_DIR", dir.path().join("data").display().to_string()),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value)).into();
        Self { dir, settings, _turn: turn }
    }

    fn with(&self, changes: &[(&str, &str)]) -> BTreeMap<String, String> {
        let mut settings = self.settings.clone();
        for (name, value) in changes {
            settings.insert((*name).to_owned(), (*value).to_owned());
        }
        settings
    }

    fn without(&self, name: &str) -> BTreeMap<String, String> {
        let mut settings = self.settings.clone();
        settings.remove(name);
        settings
    }

    #[track_caller]
    fn serve(&self, settings: &BTreeMap<String, String>) -> Ended {
        serve(settings, self.dir.path())
    }

    /// Checks that the settings are refused with the exit code of a usage error, and that the
    /// message has all these words.
    #[track_caller]
    fn assert_refused(&self, settings: &BTreeMap<String, String>, words: &[&str]) {
        let ended = self.serve(settings);
        let Ended { code, stderr, .. } = &ended;
        assert_eq!(*code, Some(EXIT_USAGE), "{words:?}: {}", ended.output());
        for word in words {
            assert!(stderr.contains(word), "stderr does not say {word:?}: {stderr}");
        }
    }
}

/// The test tries one setting of each kind. The unit tests of the crate `config` check every
/// setting and every bound.
#[test]
fn a_wrong_setting_is_refused_with_its_name_and_value() {
    let bench = Bench::new();
    let own = bench.settings["RAFT_ADDR"].clone();
    let twice = format!("1={own},2={own}");
    for (name, value) in [
        ("NODE_ID", "18446744073709551616"),
        ("RAFT_ADDR", "127.0.0.1:99999"),
        ("HTTP_PORT", "65536"),
        ("DEBUG", "perhaps"),
        ("CLUSTER", "slash/ed"),
        ("RESERVATION_MS", "0"),
        ("HTTP_BIND", "localhost"),
        ("WORKER_CPUS", "0-1"),
        ("ADDRESS_CONNECTIONS_MAX", "half"),
        ("ELECTION_TIMEOUT_MS", "49"),
        ("DATA_DIR", ""),
        ("PEERS", "1=nowhere"),
    ] {
        bench.assert_refused(&bench.with(&[(name, value)]), &[name, value]);
    }
    bench.assert_refused(&bench.with(&[("PEERS", &twice)]), &["PEERS", &own]);
    bench.assert_refused(&bench.without("RAFT_ADDR"), &["RAFT_ADDR"]);
    // The message says how to start a cluster of one.
    bench.assert_refused(&bench.without("PEERS"), &["PEERS", "--single"]);
    assert!(!bench.dir.path().join("data").exists(), "a refused start leaves no data behind");
}

/// Runs `epicepoch serve` until it ends.
///
/// # Panics
/// The process does not end in time.
#[track_caller]
fn serve(settings: &BTreeMap<String, String>, home: &Path) -> Ended {
    let (out, err) = (home.join("stdout"), home.join("stderr"));
    let mut command = command(settings, home);
    command.arg("serve");
    command.stdout(File::create(&out).expect("a file")).stderr(File::create(&err).expect("a file"));
    let mut child = command.spawn().expect("the binary can be started");
    let text = |path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        if let Some(status) = child.try_wait().expect("our own child can be waited for") {
            return Ended { code: status.code(), stderr: text(&err), stdout: text(&out) };
        }
        if Instant::now() > deadline {
            // The process may have ended just now, so an error is ignored.
            let _ = child.kill();
            let _ = child.wait();
            panic!("not refused: {settings:?}\n{}{}", text(&out), text(&err));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_port_in_use_is_refused_with_the_port() {
    let bench = Bench::new();
    for name in ["HTTP_PORT", "RAFT_ADDR"] {
        let port = bench.settings[name].rsplit(':').next().expect("a port").to_owned();
        let number: u16 = port.parse().expect("a port is a number");
        let taken = TcpListener::bind(("0.0.0.0", number)).expect("the port is unused");
        let ended = bench.serve(&bench.with(&[("BOOTSTRAP", "1")]));
        assert_ne!(ended.code, Some(0), "{}", ended.output());
        for word in [name, &port, "free the port or choose another"] {
            assert!(ended.stderr.contains(word), "{word}: {}", ended.output());
        }
        let said = ended.stderr.matches("in use").count();
        assert_eq!(said, 1, "the system's message, once: {}", ended.stderr);
        let lines = ended.stderr.lines().map(serde_json::from_str::<serde_json::Value>);
        let lines: Vec<_> = lines.map(|line| line.expect("a line of the log")).collect();
        let last = lines.last().expect("the reason");
        assert_eq!((&last["level"], &last["exit_code"]), (&"ERROR".into(), &1.into()), "{last}");
        let message = last["message"].as_str().expect("a message");
        assert!(message.starts_with("the process ends: ") && message.contains(&port), "{last}");
        drop(taken);
    }
}

#[test]
fn an_address_of_another_machine_is_refused_by_the_setting_that_binds_it() {
    let bench = Bench::new();
    for name in ["HTTP_BIND", "RAFT_BIND"] {
        // No machine has this address, because it is reserved for documentation (RFC 5737).
        // PEER_PLAIN is set because otherwise the settings would be refused before the address is
        // used.
        let changed = [("BOOTSTRAP", "1"), ("PEER_PLAIN", "1"), (name, "192.0.2.1")];
        let ended = bench.serve(&bench.with(&changed));
        assert_eq!(ended.code, Some(1), "{}", ended.output());
        for word in [name, "192.0.2.1", "of this machine"] {
            assert!(ended.stderr.contains(word), "{word}: {}", ended.output());
        }
    }
}

#[test]
fn a_processor_that_this_machine_does_not_have_is_refused_by_its_number() {
    let bench = Bench::new();
    let ended = bench.serve(&bench.with(&[("BOOTSTRAP", "1"), ("WORKER_CPUS", "1023")]));
    // It is a bad setting: another start fails again.
    assert_eq!(ended.code, Some(2), "{}", ended.output());
    for word in ["WORKER_CPUS has processor 1023", "allowed are 0"] {
        assert!(ended.stderr.contains(word), "{word}: {}", ended.output());
    }
}

#[test]
fn a_file_that_cannot_be_used_is_refused_with_its_setting_and_one_reason() {
    let bench = Bench::new();
    let directory = bench.dir.path().display().to_string();
    let missing = bench.dir.path().join("missing").display().to_string();
    for (name, changes, reason) in [
        ("CERT_FILE", &[("CLIENT_TLS", "on"), ("KEY_FILE", &*directory)][..], "Is a directory"),
        ("CLIENT_TOKEN_FILE", &[], "Is a directory"),
        ("RESTORE", &[("BOOTSTRAP", "1")], "No such file"),
    ] {
        let path = if name == "RESTORE" { &missing } else { &directory };
        let ended = bench.serve(&bench.with(&[changes, &[(name, path)]].concat()));
        // The file may be replaced at this moment, so a supervisor starts the node again.
        assert_eq!(ended.code, Some(1), "{}", ended.output());
        for word in [name, path] {
            assert!(ended.stderr.contains(word), "{word}: {}", ended.output());
        }
        assert_eq!(ended.stderr.matches(reason).count(), 1, "{name}: {}", ended.stderr);
    }
}

#[test]
fn an_unusable_directory_is_refused_with_its_path() {
    let bench = Bench::new();
    let file = bench.dir.path().join("a-file");
    fs::write(&file, "not a directory").expect("a file");
    let below = file.join("data").display().to_string();
    for path in [below, file.display().to_string()] {
        let ended = bench.serve(&bench.with(&[("DATA_DIR", &path)]));
        assert_ne!(ended.code, Some(0), "{}", ended.output());
        assert!(ended.output().contains(&path), "{path}: {}", ended.output());
    }
}

#[test]
fn a_second_process_on_a_data_directory_is_refused_and_the_first_still_serves() {
    let mut cluster = Cluster::start();
    let first = &cluster.nodes[0];
    // A second process of the same node is started with other ports. So the two processes share
    // only the data directory.
    let mut settings = first.settings().clone();
    let http = unused_port();
    settings.insert("HTTP_PORT".into(), http.to_string());
    settings.insert("ADVERTISE_ADDR".into(), format!("127.0.0.1:{http}"));
    settings.insert("RAFT_BIND".into(), format!("127.0.0.1:{}", unused_port()));
    let home = cluster.dir.path().join("second");
    fs::create_dir(&home).expect("a directory");
    let ended = serve(&settings, &home);
    assert_ne!(ended.code, Some(0), "{}", ended.output());
    let path = first.data_dir().display().to_string();
    assert!(ended.output().contains(&path), "{path}: {}", ended.output());
    cluster.assert_well();
}

/// The error of a node that was started without data and without BOOTSTRAP.
const BOOTSTRAP_OFF: &str = "holds no data and BOOTSTRAP is off";
/// How a member refuses a node whose id belongs to another data directory.
const ANOTHER_DIRECTORY: &str = "belongs to a member with another data directory";

/// Checks that a node neither serves nor leads until it has logged `why`, and for `NOT_SERVING` from
/// then on. The node may run or exit.
#[track_caller]
fn assert_never_serves(node: &mut Node, why: &str) {
    wait_until(&format!("it says {why}"), WAIT_MAX, || {
        assert!(!node.serves() && !node.is_leader(), "node {} serves", node.id);
        node.log().contains(why)
    });
    let start = Instant::now();
    while node.is_running() && start.elapsed() < NOT_SERVING {
        assert!(!node.serves() && !node.is_leader(), "node {} serves", node.id);
        let_pass(Duration::from_millis(10));
    }
    assert!(!node.is_running() || !node.is_ready(), "node {} says it is ready", node.id);
    if let Some(status) = node.exit_status() {
        assert!(!status.success(), "a refused node ends with an error, not with {status}");
    }
}

#[test]
fn a_second_node_with_an_id_in_use_is_refused_and_the_first_still_serves() {
    let mut cluster = Cluster::start();
    for bootstrap in [false, true] {
        let mut twin = Node::new(2, cluster.dir.path(), &format!("twin-{bootstrap}"));
        let mut list = cluster.nodes[0].settings()["PEERS"].clone();
        let (real, own) = (cluster.nodes[1].raft_addr().to_string(), twin.raft_addr().to_string());
        list = list.replace(&real, &own);
        twin.set("PEERS", list);
        if bootstrap {
            twin.set("BOOTSTRAP", 1);
        }
        twin.start();
        // Without BOOTSTRAP the node asks no member and ends by itself. With BOOTSTRAP it asks the
        // members, and they refuse it.
        let why = if bootstrap { ANOTHER_DIRECTORY } else { BOOTSTRAP_OFF };
        assert_never_serves(&mut twin, why);
        cluster.assert_well();
    }
}

#[test]
fn bootstrap_with_an_emptied_disk_beside_a_live_cluster_is_refused() {
    let mut cluster = Cluster::start();
    let leader = cluster.wait_for_leader();
    let victim = cluster.others(leader)[0];
    for bootstrap in [true, false] {
        cluster.nodes[victim].kill();
        cluster.nodes[victim].wipe();
        if !bootstrap {
            cluster.nodes[victim].unset("BOOTSTRAP");
        }
        cluster.nodes[victim].start();
        let why = if bootstrap { ANOTHER_DIRECTORY } else { BOOTSTRAP_OFF };
        assert_never_serves(&mut cluster.nodes[victim], why);
        let status = cluster.nodes[victim].wait_for_exit(WAIT_MAX);
        // systemd must not start it again and again: another start finds the same empty disk.
        assert_eq!(status.code(), Some(EXIT_DIRECTORY), "with BOOTSTRAP: {bootstrap}");
        wait_until("the others serve", WAIT_MAX, || cluster.nodes.iter().any(Node::serves));
    }
    for index in cluster.others(victim) {
        assert!(cluster.nodes[index].is_running(), "a live member exited");
    }
}

#[test]
fn two_of_three_wiped_disks_never_form_a_new_cluster() {
    let mut cluster = Cluster::start();
    cluster.kill_all();
    cluster.nodes[1].wipe();
    cluster.nodes[2].wipe();
    // BOOTSTRAP is still set on all nodes, which is a common mistake.
    cluster.start_all();
    for index in [1, 2] {
        assert_never_serves(&mut cluster.nodes[index], ANOTHER_DIRECTORY);
    }
    holds_for("nobody serves", NOT_SERVING, || !cluster.nodes.iter().any(Node::serves));
    assert!(cluster.nodes[0].is_running(), "the node with its data waits for a quorum");
}

#[test]
fn a_cluster_of_one_serves_and_logs_json_in_the_configured_time_format() {
    for (time_ms, is_right) in
        [("0", serde_json::Value::is_string as fn(&_) -> _), ("1", serde_json::Value::is_u64)]
    {
        let _turn = Turn::side_by_side();
        let dir = TempDir::with_prefix("epicepoch-test-").expect("a temporary directory");
        let mut node = Node::new(1, dir.path(), "single");
        node.set("LOG_TIME_MS", time_ms);
        node.set("SINGLE", 1);
        node.set("BOOTSTRAP", 1);
        node.start();
        wait_until("the only node serves", WAIT_MAX, || node.serves());
        assert_eq!(node.terminate().code(), Some(0));
        for line in node.log().lines() {
            let line: serde_json::Value = serde_json::from_str(line).expect(line);
            assert!(is_right(&line["timestamp"]), "LOG_TIME_MS={time_ms}: {line}");
        }
        assert!(node.log().contains("\"stopped\""), "{}", node.log());
    }
}
