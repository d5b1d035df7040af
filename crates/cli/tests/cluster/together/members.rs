//! An operator's commands add and remove members under load. A dead node is replaced; a cluster
//! grows and shrinks. Harmful changes are refused with a reason.

use std::time::{Duration, Instant};

use crate::support::operator::{
    EXIT_REMOVED, admit, assert_has_ended, list, named, remove, roles, transferred,
};
use crate::support::{Calling, Cluster, Faults, Node, WAIT_MAX, Watch, holds_for, say, wait_until};

/// A node that must not serve is watched for this long.
const NOT_SERVING: Duration = Duration::from_secs(2);

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
    // The cluster has five members now, so it serves without two of them.
    for index in [0, 1] {
        cluster.nodes[index].kill();
    }
    let without = Instant::now();
    watch.wait_for_service_since(without);
    for index in [0, 1] {
        cluster.nodes[index].start();
    }
    cluster.wait_until_ready();
    // Nodes 1 and 2 are removed, so the new nodes are two of the three that stay. A leader cannot
    // be removed: if one of the two leads, it first hands leadership over.
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
    // The cluster has three members now, so it serves without one of them.
    let leader = cluster.wait_for_leader();
    cluster.nodes[leader].kill();
    watch.wait_for_service_since(Instant::now());
    cluster.nodes[leader].start();
    cluster.assert_well();
    let operations = calling.finish();
    say(&format!("grown and shrunk during {} calls of the client", operations.len()));
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
    // The replacement has three steps: start the new node, add it, and promote it in place of the
    // dead node.
    let new = cluster.add_joining(4, "node-4");
    cluster.nodes[new].start();
    let name = named(&cluster.nodes[new]);
    cluster.order(&["member", "add", &name]);
    let said = cluster.order(&["member", "promote", "4", "--remove", &id, "--wait"]);
    assert_eq!(said, format!("node 4 is a voter\nnode {id} is removed for ever\n"));
    cluster.wait_until_ready();
    assert_eq!(roles(&cluster).len(), 3);
    assert!(!roles(&cluster).iter().any(|role| role.starts_with(&id)));
    // The dead node comes back, first with its data directory, then without it. Each time it is
    // refused and ends.
    dead.start();
    assert_has_ended(&mut dead);
    dead.wipe();
    dead.unset("PEERS");
    dead.unset("BOOTSTRAP");
    dead.set("JOIN", cluster.nodes[0].raft_addr());
    dead.start();
    let status = dead.wait_for_exit(WAIT_MAX);
    assert_eq!(status.code(), Some(EXIT_REMOVED), "{}", dead.log());
    assert!(dead.log().contains("never used again") || dead.log().contains("was removed"));
    // All nodes restart. They still refuse the dead node, because its removal is on their disks.
    calling.finish();
    cluster.kill_all();
    cluster.start_all();
    cluster.wait_until_ready();
    let name = named(&dead);
    let mut other = Node::new(dead.id, cluster.dir.path(), "other");
    other.set("JOIN", cluster.nodes[0].raft_addr());
    other.set("RAFT_ADDR", dead.raft_addr());
    other.start();
    wait_until("its id is refused", WAIT_MAX, || !other.is_running());
    // The removed node does not run. A command to add it again is refused all the same.
    let words =
        format!("node {id} cannot be added: the id was removed, and ids are never used again");
    cluster
        .assert_refused(&["member", "add", &name], &[&words, "give the new node another NODE_ID"]);
    watch.finish();
}

