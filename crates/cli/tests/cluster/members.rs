//! Members come and go by an operator's commands, under load: a dead node is replaced, a cluster
//! grows and shrinks back, and what would hurt is refused in words.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::clients::Calling;
use crate::support::{Cluster, Faults, Node, PATIENCE, Watch, holds_for, say, wait_until};
use crate::transfers::transferred;

/// The exit code of a node that was removed.
pub(crate) const EXIT_REMOVED: i32 = 3;
/// Of a node whose data directory must not be started again as it is.
pub(crate) const EXIT_DIRECTORY: i32 = 4;
/// How long a node is watched that must not serve.
const NOT_SERVING: Duration = Duration::from_secs(2);

/// Everything that `member list` tells.
pub(crate) fn list(cluster: &Cluster) -> Value {
    let text = cluster.order(&["member", "list", "--json"]);
    serde_json::from_str(&text).expect("JSON")
}

/// Ids and roles, such as `1 voter`.
pub(crate) fn roles(cluster: &Cluster) -> Vec<String> {
    let listed = list(cluster);
    let members = listed["members"].as_array().expect("members").clone();
    let role = |member: &Value| match member["role"].as_str().expect("a role") {
        "leader" => "voter".to_owned(),
        role => role.to_owned(),
    };
    members.iter().map(|member| format!("{} {}", member["nodeID"], role(member))).collect()
}

/// What `member add` is told of a node.
pub(crate) fn named(node: &Node) -> String {
    format!("{}={}", node.id, node.raft_addr())
}

/// Starts a node and makes it a voter.
pub(crate) fn admit(cluster: &mut Cluster, index: usize) {
    cluster.nodes[index].start();
    let (name, id) = (named(&cluster.nodes[index]), cluster.nodes[index].id.to_string());
    let said = cluster.order(&["member", "add", &name]);
    assert_eq!(said, format!("node {id} is a learner\n"));
    let said = cluster.order(&["member", "promote", &id, "--wait", "--timeout", "20s"]);
    assert_eq!(said, format!("node {id} is a voter\n"));
}

/// Removes a member that runs, and sees it end.
pub(crate) fn remove(cluster: &mut Cluster, index: usize) -> Node {
    let id = cluster.nodes[index].id.to_string();
    let said = cluster.order(&["member", "remove", &id]);
    assert_eq!(said, format!("node {id} is removed for ever\n"));
    let mut removed = cluster.nodes.remove(index);
    assert_has_ended(&mut removed);
    removed
}

/// A node that was removed says so and ends with a code of its own.
#[track_caller]
fn assert_has_ended(removed: &mut Node) {
    let status = removed.wait_for_exit(PATIENCE);
    let log = removed.log();
    assert_eq!(status.code(), Some(EXIT_REMOVED), "{log}");
    assert!(log.contains("removed from the cluster"), "{log}");
}

#[test]
fn a_cluster_grows_to_five_and_shrinks_back_under_load_without_a_failed_call() {
    let mut cluster = Cluster::start();
    let new = [cluster.add_joining(4, "node-4"), cluster.add_joining(5, "node-5")];
    let watch = Watch::start(&cluster);
    let calling = Calling::start(&cluster);
    for index in new {
        admit(&mut cluster, index);
    }
    cluster.wait_until_ready();
    let five: Vec<_> = (1..=5).map(|id| format!("{id} voter")).collect();
    assert_eq!(roles(&cluster), five);
    // Two of five may go.
    for index in [0, 1] {
        cluster.nodes[index].kill();
    }
    let without = Instant::now();
    watch.wait_for_service_since(without);
    for index in [0, 1] {
        cluster.nodes[index].start();
    }
    cluster.wait_until_ready();
    // Back to three, the newest among them; whoever leads hands over first.
    for id in [1, 2] {
        let leader = cluster.wait_for_leader();
        if cluster.nodes[leader].id == id {
            let text = id.to_string();
            cluster
                .assert_refused(&["member", "remove", &text], &["leads", "hand leadership over"]);
            transferred(&cluster, &["leader", "transfer"]);
        }
        let index = cluster.nodes.iter().position(|node| node.id == id).expect("a member");
        remove(&mut cluster, index);
    }
    assert_eq!(roles(&cluster), ["3 voter", "4 voter", "5 voter"]);
    assert_eq!(list(&cluster)["removed"], serde_json::json!([1, 2]));
    // It is a cluster of three now: one may go, and two may not.
    let leader = cluster.wait_for_leader();
    cluster.nodes[leader].kill();
    watch.wait_for_service_since(Instant::now());
    cluster.nodes[leader].start();
    cluster.assert_well();
    let operations = calling.finish();
    say(&format!("grown and shrunk under {} calls of the client", operations.len()));
    watch.finish_with(&operations);
}

