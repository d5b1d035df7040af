//! Every setting with a wrong value, and every wrong way to start a node: refused in words that
//! name the setting and the value, and never at the cost of a cluster that lives.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::members::EXIT_DIRECTORY;
use crate::support::node::command;
use crate::support::{Cluster, Node, PATIENCE, Turn, holds_for, unused_port, wait_until};

/// A wrong setting must be noticed at once.
const REFUSAL_LIMIT: Duration = Duration::from_secs(10);
/// The exit code of a wrong setting.
const EXIT_USAGE: i32 = 2;
/// How long a node is watched that must not serve: several elections.
const NOT_SERVING: Duration = Duration::from_secs(4);

/// How a process ended that was expected to.
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

/// Settings that would do, in a directory of their own.
struct Bench {
    dir: TempDir,
    settings: BTreeMap<String, String>,
    _turn: Turn,
}

impl Bench {
    fn new() -> Self {
        let turn = Turn::take();
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

    /// Refused as a usage error, in words that hold all of these.
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

/// Runs `epicepoch serve` until it ends.
///
/// # Panics
/// If it does not end.
#[track_caller]
fn serve(settings: &BTreeMap<String, String>, home: &Path) -> Ended {
    let (out, err) = (home.join("stdout"), home.join("stderr"));
    let mut command = command(settings, home);
    command.arg("serve");
    command.stdout(File::create(&out).expect("a file")).stderr(File::create(&err).expect("a file"));
    let mut child = command.spawn().expect("the binary can be started");
    let text = |path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    let deadline = std::time::Instant::now() + REFUSAL_LIMIT;
    loop {
        if let Some(status) = child.try_wait().expect("our own child can be waited for") {
            return Ended { code: status.code(), stderr: text(&err), stdout: text(&out) };
        }
        if std::time::Instant::now() > deadline {
            // The panic tells more than a failed kill of a process that just ended.
            let _ = child.kill();
            let _ = child.wait();
            panic!("not refused: {settings:?}\n{}{}", text(&out), text(&err));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_wrong_value_is_refused_with_the_name_and_the_value() {
    let bench = Bench::new();
    let long = "x".repeat(300);
    for (name, values) in [
        ("NODE_ID", &["0", "abc", "-1", "1.5", "18446744073709551616"][..]),
        ("RAFT_ADDR", &["nowhere", "127.0.0.1:99999", "127.0.0.1:"]),
        ("HTTP_PORT", &["65536", "abc", "-1"]),
        ("EPOCH_INTERVAL_MS", &["0", "abc", "-5", "1e9"]),
        ("EPOCH_DEADLINE_LIMIT", &["0", "abc"]),
        ("TIMESTAMP_REQUEST_BUFFER", &["0", "abc"]),
        ("DEBUG", &["perhaps"]),
        ("PRETTY", &["perhaps"]),
        ("LOG_TIME_MS", &["perhaps"]),
        ("PEERS", &["nonsense", "1=nowhere", "x=127.0.0.1:60001"]),
        ("BOOTSTRAP", &["perhaps"]),
        ("ADVERTISE_ADDR", &["nowhere", "127.0.0.1:99999"]),
        ("CLUSTER", &["two words", "slash/ed"]),
        ("RESERVATION_MS", &["0", "abc"]),
        ("CLOCK_OFFSET_MAX_MS", &["0", "abc"]),
        ("MAX_N", &["0", "abc"]),
        ("HTTP_BIND", &["localhost", "127.0.0.1:1"]),
        ("RAFT_BIND", &["nowhere", "127.0.0.1:99999"]),
        ("WORKERS", &["0", "65"]),
        ("WORKER_CPUS", &["x", "0-1", "0,0", "1024"]),
        ("BUSY_POLL", &["perhaps"]),
        ("CONNECTIONS_MAX", &["0", "abc"]),
        ("ADDRESS_CONNECTIONS_MAX", &["0", "half"]),
        ("ADDRESS_REQUEST_RATE_MAX", &["-1", "off"]),
        ("HEAD_TIMEOUT_MS", &["999", "60001"]),
        ("IDLE_TIMEOUT_MS", &["999", "abc"]),
        ("REQUEST_TIMEOUT_MS", &["0", "60001"]),
        ("SHUTDOWN_TIMEOUT_MS", &["0", "60001"]),
        ("ELECTION_TIMEOUT_MS", &["49", "abc"]),
        ("HEARTBEAT_MS", &["0", "abc"]),
        ("SINGLE", &["perhaps"]),
        ("DATA_DIR", &[""]),
    ] {
        for value in values {
            bench.assert_refused(&bench.with(&[(name, value)]), &[name, value]);
        }
    }
    bench.assert_refused(&bench.with(&[("CLUSTER", &long)]), &["CLUSTER"]);
    assert!(!bench.dir.path().join("data").exists(), "a refused start leaves no data behind");
}

#[test]
fn a_missing_setting_is_refused_by_its_name() {
    let bench = Bench::new();
    for name in ["NODE_ID", "RAFT_ADDR", "PEERS"] {
        bench.assert_refused(&bench.without(name), &[name]);
    }
    // What to do about a cluster of one is said where it is missed.
    bench.assert_refused(&bench.without("PEERS"), &["--single"]);
}

#[test]
fn a_peer_list_that_cannot_be_right_is_refused() {
    let bench = Bench::new();
    let own = bench.settings["RAFT_ADDR"].clone();
    let refuse = |list: &str, words: &[&str]| {
        bench.assert_refused(&bench.with(&[("PEERS", list)]), &[&["PEERS"], words].concat());
    };
    refuse("2=127.0.0.1:2,3=127.0.0.1:3", &["NODE_ID", "1"]);
    refuse(&format!("1={own},1=127.0.0.1:2"), &["1"]);
    refuse(&format!("1={own},2={own}"), &[&own]);
    refuse(&format!("0=127.0.0.1:9,1={own}"), &["0"]);
    refuse("1=127.0.0.1:9,2=127.0.0.1:2", &["127.0.0.1:9"]);
}

#[test]
fn a_loopback_address_for_clients_beside_remote_peers_is_refused() {
    let bench = Bench::new();
    let raft = "192.0.2.1:60001";
    let list = format!("1={raft},2=192.0.2.2:60001,3=192.0.2.3:60001");
    let settings =
        bench.with(&[("RAFT_ADDR", raft), ("PEERS", &list), ("ADVERTISE_ADDR", "127.0.0.1:8080")]);
    bench.assert_refused(&settings, &["ADVERTISE_ADDR", "127.0.0.1:8080"]);
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
        assert_eq!(said, 1, "the system's words, once: {}", ended.stderr);
        let lines = ended.stderr.lines().map(serde_json::from_str::<serde_json::Value>);
        let lines: Vec<_> = lines.map(|line| line.expect("each is one of the log")).collect();
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
        // Kept for documentation (RFC 5737), so no machine has it.
        // Asked for, so that it is not refused before.
        let changed = [("BOOTSTRAP", "1"), ("PEER_PLAIN", "1"), (name, "192.0.2.1")];
        let ended = bench.serve(&bench.with(&changed));
        assert_eq!(ended.code, Some(1), "{}", ended.output());
        for word in [name, "192.0.2.1", "of this machine"] {
            assert!(ended.stderr.contains(word), "{word}: {}", ended.output());
        }
    }
}

#[test]
fn a_processor_that_this_machine_has_not_is_refused_by_its_number() {
    let bench = Bench::new();
    let ended = bench.serve(&bench.with(&[("BOOTSTRAP", "1"), ("WORKER_CPUS", "1023")]));
    assert_eq!(ended.code, Some(1), "{}", ended.output());
    for word in ["WORKER_CPUS has processor 1023", "allowed are 0"] {
        assert!(ended.stderr.contains(word), "{word}: {}", ended.output());
    }
}

#[test]
fn a_file_that_cannot_be_used_is_refused_with_its_setting_and_the_reason_is_said_once() {
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
        assert_ne!(ended.code, Some(0), "{}", ended.output());
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
fn a_second_process_on_a_data_directory_is_refused_and_the_first_serves_on() {
    let mut cluster = Cluster::start();
    let first = &cluster.nodes[0];
    // The same node with ports of its own, so that only the directory is shared.
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

/// Watches that a node never becomes part of anything, whether it exits or not.
#[track_caller]
fn assert_never_serves(node: &mut Node) {
    holds_for(&format!("node {} does not serve", node.id), NOT_SERVING, || {
        !node.is_running() || !(node.serves() || node.is_leader())
    });
    assert!(!node.is_running() || !node.is_ready(), "node {} says it is ready", node.id);
    if let Some(status) = node.exit_status() {
        assert!(!status.success(), "a refused node ends with an error, not with {status}");
    }
}

/// The log says why, in one of these words.
#[track_caller]
fn assert_log_says(node: &Node, words: &[&str]) {
    let log = node.log().to_lowercase();
    assert!(words.iter().any(|word| log.contains(&word.to_lowercase())), "{words:?}: {log}");
}

#[test]
fn a_second_node_with_an_id_in_use_is_refused_and_the_first_serves_on() {
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
        assert_never_serves(&mut twin);
        // Without BOOTSTRAP it does not even ask; with it, the members refuse it.
        let words: &[&str] = if bootstrap {
            &["refused", "belongs", "already", "another", "unknown"]
        } else {
            &["BOOTSTRAP is off"]
        };
        assert_log_says(&twin, words);
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
        assert_never_serves(&mut cluster.nodes[victim]);
        let status = cluster.nodes[victim].wait_for_exit(PATIENCE);
        // Without BOOTSTRAP it asks nobody: it writes nothing, and starting it again harms nothing.
        let expected = if bootstrap { EXIT_DIRECTORY } else { 1 };
        assert_eq!(status.code(), Some(expected), "with BOOTSTRAP: {bootstrap}");
        assert_log_says(&cluster.nodes[victim], &["BOOTSTRAP", "belongs", "empty", "refused"]);
        wait_until("the others serve", Duration::from_secs(10), || {
            cluster.nodes.iter().any(Node::serves)
        });
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
    // BOOTSTRAP is still set on all of them: the operator's worst habit.
    cluster.start_all();
    holds_for("nobody serves", NOT_SERVING, || !cluster.nodes.iter().any(Node::serves));
    assert!(cluster.nodes[0].is_running(), "the node with its data waits for a quorum");
    assert_log_says(&cluster.nodes[1], &["BOOTSTRAP", "belongs", "refused"]);
    assert_log_says(&cluster.nodes[2], &["BOOTSTRAP", "belongs", "refused"]);
}

#[test]
fn the_log_of_a_node_is_json_with_the_time_that_was_asked_for() {
    for (time_ms, is_right) in
        [("0", serde_json::Value::is_string as fn(&_) -> _), ("1", serde_json::Value::is_u64)]
    {
        let turn = Turn::take();
        let dir = TempDir::with_prefix("epicepoch-test-").expect("a temporary directory");
        let mut node = Node::new(1, dir.path(), "single");
        node.set("LOG_TIME_MS", time_ms);
        node.set("SINGLE", 1);
        node.set("BOOTSTRAP", 1);
        node.start();
        wait_until("the only node serves", Duration::from_secs(10), || node.serves());
        node.terminate();
        for line in node.log().lines() {
            let line: serde_json::Value = serde_json::from_str(line).expect(line);
            assert!(is_right(&line["timestamp"]), "LOG_TIME_MS={time_ms}: {line}");
        }
        assert!(node.log().contains("\"stopped\""), "{}", node.log());
        drop(turn);
    }
}

#[test]
fn a_cluster_of_one_needs_to_be_asked_for_and_then_serves() {
    let turn = Turn::take();
    let dir = TempDir::with_prefix("epicepoch-test-").expect("a temporary directory");
    let mut node = Node::new(1, dir.path(), "single");
    node.set("SINGLE", 1);
    node.set("BOOTSTRAP", 1);
    node.start();
    wait_until("the only node serves", Duration::from_secs(10), || node.serves());
    let status = node.terminate();
    assert_eq!(status.code(), Some(0));
    drop(turn);
}
