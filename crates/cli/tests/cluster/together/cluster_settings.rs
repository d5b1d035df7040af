//! Tests of the settings of the cluster. The first leader sets them. A command changes them under
//! load. They survive when all processes are killed.

use std::time::Instant;

use crate::support::{Calling, Campaigns, Cluster, Node, WAIT_MAX, Watch, undisturbed, wait_until};

/// Asks a node for `count` timestamps. Returns the HTTP status of its answer.
fn answer_of(node: &Node, count: u64) -> Option<u16> {
    node.ask(&format!("/timestamp?n={count}")).map(|answer| answer.status)
}

/// Asks the nodes for `count` timestamps until the leader answers. Returns the HTTP status of that
/// answer. Answers that name another node, or tell the client to wait, are skipped.
#[track_caller]
fn answered(cluster: &Cluster, count: u64) -> u16 {
    let mut judged = None;
    wait_until("a leader answers", WAIT_MAX, || {
        let answers = cluster.nodes.iter().filter_map(|node| answer_of(node, count));
        judged = answers.into_iter().find(|status| ![409, 503].contains(status));
        judged.is_some()
    });
    judged.expect("the wait is over")
}

/// Checks that the leader gives at most `count` timestamps in one answer.
#[track_caller]
fn assert_gives_at_most(cluster: &Cluster, count: u64) {
    assert_eq!([count, count + 1].map(|it| answered(cluster, it)), [200, 400]);
}

fn shows(cluster: &Cluster, line: &str) -> bool {
    let output = cluster.operate(&["settings", "list"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().any(|shown| shown == line)
}

/// Waits until every node has logged all these words. Waiting is needed because a node that is
/// ready may apply the log entry later.
#[track_caller]
fn wait_until_logged(cluster: &Cluster, words: &[&str]) {
    for node in &cluster.nodes {
        wait_until(&format!("node {} logs {words:?}", node.id), WAIT_MAX, || {
            let log = node.log();
            words.iter().all(|words| log.contains(words))
        });
    }
}

/// The first leader sets the settings of the cluster once, from its own settings. Later only a
/// command changes them.
#[test]
fn settings_of_the_cluster_are_stronger_than_those_of_a_node() {
    let mut cluster = Cluster::start_with(&[("MAX_N", "100")]);
    wait_until("they are seeded", WAIT_MAX, || shows(&cluster, "MAX_N=100"));
    let watch = Watch::start(&cluster);
    let calling = Calling::start(&cluster);
    assert_gives_at_most(&cluster, 100);
    let set = ["settings", "set", "MAX_N=300", "RESERVATION_MS=2000", "EPOCH_INTERVAL_MS=20"];
    let said = cluster.order(&set);
    for line in
        ["MAX_N=300", "RESERVATION_MS=2000", "EPOCH_INTERVAL_MS=20", "CLOCK_OFFSET_MAX_MS=500"]
    {
        assert!(said.lines().any(|shown| shown == line), "{line} in {said}");
    }
    // The command has returned, so the new value is in effect. No restart is needed.
    assert_gives_at_most(&cluster, 300);
    // A follower does not check the count, because a new value of `MAX_N` may have reached only the
    // leader.
    undisturbed(|| {
        let campaigns = Campaigns::so_far(&cluster);
        let follower = &cluster.nodes[cluster.others(cluster.wait_for_leader())[0]];
        let answers = [301, 0].map(|count| answer_of(follower, count));
        let holds = answers == [Some(409), Some(400)];
        campaigns.judge(&cluster, 0, holds, &format!("409 and 400: {answers:?}"))
    });
    // Invalid values are rejected; nothing changes.
    cluster.assert_refused(&["settings", "set", "MAX_N=0"], &["MAX_N is \"0\"", "from 1 to"]);
    cluster.assert_refused(
        &["settings", "set", "RESERVATION_MS=300"],
        &["RESERVATION_MS would be 300 with ELECTION_TIMEOUT_MS 200", "at least 800"],
    );
    let usage = cluster.operate(&["settings", "set", "ELECTION_TIMEOUT_MS=100"]);
    assert_eq!(usage.status.code(), Some(2));
    // A new leader uses the changed settings. After a power failure all nodes use them, too,
    // whatever their own settings are.
    let leader = cluster.wait_for_leader();
    cluster.nodes[leader].kill();
    assert_gives_at_most(&cluster, 300);
    cluster.kill_all();
    for node in &mut cluster.nodes {
        node.set("MAX_N", 50);
    }
    cluster.start_all();
    cluster.wait_until_ready();
    assert!(shows(&cluster, "MAX_N=300"));
    assert_gives_at_most(&cluster, 300);
    wait_until_logged(
        &cluster,
        &[
            "a setting of this node differs from the cluster's",
            "\"setting\":\"MAX_N\",\"here\":\"50\",\"cluster\":\"300\"",
        ],
    );
    cluster.assert_well();
    watch.wait_for_service_since(Instant::now());
    let operations = calling.finish();
    watch.finish_with(&operations);
}

/// All nodes restart with longer election timeouts, and nobody raises `RESERVATION_MS`. This can
/// happen in a rolling restart.
#[test]
fn a_window_too_short_for_the_election_timeouts_is_reported_and_blocks_no_other_setting() {
    let mut cluster = Cluster::start();
    wait_until("they are seeded", WAIT_MAX, || shows(&cluster, "RESERVATION_MS=1000"));
    cluster.kill_all();
    for node in &mut cluster.nodes {
        node.set("ELECTION_TIMEOUT_MS", 600);
    }
    cluster.start_all();
    cluster.wait_until_ready();
    // RESERVATION_MS still has its default, 1000 ms. That is below four election timeouts of 600
    // ms, so every node reports it. Nodes report no other setting.
    wait_until_logged(
        &cluster,
        &[
            "is below four ELECTION_TIMEOUT_MS of this node",
            "epicepoch settings set RESERVATION_MS=3000",
        ],
    );
    let said = String::from_utf8(cluster.operate(&["tune"]).stdout).expect("UTF-8");
    assert!(said.contains("epicepoch settings set RESERVATION_MS=3000"), "{said}");
    cluster.order(&["settings", "set", "MAX_N=300"]);
    let less = ["settings", "set", "RESERVATION_MS=1001"];
    cluster.assert_refused(&less, &["RESERVATION_MS would be 1001", "at least 2400"]);
    cluster.order(&["settings", "set", "RESERVATION_MS=3000"]);
    assert!(shows(&cluster, "MAX_N=300") && shows(&cluster, "RESERVATION_MS=3000"));
    cluster.assert_well();
}

#[test]
fn settings_wait_for_the_last_node_that_does_not_know_them() {
    let mut cluster = Cluster::down(&[]);
    cluster.nodes[1].set("FORMAT_MAX", 2);
    cluster.start_all();
    cluster.wait_until_ready();
    let refused = ["settings", "set", "MAX_N=300"];
    cluster.assert_refused(&refused, &["settings are in it from format 3 on", "member list"]);
    let listed = cluster.order(&["settings", "list"]);
    assert!(listed.contains("no settings in its state"), "{listed}");
    assert_eq!(cluster.nodes[1].terminate().code(), Some(0));
    cluster.nodes[1].unset("FORMAT_MAX");
    cluster.nodes[1].start();
    wait_until("they are seeded", WAIT_MAX, || shows(&cluster, "MAX_N=65536"));
    cluster.order(&refused);
    assert!(shows(&cluster, "MAX_N=300"));
    cluster.assert_well();
}