#[test]
fn a_dead_node_is_replaced_in_three_commands_and_its_id_is_never_used_again() {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let calling = Calling::start(&cluster);
    let leader = cluster.wait_for_leader();
    let index = cluster.others(leader)[0];
    cluster.nodes[index].kill();
    let mut dead = cluster.nodes.remove(index);
    let id = dead.id.to_string();
    // One: the new machine.
    let new = cluster.add_joining(4, "node-4");
    cluster.nodes[new].start();
    // Two, three.
    let name = named(&cluster.nodes[new]);
    cluster.order(&["member", "add", &name]);
    let said = cluster.order(&["member", "promote", "4", "--remove", &id, "--wait"]);
    assert_eq!(said, format!("node 4 is a voter\nnode {id} is removed for ever\n"));
    cluster.wait_until_ready();
    assert_eq!(roles(&cluster).len(), 3);
    assert!(!roles(&cluster).iter().any(|role| role.starts_with(&id)));
    // The dead one comes back, with its disk and without.
    dead.start();
    assert_has_ended(&mut dead);
    dead.wipe();
    dead.unset("PEERS");
    dead.unset("BOOTSTRAP");
    dead.set("JOIN", cluster.nodes[0].raft_addr());
    dead.start();
    let status = dead.wait_for_exit(PATIENCE);
    assert_eq!(status.code(), Some(EXIT_REMOVED), "{}", dead.log());
    assert!(dead.log().contains("never used again") || dead.log().contains("was removed"));
    // Also when everybody has restarted since.
    calling.finish();
    cluster.kill_all();
    cluster.start_all();
    cluster.wait_until_ready();
    let name = named(&dead);
    let mut other = Node::new(dead.id, cluster.dir.path(), "other");
    other.set("JOIN", cluster.nodes[0].raft_addr());
    other.set("RAFT_ADDR", dead.raft_addr());
    other.start();
    wait_until("its id is refused", PATIENCE, || !other.is_running());
    // Nobody is there to answer, and nobody needs to be.
    let words =
        format!("node {id} cannot be added: the id was removed, and ids are never used again");
    cluster
        .assert_refused(&["member", "add", &name], &[&words, "give the new node another NODE_ID"]);
    watch.finish();
}

