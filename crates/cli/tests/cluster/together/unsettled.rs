//! An operator gives a command to a leader whose followers are all stopped. The leader must not
//! report the command as done, because no quorum has it. When the followers continue, the cluster
//! serves again, and the command can be repeated.

use std::process::Output;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::support::operator::{assert_has_ended, roles};
use crate::support::{Cluster, WAIT_MAX, say, wait_until};

/// The answer that the outcome is unknown must come within this time. A change takes at most five
/// seconds; the rest is for a busy machine.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// The words with which a command says that its outcome is not known.
const NOT_KNOWN: &str = "its outcome is not known";
const MINUTE_NS: u64 = 60_000_000_000;

/// Starts a cluster with long election timeouts. Its leader keeps leading for some seconds when its
/// followers are paused.
fn cluster() -> Cluster {
    Cluster::start_with(&[("ELECTION_TIMEOUT_MS", "3000"), ("RESERVATION_MS", "12000")])
}

/// Gives a command to the leader while all other nodes are paused. The command must fail.
fn given_alone(cluster: &mut Cluster, leader: usize, args: &[&str]) -> Output {
    let others = cluster.others(leader);
    let addr = cluster.nodes[leader].http().to_string();
    let args = [args, &["--addr", &addr, "--timeout", "10s"]].concat();
    for at in &others {
        cluster.nodes[*at].pause();
    }
    let from = std::time::Instant::now();
    let output = cluster.run(&args);
    let took = from.elapsed();
    for at in &others {
        cluster.nodes[*at].resume();
    }
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{args:?} without a quorum: {output:?}");
    assert!(took < ANSWER_MAX, "it took {took:?}: {error}");
    output
}

/// Gives a command to a leader without followers, again and again, until its outcome is not known.
/// One try may not be enough: if the machine stalls, the leader first notices the silence of its
/// followers, and refuses the command.
fn unsettled(cluster: &mut Cluster, mut args: impl FnMut(&Cluster, usize) -> Vec<String>) {
    wait_until("the outcome of a command is not known", 4 * WAIT_MAX, || {
        cluster.wait_until_ready();
        let leader = cluster.wait_for_leader();
        let args = args(cluster, leader);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = given_alone(cluster, leader, &args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        say(&format!("{args:?}: {}", error.trim()));
        error.contains(NOT_KNOWN)
    });
}

#[test]
fn an_advance_without_a_quorum_is_not_reported_as_done() {
    let mut cluster = cluster();
    let mut to = String::new();
    unsettled(&mut cluster, |_, _| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is past 1970");
        to = format!("{}ns", now.as_nanos() as u64 + 5 * MINUTE_NS);
        ["clock", "advance-to", &to, "--yes"].map(str::to_owned).to_vec()
    });
    cluster.assert_well();
    // The command may be repeated.
    let said = cluster.order(&["clock", "advance-to", &to, "--yes"]);
    assert!(said.contains("from now on") || said.contains("already"), "{said}");
    cluster.assert_well();
}

#[test]
fn a_removal_without_a_quorum_is_not_reported_as_done() {
    let mut cluster = cluster();
    let mut id = 0;
    unsettled(&mut cluster, |cluster, leader| {
        id = cluster.nodes[cluster.others(leader)[0]].id;
        vec!["member".to_owned(), "remove".to_owned(), id.to_string()]
    });
    // The command is repeated. Either the removal is done already, or this repetition does it.
    let text = id.to_string();
    wait_until("the removal is done", WAIT_MAX, || {
        let output = cluster.operate(&["member", "remove", &text]);
        let error = String::from_utf8_lossy(&output.stderr);
        if error.contains("leads: hand leadership over first") {
            cluster.operate(&["leader", "transfer"]);
        }
        output.status.success()
    });
    let at = cluster.nodes.iter().position(|node| node.id == id).expect("a member");
    let mut removed = cluster.nodes.remove(at);
    assert_has_ended(&mut removed);
    cluster.assert_well();
    assert_eq!(roles(&cluster).len(), 2);
}

#[test]
fn no_command_is_reported_as_done_already_without_a_quorum() {
    let mut cluster = cluster();
    let leader = cluster.wait_for_leader();
    let id = cluster.nodes[leader].id.to_string();
    let other = cluster.nodes[cluster.others(leader)[0]].id.to_string();
    assert_eq!(
        cluster.order(&["leader", "transfer", "--to", &id]),
        format!("node {id} leads already\n")
    );
    given_alone(&mut cluster, leader, &["leader", "transfer", "--to", &id]);
    cluster.assert_well();
    let leader = cluster.wait_for_leader();
    given_alone(&mut cluster, leader, &["member", "promote", &other]);
    cluster.assert_well();
}