#[test]
fn a_learner_that_is_behind_is_not_promoted_and_the_operator_is_told_how_far() {
    // Reservations are frequent, so that a learner that acknowledges nothing soon lacks many
    // entries.
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
    // An operator who has not seen the answer gives the same command again. It reports that the
    // node is a learner already, and names the next step.
    let again = cluster.order(&["member", "add", &name]);
    assert!(again.contains("node 4 is a learner already; give it a vote with"), "{again}");
    let elsewhere = ["node 4 cannot", "has this id already", "another NODE_ID"];
    cluster.assert_refused(&["member", "add", "4=127.0.0.1:1"], &elsewhere);
    wait_until("it has the log", WAIT_MAX, || cluster.nodes[new].is_ready());
    // The learner's disk hangs. So the leader still hears the learner, but the learner acknowledges
    // no entry.
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
    wait_until("it is missed", WAIT_MAX, || {
        let output = cluster.operate(&["leader", "transfer", "--to", "4"]);
        said = String::from_utf8_lossy(&output.stderr).into_owned();
        said.contains("was not heard")
    });
    // Another node is started with the same id and address but another data directory. The cluster
    // must notice that it is not the same node.
    let mut other = Node::new(4, cluster.dir.path(), "other");
    other.set("RAFT_ADDR", cluster.nodes[new].raft_addr());
    other.set("PEERS", format!("{name},9=127.0.0.1:1"));
    other.set("BOOTSTRAP", 1);
    other.start();
    wait_until("it is recognized as another node", WAIT_MAX, || {
        let output = cluster.operate(&["member", "add", &name]);
        said = String::from_utf8_lossy(&output.stderr).into_owned();
        said.contains("another data directory") && output.status.code() == Some(1)
    });
}

#[test]
fn a_change_that_would_leave_no_quorum_is_refused() {
    let mut cluster = Cluster::start();
    let leader = cluster.wait_for_leader();
    let others = cluster.others(leader);
    let id = |cluster: &Cluster, index: usize| cluster.nodes[index].id.to_string();
    let (down, alive) = (id(&cluster, others[0]), id(&cluster, others[1]));
    cluster.nodes[others[0]].kill();
    // One of the followers is dead. When the leader has noticed that, a command to remove the other
    // follower is refused.
    wait_until("the dead one is missed", WAIT_MAX, || {
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
    // Three commands are refused: at the given address there is no node, or a member of this
    // cluster, or a node of another cluster.
    cluster.assert_refused(&["member", "add", "7=127.0.0.1:1"], &["start it first", "JOIN="]);
    let there = format!("node {} answers there", cluster.nodes[0].id);
    let other = format!("7={}", cluster.nodes[0].raft_addr());
    cluster.assert_refused(&["member", "add", &other], &[&there]);
    let mut stranger = Node::new(8, cluster.dir.path(), "stranger");
    let own = named(&stranger);
    stranger.set("PEERS", format!("{own},9=127.0.0.1:1"));
    stranger.set("BOOTSTRAP", 1);
    stranger.start();
    wait_until("the stranger waits", WAIT_MAX, || stranger.ask("/up").is_some());
    cluster.assert_refused(&["member", "add", &own], &["JOIN=", "instead of BOOTSTRAP"]);
    cluster.assert_well();
}

#[test]
fn a_node_that_was_not_added_waits_logs_the_command_and_does_not_serve() {
    let mut cluster = Cluster::start();
    let new = cluster.add_joining(4, "node-4");
    cluster.nodes[new].start();
    let words = "epicepoch member add 4=";
    wait_until("it logs what to do", WAIT_MAX, || cluster.nodes[new].log().contains(words));
    holds_for("it does not serve", NOT_SERVING, || {
        !cluster.nodes[new].is_ready() && !cluster.nodes[new].serves()
    });
    // The new node knows only one member. It is started while that member is down, and is
    // restarted.
    cluster.nodes[new].kill();
    cluster.nodes[0].kill();
    cluster.nodes[new].start();
    wait_until("it names the member", WAIT_MAX, || cluster.nodes[new].log().contains("127.0.0.1"));
    cluster.nodes[0].start();
    wait_until("the member is back", WAIT_MAX, || cluster.nodes[0].is_ready());
    let name = named(&cluster.nodes[new]);
    cluster.order(&["member", "add", &name]);
    cluster.wait_until_ready();
    // The new node has joined. Now it can restart while the member that it knew is down.
    cluster.nodes[new].kill();
    cluster.nodes[new].start();
    cluster.wait_until_ready();
    assert_eq!(roles(&cluster), ["1 voter", "2 voter", "3 voter", "4 learner"]);
}