#[test]
fn a_learner_that_is_behind_is_not_promoted_and_it_is_said_how_far() {
    // Many reservations, so that there is something to lack.
    let settings = [("ELECTION_TIMEOUT_MS", "200"), ("RESERVATION_MS", "800")];
    let mut cluster = Cluster::start_with(&settings);
    let new = cluster.add_joining(4, "node-4");
    for (name, value) in settings {
        cluster.nodes[new].set(name, value);
    }
    cluster.nodes[new].start();
    let name = named(&cluster.nodes[new]);
    cluster.order(&["member", "add", &name]);
    cluster.assert_refused(&["leader", "transfer", "--to", "4"], &["node 4 is a learner"]);
    // The answer may have been lost: the same order again asks for what is so, and says what is next.
    let again = cluster.order(&["member", "add", &name]);
    assert!(again.contains("node 4 is a learner already; give it a vote with"), "{again}");
    let elsewhere = ["node 4 cannot", "member already, which is reached at", "another NODE_ID"];
    cluster.assert_refused(&["member", "add", "4=127.0.0.1:1"], &elsewhere);
    wait_until("it has the log", PATIENCE, || cluster.nodes[new].is_ready());
    // It is heard, and acknowledges nothing.
    cluster.nodes[new].break_with(Faults { fsync_hang: true, ..Faults::NONE });
    let promote = |cluster: &Cluster| cluster.operate(&["member", "promote", "4"]);
    wait_until("it lacks more than it may", Duration::from_mins(1), || {
        let behind = list(&cluster)["members"][3]["behind"].as_u64();
        behind.expect("how far it is behind") > 16
    });
    let output = promote(&cluster);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("not caught up: it lacks") && said.contains("committed entries"),
        "{said}"
    );
    cluster.nodes[new].break_with(Faults::NONE);
    cluster.order(&["member", "promote", "4", "--wait", "--timeout", "20s"]);
    for order in [&["member", "promote", "4"][..], &["member", "add", &name]] {
        assert_eq!(cluster.order(order), "node 4 is a voter already\n");
    }
    cluster.nodes[new].kill();
    cluster.assert_refused(&["member", "add", &name], &["a member already", "does not answer"]);
    let mut said = String::new();
    wait_until("it is missed", PATIENCE, || {
        let output = cluster.operate(&["leader", "transfer", "--to", "4"]);
        said = String::from_utf8_lossy(&output.stderr).into_owned();
        said.contains("was not heard")
    });
    // Another data directory with its id, where it was, is not taken for it.
    let mut other = Node::new(4, cluster.dir.path(), "other");
    other.set("RAFT_ADDR", cluster.nodes[new].raft_addr());
    other.set("PEERS", format!("{name},9=127.0.0.1:1"));
    other.set("BOOTSTRAP", 1);
    other.start();
    wait_until("it is known for another one", PATIENCE, || {
        let output = cluster.operate(&["member", "add", &name]);
        said = String::from_utf8_lossy(&output.stderr).into_owned();
        said.contains("another data directory") && output.status.code() == Some(1)
    });
}

#[test]
fn a_change_that_would_leave_nobody_to_answer_is_refused() {
    let mut cluster = Cluster::start();
    let leader = cluster.wait_for_leader();
    let others = cluster.others(leader);
    let id = |cluster: &Cluster, index: usize| cluster.nodes[index].id.to_string();
    let (down, alive) = (id(&cluster, others[0]), id(&cluster, others[1]));
    cluster.nodes[others[0]].kill();
    // The wrong one of the two; refused once the other one is missed.
    wait_until("the dead one is missed", PATIENCE, || {
        let listed = list(&cluster);
        let members = listed["members"].as_array().expect("members");
        members.iter().any(|member| member["heard"] == false)
    });
    cluster.assert_refused(&["member", "remove", &alive], &["1 of the 2 voters", "no majority"]);
    cluster.order(&["member", "remove", &down]);
    let mut gone = cluster.nodes.remove(others[0]);
    gone.start();
    assert_has_ended(&mut gone);
    let again = cluster.order(&["member", "remove", &down]);
    assert_eq!(again, format!("node {down} was removed already\n"));
    let replaced = cluster.order(&["member", "promote", &alive, "--remove", &down]);
    assert!(replaced.contains(&format!("node {alive} is a voter already\n")), "{replaced}");
    cluster.assert_refused(&["member", "promote", &down], &["was removed already"]);
    cluster.assert_refused(&["member", "remove", "9"], &["no such member"]);
    // Nobody is there; somebody of another cluster is there; a member is there.
    cluster.assert_refused(&["member", "add", "7=127.0.0.1:1"], &["start it first", "JOIN="]);
    let there = format!("node {} answers there", cluster.nodes[0].id);
    let other = format!("7={}", cluster.nodes[0].raft_addr());
    cluster.assert_refused(&["member", "add", &other], &[&there]);
    let mut stranger = Node::new(8, cluster.dir.path(), "stranger");
    let own = named(&stranger);
    stranger.set("PEERS", format!("{own},9=127.0.0.1:1"));
    stranger.set("BOOTSTRAP", 1);
    stranger.start();
    wait_until("the stranger waits", PATIENCE, || stranger.ask("/up").is_some());
    cluster.assert_refused(&["member", "add", &own], &["JOIN=", "instead of BOOTSTRAP"]);
    cluster.assert_well();
}

