//! The log as data: programs read it line by line. Each line is JSON, and each field has the type
//! that `docs/operations/monitoring.md` says. The first line names the build.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use serde_json::Value;

use crate::support::node::binary;
use crate::support::operator::{admit, remove, transferred};
use crate::support::{Cluster, Node, WAIT_MAX, Watch, wait_until};

const MONITORING: &str = include_str!("../../../../../docs/operations/monitoring.md");

/// Fields that every line has.
const ALWAYS: [&str; 4] = ["timestamp", "level", "message", "target"];

/// Returns the documented type of every field.
fn documented() -> BTreeMap<String, String> {
    let (_, table) = MONITORING.split_once("\n### Fields\n").expect("a heading");
    let table = table.split("\n## ").next().expect("a section");
    let mut fields = BTreeMap::new();
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = row.split('|').map(|cell| cell.trim().replace('`', "")).collect();
        for name in cells[1].split(", ") {
            fields.insert(name.to_owned(), cells[2].clone());
        }
    }
    assert!(fields.len() > 50, "{fields:?}");
    fields
}

/// Parses the log. A line is refused if it has a field twice, which `serde_json` would not notice.
fn lines(node: &Node) -> Vec<Value> {
    let log = node.log();
    let line = |text: &str| {
        let value: Value = serde_json::from_str(text).expect(text);
        let fields = value.as_object().expect("an object");
        // The parsed line has as many bytes as the original, if no field was lost.
        assert_eq!(value.to_string().len(), text.len(), "a field is there twice: {text}");
        assert!(ALWAYS.iter().all(|name| fields[*name].is_string()), "{text}");
        value
    };
    log.lines().map(line).collect()
}

fn messages<'a>(lines: &'a [Value], message: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["message"] == message).collect()
}

/// The node starts, joins, is promoted, leads, and stops; another is removed.
#[test]
fn every_field_of_every_line_has_the_documented_type() {
    let mut cluster = Cluster::start_calm();
    let new = cluster.add_joining(4, "node-4");
    cluster.nodes[new].set("ELECTION_TIMEOUT_MS", 1000);
    admit(&mut cluster, new);
    cluster.wait_until_ready();
    wait_for_newest_format(&cluster.nodes[0]);
    transferred(&cluster, &["leader", "transfer", "--to", "4"]);
    cluster.order(&["settings", "set", "MAX_N=100"]);
    let index = cluster.nodes.iter().position(|node| node.id == 2).expect("a member");
    let addr = cluster.nodes[index].raft_addr().to_string();
    let removed = lines(&cluster.nodes[index]);
    remove(&mut cluster, index);
    cluster.nodes.iter_mut().for_each(|node| assert!(node.terminate().success()));

    let documented = documented();
    let logs: Vec<_> = cluster.nodes.iter().map(lines).chain([removed]).collect();
    for line in logs.iter().flatten() {
        for (name, value) in line.as_object().expect("an object") {
            if ALWAYS.contains(&name.as_str()) {
                continue;
            }
            let is_right = match documented.get(name).map(String::as_str) {
                Some("number") => value.is_number(),
                Some("text") => value.is_string(),
                other => panic!("{name} is documented as {other:?}: {line}"),
            };
            assert!(is_right, "{name} is not what the table says: {line}");
        }
    }
    let own = &logs[0];
    assert_eq!(messages(own, "started")[0]["node"], 1);
    assert_eq!(messages(own, "stopped")[0]["node"], 1);
    assert!(logs.iter().any(|log| !messages(log, "handing leadership over").is_empty()));
    // A membership change says who changed, from what to what. Node 1 saw all of them.
    let changed: Vec<_> = messages(own, "membership change")
        .iter()
        .map(|it| (it["member"].as_u64(), it["before"].as_str(), it["after"].as_str()))
        .collect();
    let step = |node, before, after| (Some(node), Some(before), Some(after));
    let expected =
        [step(4, "none", "learner"), step(4, "learner", "voter"), step(2, "voter", "removed")];
    assert_eq!(changed, expected);
    let last = messages(own, "membership change")[2];
    assert_eq!(last["raft_addr"], addr.as_str());
    let ordered = logs.iter().flat_map(|log| messages(log, "an operator changes the members"));
    let steps: Vec<_> = ordered.map(|it| it["steps"].as_str().expect("text").to_owned()).collect();
    assert!(steps.contains(&"promote 4".to_owned()), "{steps:?}");
    assert!(steps.iter().any(|it| it.starts_with("add 4 at 127.0.0.1:")), "{steps:?}");
}

/// Waits until the replicated state has the format with the settings of the cluster. That is the
/// last step of the founding.
fn wait_for_newest_format(node: &Node) {
    wait_until("the newest format", WAIT_MAX, || {
        let lines = lines(node);
        messages(&lines, "the replicated state has a new format").iter().any(|it| it["format"] == 4)
    });
}

