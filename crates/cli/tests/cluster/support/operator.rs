//! Runs an operator's commands, which add and remove members and move leadership.

use std::time::Instant;

use serde_json::Value;

use super::{Cluster, Node, WAIT_MAX, say, wait_until};

/// The exit code of a node that was removed.
pub(crate) const EXIT_REMOVED: i32 = 3;
/// The exit code of a node that must not be started again with its data directory.
pub(crate) const EXIT_DIRECTORY: i32 = 4;

/// Runs a command that changes nothing, until it succeeds. Returns its output. While no node leads,
/// such a command may fail.
#[track_caller]
pub(crate) fn told(cluster: &Cluster, args: &[&str]) -> String {
    let mut told = None;
    wait_until(&format!("{args:?} succeeds"), WAIT_MAX, || {
        let output = cluster.operate(args);
        told = output.status.success().then_some(output.stdout);
        told.is_some()
    });
    String::from_utf8(told.expect("the wait is over")).expect("UTF-8")
}

/// The output of `member list`.
#[track_caller]
pub(crate) fn list(cluster: &Cluster) -> Value {
    let text = told(cluster, &["member", "list", "--output", "json"]);
    serde_json::from_str(&text).expect("JSON")
}

/// Returns the id and role of each member, such as `1 voter`.
pub(crate) fn roles(cluster: &Cluster) -> Vec<String> {
    let listed = list(cluster);
    let members = listed["members"].as_array().expect("members").clone();
    let role = |member: &Value| match member["role"].as_str().expect("a role") {
        "leader" => "voter".to_owned(),
        role => role.to_owned(),
    };
    members.iter().map(|member| format!("{} {}", member["nodeID"], role(member))).collect()
}

/// Returns the argument with which `member add` adds this node.
pub(crate) fn named(node: &Node) -> String {
    format!("{}={}", node.id, node.raft_addr())
}

/// Starts a node and makes it a learner.
pub(crate) fn add(cluster: &mut Cluster, index: usize) {
    let node = &mut cluster.nodes[index];
    let begins = node.log().len();
    node.start();
    // `member add` fails if the node does not listen yet, so the test waits until the node has
    // started.
    wait_until("it listens", WAIT_MAX, || node.log()[begins..].contains("\"started\""));
    let (name, id) = (named(&cluster.nodes[index]), cluster.nodes[index].id.to_string());
    let said = cluster.order(&["member", "add", &name]);
    assert_eq!(said, format!("node {id} is a learner\n"));
}

/// Starts a node and makes it a voter.
pub(crate) fn admit(cluster: &mut Cluster, index: usize) {
    add(cluster, index);
    let id = cluster.nodes[index].id.to_string();
    let said = cluster.order(&["member", "promote", &id, "--wait", "--timeout", "20s"]);
    assert_eq!(said, format!("node {id} is a voter\n"));
}

/// Removes a running member, and waits for its end.
pub(crate) fn remove(cluster: &mut Cluster, index: usize) -> Node {
    let id = cluster.nodes[index].id.to_string();
    let said = cluster.order(&["member", "remove", &id]);
    assert_eq!(said, format!("node {id} is removed for ever\n"));
    let mut removed = cluster.nodes.remove(index);
    assert_has_ended(&mut removed);
    removed
}

/// Checks that a removed node logs its removal and exits with code [`EXIT_REMOVED`].
#[track_caller]
pub(crate) fn assert_has_ended(removed: &mut Node) {
    let status = removed.wait_for_exit(WAIT_MAX);
    let log = removed.log();
    assert_eq!(status.code(), Some(EXIT_REMOVED), "{log}");
    assert!(log.contains("removed from the cluster"), "{log}");
}

/// Hands leadership over. Returns the time at which the command was given, and its output. The
/// handover may fail or be refused because a voter's disk hangs. Then the command is given again.
pub(crate) fn transferred(cluster: &Cluster, order: &[&str]) -> (Instant, String) {
    let mut taken = None;
    wait_until("a handover is taken", WAIT_MAX, || {
        let from = Instant::now();
        let output = cluster.operate(order);
        let [said, why] = [output.stdout, output.stderr].map(String::from_utf8);
        let (said, why) = (said.expect("UTF-8"), why.expect("UTF-8"));
        if output.status.success() {
            taken = Some((from, said));
            return true;
        }
        let declined = [
            "its outcome is not known",
            "did not take over",
            "was not heard",
            "is not caught up",
            "no other voter is caught up",
        ];
        assert!(declined.iter().any(|words| why.contains(words)), "{why}");
        say(&format!("not yet: {}", why.trim()));
        false
    });
    taken.expect("the wait is over")
}