#[test]
fn a_node_that_nobody_has_added_waits_says_for_what_and_serves_nobody() {
    let mut cluster = Cluster::start();
    let new = cluster.add_joining(4, "node-4");
    cluster.nodes[new].start();
    let words = "epicepoch member add 4=";
    wait_until("it says what to do", PATIENCE, || cluster.nodes[new].log().contains(words));
    holds_for("it serves nobody", NOT_SERVING, || {
        !cluster.nodes[new].is_ready() && !cluster.nodes[new].serves()
    });
    // It may wait before the first member that it knows is up, and it may be started again.
    cluster.nodes[new].kill();
    cluster.nodes[0].kill();
    cluster.nodes[new].start();
    let_see(&cluster.nodes[new], "127.0.0.1");
    cluster.nodes[0].start();
    wait_until("the member is back", PATIENCE, || cluster.nodes[0].is_ready());
    let name = named(&cluster.nodes[new]);
    cluster.order(&["member", "add", &name]);
    cluster.wait_until_ready();
    // What it has is enough to come back by itself.
    cluster.nodes[new].kill();
    cluster.nodes[new].start();
    cluster.wait_until_ready();
    assert_eq!(roles(&cluster), ["1 voter", "2 voter", "3 voter", "4 learner"]);
}

fn let_see(node: &Node, words: &str) {
    wait_until("the log says so", PATIENCE, || node.log().contains(words));
}

/// The founding is told to a first member that comes to know nothing of it: meanwhile the members
/// change, and it must not take the members of today for those of the first entry of the log.
#[test]
fn a_first_member_that_missed_the_founding_gets_the_members_of_today() {
    let mut cluster = Cluster::down(&[]);
    let late = 2;
    cluster.nodes[late].start();
    wait_until("its directory is made", PATIENCE, || cluster.nodes[late].ask("/up").is_some());
    // It is found empty, and cannot write what it is told.
    cluster.nodes[late].break_with(Faults { fsync_hang: true, ..Faults::NONE });
    cluster.nodes[0].start();
    cluster.nodes[1].start();
    wait_until("two of three serve", PATIENCE, || cluster.nodes[..2].iter().any(Node::serves));
    cluster.nodes[late].kill();
    cluster.nodes[late].break_with(Faults::NONE);
    let new = cluster.add_joining(4, "node-4");
    admit(&mut cluster, new);
    let watch = Watch::start(&cluster);
    cluster.nodes[late].start();
    cluster.wait_until_ready();
    assert_eq!(roles(&cluster), ["1 voter", "2 voter", "3 voter", "4 voter"]);
    // Of four voters three are needed, the late one among them.
    let leader = cluster.wait_for_leader();
    let victim = (0..4).find(|index| *index != leader && *index != late).expect("another one");
    cluster.nodes[victim].kill();
    watch.wait_for_service_since(Instant::now());
    let others = cluster.others(victim);
    let id = cluster.nodes[late].id.to_string();
    if cluster.wait_for_leader() != late {
        transferred(&cluster, &["leader", "transfer", "--to", &id]);
    }
    assert!(others.contains(&cluster.wait_for_leader()));
    watch.wait_for_service_since(Instant::now());
    cluster.nodes[victim].start();
    cluster.assert_well();
    watch.finish();
}