fn assert_nothing_to_worry_about(node: &Node) {
    for line in lines(node) {
        let level = line["level"].as_str().expect("text");
        assert!(!["WARN", "ERROR"].contains(&level), "node {}: {line}", node.id);
    }
}

#[test]
fn the_founding_of_three_nodes_warns_of_nothing() {
    let mut cluster = Cluster::down_calm(&[("PEER_PLAIN", "1")]);
    cluster.start_all();
    cluster.wait_until_ready();
    for node in &cluster.nodes {
        wait_for_newest_format(node);
        assert_nothing_to_worry_about(node);
    }
}

#[test]
fn the_founding_of_one_node_warns_of_nothing() {
    let mut cluster = Cluster::down_calm(&[("PEER_PLAIN", "1")]);
    let node = &mut cluster.nodes[0];
    node.unset("PEERS");
    node.set("SINGLE", 1);
    node.start();
    wait_for_newest_format(node);
    assert_nothing_to_worry_about(node);
}

#[test]
fn a_process_says_in_every_place_which_build_it_runs() {
    let cluster = Cluster::start_calm();
    let printed = Command::new(binary()).arg("--version").output().expect("the binary runs");
    let printed = String::from_utf8(printed.stdout).expect("text");
    let mut words = printed.lines();
    let version = words.next().and_then(|line| line.strip_prefix("epicepoch ")).expect("a version");
    let mut build = vec![("version", version)];
    build.extend(words.map(|line| line.split_once(' ').expect("a name and a value")));
    let names: Vec<_> = build.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["version", "commit", "profile", "target"], "{printed}");

    let node = &cluster.nodes[0];
    let first = &lines(node)[0];
    assert_eq!(first["message"], "epicepoch starts");
    let members: Value =
        serde_json::from_str(&node.ask("/members").expect("an answer").text()).expect("JSON");
    let status: Value =
        serde_json::from_str(&cluster.order(&["status", "--output", "json"])).expect("JSON");
    let metrics = node.ask("/metrics").expect("an answer").text();
    let info = metrics.lines().find(|line| line.starts_with("epicepoch_node_info{"));
    let info = info.expect("a metric");
    for (name, value) in build {
        // `target` is the part of the program in every log line.
        let field = if name == "target" { "build_target" } else { name };
        assert_eq!(first[field], value, "the log");
        assert_eq!(members[name], value, "/members");
        assert_eq!(status["members"][0][name], value, "status");
        assert!(info.contains(&format!("{name}=\"{value}\"")), "{info}");
    }
    let table = cluster.order(&["status"]);
    let mut rows = table.lines().skip(2).filter(|line| !line.starts_with("nodes "));
    assert!(rows.all(|line| line.contains(&format!(" {version} "))), "{table}");
}

/// The reader of the log hangs, on all nodes. They serve, follow a new leader, and stop when told to.
/// When the reader goes on, the log says that lines are missing.
#[test]
fn a_log_that_nobody_reads_stops_no_node() {
    let mut cluster = Cluster::down(&[("DEBUG", "1")]);
    let mut readers = Vec::new();
    for node in &mut cluster.nodes {
        let (reader, log) = std::io::pipe().expect("a pipe");
        rustix::pipe::fcntl_setpipe_size(&log, 4096).expect("a small pipe");
        node.start_logging_to(log);
        readers.push(reader);
    }
    let leader = cluster.wait_for_leader();
    let watch = Watch::start(&cluster);
    for reader in &readers {
        // A pipe of one page is full after one line.
        wait_until("the pipe is full", WAIT_MAX, || {
            rustix::io::ioctl_fionread(reader).is_ok_and(|count| count > 0)
        });
    }
    let told = Instant::now();
    let status = cluster.nodes[leader].terminate();
    assert!(status.success(), "{status}");
    cluster.wait_for_leader_other_than(Some(leader), WAIT_MAX);
    watch.wait_for_service_since(told);
    watch.finish();
    let (reads, are_reading) = mpsc::channel();
    let readers: Vec<_> = readers
        .into_iter()
        .map(|mut reader| {
            let reads = reads.clone();
            thread::spawn(move || {
                let mut text = vec![0];
                reader.read_exact(&mut text).expect("the pipe is full");
                reads.send(()).expect("the test waits");
                reader.read_to_end(&mut text).expect("the rest");
                String::from_utf8(text).expect("text")
            })
        })
        .collect();
    for _ in &readers {
        are_reading.recv().expect("every reader reads");
    }
    for at in cluster.others(leader) {
        assert!(cluster.nodes[at].terminate().success());
    }
    let texts: Vec<_> = readers.into_iter().map(|it| it.join().expect("no panic")).collect();
    let lost = "log lines were lost: they were not read in time";
    let is_told = |at: &usize| texts[*at].contains(lost);
    assert!(cluster.others(leader).iter().all(is_told), "{texts:?}");
}
